// A proxy's part of membership and leases as a pure state machine: asks the RM for virtual slices, keeps their grants
// alive by heartbeats to the members, and says which members are up or lost.
//
// Events come with the time of this process's monotonic clock, in that order; ticks every TickPeriod(times).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/time.h"
#include "cluster/grant.h"
#include "cluster/lease_times.h"

namespace landbridge {

// The fleet as the RM declares it: topology is known before anything is placed.
struct Fleet {
  std::string slice_type;  // "cpu:4"
  int slice_count = 0;
  int workers_per_slice = 0;
  int devices_per_worker = 0;
  std::string platform = "cpu";
  // As the workers report them. Empty while no worker has.
  std::string device_kind;
  std::vector<std::string> memory_kinds;
  friend bool operator==(const Fleet&, const Fleet&) = default;
};

// Which virtual slice. `request` is what Request returned.
struct VirtualSlice {
  uint64_t request = 0;
  int index = 0;
  friend auto operator<=>(const VirtualSlice&, const VirtualSlice&) = default;
};

struct MemberRef {
  VirtualSlice slice;
  int index = 0;  // of the worker in its slice
  Incarnation incarnation;
  Grant grant;
};

// Records what to do; never calls back into the core.
class HolderLeaseSink {
 public:
  virtual ~HolderLeaseSink() = default;

  virtual void SendReport(HolderReport report) = 0;  // to the RM; drop it when not connected
  virtual void FleetKnown(const Fleet& fleet) = 0;   // first time, and when it changes
  virtual void Refused(const std::string& why) = 0;  // by the RM, e.g. another version

  // The slice is granted; its members follow with ConnectMember.
  virtual void SliceBound(VirtualSlice slice, const Grant& grant, int workers) = 0;
  // The grant has ended (all its members were reported lost before). The request stays queued.
  virtual void SliceLost(VirtualSlice slice, const Grant& grant, const absl::Status& why) = 0;

  // Keep a control connection to the member: send ControlHello (received = applied reports of this stream), answer
  // with OnMemberRefused / OnMemberWelcome; connect again (with back-off) when it breaks, until DisconnectMember.
  virtual void ConnectMember(const MemberRef& member, const WorkerInfo& info) = 0;
  // Drop the connection and the stream's replay buffer: the member is lost or given back.
  virtual void DisconnectMember(const MemberRef& member) = 0;
  // First welcome of this member: the controller may use it.
  virtual void MemberUp(const MemberRef& member, const WorkerInfo& info) = 0;
  // Only for members that were up. `why` is DATA_LOSS and names slice, worker, incarnation and reason. Comes
  // after DisconnectMember.
  virtual void MemberLost(const MemberRef& member, const absl::Status& why) = 0;
  virtual void MemberDraining(const MemberRef& member, const std::string& reason) = 0;
  // On the member's control connection, outside the sequence.
  virtual void SendHeartbeat(const MemberRef& member, uint64_t number, int64_t sent_ns, int64_t echo_ns) = 0;
};

// Thread-safety: one thread.
class HolderLease {
 public:
  HolderLease(ProxyLife self, LeaseTimes times, HolderLeaseSink* sink);

  // What the report says about this process (version, host, pid, address).
  void SetInfo(const HolderReport& info) { info_ = info; }

  // --- The owner's wishes.
  // Asks for slices of these types ("cpu:4"; a type that the RM does not have is never placed and waits_for says
  // so). Empty: every slice of the RM, as soon as the fleet is known.
  uint64_t Request(std::vector<std::string> types, TimeNs now);
  // Gives slices back; members are disconnected without MemberLost.
  void Release(VirtualSlice slice, TimeNs now);
  void ReleaseRequest(uint64_t request, TimeNs now);
  void OnLeaving(TimeNs now);  // everything; the last report

  // --- Resource manager.
  void OnRmConnected(TimeNs now);
  void OnUpdate(const HolderUpdate& update, TimeNs now);

  // --- Members. Events for members that are not current are ignored.
  void OnMemberWelcome(const MemberRef& member, const ControlWelcome& welcome, TimeNs now);
  // Messages to a member that was welcomed may leave now: its first heartbeat does.
  void OnMemberReady(const MemberRef& member, TimeNs now);
  // The machine answered that nobody listens (IsConnectionRefused): the process is dead. Not for other failures:
  // a broken stream is not a dead worker.
  void OnMemberRefused(const MemberRef& member, TimeNs now);
  // Control connection is gone (heartbeats cannot be sent).
  void OnMemberDisconnected(const MemberRef& member, TimeNs now);
  // A heartbeat of the worker: its own sent_ns.
  void OnMemberHeartbeat(const MemberRef& member, int64_t sent_ns, TimeNs now);
  // The worker says that our grant has ended there.
  void OnMemberFenced(const MemberRef& member, TimeNs now);

  void OnTick(TimeNs now);

  // --- For status and tests.
  struct MemberView {
    MemberRef ref;
    WorkerInfo info;
    bool up = false;
    bool connected = false;
    TimeNs last_heard = 0;
  };
  struct SliceView {
    VirtualSlice slice;
    std::string type;
    std::optional<Grant> grant;
    bool released = false;
    std::string waits_for;
    std::vector<MemberView> members;  // one per index when bound; incarnation 0: none
  };
  std::vector<SliceView> slices() const;
  // Members that are wanted (one at least of a slice that is not placed), and those of them that are up.
  struct MemberCounts {
    int wanted = 0;
    int up = 0;
  };
  MemberCounts member_counts() const;
  const std::optional<Fleet>& fleet() const { return fleet_; }
  // Why the resource manager does not take this proxy; empty: it does, or has not said.
  const std::string& refused() const { return refused_; }
  uint64_t promised_term() const { return promised_term_; }

 private:
  struct Member {
    Incarnation incarnation;
    WorkerInfo info;
    bool up = false;         // welcomed once
    bool connected = false;  // welcomed on the present connection
    bool heartbeat_due = false;
    bool lost = false;  // this incarnation never returns under this grant
    std::string draining;
    TimeNs last_heard = 0;
    TimeNs last_sent = 0;  // heartbeat
    int64_t echo_ns = 0;
    uint64_t heartbeat_number = 0;
  };
  struct Slice {
    std::string type;
    bool released = false;
    std::optional<Grant> grant;
    GrantNumber bar;               // grants up to it are over for this virtual slice
    uint64_t announced_since = 0;  // first report number that carries the grant
    std::string waits_for;
    std::vector<Member> members;
    // Lives that were lost under the grant: they never return under it, even when an RM that has just started names one
    // that woke up in a place that another worker has got meanwhile.
    std::set<Incarnation> gone;
  };
  struct RequestState {
    uint64_t id = 0;
    bool all = false;  // types come with the fleet
    std::optional<StampProto> stamp;
    std::vector<Slice> slices;
  };

  void Observe(TimeNs now);
  Slice* Find(VirtualSlice ref);
  Member* Find(const MemberRef& ref);
  MemberRef RefOf(VirtualSlice ref, const Slice& slice, int index) const;
  void SendHeartbeat(VirtualSlice ref, Slice& slice, int index, TimeNs now);
  void LoseMember(VirtualSlice ref, Slice& slice, int index, const std::string& reason, TimeNs now);
  void LoseSlice(VirtualSlice ref, Slice& slice, const std::string& reason, TimeNs now);
  void DropSlice(VirtualSlice ref, Slice& slice);
  void ApplySlice(VirtualSlice ref, Slice& slice, const VirtualSliceUpdate& update, const HolderUpdate& whole,
                  TimeNs now);
  void Report(TimeNs now);
  void ReportIfDirty(TimeNs now);

  const ProxyLife self_;
  const LeaseTimes times_;
  HolderLeaseSink* const sink_;
  HolderReport info_;

  std::map<uint64_t, RequestState> requests_;
  uint64_t next_request_ = 1;
  std::optional<Fleet> fleet_;
  // Machines refused: told to the RM while it still lists them. Value: the first report that says so.
  std::map<Incarnation, uint64_t> dead_;
  uint64_t promised_term_ = 0;
  uint64_t rm_number_ = 0;
  bool leaving_ = false;
  std::string refused_;

  uint64_t report_number_ = 0;
  TimeNs last_report_ = 0;
  bool dirty_ = true;
  TimeNs last_event_ = 0;
};

}  // namespace landbridge
