// The resource manager as a pure state machine: membership, slices, leases, the queue. It keeps nothing on disk: after
// a restart it learns everything from the reports of workers and proxies during one start window (leases.md).
//
//   Lease of a slice:  free --offer--> offering --all members active--> telling --holder announces it--> granted
//                       ^                  |  too long                     |  too long                     |
//                       +------------------+-------------------------------+-- a member or the holder <----+
//                                                                             no longer announces it
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "base/time.h"
#include "cluster/grant.h"
#include "cluster/lease_times.h"
#include "nlohmann/json.hpp"
#include "resource_manager/instance_type.h"

namespace landbridge {

// Of resource managers, one after the other; a report of a higher one is malformed.
constexpr uint64_t kGenerationsMax = uint64_t{1} << 40;

// Records what to do; never calls back into the core.
class ResourceManagerSink {
 public:
  virtual ~ResourceManagerSink() = default;
  // Dropped when there is no link to that process (it is repeated).
  virtual void SendToMember(Incarnation incarnation, MemberUpdate update) = 0;
  virtual void SendToHolder(ProxyLife life, HolderUpdate update) = 0;
  virtual void Log(const std::string& line) = 0;  // something an operator wants to know
};

struct ResourceManagerOptions {
  InstanceType type;
  int slice_count = 1;
  LeaseTimes times;
  std::string cluster_secret;  // the same in every life of the RM; signs stamps, makes grants' secrets
  std::string version;
  uint64_t life = 1;  // random, for each life
};

// Thread-safety: one thread. Events come with the time of one monotonic clock, in that order; ticks every
// TickPeriod(times).
class ResourceManagerCore {
 public:
  ResourceManagerCore(ResourceManagerOptions options, ResourceManagerSink* sink, TimeNs now);
  ~ResourceManagerCore();
  ResourceManagerCore(const ResourceManagerCore&) = delete;
  ResourceManagerCore& operator=(const ResourceManagerCore&) = delete;

  // INVALID_ARGUMENT: a malformed report; close the connection. Nothing else was disturbed.
  absl::Status OnMemberReport(const MemberReport& report, TimeNs now);
  absl::Status OnHolderReport(const HolderReport& report, TimeNs now);
  // The link broke. That alone is no death.
  void OnMemberGone(Incarnation incarnation, TimeNs now);
  void OnHolderGone(ProxyLife life, TimeNs now);
  void OnTick(TimeNs now);

  // For people: workers, slices, leases, queue.
  nlohmann::json StatusJson(TimeNs now) const;

  // --- For metrics, tests and the simulator.
  struct Counts {
    int workers = 0, proxies = 0, slices_free = 0, slices_leased = 0, slices_broken = 0, requests_waiting = 0;
    int64_t grants = 0, revocations = 0, workers_lost = 0;
  };
  Counts counts(TimeNs now) const;
  uint64_t term() const { return term_; }
  bool settled() const { return settled_; }
  // Members by index; 0: vacant.
  const std::vector<Incarnation>& members(int slice) const { return slices_[static_cast<size_t>(slice)].members; }
  std::optional<Grant> lease(int slice) const;

 private:
  struct ReportedLease {
    Grant grant;
    ProxyLife holder;
    uint64_t request = 0;
    int32_t virtual_slice = 0;
    bool active = false;
    bool renewed = false;
    TimeNs last_renewal = 0;  // on our clock; late by the report's delay
  };
  struct Worker {
    Incarnation id;
    WorkerInfo info;
    bool know_info = false;
    bool linked = true;
    bool placed = false;
    bool replaced = false;
    bool dirty = false;
    bool forming = false;
    int slice = 0, index = 0;
    std::optional<std::pair<int, int>> contested;  // slice and index: a claim that is judged when the window is over
    uint64_t last_report = 0;
    uint64_t promised = 0;
    TimeNs last_heard = 0, last_sent = 0;
    std::string draining, refused;
    std::map<int, ReportedLease> leases;  // by slice
    std::map<int, GrantNumber> ended;
  };
  struct Lease {
    enum class Phase { kOffering, kTelling, kGranted };
    Grant grant;
    ProxyLife holder;
    uint64_t request = 0;
    int32_t virtual_slice = 0;
    Phase phase = Phase::kOffering;
    TimeNs since = 0;             // of the phase
    TimeNs memberless_since = 0;  // 0: some member is there
  };
  struct Slice {
    std::vector<Incarnation> members;
    std::optional<Lease> lease;
    GrantNumber revoked;  // every grant up to it has ended
  };
  struct Request {
    std::optional<StampProto> stamp;  // valid
    uint64_t arrival = 0;
    SliceRequest report;
    std::vector<std::string> waits_for;
  };
  struct Proxy {
    ProxyLife life;
    HolderReport report;  // newest
    uint64_t last_report = 0;
    uint64_t promised = 0;
    bool linked = true;
    bool dirty = true;
    std::string refused;
    TimeNs last_heard = 0, last_sent = 0;
    std::map<uint64_t, Request> requests;
  };

  // --- Time and terms (resource_manager_core.cc).
  void Observe(TimeNs now);
  static bool Possible(uint64_t term);
  void NewTerm(uint64_t above, const std::string& why, TimeNs now);
  void NoteTerm(uint64_t reported, TimeNs now);  // goes above terms of other lives of the RM
  void Settle(TimeNs now);
  void EndOfEvent(TimeNs now, bool tick = false);
  bool LeavesAllToTicks() const;  // what costs the more the more slices there are
  void Flush(TimeNs now, bool periodic);
  void MarkDirty(Worker& worker);
  MemberUpdate MakeMemberUpdate(const Worker& worker) const;
  HolderUpdate MakeHolderUpdate(const Proxy& proxy) const;
  void DescribeDevices(HolderUpdate& update) const;
  void TellFormation(const Slice& slice, MemberUpdate& update) const;

  // --- Members (members.cc).
  absl::Status CheckMemberReport(const MemberReport& report) const;
  std::string WhyRefused(const WorkerInfo& info) const;
  void TakeNewFacts(Worker& worker, const MemberReport& report);
  void RemoveWorker(Incarnation id, const std::string& why);
  void Retire(Incarnation id);
  void ClaimPlace(Worker& worker, int slice, int index);
  void JudgeClaims();
  void Replace(Worker& worker, Incarnation by, int slice, int index);
  bool HolderNames(int slice, int index, Incarnation id) const;
  void PlaceWorkers(TimeNs now);
  void FillPlaces(bool wished, std::vector<Worker*>& spares);
  Worker* Find(Incarnation id);
  const Worker* Find(Incarnation id) const;
  bool Current(const Worker& worker, TimeNs now) const;  // heard lately, under this term, and usable
  void MarkSlice(int slice);                             // its members and holder get an update

  // --- Leases and queue (leases.cc).
  bool Genuine(const Grant& grant) const;  // made with this cluster's secret
  std::string SecretOf(int slice, GrantNumber number) const;
  std::string SignatureOf(ProxyLife life, uint64_t request, uint64_t term, uint64_t count) const;
  void Adopt(int slice, const Grant& grant, ProxyLife holder, uint64_t request, int32_t virtual_slice, TimeNs now);
  void Revoke(int slice, const std::string& why);
  void SetLease(int slice, Lease lease);
  void EndLease(int slice);
  void Judge(int slice, TimeNs now);
  void JudgeHolder(int slice, TimeNs now);
  void StampRequests();
  void ServeQueue(TimeNs now);
  int FindFreeSlice(int only, TimeNs now) const;  // only: that one, -1: any. Result -1: none
  const Lease* LeaseOf(ProxyLife life, uint64_t request, int32_t virtual_slice, int* slice) const;
  bool HolderAnnounces(const Proxy& proxy, const Lease& lease) const;
  TimeNs LastRenewal(int slice) const;
  Proxy* Find(ProxyLife life);
  const Proxy* Find(ProxyLife life) const;
  bool Current(const Proxy& proxy, TimeNs now) const;

  const ResourceManagerOptions options_;
  ResourceManagerSink* const sink_;
  const DurationNs silence_;  // after it a process counts as gone

  std::vector<Slice> slices_;
  // Slices leased to (proxy, request, virtual slice): one, but for moments.
  std::map<std::tuple<ProxyLife, uint64_t, int32_t>, std::set<int>> leased_;
  std::map<Incarnation, Worker> workers_;
  std::vector<Incarnation> dirty_workers_;  // linked ones that get an update at the end of this event
  std::map<ProxyLife, Proxy> proxies_;
  std::set<Incarnation> retired_;          // lives that another one has replaced
  std::deque<Incarnation> retired_order_;  // oldest first
  uint64_t term_ = 0;
  bool settled_ = false;  // the start window is over
  TimeNs window_end_ = 0;
  uint64_t grant_count_ = 0, stamp_count_ = 0, update_number_ = 0, arrivals_ = 0;
  TimeNs last_event_ = 0;
  bool changed_ = true;  // placing and the queue have to be looked at
  Counts totals_;
};

}  // namespace landbridge
