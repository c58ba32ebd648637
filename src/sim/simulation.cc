#include "sim/simulation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace landbridge::sim {
namespace {

constexpr int64_t kRows = 8;  // of every simulated array: 8 x 4 elements
constexpr int64_t kColumns = 4;
constexpr DurationNs kRunLimit = 20 * kSecond;    // for the clients' steps
constexpr DurationNs kRestLimit = 20 * kSecond;   // when faults have stopped
constexpr DurationNs kAnswerLimit = 5 * kSecond;  // without faults
// Phases are drawn at random: forward launches that nothing follows go past the budget one by one.
constexpr DurationNs kAnswerLimitWithPhases = 1200 * kSecond;

Controller::Options ControllerOptions(const Knobs& knobs) {
  Controller::Options options;
  options.space = 77;
  options.launches_per_worker_max = knobs.tight_memory ? 4 : 64;
  options.scheduling.set_policy(knobs.policy);
  options.scheduling.set_activation_budget(knobs.activation_budget);
  options.sequential_dispatch = knobs.sequential_dispatch;
  return options;
}

// Whether the codes of this run's faults explain an error.
struct Blame {
  std::set<int> slices;   // of the array and of all it was made from
  bool may_fail = false;  // a launch or load that can be made to fail is among them
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

}  // namespace

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
  DurationNs AnswerLimit() const {
    return knobs_.policy == POLICY_BACKWARD_FIRST ? kAnswerLimitWithPhases : kAnswerLimit;
  }

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
  Outcome outcome_;
};

// ---------------------------------------------------------------- processes and their connections

void Simulation::StartRm() {
  ++rm_life_;
  rm_up_ = true;
  ResourceManagerOptions options;
  options.type = *ParseInstanceType(absl::StrCat("cpu:", knobs_.devices));
  options.slice_count = knobs_.slices;
  options.cluster_secret = "the cluster's secret";
  options.version = BuildVersion();
  options.life = world_.random().NextNonZero();
  rm_ = std::make_unique<ResourceManagerCore>(options, static_cast<ResourceManagerSink*>(this), world_.now());
  TickRm(rm_life_);
  for (auto& [who, process] : workers_) {
    world_.After(world_.Between(kMillisecond, 400 * kMillisecond), [this, incarnation = who, life = rm_life_] {
      SimWorker* worker = WorkerOf(incarnation);
      if (worker == nullptr || rm_life_ != life || !rm_up_) return;
      worker->Deliver([worker, this] { worker->lease().OnRmConnected(world_.now()); });
    });
  }
  world_.After(world_.Between(kMillisecond, 400 * kMillisecond), [this, life = rm_life_] {
    if (rm_life_ != life || !rm_up_) return;
    proxy_linked_ = true;
    holder_.OnRmConnected(world_.now());
  });
}

void Simulation::StopRm(DurationNs lasts) {
  if (!rm_up_) return;
  world_.Trace([&] { return "the resource manager ends"; });
  rm_up_ = false;
  proxy_linked_ = false;
  for (auto& [who, process] : workers_) {
    SimWorker* worker = process.get();
    worker->Deliver([worker, this] { worker->lease().OnRmDisconnected(world_.now()); });
  }
  world_.After(lasts, [this] { StartRm(); });
}

void Simulation::TickRm(uint64_t life) {
  if (rm_life_ != life || !rm_up_) return;
  rm_->OnTick(world_.now());
  world_.After(TickPeriod(LeaseTimes{}), [this, life] { TickRm(life); });
}

void Simulation::StartWorker(int slice) {
  const Incarnation incarnation(next_incarnation_++);
  worker_of_slot_[static_cast<size_t>(slice)] = incarnation;
  workers_[incarnation] = std::make_unique<SimWorker>(&world_, knobs_, static_cast<Fabric*>(this), incarnation,
                                                      absl::StrCat("worker-", slice));
  world_.After(world_.Between(kMillisecond, 20 * kMillisecond), [this, incarnation] {
    if (SimWorker* worker = WorkerOf(incarnation)) {
      if (rm_up_) worker->Deliver([worker, this] { worker->lease().OnRmConnected(world_.now()); });
      TickWorker(incarnation);
    }
  });
}

void Simulation::TickWorker(Incarnation incarnation) {
  SimWorker* worker = WorkerOf(incarnation);
  if (worker == nullptr) return;
  if (!worker->paused()) worker->Tick();
  world_.After(TickPeriod(LeaseTimes{}), [this, incarnation] { TickWorker(incarnation); });
}

// What lives in the virtual slice that the worker serves may be lost from now on, before the proxy has noticed.
void Simulation::Hurt(Incarnation worker) {
  auto member = members_.find(worker);
  if (member != members_.end()) slices_hurt_.insert(member->second.ref.slice.index);
}

void Simulation::KillWorker(int slice) {
  const Incarnation incarnation = worker_of_slot_[static_cast<size_t>(slice)];
  auto it = workers_.find(incarnation);
  if (it == workers_.end()) return;
  world_.Trace([&] { return "killed: " + it->second->name(); });
  Hurt(incarnation);
  it->second->Die();
  dead_.push_back(std::move(it->second));
  workers_.erase(it);
  for (auto& [other, worker] : workers_) worker->PeerDied(incarnation);
  world_.After(world_.Between(kMillisecond, 10 * kMillisecond), [this, incarnation, life = rm_life_] {
    if (rm_up_ && rm_life_ == life) rm_->OnMemberGone(incarnation, world_.now());
  });
  if (auto connection = connections_.find(incarnation); connection != connections_.end()) Break(connection->second);
  world_.After(world_.Between(10 * kMillisecond, 800 * kMillisecond), [this, slice] { StartWorker(slice); });
}

int Simulation::SlotOf(Incarnation incarnation) const {
  for (int slot = 0; slot < knobs_.slices; ++slot) {
    if (worker_of_slot_[static_cast<size_t>(slot)] == incarnation) return slot;
  }
  return -1;
}

void Simulation::WorkerRestarts(Incarnation who, const std::string&) {
  world_.After(kMillisecond, [this, who] {
    if (WorkerOf(who) != nullptr && SlotOf(who) >= 0) KillWorker(SlotOf(who));
  });
}

void Simulation::CloseConnection(Incarnation from, const Grant& grant) {
  world_.After(0, [this, from, grant] {
    auto it = connections_.find(from);
    if (it != connections_.end() && it->second.up && it->second.ref.grant.SameNumber(grant)) Break(it->second);
  });
}

void Simulation::PullStarted(Incarnation source, Incarnation target) {
  ++pulls_;
  ++outcome_.pulls;
  const Incarnation victim = pulls_ == knobs_.kill_source_of_pull   ? source
                             : pulls_ == knobs_.kill_target_of_pull ? target
                                                                    : Incarnation();
  if (!victim.valid()) return;
  world_.After(10 * kMicrosecond, [this, victim] {
    if (WorkerOf(victim) != nullptr && SlotOf(victim) >= 0) KillWorker(SlotOf(victim));
  });
}

// RM connections: in order, delayed; an RM that is down loses what is sent.
void Simulation::ReportToRm(Incarnation from, MemberReport report) {
  TimeNs& at = worker_to_rm_at_[from];
  at = std::max(at, world_.now() + world_.Between(knobs_.message_min, knobs_.message_max));
  world_.After(at - world_.now(), [this, report = std::move(report), life = rm_life_] {
    if (!rm_up_ || rm_life_ != life) return;
    if (absl::Status status = rm_->OnMemberReport(report, world_.now()); !status.ok())
      world_.Violation(status.ToString());
  });
}

void Simulation::SendToMember(Incarnation worker, MemberUpdate update) {
  TimeNs& at = rm_to_worker_at_[worker];
  at = std::max(at, world_.now() + world_.Between(knobs_.message_min, knobs_.message_max));
  world_.After(at - world_.now(), [this, worker, update = std::move(update)] {
    if (SimWorker* to = WorkerOf(worker))
      to->Deliver([this, worker, update] {
        if (SimWorker* w = WorkerOf(worker)) w->OnUpdate(update);
      });
  });
}

void Simulation::SendReport(HolderReport report) {
  if (!proxy_linked_) return;
  proxy_to_rm_at_ = std::max(proxy_to_rm_at_, world_.now() + world_.Between(knobs_.message_min, knobs_.message_max));
  world_.After(proxy_to_rm_at_ - world_.now(), [this, report = std::move(report), life = rm_life_] {
    if (!rm_up_ || rm_life_ != life) return;
    if (absl::Status status = rm_->OnHolderReport(report, world_.now()); !status.ok())
      world_.Violation(status.ToString());
  });
}

void Simulation::SendToHolder(ProxyLife, HolderUpdate update) {
  rm_to_proxy_at_ = std::max(rm_to_proxy_at_, world_.now() + world_.Between(knobs_.message_min, knobs_.message_max));
  world_.After(rm_to_proxy_at_ - world_.now(),
               [this, update = std::move(update)] { holder_.OnUpdate(update, world_.now()); });
}

void Simulation::FleetKnown(const Fleet& fleet) {
  if (devices_known_) return;
  devices_known_ = true;
  std::vector<VirtualDevice> devices;
  for (int s = 0; s < fleet.slice_count; ++s) {
    for (int d = 0; d < fleet.devices_per_worker; ++d) {
      devices.push_back({DeviceId(static_cast<int32_t>(devices.size())), {SliceId(s), 0}, static_cast<uint32_t>(d)});
    }
  }
  world_.After(0, [this, devices] {
    controller_.DeclareDevices(devices);
    for (size_t c = 0; c < clients_.size(); ++c) {
      // Wishes are a function of the client, so that they do not disturb the rest of the run.
      controller_.OpenSession(clients_[c].id, {static_cast<double>(1 + c), static_cast<int32_t>(c)});
      // Some begin before a single worker is up.
      const DurationNs start = world_.Chance(0.3) ? 0 : world_.Between(0, 2 * kSecond);
      world_.After(start, [this, c] { Step(static_cast<int>(c)); });
    }
  });
}

void Simulation::ConnectMember(const MemberRef& member, const WorkerInfo&) {
  Connection& connection = connections_[member.incarnation];
  const uint64_t epoch = connection.epoch + 1;
  connection = Connection{};
  connection.ref = member;
  connection.epoch = epoch;
  world_.After(world_.Between(100 * kMicrosecond, kMillisecond),
               [this, incarnation = member.incarnation, epoch] { TryConnect(incarnation, epoch); });
}

void Simulation::TryConnect(Incarnation incarnation, uint64_t epoch) {
  auto it = connections_.find(incarnation);
  if (it == connections_.end() || it->second.epoch != epoch || !it->second.wanted) return;
  const MemberRef ref = it->second.ref;
  SimWorker* worker = WorkerOf(incarnation);
  if (worker == nullptr) {
    holder_.OnMemberRefused(ref, world_.now());
    return;
  }
  auto again = [this, incarnation, epoch] {
    world_.After(world_.Between(limits::kReconnectBackoffMin, limits::kReconnectBackoffMax),
                 [this, incarnation, epoch] { TryConnect(incarnation, epoch); });
  };
  ControlHello hello;
  hello.set_version(BuildVersion());
  hello.set_life(77);
  hello.set_incarnation(incarnation.value());
  *hello.mutable_grant() = ref.grant.ToProto();
  hello.set_space(77);
  if (auto member = members_.find(incarnation); member != members_.end()) {
    hello.set_received(member->second.stream.applied_reports());
  }
  worker->Deliver([this, incarnation, epoch, hello, ref, again] {
    SimWorker* w = WorkerOf(incarnation);
    auto found = connections_.find(incarnation);
    if (w == nullptr || found == connections_.end() || found->second.epoch != epoch) return again();
    ControlWelcome welcome = w->OnHello(hello);
    if (welcome.refusal() == ControlWelcome::NONE) {
      found->second.up = true;
    } else {
      again();
    }
    // Before everything that the worker sends on this connection.
    TimeNs& at = found->second.to_proxy_at;
    at = std::max(at, world_.now() + world_.Between(knobs_.message_min, knobs_.message_max));
    world_.After(at - world_.now(), [this, incarnation, epoch, welcome, ref] {
      auto now = connections_.find(incarnation);
      if (now == connections_.end() || now->second.epoch != epoch || !now->second.wanted) return;
      if (welcome.refusal() == ControlWelcome::NONE) now->second.open = true;
      holder_.OnMemberWelcome(ref, welcome, world_.now());  // MemberUp comes from inside, the first time
      if (welcome.refusal() != ControlWelcome::NONE) return;
      auto member = members_.find(incarnation);
      if (member == members_.end()) return;
      if (absl::Status status = member->second.stream.Resume(welcome.received()); !status.ok()) {
        world_.Violation("resume: " + status.ToString());
      }
      dirty_.insert(incarnation);
      FlushSoon();
    });
  });
}

void Simulation::Break(Connection& connection) {
  const bool was_up = connection.up;
  connection.up = connection.open = false;
  const uint64_t epoch = ++connection.epoch;  // what is under way is lost
  const MemberRef ref = connection.ref;
  if (SimWorker* worker = WorkerOf(ref.incarnation)) {
    worker->Deliver([this, ref] {
      if (SimWorker* w = WorkerOf(ref.incarnation)) w->OnConnectionBroken(ref.grant);
    });
  }
  world_.After(world_.Between(50 * kMicrosecond, kMillisecond), [this, ref, epoch, was_up] {
    auto it = connections_.find(ref.incarnation);
    if (it == connections_.end() || it->second.epoch != epoch || !it->second.wanted) return;
    if (was_up) {
      holder_.OnMemberDisconnected(ref, world_.now());
      if (auto member = members_.find(ref.incarnation); member != members_.end()) member->second.stream.OnDisconnect();
    }
    TryConnect(ref.incarnation, epoch);
  });
}

void Simulation::DisconnectMember(const MemberRef& member) {
  auto it = connections_.find(member.incarnation);
  if (it == connections_.end() || !it->second.ref.grant.SameNumber(member.grant)) return;
  it->second.wanted = false;
  it->second.up = it->second.open = false;
  ++it->second.epoch;
  if (SimWorker* worker = WorkerOf(member.incarnation)) {
    worker->Deliver([this, member] {
      if (SimWorker* w = WorkerOf(member.incarnation)) w->OnConnectionBroken(member.grant);
    });
  }
}

void Simulation::MemberUp(const MemberRef& member, const WorkerInfo& info) {
  world_.Trace([&] { return absl::StrCat("up: ", info.name(), " ", member.incarnation.ToString()); });
  members_[member.incarnation].ref = member;
  const SlotId slot{SliceId(member.slice.index), member.index};
  world_.After(0, [this, member, slot, info] {
    if (members_.count(member.incarnation) == 0) return;
    controller_.OnWorkerUp(slot, member.incarnation, info.data_address(), info.name(), world_.now());
  });
}

void Simulation::MemberLost(const MemberRef& member, const absl::Status& why) {
  world_.Trace([&] { return "lost: " + why.ToString(); });
  if (why.code() != absl::StatusCode::kDataLoss) world_.Violation("a loss that is not DATA_LOSS: " + why.ToString());
  slices_hurt_.insert(member.slice.index);
  ++outcome_.losses;
  members_.erase(member.incarnation);
  world_.After(0, [this, member, why] { controller_.OnWorkerLost(member.incarnation, why, world_.now()); });
}

void Simulation::SendHeartbeat(const MemberRef& member, uint64_t number, int64_t sent_ns, int64_t echo_ns) {
  auto connection = connections_.find(member.incarnation);
  auto at = members_.find(member.incarnation);
  if (connection == connections_.end() || at == members_.end() || !connection->second.open) return;
  Heartbeat heartbeat;
  heartbeat.set_number(number);
  heartbeat.set_sent_ns(sent_ns);
  heartbeat.set_echo_ns(echo_ns);
  ToWorker(connection->second, at->second.stream.HeartbeatFrame(heartbeat));
}

void Simulation::ToWorker(Connection& connection, std::string payload) {
  if (!connection.open) return;
  TimeNs& at = connection.to_worker_at;
  at = std::max(at, world_.now() + world_.Between(knobs_.message_min, knobs_.message_max));
  world_.After(at - world_.now(), [this, ref = connection.ref, epoch = connection.epoch, payload = std::move(payload)] {
    auto it = connections_.find(ref.incarnation);
    if (it == connections_.end() || it->second.epoch != epoch) return;
    if (SimWorker* worker = WorkerOf(ref.incarnation))
      worker->Deliver([this, ref, payload] {
        if (SimWorker* w = WorkerOf(ref.incarnation)) w->OnFrame(ref.grant, payload);
      });
  });
}

void Simulation::ToProxy(Incarnation from, const Grant& grant, std::string frame) {
  auto it = connections_.find(from);
  if (it == connections_.end() || !it->second.up || !it->second.ref.grant.SameNumber(grant)) return;
  TimeNs& at = it->second.to_proxy_at;
  at = std::max(at, world_.now() + world_.Between(knobs_.message_min, knobs_.message_max));
  world_.After(at - world_.now(), [this, from, epoch = it->second.epoch, frame = std::move(frame)] {
    auto connection = connections_.find(from);
    if (connection == connections_.end() || connection->second.epoch != epoch) return;
    auto member = members_.find(from);
    if (member == members_.end()) return;
    const MemberRef ref = member->second.ref;
    absl::Status status = member->second.stream.OnFrame(
        frame, [&](const Heartbeat& heartbeat) { holder_.OnMemberHeartbeat(ref, heartbeat.sent_ns(), world_.now()); },
        [&](const WorkerReport& report) {
          world_.Trace([&] { return absl::StrCat("report of ", from.ToString(), ": ", report.ShortDebugString()); });
          controller_.OnReport(from, report, world_.now());
        });
    if (!status.ok()) world_.Violation("reports: " + status.ToString());
    dirty_.insert(from);
    FlushSoon();
  });
}

void Simulation::SendToWorker(Incarnation worker, WorkerOp op) {
  auto it = members_.find(worker);
  if (it == members_.end()) return;
  world_.Trace([&] { return absl::StrCat("op to ", worker.ToString(), ": ", op.ShortDebugString()); });
  it->second.stream.Push(op);
  dirty_.insert(worker);
  FlushSoon();
}

void Simulation::FlushSoon() {
  if (flush_posted_) return;
  flush_posted_ = true;
  world_.After(2 * kMicrosecond, [this] {
    flush_posted_ = false;
    std::set<Incarnation> dirty;
    dirty.swap(dirty_);
    for (Incarnation incarnation : dirty) {
      auto member = members_.find(incarnation);
      auto connection = connections_.find(incarnation);
      if (member == members_.end() || connection == connections_.end() || !connection->second.open) continue;
      for (std::string frame = member->second.stream.NextFrame(); !frame.empty();
           frame = member->second.stream.NextFrame()) {
        ToWorker(connection->second, std::move(frame));
      }
    }
  });
}

// ---------------------------------------------------------------- faults

void Simulation::Pause(int slice, DurationNs lasts) {
  const Incarnation incarnation = worker_of_slot_[static_cast<size_t>(slice)];
  SimWorker* worker = WorkerOf(incarnation);
  if (worker == nullptr || worker->paused()) return;
  world_.Trace([&] { return absl::StrCat("stopped for ", lasts / kMillisecond, " ms: ", worker->name()); });
  worker->Pause();
  // Long enough that some clock takes the lease as over.
  if (lasts > limits::kLeaseDefault / 2) Hurt(incarnation);
  world_.After(lasts, [this, incarnation] {
    if (SimWorker* w = WorkerOf(incarnation)) w->Resume();
  });
}

void Simulation::RunFault(const Fault& fault) {
  switch (fault.kind) {
    case Fault::Kind::kKill: return KillWorker(fault.slice);
    case Fault::Kind::kPause: return Pause(fault.slice, fault.lasts);
    case Fault::Kind::kRestartRm: return StopRm(fault.lasts);
    case Fault::Kind::kBreakStream: {
      auto connection = connections_.find(worker_of_slot_[static_cast<size_t>(fault.slice)]);
      if (connection != connections_.end() && connection->second.up) Break(connection->second);
      return;
    }
  }
}

void Simulation::FaultLater() {
  world_.After(world_.Between(5 * kMillisecond, 300 * kMillisecond), [this] {
    if (!faults_on_) return;
    Fault fault;
    fault.slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
    auto may = [&](double chance, Fault::Kind kind, DurationNs lasts) {
      if (!world_.Chance(chance)) return;
      fault.kind = kind;
      fault.lasts = lasts;
      RunFault(fault);
    };
    may(knobs_.kill, Fault::Kind::kKill, 0);
    // Now and then longer than the lease.
    may(knobs_.pause, Fault::Kind::kPause,
        world_.Between(10 * kMillisecond, world_.Chance(0.5) ? 200 * kMillisecond : 6 * kSecond));
    may(knobs_.break_stream, Fault::Kind::kBreakStream, 0);
    may(knobs_.restart_rm ? 0.1 : 0, Fault::Kind::kRestartRm, world_.Between(kMillisecond, kSecond));
    FaultLater();
  });
}

// ---------------------------------------------------------------- clients

// Layouts: 0 rows over the slice's devices, 1 columns, 2 replicated, 3 one device (the first). Programs know those; the
// others come from resharding: 4 rows and 5 replicated over this slice and the next, 6 two replicas of each half of the
// rows over both (by turns), 7 columns in the reverse order of devices.
ArraySpec Simulation::SpecOf(int slice, int layout) const {
  ArraySpec spec;
  spec.dtype = DType::kU64;
  spec.dims = {kRows, kColumns};
  std::vector<DeviceId> devices;
  for (int s : SlicesOf(slice, layout)) {
    for (int d = 0; d < (layout == 3 ? 1 : knobs_.devices); ++d) devices.push_back(DeviceId(s * knobs_.devices + d));
  }
  if (layout == 3) {
    spec.sharding = Sharding::SingleDevice(devices[0], MemoryKind::kDevice);
    return spec;
  }
  if (layout == 7) std::reverse(devices.begin(), devices.end());
  const auto count = static_cast<int64_t>(devices.size());
  xla::OpSharding op;
  if (layout == 2 || layout == 5) {
    op.set_type(xla::OpSharding::REPLICATED);
  } else {
    op.set_type(xla::OpSharding::OTHER);
    const bool columns = layout == 1 || layout == 7;
    const int64_t tiles = layout == 6 && count % 2 == 0 ? 2 : count;
    op.add_tile_assignment_dimensions(columns ? 1 : tiles);
    op.add_tile_assignment_dimensions(columns ? tiles : 1);
    op.add_tile_assignment_dimensions(count / tiles);
    op.set_replicate_on_last_tile_dim(true);
    const int64_t copies = count / tiles;
    for (int64_t i = 0; i < count; ++i) {
      op.add_tile_assignment_devices(layout == 6 ? i % copies * tiles + i / copies : i);
    }
  }
  spec.sharding = *Sharding::FromOpSharding(devices, MemoryKind::kDevice, op);
  return spec;
}

std::set<int> Simulation::SlicesOf(int slice, int layout) const {
  if (layout < 4 || layout == 7) return {slice};
  return {slice, (slice + 1) % knobs_.slices};
}

ArrayState* Simulation::PickArray(Client& client, int slice, int layout) {
  std::vector<ArrayState*> fitting;
  for (ArrayState& array : client.arrays) {
    if (array.deleted || (slice >= 0 && array.slice != slice) || (layout >= 0 && array.layout != layout)) continue;
    fitting.push_back(&array);
  }
  if (fitting.empty()) return nullptr;
  return fitting[world_.random().NextBelow(fitting.size())];
}

void Simulation::Forget(Client& client, ArrayState* array) {
  controller_.Release(client.id, array->id);
  client.arrays.erase(client.arrays.begin() + (array - client.arrays.data()));
}

void Simulation::Upload(Client& client) {
  ArrayState array;
  array.slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  array.layout = static_cast<int>(world_.random().NextBelow(4));
  array.blame.slices = {array.slice};
  const ArraySpec spec = SpecOf(array.slice, array.layout);
  const Dims dims = spec.dims;
  array.expected = Empty(dims);
  for (uint64_t& element : array.expected.elements) element = world_.random().Next();
  std::vector<HostShard> shards;
  const bool late = world_.Chance(0.5);
  auto add = [&](std::vector<uint32_t> indices) {
    HostShard shard;
    const Content content = Cut(array.expected, *spec.sharding->Box(dims, indices[0]));
    shard.shards = std::move(indices);
    shard.key = next_key_++;
    shard.image_bytes = static_cast<int64_t>(content.elements.size() * 8);
    if (!late) {
      shard.bytes = std::make_shared<std::string>(reinterpret_cast<const char*>(content.elements.data()),
                                                  content.elements.size() * 8);
    }
    host_bytes_[shard.key] = content;
    shards.push_back(std::move(shard));
  };
  const uint32_t count = spec.sharding->num_shards();
  if (array.layout == 2) {
    std::vector<uint32_t> all;
    for (uint32_t i = 0; i < count; ++i) all.push_back(i);
    add(all);
  } else {
    for (uint32_t i = 0; i < count; ++i) add({i});
  }
  absl::StatusOr<ArrayId> id = controller_.MakeFromHost(client.id, spec, std::move(shards), 0, world_.now());
  if (!id.ok()) return world_.Violation("upload: " + id.status().ToString());
  array.id = *id;
  client.arrays.push_back(std::move(array));
}

void Simulation::WantHostBytes(uint64_t key) {
  world_.After(world_.Between(0, 2 * kMillisecond), [this, key] {
    auto it = host_bytes_.find(key);
    if (it == host_bytes_.end()) return controller_.OnHostBytes(key, absl::FailedPreconditionError("gone"));
    controller_.OnHostBytes(
        key, std::string(reinterpret_cast<const char*>(it->second.elements.data()), it->second.elements.size() * 8));
  });
}

void Simulation::DropHostBuffer(uint64_t key) { host_bytes_.erase(key); }

void Simulation::AddProgram(Client& client) {
  Program program;
  program.slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  program.layout = static_cast<int>(world_.random().NextBelow(4));
  program.arity = 1 + static_cast<int>(world_.random().NextBelow(2));
  program.donates = world_.Chance(0.4);
  program.constant = next_constant_++;
  const ArraySpec spec = SpecOf(program.slice, program.layout);
  auto compiled = std::make_shared<ProgramImage>();
  compiled->envelope = std::make_shared<std::string>(reinterpret_cast<const char*>(&program.constant), 8);
  compiled->sha256 = absl::StrCat("sha", program.constant);
  ExecutableInfo& info = compiled->info;
  info.set_name(absl::StrCat("program", program.constant));
  const int devices = static_cast<int>(spec.sharding->num_shards());
  info.set_num_devices(devices);
  info.set_num_replicas(1);
  info.set_num_partitions(devices);
  info.set_portable(devices == 1);
  info.set_can_fail_on_one_shard(knobs_.fail_launch > 0);
  auto fill = [&](TensorInfo* tensor) {
    tensor->set_dtype(static_cast<int32_t>(DType::kU64));
    const Dims shard = *spec.sharding->ShardDims(spec.dims, 0);
    for (int64_t d : shard) tensor->add_device_dims(d);
    for (int64_t d : spec.dims) tensor->add_global_dims(d);
    tensor->set_device_bytes(*DeviceBytes(DType::kU64, shard));
    *tensor->mutable_sharding() = *spec.sharding->ToOpSharding();
    tensor->set_memory_kind("device");
  };
  for (int a = 0; a < program.arity; ++a) fill(info.add_parameters());
  fill(info.add_outputs());
  if (program.donates) info.add_donated_parameters(0);
  absl::StatusOr<ExecutableId> id = controller_.AddExecutable(client.id, compiled, spec.sharding->devices());
  if (!id.ok()) return world_.Violation("add executable: " + id.status().ToString());
  program.id = *id;
  client.programs.push_back(program);
}

void Simulation::Execute(Client& client) {
  if (client.programs.empty()) return AddProgram(client);
  const Program program = client.programs[world_.random().NextBelow(client.programs.size())];
  std::vector<ArrayState> arguments;
  ExecuteArgs args;
  args.executable = program.id;
  ArrayState* donor = nullptr;
  for (int a = 0; a < program.arity; ++a) {
    ArrayState* array = PickArray(client, program.slice, program.layout);
    if (array == nullptr || (program.donates && donor != nullptr && array->id == donor->id)) return Upload(client);
    if (a == 0 && program.donates) donor = array;
    arguments.push_back(*array);
    args.args.push_back(array->id);
  }
  if (knobs_.policy == POLICY_BACKWARD_FIRST) args.phase = static_cast<PipelinePhase>(world_.random().NextBelow(3));
  if (knobs_.policy == POLICY_PRIORITY && world_.Chance(0.5)) {
    args.priority = static_cast<int32_t>(world_.random().NextBelow(3));
  }
  absl::StatusOr<ExecuteResult> result = controller_.Execute(client.id, args, 0, world_.now());
  if (!result.ok()) {
    // A lost argument may be answered at once.
    Blame blame;
    for (const ArrayState& argument : arguments) {
      blame.slices.insert(argument.blame.slices.begin(), argument.blame.slices.end());
      blame.may_fail |= argument.blame.may_fail;
    }
    if (!FaultsExplain(blame, result.status())) world_.Violation("execute: " + result.status().ToString());
    return;
  }
  ++outcome_.launches;
  ArrayState out;
  out.id = result->outputs.at(0);
  out.slice = program.slice;
  out.layout = program.layout;
  out.blame.may_fail = knobs_.fail_launch > 0 || knobs_.fail_load > 0;
  out.blame.slices = {program.slice};
  out.expected = Empty(arguments[0].expected.dims);
  std::vector<uint64_t> row(arguments.size());
  for (size_t e = 0; e < out.expected.elements.size(); ++e) {
    for (size_t a = 0; a < arguments.size(); ++a) row[a] = arguments[a].expected.elements[e];
    out.expected.elements[e] = Combine(program.constant, row);
  }
  for (const ArrayState& argument : arguments) {
    out.blame.slices.insert(argument.blame.slices.begin(), argument.blame.slices.end());
    out.blame.may_fail |= argument.blame.may_fail;
  }
  if (donor != nullptr) Forget(client, donor);
  if (world_.Chance(0.3)) {
    const RequestId request(next_request_++);
    Request& state = requests_[request];
    state.array = out;
    controller_.WhenDone(client.id, request, result->ticket);
  }
  client.arrays.push_back(std::move(out));
}

void Simulation::Copy(Client& client) {
  ArrayState* array = PickArray(client);
  if (array == nullptr) return Upload(client);
  const int slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  const ArraySpec target = SpecOf(slice, array->layout);
  std::vector<DeviceId> devices = target.sharding->devices();
  const bool donate = world_.Chance(0.2);
  const CopySemantics semantics = donate ? CopySemantics::kDonate : CopySemantics::kAlwaysCopy;
  absl::StatusOr<std::vector<ArrayId>> ids =
      controller_.Copy(client.id, {array->id}, &devices, nullptr, semantics, 0, world_.now());
  if (!ids.ok()) {
    if (!FaultsExplain(array->blame, ids.status())) world_.Violation("copy: " + ids.status().ToString());
    return;
  }
  ++outcome_.copies;
  ArrayState out = *array;
  out.id = ids->at(0);
  out.slice = slice;
  out.blame.slices.merge(SlicesOf(slice, out.layout));
  if (donate) Forget(client, array);
  client.arrays.push_back(std::move(out));
}

void Simulation::Reshard(Client& client) {
  ArrayState* array = PickArray(client);
  if (array == nullptr) return Upload(client);
  ArrayState out = *array;
  out.slice = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
  out.layout = static_cast<int>(world_.random().NextBelow(kLayouts));
  out.blame.slices.merge(SlicesOf(out.slice, out.layout));
  const bool donate = world_.Chance(0.2);
  absl::StatusOr<std::vector<ArrayId>> ids =
      controller_.Reshard(client.id, {array->id}, {SpecOf(out.slice, out.layout)},
                          donate ? CopySemantics::kDonate : CopySemantics::kAlwaysCopy, 0, world_.now());
  if (!ids.ok()) {
    if (!FaultsExplain(array->blame, ids.status())) world_.Violation("reshard: " + ids.status().ToString());
    return;
  }
  ++outcome_.copies;
  out.id = ids->at(0);
  if (donate) Forget(client, array);
  client.arrays.push_back(std::move(out));
}

void Simulation::DeleteOne(Client& client) {
  ArrayState* array = PickArray(client);
  if (array == nullptr) return;
  if (world_.Chance(0.3)) {
    if (absl::Status status = controller_.Delete(client.id, array->id); !status.ok()) {
      world_.Violation("delete: " + status.ToString());
    }
  }
  Forget(client, array);
}

void Simulation::ReadOne(Client& client, const ArrayState& array, bool release_before_answer) {
  // Sharded arrays are read shard by shard, as the client does.
  const ArrayState copy = array;
  std::vector<ArrayId> parts{copy.id};
  const ArraySpec spec = SpecOf(copy.slice, copy.layout);
  const bool whole = spec.sharding->IsFullyReplicated();
  if (!whole) {
    absl::StatusOr<std::vector<ArrayId>> singles = controller_.Disassemble(client.id, copy.id, CopySemantics::kReuse);
    if (!singles.ok()) {
      if (!FaultsExplain(copy.blame, singles.status())) world_.Violation("disassemble: " + singles.status().ToString());
      return;
    }
    parts = *singles;
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const RequestId request(next_request_++);
    Request& state = requests_[request];
    state.read = true;
    state.array = copy;
    state.array.expected = Cut(copy.expected, *spec.sharding->Box(spec.dims, static_cast<uint32_t>(i)));
    controller_.ReadArray(client.id, request, parts[i], {},
                          static_cast<int64_t>(state.array.expected.elements.size() * 8));
    if (!whole) controller_.Release(client.id, parts[i]);
  }
  if (release_before_answer) {
    for (ArrayState& mine : client.arrays) {
      if (mine.id == copy.id) return Forget(client, &mine);
    }
  }
}

void Simulation::Step(int index) {
  Client& client = clients_[static_cast<size_t>(index)];
  if (!client.open) return;
  if (client.steps_left-- <= 0) return;
  double dice = world_.random().NextUnit();
  if (knobs_.only_reshards && dice >= 0.15 && dice < 0.60) dice = 0.74;  // moves in place of programs
  if (dice < 0.15) {
    Upload(client);
  } else if (dice < 0.20) {
    AddProgram(client);
  } else if (dice < 0.60) {
    Execute(client);
  } else if (dice < 0.70) {
    knobs_.only_reshards ? Reshard(client) : Copy(client);
  } else if (dice < 0.75 || (knobs_.only_reshards && dice < 0.83)) {
    Reshard(client);
  } else if (dice < 0.83) {
    DeleteOne(client);
  } else if (dice < 0.93) {
    if (ArrayState* array = PickArray(client)) ReadOne(client, *array, world_.Chance(0.2));
  } else if (dice < 0.97) {
    if (ArrayState* array = PickArray(client)) {
      const RequestId request(next_request_++);
      requests_[request].array = *array;
      controller_.WhenReady(client.id, request, {array->id});
    }
  } else if (!client.programs.empty()) {
    controller_.ReleaseExecutable(client.id, client.programs.back().id);
    client.programs.pop_back();
  }
  if (knobs_.tight_memory) {
    while (client.arrays.size() > 6) Forget(client, &client.arrays.front());
  }
  const bool idle = knobs_.idle_max > 0 && world_.Chance(0.1);
  world_.After(
      idle ? world_.Between(kMillisecond, knobs_.idle_max) : world_.Between(2 * kMicrosecond, 2 * kMillisecond),
      [this, index] { Step(index); });
}

// ---------------------------------------------------------------- answers

bool Simulation::FaultsExplain(const Blame& blame, const absl::Status& status) const {
  switch (status.code()) {
    case absl::StatusCode::kDataLoss:
      for (int slice : blame.slices) {
        if (slices_hurt_.count(slice) > 0) return true;
      }
      return false;
    case absl::StatusCode::kInvalidArgument: return blame.may_fail && absl::StrContains(status.message(), "injected");
    case absl::StatusCode::kResourceExhausted: return knobs_.tight_memory;
    default: return false;
  }
}

void Simulation::CheckError(const Request& request, const absl::Status& status) {
  ++outcome_.reads_failed;
  if (!FaultsExplain(request.array.blame, status))
    world_.Violation("an error that nothing explains: " + status.ToString());
}

void Simulation::CheckValue(const Request& request, const Content& shard) {
  ++outcome_.reads_ok;
  if (shard.elements != request.array.expected.elements) {
    world_.Violation(absl::StrCat("array ", request.array.id.ToString(), " has wrong bytes"));
  }
}

void Simulation::Resolve(RequestId id, const absl::Status& status) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return world_.Violation("an answer to no request");
  if (++it->second.answers > 1) return world_.Violation("a request is answered twice");
  if (!status.ok()) CheckError(it->second, status);
}

void Simulation::ResolveRead(RequestId id, absl::StatusOr<ReadResult> result) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return world_.Violation("an answer to no request");
  if (++it->second.answers > 1) return world_.Violation("a read is answered twice");
  if (!result.ok()) return CheckError(it->second, result.status());
  if (!result->remote) {
    Content content = it->second.array.expected;
    if (result->data.size() != content.elements.size() * 8) return world_.Violation("a read of the wrong size");
    std::memcpy(content.elements.data(), result->data.data(), result->data.size());
    CheckValue(it->second, content);
    return;
  }
  world_.After(world_.Between(50 * kMicrosecond, kMillisecond), [this, id, worker = result->worker, read = result->id] {
    const Request& request = requests_[id];
    SimWorker* source = WorkerOf(worker);
    absl::StatusOr<Content> content =
        source == nullptr ? absl::UnavailableError("gone") : source->ReadPublished(read & ((uint64_t{1} << 60) - 1));
    if (content.ok()) {
      CheckValue(request, *content);
    } else {
      ++outcome_.reads_failed;
      if (slices_hurt_.count(request.array.slice) == 0)
        world_.Violation("the bytes of a read are not there: " + content.status().ToString());
    }
    controller_.ReleaseRead(id);
  });
}

// ---------------------------------------------------------------- the run

Outcome Simulation::Run() {
  for (int c = 0; c < knobs_.sessions; ++c) {
    Client client;
    client.id = SessionId(static_cast<uint64_t>(c) + 1);
    client.steps_left = knobs_.steps;
    clients_.push_back(std::move(client));
  }
  worker_of_slot_.resize(static_cast<size_t>(knobs_.slices));
  HolderReport info;
  info.set_version(BuildVersion());
  info.set_host("sim");
  holder_.SetInfo(info);
  StartRm();
  for (int s = 0; s < knobs_.slices; ++s) StartWorker(s);
  TickProxy();
  holder_.Request({}, world_.now());
  FaultLater();

  auto finished = [this] {
    return std::all_of(clients_.begin(), clients_.end(), [](const Client& client) { return client.steps_left <= 0; });
  };
  RunUntilTrue(kRunLimit, [&] {
    if (!all_up_once_ && AllUp()) {
      all_up_once_ = true;
      for (const Fault& fault : knobs_.faults) {
        last_fault_ = std::max(last_fault_, world_.now() + fault.at + fault.lasts);
        world_.After(fault.at, [this, fault] { RunFault(fault); });
      }
    }
    return all_up_once_ && finished() && world_.now() > last_fault_;
  });
  faults_on_ = false;
  RunUntilTrue(kRestLimit, [this] { return AtRest(); });  // leases end, workers return, work drains
  Finish();
  outcome_.violations = world_.violations();
  outcome_.events = world_.events();
  outcome_.virtual_time = world_.now();
  return outcome_;
}

void Simulation::TickProxy() {
  holder_.OnTick(world_.now());
  controller_.OnTime(world_.now());
  world_.After(TickPeriod(LeaseTimes{}), [this] { TickProxy(); });
}

bool Simulation::RunUntilTrue(DurationNs limit, const std::function<bool()>& condition) {
  const TimeNs end = world_.now() + limit;
  while (world_.violations().empty()) {
    if (condition()) return true;
    if (world_.now() >= end) return false;
    world_.RunUntil(world_.now() + 10 * kMillisecond);
  }
  return false;
}

bool Simulation::AllUp() {
  if (workers_.size() != worker_of_slot_.size()) return false;
  for (Incarnation incarnation : worker_of_slot_) {
    SimWorker* worker = WorkerOf(incarnation);
    if (worker == nullptr || worker->paused() || !worker->connected() || members_.count(incarnation) == 0) return false;
    auto connection = connections_.find(incarnation);
    if (connection == connections_.end() || !connection->second.open) return false;
  }
  return true;
}

bool Simulation::Answered() const {
  return std::all_of(requests_.begin(), requests_.end(), [](const auto& entry) { return entry.second.answers > 0; });
}

bool Simulation::AtRest() {
  const Controller::Counts counts = controller_.counts();
  return rm_up_ && AllUp() && Answered() && counts.launches_unfinished + counts.ops_parked + counts.transfers == 0;
}

std::string Simulation::Leftovers() {
  std::string out;
  const Controller::Counts counts = controller_.counts();
  if (counts.sessions + counts.arrays + counts.buffers + counts.executables + counts.requests +
          counts.launches_unfinished + counts.ops_parked + counts.transfers + counts.host_buffers !=
      0) {
    absl::StrAppend(&out, "the controller keeps ", counts.sessions, " sessions, ", counts.arrays, " arrays, ",
                    counts.buffers, " buffers, ", counts.executables, " executables, ", counts.requests, " requests, ",
                    counts.launches_unfinished, " launches, ", counts.ops_parked, " parked ops, ", counts.transfers,
                    " transfers, ", counts.host_buffers, " host buffers; ");
  }
  if (!host_bytes_.empty()) absl::StrAppend(&out, host_bytes_.size(), " host buffers were never dropped; ");
  for (auto& [incarnation, worker] : workers_) {
    if (std::string left = worker->Leftovers(); !left.empty())
      absl::StrAppend(&out, left, " ", worker->Explain(), "; ");
  }
  return out;
}

void Simulation::Finish() {
  if (!world_.violations().empty()) return;
  auto everything = [this] {
    std::string text = controller_.StatusJson(world_.now());
    for (auto& [incarnation, worker] : workers_)
      absl::StrAppend(&text, "\n    ", worker->name(), ": ", worker->Explain());
    return text;
  };
  if (!devices_known_) return world_.Violation("the fleet never became known");
  if (!AllUp()) {
    return world_.Violation(
        absl::StrCat("the workers are not all in use again: ", rm_->StatusJson(world_.now()).dump()));
  }
  for (const Client& client : clients_) {
    if (client.steps_left > 0) return world_.Violation("a client did not finish its steps");
  }
  // Everything that clients still hold can be read, or fails for a reason.
  for (Client& client : clients_) {
    const std::vector<ArrayState> arrays = client.arrays;
    for (const ArrayState& array : arrays) ReadOne(client, array, false);
  }
  RunUntilTrue(AnswerLimit(), [this] { return Answered(); });
  if (!world_.violations().empty()) return;
  for (const auto& [id, request] : requests_) {
    if (request.answers == 1) continue;
    return world_.Violation(absl::StrCat("request ", id.ToString(), " about ", request.array.id.ToString(), " (slice ",
                                         request.array.slice, ") has ", request.answers, " answers: ", everything()));
  }
  world_.RunUntil(world_.now() + 2 * kMillisecond);  // pulls of published reads
  for (Client& client : clients_) {
    client.open = false;
    controller_.CloseSession(client.id, absl::FailedPreconditionError("the client has gone"));
  }
  if (!RunUntilTrue(AnswerLimit(), [this] { return Leftovers().empty(); }) && world_.violations().empty()) {
    world_.Violation(Leftovers());
  }
}

Knobs KnobsOfSeed(uint64_t seed) {
  SeededRandom random(seed * 7919 + 3);
  Knobs knobs;
  knobs.slices = 1 + static_cast<int>(random.NextBelow(4));
  knobs.devices = random.NextBelow(3) == 0 ? 1 : (random.NextBelow(2) == 0 ? 2 : 4);
  knobs.sessions = 1 + static_cast<int>(random.NextBelow(3));
  knobs.steps = 20 + static_cast<int>(random.NextBelow(80));
  const uint64_t kind = random.NextBelow(6);  // 0, 1: no faults at all
  if (kind >= 2) {
    if (kind == 2 || kind == 5) knobs.kill = 0.2;
    if (kind == 3 || kind == 5) knobs.pause = 0.2;
    if (kind == 4 || kind == 5) knobs.break_stream = 0.5;
    if (random.NextBelow(2) == 0) knobs.restart_rm = true;
    knobs.idle_max = 400 * kMillisecond;
  }
  if (random.NextBelow(3) == 0) knobs.fail_launch = 0.1;
  if (random.NextBelow(6) == 0) knobs.fail_load = 0.1;
  knobs.tight_memory = random.NextBelow(4) == 0;
  if (random.NextBelow(3) == 0) knobs.message_max = 20 * kMillisecond;
  knobs.policy = static_cast<SchedulingPolicyProto>(random.NextBelow(4));
  knobs.activation_budget = 2 + static_cast<uint32_t>(random.NextBelow(7));
  knobs.sequential_dispatch = random.NextBelow(5) == 0;
  knobs.only_reshards = random.NextBelow(6) == 0;
  return knobs;
}

Outcome RunSeed(uint64_t seed, const Knobs& knobs, std::function<void(const std::string&)> trace) {
  Simulation simulation(seed, knobs);
  simulation.TraceTo(std::move(trace));
  return simulation.Run();
}
Outcome RunSeed(uint64_t seed) { return RunSeed(seed, KnobsOfSeed(seed)); }

}  // namespace landbridge::sim
