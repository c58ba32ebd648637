#include "sim/simulation_impl.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace landbridge::sim {

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
  for (auto& [space, meeting] : meetings_) meeting.erase(incarnation);
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
  lost_grants_[member.incarnation] = std::max(lost_grants_[member.incarnation], member.grant.number);
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
    case Fault::Kind::kCutMail: return CutMail(fault.slice, fault.other, fault.lasts);
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
    if (knobs_.cut_mail > 0) {
      fault.other = static_cast<int>(world_.random().NextBelow(static_cast<uint64_t>(knobs_.slices)));
      may(knobs_.cut_mail, Fault::Kind::kCutMail,
          world_.Chance(0.2) ? 60 * kSecond : world_.Between(10 * kMillisecond, 4 * kSecond));
    }
    FaultLater();
  });
}

}  // namespace landbridge::sim
