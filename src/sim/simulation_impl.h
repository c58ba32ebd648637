// One run: all processes of a cluster, their connections, faults and clients, in virtual time. Split over
// simulation.cc (the run), simulation_processes.cc (processes, connections, faults), simulation_spans.cc (what workers tell
// each other), simulation_clients.cc (what clients do and whether the answers are right).
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/simulation.h"

namespace landbridge::sim {

// Whether the codes of this run's faults explain an error.
struct Blame {
  std::set<int> slices;   // of the array and of all it was made from
  bool may_fail = false;  // a launch or load that can be made to fail is among them
  bool spans = false;     // a launch over several workers is among them
};

struct ArrayState {
  ArrayId id;
  Content expected;  // global
  Blame blame;
  int layout = 0;  // see Layouts
  int slice = 0;
  bool deleted = false;
};

struct Program {
  ExecutableId id;
  int slice = 0;
  int layout = 0;
  int arity = 1;
  bool donates = false;
  uint64_t constant = 0;
};

class Simulation : private Fabric, private ControllerSink, private HolderLeaseSink, private ResourceManagerSink {
 public:
  Simulation(uint64_t seed, const Knobs& knobs)
      : world_(seed),
        knobs_(knobs),
        controller_(ControllerOptions(knobs), this),
        holder_(ProxyLife(77), LeaseTimes{}, this) {}

  Outcome Run();
  void TraceTo(std::function<void(const std::string&)> trace) { world_.TraceTo(std::move(trace)); }

 private:
  struct Connection {  // proxy <-> member
    MemberRef ref;
    bool wanted = true;
    bool up = false;    // the worker has welcomed us
    bool open = false;  // and we know it
    uint64_t epoch = 0;
    TimeNs to_worker_at = 0, to_proxy_at = 0;  // deliveries stay in order
  };
  struct Member {
    MemberRef ref;
    WorkerStream stream;
  };
  struct Request {
    bool read = false;
    ArrayState array;  // as it was
    int session = 0;
    int answers = 0;
  };
  struct Client {
    SessionId id;
    std::vector<ArrayState> arrays;
    std::vector<Program> programs;
    int steps_left = 0;
    bool open = true;
  };

  // --- Fabric
  const Content* HostBytes(uint64_t key) override {
    auto it = host_bytes_.find(key);
    return it == host_bytes_.end() ? nullptr : &it->second;
  }
  SimWorker* WorkerOf(Incarnation incarnation) override {
    auto it = workers_.find(incarnation);
    return it == workers_.end() ? nullptr : it->second.get();
  }
  void ToProxy(Incarnation from, const Grant& grant, std::string frame) override;
  void ReportToRm(Incarnation from, MemberReport report) override;
  void WorkerRestarts(Incarnation who, const std::string& why) override;
  void CloseConnection(Incarnation from, const Grant& grant) override;
  void PullStarted(Incarnation source, Incarnation target) override;
  void Mail(Incarnation from, const Grant& grant, Incarnation to, std::string mail) override;
  void MeetSpan(uint64_t space, int parts, Incarnation who, std::function<void()> met) override;
  void LeaveSpan(uint64_t space, Incarnation who) override;
  void SpanInLog(Incarnation who, const Grant& grant, uint32_t device, uint64_t number) override;
  void SpanPartEnded(uint64_t number, const SpanPart& part) override { gangs_[number].push_back(part); }

  // --- ControllerSink
  void SendToWorker(Incarnation worker, WorkerOp op) override;
  void Resolve(RequestId request, const absl::Status& status) override;
  void ResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override;
  void ResolveExplain(RequestId, std::string) override {}
  void ServeHostBuffer(uint64_t, std::vector<Incarnation>) override {}
  void WantHostBytes(uint64_t key) override;
  void DropHostBuffer(uint64_t key) override;
  void ServeExecutable(Incarnation, ExecutableId, std::shared_ptr<const std::string>) override {}
  void StopServingExecutable(Incarnation, ExecutableId) override {}
  void PauseSession(SessionId, bool) override {}

  // --- HolderLeaseSink
  void SendReport(HolderReport report) override;
  void FleetKnown(const Fleet& fleet) override;
  void Refused(const std::string& why) override { world_.Violation("the proxy was refused: " + why); }
  void SliceBound(VirtualSlice, const Grant&, int) override {}
  void SliceLost(VirtualSlice, const Grant&, const absl::Status&) override {}
  void ConnectMember(const MemberRef& member, const WorkerInfo& info) override;
  void DisconnectMember(const MemberRef& member) override;
  void MemberUp(const MemberRef& member, const WorkerInfo& info) override;
  void MemberLost(const MemberRef& member, const absl::Status& why) override;
  void MemberDraining(const MemberRef&, const std::string&) override {}
  void SendHeartbeat(const MemberRef& member, uint64_t number, int64_t sent_ns, int64_t echo_ns) override;

  // --- ResourceManagerSink
  void SendToMember(Incarnation worker, MemberUpdate update) override;
  void SendToHolder(ProxyLife proxy, HolderUpdate update) override;
  void Log(const std::string&) override {}

  void StartWorker(int slice);
  void Hurt(Incarnation worker);
  void KillWorker(int slice);
  void StartRm();
  void TickRm(uint64_t life);
  void StopRm(DurationNs lasts);
  void Pause(int slice, DurationNs lasts);
  void RunFault(const Fault& fault);
  void CutMail(int slice, int other, DurationNs lasts);
  void MailStaysBroken(Incarnation one, Incarnation other);
  TimeNs MailCutUntil(Incarnation one, Incarnation other) const;  // in the past: it passes
  void CheckGangs();
  int SlotOf(Incarnation incarnation) const;  // -1: none
  void TickProxy();
  bool AllUp();
  bool Answered() const;
  bool AtRest();
  std::string Leftovers();
  // Until the condition holds; false if it does not within the limit.
  bool RunUntilTrue(DurationNs limit, const std::function<bool()>& condition);
  void TryConnect(Incarnation incarnation, uint64_t epoch);
  void Break(Connection& connection);
  void ToWorker(Connection& connection, std::string payload);
  void FlushSoon();
  void FaultLater();
  void TickWorker(Incarnation incarnation);

  void Step(int client);
  void Upload(Client& client);
  void AddProgram(Client& client);
  void Execute(Client& client);
  void Copy(Client& client);
  void Reshard(Client& client);
  void ReshardTo(Client& client, int slice, int layout);
  void DeleteOne(Client& client);
  void ReadOne(Client& client, const ArrayState& array, bool release_before_answer);
  ArrayState* PickArray(Client& client, int slice = -1, int layout = -1);
  void Forget(Client& client, ArrayState* array);

  static constexpr int kLayouts = 8;
  ArraySpec SpecOf(int slice, int layout) const;
  std::set<int> SlicesOf(int slice, int layout) const;
  void CheckValue(const Request& request, const Content& shard);
  void CheckError(const Request& request, const absl::Status& status);
  bool FaultsExplain(const Blame& blame, const absl::Status& status) const;
  void Finish();
  DurationNs AnswerLimit() const;
  static Controller::Options ControllerOptions(const Knobs& knobs);

  World world_;
  const Knobs knobs_;
  Controller controller_;
  HolderLease holder_;
  std::unique_ptr<ResourceManagerCore> rm_;
  uint64_t rm_life_ = 0;
  bool rm_up_ = false;
  bool proxy_linked_ = false;  // to the RM

  std::map<Incarnation, std::unique_ptr<SimWorker>> workers_;
  std::vector<std::unique_ptr<SimWorker>> dead_;  // closures may still name them
  std::vector<Incarnation> worker_of_slot_;       // process "worker-S", now
  std::map<Incarnation, Connection> connections_;
  std::map<Incarnation, Member> members_;
  std::set<Incarnation> dirty_;
  bool flush_posted_ = false;
  uint64_t next_incarnation_ = 1000;
  std::map<Incarnation, TimeNs> rm_to_worker_at_, worker_to_rm_at_;
  TimeNs rm_to_proxy_at_ = 0, proxy_to_rm_at_ = 0;

  std::vector<Client> clients_;
  std::map<uint64_t, Content> host_bytes_;
  std::map<RequestId, Request> requests_;
  uint64_t next_key_ = 1, next_request_ = 1, next_constant_ = 1;
  bool faults_on_ = true;
  bool devices_known_ = false;
  std::set<int> slices_hurt_;  // virtual slices that were lost, or may be, at least once
  bool all_up_once_ = false;
  TimeNs last_fault_ = 0;
  int pulls_ = 0;
  std::map<std::pair<Incarnation, Incarnation>, TimeNs> mail_at_;              // deliveries stay in order
  std::map<Incarnation, GrantNumber> lost_grants_;                             // the latest that the proxy gave up
  std::map<uint64_t, std::map<Incarnation, std::function<void()>>> meetings_;  // by space
  std::map<std::pair<Incarnation, uint32_t>, std::pair<Grant, uint64_t>> last_span_;  // of each device
  std::set<std::pair<uint64_t, uint64_t>> span_before_;
  std::map<std::pair<Incarnation, Incarnation>, TimeNs> mail_cut_;  // the smaller first: until when
  bool mail_was_broken_ = false;                                    // for so long that somebody was told
  std::map<uint64_t, std::vector<SpanPart>> gangs_;                 // what became of launches that span workers
  Outcome outcome_;
};

}  // namespace landbridge::sim
