// A worker's part of membership and leases as a pure state machine: which grants it holds, whom it lets in, when it
// fences itself. The RM decides who may hold; this class enforces.
//
// Events come with the time of this process's monotonic clock and must arrive in that order. Ticks come every
// TickPeriod(times). A gap between two events above PauseThreshold(times) is taken as a pause of this process.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/time.h"
#include "cluster/grant.h"
#include "cluster/lease_times.h"

namespace landbridge {

// Records what to do; never calls back into the core.
class WorkerLeaseSink {
 public:
  virtual ~WorkerLeaseSink() = default;

  // To the RM; drop it when there is no connection (it repeats itself).
  virtual void SendReport(MemberReport report) = 0;
  // The grant is acknowledged: its holder may come in (OnHello accepts it from here on).
  virtual void Activated(const Grant& grant, ProxyLife holder) = 0;
  // The grant has ended here, for ever. Close its control stream, drop its queued work and its replay buffers, free
  // its buffers; call OnOldWorkEnded(slice) when nothing handed to the plugin or the data plane can act any more.
  virtual void Fence(const Grant& grant, const absl::Status& why) = 0;
  // Only a new life helps: work that does not end, or another life has taken the place. Exit soon.
  virtual void RestartProcess(const std::string& why) = 0;
  // The RM does not take this worker (version, devices, ...). It may after a change of the RM: stay connected.
  virtual void Refused(const std::string& why) = 0;
  virtual void Placed(PhysicalSliceId slice, int index) = 0;
  // All members of its slice, when all are there, and again when they are others. For workers that make their clients together.
  virtual void FormationKnown(const std::vector<FormationMember>& members) { (void)members; }
};

// Thread-safety: one thread.
class WorkerLease {
 public:
  WorkerLease(Incarnation self, WorkerInfo info, LeaseTimes times, WorkerLeaseSink* sink);

  // --- Resource manager.
  void OnRmConnected(TimeNs now);
  void OnRmDisconnected(TimeNs now);
  void OnUpdate(const MemberUpdate& update, TimeNs now);

  // --- Holder. Decides about a control connection; on refusal NONE the caller fills in `received` and continues
  // the stream of (hello.life, grant) or opens it.
  ControlWelcome OnHello(const ControlHello& hello, TimeNs now);
  // A heartbeat of the holder on the stream of `grant`. `echo_ns`: this process's time of sending of the newest of
  // our heartbeats that the holder had seen (0: none). Renews the lease, unless the holder may have sent it before
  // our last pause. False: the grant has ended here; the peer is to be told.
  bool OnHolderHeartbeat(const Grant& grant, int64_t echo_ns, TimeNs now);
  // Everything that the fenced holder handed to plugin and data plane has ended. One call per Fence.
  void OnOldWorkEnded(PhysicalSliceId slice, TimeNs now);

  // --- This process.
  // Before the first event: the devices are not there yet, so no grant can be taken. Until OnFormed, with what is known then.
  void SetForming() { forming_ = true; }
  void OnFormed(WorkerInfo info, TimeNs now);
  void OnDrain(const std::string& reason, TimeNs now);  // no new grants; the holder is told through the RM
  void OnLeaving(TimeNs now);                           // last report
  void OnTick(TimeNs now);

  // Whether the holder's messages under this grant are to be obeyed now. Checks the time first.
  bool Holds(const Grant& grant, TimeNs now);

  // --- For status and tests.
  struct LeaseView {
    Grant grant;
    ProxyLife holder;
    bool active = false;
    bool renewed = false;
    TimeNs deadline = 0;  // the worker fences itself then; 0: not active
  };
  std::vector<LeaseView> leases() const;
  uint64_t promised_term() const { return promised_term_; }
  bool placed() const { return placed_; }
  PhysicalSliceId slice() const { return slice_; }
  int index() const { return index_; }
  bool draining() const { return !draining_.empty(); }
  bool old_work_pending(PhysicalSliceId slice) const;

 private:
  struct Held {
    Grant grant;
    ProxyLife holder;
    uint64_t request = 0;
    int32_t virtual_slice = 0;
    bool active = false;
    bool renewed = false;
    TimeNs last_renewal = 0;
    TimeNs deadline = 0;
  };
  struct SliceState {
    GrantNumber bar;  // highest number ever accepted or revoked here
    std::optional<Held> held;
    int old_work = 0;  // fences not yet answered by OnOldWorkEnded
    TimeNs old_work_since = 0;
  };

  void Observe(TimeNs now);  // first thing in every event: pauses, expiry
  void FenceSlice(SliceState& state, const absl::Status& why, TimeNs now);
  void TryActivate(SliceState& state, TimeNs now);
  void TakeFormation(const MemberUpdate& update);
  void Report(TimeNs now);
  void ReportIfDirty(TimeNs now);

  const Incarnation self_;
  WorkerInfo info_;
  const LeaseTimes times_;
  WorkerLeaseSink* const sink_;

  std::map<PhysicalSliceId, SliceState> slices_;
  uint64_t promised_term_ = 0;
  uint64_t rm_number_ = 0;  // newest update seen in promised_term_
  bool rm_knows_info_ = false;
  bool rm_connected_ = false;
  bool placed_ = false;
  PhysicalSliceId slice_;
  int index_ = 0;
  bool forming_ = false;
  std::vector<FormationMember> formation_;  // as last told
  std::string draining_;
  std::string refused_;
  bool leaving_ = false;
  bool restart_asked_ = false;

  uint64_t report_number_ = 0;
  TimeNs last_report_ = 0;
  bool dirty_ = true;
  TimeNs last_event_ = 0;
  TimeNs resumed_at_ = 0;  // end of the last pause
};

}  // namespace landbridge
