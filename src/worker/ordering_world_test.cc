#include "worker/ordering_world_test_util.h"

#include "absl/strings/str_join.h"
#include "base/limits.h"

namespace landbridge::ordering {
namespace {

bool SameEntry(const OrderEntry& a, const OrderEntry& b) {
  return a.kind == b.kind && a.ticket == b.ticket && a.g == b.g && a.devices == b.devices &&
         a.verdict.verdict == b.verdict.verdict && a.verdict.round == b.verdict.round;
}

Sequencer::Options PolicyOptions() {
  Sequencer::Options options;
  options.placed_run_time = limits::kPlacedRunTime;
  return options;
}

}  // namespace

// ---------------------------------------------------------------- messages

void World::Deliver(int from, Worker& at, const OrderMessage& message) {
  auto for_spanner = [&](uint64_t epoch) {
    if (at.spanner != nullptr && at.spanner->epoch() == epoch) return true;
    // For an epoch that is not active yet: kept.
    if (at.spanner == nullptr || at.spanner->epoch() < epoch) at.for_spanner_to_come.emplace_back(from, message);
    return false;
  };
  if (const auto* m = std::get_if<NewWriter>(&message)) {
    if (m->epoch > at.follower.epoch()) at.leader_at = from;
    // A higher epoch is itself the notice.
    if (at.sequencer != nullptr && at.sequencer->epoch() < m->epoch) at.sequencer = nullptr;
    at.follower.OnNewWriter(*m);
  } else if (const auto* append = std::get_if<Append>(&message)) {
    at.follower.OnAppend(*append);
  } else if (const auto* freeze = std::get_if<FreezeParts>(&message)) {
    at.follower.OnFreeze(*freeze);
  } else if (const auto* ready = std::get_if<Ready>(&message)) {
    if (for_spanner(ready->spanner_epoch)) at.spanner->OnReady(*ready);
  } else if (const auto* withdrawn = std::get_if<WithdrawnAt>(&message)) {
    if (for_spanner(withdrawn->spanner_epoch)) at.spanner->OnWithdrawn(*withdrawn);
  } else if (const auto* horizon = std::get_if<HorizonAt>(&message)) {
    if (for_spanner(horizon->spanner_epoch)) at.spanner->OnHorizon(*horizon);
  } else if (const auto* report = std::get_if<SliceReport>(&message)) {
    if (for_spanner(report->spanner_epoch)) {
      auto& reporter = at.reporter_of[report->slice.value()];
      if (report->epoch >= reporter.first) reporter = {report->epoch, from};
      at.spanner->OnSliceReport(*report);
    }
  } else if (at.sequencer != nullptr) {
    SliceSequencer& sequencer = *at.sequencer;
    if (const auto* able = std::get_if<Able>(&message)) sequencer.OnAble(*able, now_);
    if (const auto* over = std::get_if<PartOver>(&message)) sequencer.OnPartOver(*over, now_);
    if (const auto* answer = std::get_if<FreezeAnswer>(&message)) sequencer.OnFreezeAnswer(*answer);
    if (const auto* tail = std::get_if<Tail>(&message)) sequencer.OnTail(*tail, now_);
    if (const auto* commit = std::get_if<Commit>(&message)) sequencer.OnCommit(*commit, now_);
  }
  Drain(at);
}

void World::Drain(Worker& at) {
  while (!at.todo.empty()) {
    std::function<void()> what = std::move(at.todo.front());
    at.todo.pop_front();
    what();
  }
}

// ---------------------------------------------------------------- the controller

void World::GrantSlice(int slice, int worker) {
  const uint64_t epoch = ++epochs_[Index(slice)];
  leader_[Index(slice)] = worker;
  ++seen_.epochs;
  SliceSequencer::Grant grant;
  grant.slice = SliceId(slice);
  grant.epoch = epoch;
  for (uint32_t m = 0; m < options_.members; ++m) {
    const int at = slice * static_cast<int>(options_.members) + static_cast<int>(m);
    if (!known_lost_.contains(at)) grant.members.push_back(m);
  }
  grant.verdicts = withdrawals_.VerdictsFor(SliceId(slice));
  grant.horizon = Ticket(horizon_);
  grant.spanner_epoch = spanner_epoch_;
  Trace(absl::StrCat("slice ", slice, " epoch ", epoch, " to w", worker));
  Post(kController, worker, [this, worker, grant, spanner = spanner_] {
    Worker& at = *workers_[Index(worker)];
    at.spanner_at = spanner;
    at.sequencer = std::make_unique<SliceSequencer>(grant, PolicyOptions(), MakeClientOrderPolicy(), &at);
    Drain(at);
  });
  withdrawals_.OnSequencer(SliceId(slice), epoch, now_);
}

void World::GrantSpanner(int worker) {
  const uint64_t epoch = ++spanner_epoch_;
  spanner_ = worker;
  std::vector<SliceId> slices;
  for (int s = 0; s < options_.slices; ++s) {
    if (!slice_gone_[Index(s)]) slices.push_back(SliceId(s));
  }
  Trace(absl::StrCat("spanner ", epoch, " to w", worker));
  Post(kController, worker, [this, worker, epoch, slices] {
    Worker& at = *workers_[Index(worker)];
    at.spanner = std::make_unique<Spanner>(epoch, slices, &at);
    at.reporter_of.clear();
    auto kept = std::exchange(at.for_spanner_to_come, {});
    for (const auto& [from, message] : kept) Deliver(from, at, message);
  });
  for (int s = 0; s < options_.slices; ++s) {
    const int leader = leader_[Index(s)];
    if (leader < 0) continue;
    Post(kController, leader, [this, leader, worker, epoch, s] {
      Worker& at = *workers_[Index(leader)];
      at.spanner_at = worker;
      if (SliceSequencer* sequencer = SequencerAt(leader, SliceId(s))) sequencer->OnNewSpanner(NewSpanner{epoch}, now_);
      Drain(at);
    });
  }
}

void World::Kill(int worker) {
  Worker& at = *workers_[Index(worker)];
  if (!at.alive) return;
  Trace(absl::StrCat("w", worker, " is killed"));
  at.alive = false;
  ++seen_.losses;
  // Whoever runs together with something that ran there waits for ever.
  for (auto& [ticket, launch] : launches_) {
    auto part = launch.parts.find(worker);
    if (part == launch.parts.end() || part->second.ran == Ran::kEnded || !launch.spec.collective) continue;
    for (auto& [other, state] : launch.parts) state.hangs = true;
  }
  After(options_.detect, [this, worker] { OnWorkerLost(worker); });
}

void World::OnWorkerLost(int worker) {
  Trace(absl::StrCat("w", worker, " is known to be lost"));
  known_lost_.insert(worker);
  const int slice = worker / static_cast<int>(options_.members);
  std::vector<int> left, all;
  for (int w = 0; w < static_cast<int>(workers_.size()); ++w) {
    if (known_lost_.contains(w)) continue;
    all.push_back(w);
    if (w / static_cast<int>(options_.members) == slice) left.push_back(w);
  }
  auto any = [this](const std::vector<int>& of) { return of[Index(static_cast<int>(random_.NextBelow(of.size())))]; };
  std::vector<Ticket> roots;
  for (auto& [ticket, launch] : launches_) {
    auto part = launch.parts.find(worker);
    if (part == launch.parts.end()) continue;
    if (!part->second.end.has_value()) part->second.lost = true;
    if (!launch.over && part->second.lost) {
      launch.poisoned = true;
      roots.push_back(Ticket(ticket));
    }
  }
  if (left.empty()) {
    slice_gone_[Index(slice)] = true;
    leader_[Index(slice)] = -1;
    if (spanner_ != worker) {
      Post(kController, spanner_, [this, at = spanner_, slice] {
        if (workers_[Index(at)]->spanner != nullptr) workers_[Index(at)]->spanner->OnSliceLost(SliceId(slice));
      });
    }
    withdrawals_.OnSliceLost(SliceId(slice), now_);
  } else if (leader_[Index(slice)] == worker) {
    GrantSlice(slice, any(left));
  } else {
    const int leader = leader_[Index(slice)];
    Post(kController, leader, [this, leader, slice, worker] {
      if (SliceSequencer* sequencer = SequencerAt(leader, SliceId(slice))) {
        sequencer->OnMemberLost(workers_[Index(worker)]->member, now_);
      }
    });
  }
  if (spanner_ == worker && !all.empty()) GrantSpanner(any(all));
  for (int w : all) {
    Post(kController, w, [this, w, worker] {
      Worker& at = *workers_[Index(w)];
      at.lost_peers.insert(worker);
      for (auto it = at.pins.begin(); it != at.pins.end();) {
        if (it->second.to != worker) {
          ++it;
          continue;
        }
        --at.buffers[{it->second.producer, it->second.device}].transfers;
        it = at.pins.erase(it);
      }
      std::vector<uint64_t> bad;
      for (auto& [ticket, part] : at.parts) {
        for (Worker::Input& input : part.inputs) {
          if (input.here || input.spec.same_device() || WorkerOf(input.spec.from) != worker) continue;
          input.bad = true;
          bad.push_back(ticket);
        }
      }
      for (uint64_t ticket : bad) SetBad(at, ticket);
      CheckAllAble(at);
    });
  }
  withdrawals_.OnLost(roots, now_);
  std::vector<uint64_t> tickets;
  for (const auto& [ticket, launch] : launches_) tickets.push_back(ticket);
  for (uint64_t ticket : tickets) CheckOver(ticket);
  MoveHorizon();
}

void World::OnLeftReport(int worker, uint64_t ticket, PartEnd end) {
  LaunchState& launch = launches_.at(ticket);
  if (end != PartEnd::kGood) launch.poisoned = true;
  launch.parts.at(worker).lost = false;
  CheckOver(ticket);
  MoveHorizon();
}

void World::CheckOver(uint64_t ticket) {
  LaunchState& launch = launches_.at(ticket);
  launch.over = std::all_of(launch.parts.begin(), launch.parts.end(),
                            [](const auto& part) { return part.second.lost || part.second.end.has_value(); });
}

void World::MoveHorizon() {
  uint64_t low = horizon_;
  while (low < next_ticket_ && launches_.at(low).over) ++low;
  if (low == horizon_) return;
  horizon_ = low;
  withdrawals_.OnHorizon(Ticket(low));
  for (int s = 0; s < options_.slices; ++s) {
    const int leader = leader_[Index(s)];
    if (leader < 0) continue;
    Post(kController, leader, [this, leader, s, low] {
      if (SliceSequencer* sequencer = SequencerAt(leader, SliceId(s))) sequencer->OnHorizon(Ticket(low), now_);
      Drain(*workers_[Index(leader)]);
    });
  }
}

std::vector<ctl::WithdrawnLaunch> World::Closure(const std::set<Ticket>& roots, const std::set<Ticket>& asked) {
  std::vector<ctl::WithdrawnLaunch> set;
  std::set<uint64_t> in;
  auto place = [this](const At& at) {
    return ctl::WithdrawnLaunch::Place{SliceId(at.slice), at.device / options_.devices};
  };
  for (const auto& [ticket, launch] : launches_) {
    if (launch.over) continue;
    ctl::WithdrawnLaunch one;
    one.ticket = Ticket(ticket);
    one.root = roots.contains(Ticket(ticket));
    one.stand_ins = launch.spec.stand_ins;
    bool concerned = one.root || asked.contains(Ticket(ticket));
    for (const Spec::Input& input : launch.spec.inputs) {
      if (!in.contains(input.producer)) continue;
      concerned = true;
      one.inputs.push_back({Ticket(input.producer), place(input.from), place(input.to)});
    }
    if (!concerned) continue;
    in.insert(ticket);
    for (const auto& [worker, part] : launch.parts) {
      if (part.lost) {
        one.lost_part = true;
      } else if (!known_lost_.contains(worker)) {
        one.parts.push_back({SliceId(workers_[Index(worker)]->slice), workers_[Index(worker)]->member});
      }
    }
    set.push_back(std::move(one));
  }
  return set;
}

uint64_t World::Issue(Spec spec) {
  const uint64_t ticket = next_ticket_++;
  LaunchState& launch = launches_[ticket];
  for (const At& at : spec.devices) launch.parts[WorkerOf(at)];
  launch.spec = std::move(spec);
  Trace(absl::StrCat("issued t", ticket));
  // Sources pin before anything that may donate comes after it in their streams.
  for (size_t i = 0; i < launch.spec.inputs.size(); ++i) {
    const Spec::Input& input = launch.spec.inputs[i];
    if (input.same_device()) continue;
    const int source = WorkerOf(input.from);
    Post(kController, source, [this, source, ticket, i] { OnPin(*workers_[Index(source)], ticket, i); });
  }
  for (const auto& [worker, part] : launch.parts) {
    Post(kController, worker, [this, worker = worker, ticket] { OnPrepare(*workers_[Index(worker)], ticket); });
  }
  return ticket;
}

// ---------------------------------------------------------------- workers

void World::OnPrepare(Worker& at, uint64_t ticket) {
  const Spec& spec = launches_.at(ticket).spec;
  LaunchFacts facts;
  facts.candidate.ticket = Ticket(ticket);
  facts.candidate.session = SessionId(spec.session);
  std::set<SliceId> slices;
  std::set<uint32_t> members;
  std::vector<uint32_t> mine;
  Worker::Part& part = at.parts[ticket];
  for (const At& device : spec.devices) {
    slices.insert(SliceId(device.slice));
    if (device.slice != at.slice) continue;
    facts.candidate.devices.push_back(device.device);
    members.insert(device.device / options_.devices);
    if (WorkerOf(device) != at.id) continue;
    mine.push_back(device.device);
    part.devices.push_back(device.device % options_.devices);
    Worker::BufferAt& made = at.buffers[{ticket, device.device}];
    made.known = true;
    made.can_fail = spec.fails;
  }
  facts.members.assign(members.begin(), members.end());
  facts.slices.assign(slices.begin(), slices.end());
  bool bad = false;
  for (size_t i = 0; i < spec.inputs.size(); ++i) {
    const Spec::Input& input = spec.inputs[i];
    if (WorkerOf(input.to) != at.id) continue;
    Worker::Input one;
    one.spec = input;
    if (input.same_device()) {
      Worker::BufferAt& buffer = at.buffers[{input.producer, input.from.device}];
      buffer.readers.push_back(ticket);
      one.bad = buffer.bad;
    } else if (auto arrived = at.arrived.find({ticket, i}); arrived != at.arrived.end()) {
      one.here = arrived->second;
      one.bad = !arrived->second;
    } else {
      one.bad = at.lost_peers.contains(WorkerOf(input.from));
    }
    bad = bad || one.bad;
    part.inputs.push_back(one);
  }
  at.follower.Arrive(std::move(facts), mine);
  Drain(at);
  if (!at.parts.contains(ticket)) return;
  for (uint32_t device : at.parts[ticket].devices) {
    Worker::Part& mem = at.parts[ticket];
    if (options_.memory_as_it_comes) {
      ++mem.memory_missing;
      mem.memory_asked.insert(device);
    } else if (at.memory.Ask(PoolId{device, false}, MemoryAdmission::Key{Ticket(ticket)}, Waiter{}, 1) ==
               MemoryAdmission::Answer::kWaits) {
      ++mem.memory_missing;
      mem.memory_asked.insert(device);
    } else {
      mem.memory_held.insert(device);
    }
  }
  if (bad) SetBad(at, ticket);
  TakeMemory(at);
  CheckAllAble(at);
}

void World::TakeMemory(Worker& at) {
  if (options_.memory_as_it_comes) {
    // The youngest first: whatever is asked for while there is room.
    for (auto it = at.parts.rbegin(); it != at.parts.rend(); ++it) {
      Worker::Part& part = it->second;
      for (uint32_t device : std::set<uint32_t>(part.memory_asked)) {
        if (at.used[device] >= options_.memory) continue;
        ++at.used[device];
        part.memory_asked.erase(device);
        part.memory_held.insert(device);
        --part.memory_missing;
      }
    }
    return;
  }
  while (auto granted = at.memory.NextGranted()) {
    // The oldest that waits for this pool: memory goes in the order of tickets.
    for (auto& [ticket, part] : at.parts) {
      if (part.memory_asked.erase(granted->pool.device) == 0) continue;
      part.memory_held.insert(granted->pool.device);
      --part.memory_missing;
      break;
    }
  }
}

void World::OnPin(Worker& at, uint64_t consumer, size_t index) {
  const Spec::Input& input = launches_.at(consumer).spec.inputs[index];
  if (at.acknowledged.contains({consumer, index})) return;
  const int to = WorkerOf(input.to);
  if (at.lost_peers.contains(to)) return;
  at.pins[{consumer, index}] = {input.producer, input.from.device, to};
  Worker::BufferAt& buffer = at.buffers[{input.producer, input.from.device}];
  ++buffer.transfers;
  if (buffer.consumed) Violation(absl::StrCat("t", consumer, " pins t", input.producer, ", which was donated"));
  ServePins(at, input.producer, input.from.device);
}

void World::ServePins(Worker& at, uint64_t producer, uint32_t device) {
  const Worker::BufferAt& buffer = at.buffers[{producer, device}];
  if (!buffer.good && !buffer.bad) return;
  for (const auto& [key, pin] : at.pins) {
    if (pin.producer != producer || pin.device != device) continue;
    Post(at.id, pin.to, [this, to = pin.to, consumer = key.first, index = key.second, good = buffer.good] {
      OnArrived(*workers_[Index(to)], consumer, index, good);
    });
  }
}

void World::OnArrived(Worker& at, uint64_t consumer, size_t index, bool good) {
  if (!at.arrived.emplace(std::pair(consumer, index), good).second) return;
  const Spec::Input& spec = launches_.at(consumer).spec.inputs[index];
  const int source = WorkerOf(spec.from);
  Post(at.id, source, [this, source, consumer, index] { OnTransferOver(*workers_[Index(source)], consumer, index); });
  auto part = at.parts.find(consumer);
  if (part == at.parts.end()) return;
  for (Worker::Input& input : part->second.inputs) {
    if (input.spec.from != spec.from || input.spec.to != spec.to || input.spec.producer != spec.producer) continue;
    if (input.bad) continue;
    input.here = good;
    input.bad = !good;
  }
  if (!good) SetBad(at, consumer);
  CheckAllAble(at);
}

void World::OnTransferOver(Worker& at, uint64_t consumer, size_t index) {
  auto pin = at.pins.find({consumer, index});
  if (pin == at.pins.end()) {
    at.acknowledged.insert({consumer, index});
    return;
  }
  --at.buffers[{pin->second.producer, pin->second.device}].transfers;
  at.pins.erase(pin);
  at.acknowledged.insert({consumer, index});
  CheckAllAble(at);
}

void World::CheckAllAble(Worker& at) {
  std::vector<uint64_t> tickets;
  for (const auto& [ticket, part] : at.parts) tickets.push_back(ticket);
  for (uint64_t ticket : tickets) {
    if (at.parts.contains(ticket)) CheckAble(at, ticket);
  }
}

void World::CheckAble(Worker& at, uint64_t ticket) {
  Worker::Part& part = at.parts.at(ticket);
  const Spec& spec = launches_.at(ticket).spec;
  if (part.able || part.bad || part.memory_missing > 0) return;
  std::vector<landbridge::After> afters;
  for (const Worker::Input& input : part.inputs) {
    if (input.bad) return;
    if (!input.spec.same_device()) {
      if (!input.here) return;
      continue;
    }
    const Worker::BufferAt& buffer = at.buffers[{input.spec.producer, input.spec.from.device}];
    if (!buffer.good) {
      if (buffer.can_fail || (spec.side_effects && !options_.side_effects_early)) return;
      afters.push_back({Ticket(input.spec.producer), true});
    }
    if (!input.spec.donate) continue;
    if (buffer.transfers > 0) return;
    for (uint64_t reader : buffer.readers) {
      if (reader >= ticket) continue;
      std::set<int> slices;
      for (const At& device : launches_.at(reader).spec.devices) slices.insert(device.slice);
      if (options_.forget_spanning_readers && slices.size() > 1) continue;
      afters.push_back({Ticket(reader), false});
    }
  }
  part.able = true;
  at.follower.SetAble(Ticket(ticket), std::move(afters));
  Drain(at);
}

void World::SetBad(Worker& at, uint64_t ticket) {
  auto it = at.parts.find(ticket);
  if (it == at.parts.end() || it->second.bad) return;
  it->second.bad = true;
  if (launches_.at(ticket).parts.at(at.id).ran != Ran::kNo) return;
  Trace(absl::StrCat("w", at.id, " t", ticket, " has a bad input"));
  if (at.follower.WithdrawUnknown(Ticket(ticket))) {
    Drain(at);
    return;
  }
  at.follower.SetBadInput(Ticket(ticket));
  Post(at.id, kController, [this, ticket] {
    if (launches_.at(ticket).over) return;
    launches_.at(ticket).poisoned = true;
    const Ticket root(ticket);
    withdrawals_.Withdraw({&root, 1}, now_);
  });
}

void World::OnHandOver(Worker& at, uint64_t ticket, bool stand_ins) {
  LaunchState& launch = launches_.at(ticket);
  LaunchPart& part = launch.parts.at(at.id);
  const Worker::Part& here = at.parts.at(ticket);
  Trace(absl::StrCat("w", at.id, " starts t", ticket, stand_ins ? " on stand-ins" : ""));
  if (part.ran != Ran::kNo) Violation(absl::StrCat("I5: t", ticket, " is handed over twice"));
  part.ran = Ran::kStarted;
  part.stand_ins = stand_ins;
  uint64_t place = 0;
  for (const OrderEntry& entry : at.follower.log()) {
    if (entry.kind == OrderEntry::Kind::kLaunch && entry.ticket.value() == ticket) place = entry.place;
  }
  if (place == 0) Violation(absl::StrCat("I1: t", ticket, " starts without a place"));
  for (uint32_t device : here.devices) {
    uint64_t& last = at.last_started[device];
    if (place <= last) Violation(absl::StrCat("I1: t", ticket, " at ", place, " starts after ", last));
    last = place;
    at.queues[device].push_back(ticket);
  }
  for (const Worker::Input& input : here.inputs) {
    Worker::BufferAt* buffer =
        input.spec.same_device() ? &at.buffers[{input.spec.producer, input.spec.from.device}] : nullptr;
    const std::string what = absl::StrCat("t", ticket, " with t", input.spec.producer, " as an input");
    const bool bad = input.bad || (buffer != nullptr && buffer->bad);
    if (bad && !stand_ins) Violation("I9: " + what + ", which is an error");
    if (buffer == nullptr && !input.here && !stand_ins) Violation("I3: " + what + ", which is not here");
    if (buffer == nullptr) continue;
    const LaunchState& producer = launches_.at(input.spec.producer);
    if (!buffer->good && !stand_ins && producer.parts.at(at.id).ran == Ran::kNo) {
      Violation("I3: " + what + ", which has not started");
    }
    if (launch.spec.side_effects && !buffer->good && !stand_ins) Violation("[6]: " + what + ", which has not ended");
    if (at.follower.Held(Ticket(input.spec.producer))) Violation("[5]: " + what + ", which is held");
    if (buffer->consumed) Violation("I3: " + what + ", which was donated before");
    if (input.spec.donate && buffer->transfers > 0 && !stand_ins) Violation("(c): " + what + ", which is being sent");
  }
  for (const Worker::Input& input : here.inputs) {
    if (input.spec.donate) at.buffers[{input.spec.producer, input.spec.from.device}].consumed = true;
  }
  RunDevices(at);
}

void World::RunDevices(Worker& at) {
  for (uint32_t device = 0; device < options_.devices; ++device) {
    if (at.queues[device].empty()) continue;
    const uint64_t ticket = at.queues[device].front();
    const Worker::Part& part = at.parts.at(ticket);
    const bool first = std::all_of(part.devices.begin(), part.devices.end(), [&](uint32_t other) {
      return !at.queues[other].empty() && at.queues[other].front() == ticket;
    });
    if (first && launches_.at(ticket).parts.at(at.id).ran == Ran::kStarted) StartOnDevice(at, ticket);
  }
}

void World::StartOnDevice(Worker& at, uint64_t ticket) {
  LaunchState& launch = launches_.at(ticket);
  LaunchPart& part = launch.parts.at(at.id);
  part.ran = Ran::kRunning;
  part.tainted = part.stand_ins;
  bool error = false;
  for (const Worker::Input& input : at.parts.at(ticket).inputs) {
    const LaunchState& producer = launches_.at(input.spec.producer);
    if (!input.spec.same_device()) continue;
    const LaunchPart& made = producer.parts.at(at.id);
    part.tainted = part.tainted || made.tainted || (producer.spec.collective && producer.tainted);
    error = error || (made.ended_bad && !part.stand_ins);
  }
  if (launch.spec.collective) launch.tainted = launch.tainted || part.tainted;
  const bool alone = !launch.spec.collective || launch.parts.size() == 1;
  if (part.aborted || (error && alone)) {
    After(0, [this, id = at.id, ticket] { EndRun(id, ticket, false); });
  } else if (error) {
    part.hangs = true;  // its peers wait for it
  } else if (alone) {
    After(launch.spec.run, [this, id = at.id, ticket] { EndRun(id, ticket, !launches_.at(ticket).spec.fails); });
  } else {
    CheckGang(ticket);
  }
}

void World::CheckGang(uint64_t ticket) {
  LaunchState& launch = launches_.at(ticket);
  for (const auto& [worker, part] : launch.parts) {
    if (part.ran != Ran::kRunning || part.hangs || part.aborted || !workers_[Index(worker)]->alive) return;
  }
  for (const auto& [worker, part] : launch.parts) {
    After(launch.spec.run + static_cast<DurationNs>(random_.NextBelow(50 * kMicrosecond)), [this, id = worker, ticket] {
      const LaunchPart& mine = launches_.at(ticket).parts.at(id);
      if (!mine.hangs || mine.aborted) EndRun(id, ticket, !mine.aborted);
    });
  }
}

void World::OnAbortRun(Worker& at, uint64_t ticket) {
  LaunchState& launch = launches_.at(ticket);
  LaunchPart& part = launch.parts.at(at.id);
  part.aborted = true;
  if (part.ran == Ran::kRunning) After(0, [this, id = at.id, ticket] { EndRun(id, ticket, false); });
}

void World::EndRun(int worker, uint64_t ticket, bool ok) {
  Worker& at = *workers_[Index(worker)];
  LaunchPart& part = launches_.at(ticket).parts.at(worker);
  if (!at.alive || part.ran != Ran::kRunning) return;
  part.ran = Ran::kEnded;
  for (const Worker::Input& input : at.parts.at(ticket).inputs) {
    if (part.stand_ins || !input.spec.same_device()) continue;
    if (at.buffers[{input.spec.producer, input.spec.from.device}].bad) ok = false;
  }
  part.ended_bad = !ok;
  for (uint32_t device : at.parts.at(ticket).devices) at.queues[device].pop_front();
  Trace(absl::StrCat("w", worker, " ran t", ticket, ok ? "" : ", which failed"));
  at.follower.OnRunDone(Ticket(ticket), ok, launches_.at(ticket).spec.run);
  Drain(at);
  RunDevices(at);
}

void World::OnLeave(Worker& at, uint64_t ticket, PartEnd end) {
  LaunchState& launch = launches_.at(ticket);
  LaunchPart& part = launch.parts.at(at.id);
  Trace(absl::StrCat("w", at.id, " t", ticket, " leaves ", std::string(1, "gdfs"[static_cast<size_t>(end)])));
  if (part.end.has_value()) Violation(absl::StrCat("I5: t", ticket, " leaves twice"));
  part.end = end;
  const bool tainted = part.tainted || (launch.spec.collective && launch.tainted);
  if (end == PartEnd::kGood && tainted) Violation(absl::StrCat("I9: t", ticket, " is good, but was made on stand-ins"));
  if (end == PartEnd::kGood && part.ended_bad) Violation(absl::StrCat("I9: t", ticket, " is good, but failed"));
  at.todo.push_back([this, &at, ticket, end] {
    const Spec& spec = launches_.at(ticket).spec;
    const bool keeps = options_.keep_readers_of_dropped && end == PartEnd::kDropped;
    Worker::Part gone = std::move(at.parts.at(ticket));
    at.parts.erase(ticket);
    for (const Worker::Input& input : gone.inputs) {
      if (keeps) break;
      if (input.spec.same_device()) {
        auto& readers = at.buffers[{input.spec.producer, input.spec.from.device}].readers;
        readers.erase(std::find(readers.begin(), readers.end(), ticket));
      }
    }
    for (size_t i = 0; i < spec.inputs.size() && !keeps; ++i) {  // [8]
      const Spec::Input& input = spec.inputs[i];
      if (input.same_device() || WorkerOf(input.to) != at.id || at.arrived.contains({ticket, i})) continue;
      at.arrived[{ticket, i}] = false;
      const int source = WorkerOf(input.from);
      Post(at.id, source, [this, source, ticket, i] { OnTransferOver(*workers_[Index(source)], ticket, i); });
    }
    for (uint32_t device : gone.memory_held) {
      if (options_.memory_as_it_comes) {
        --at.used[device];
      } else {
        at.memory.Release(PoolId{device, false}, 1);
      }
    }
    for (uint32_t device : gone.memory_asked) {
      if (!options_.memory_as_it_comes) at.memory.Withdraw(PoolId{device, false}, MemoryAdmission::Key{Ticket(ticket)});
    }
    std::vector<uint64_t> bad;
    for (const At& device : spec.devices) {
      if (WorkerOf(device) != at.id) continue;
      Worker::BufferAt& buffer = at.buffers[{ticket, device.device}];
      buffer.good = end == PartEnd::kGood;
      buffer.bad = !buffer.good;
      if (buffer.bad) {
        for (uint64_t reader : buffer.readers) {
          for (Worker::Input& input : at.parts.at(reader).inputs) {
            input.bad = input.bad || (input.spec.producer == ticket && input.spec.from == device);
          }
          bad.push_back(reader);
        }
      }
      ServePins(at, ticket, device.device);
    }
    for (uint64_t reader : bad) SetBad(at, reader);
    TakeMemory(at);
    CheckAllAble(at);
  });
  Post(at.id, kController, [this, worker = at.id, ticket, end] { OnLeftReport(worker, ticket, end); });
}

// ---------------------------------------------------------------- checks

std::string World::Explain() {
  std::string text;
  for (int s = 0; s < options_.slices; ++s) {
    absl::StrAppend(&text, "slice ", s, " leader w", leader_[Index(s)], " epoch ", epochs_[Index(s)], ": ", Log(s),
                    "\n");
  }
  for (const auto& [ticket, launch] : launches_) {
    if (launch.over) continue;
    absl::StrAppend(&text, "t", ticket, " g ", G(ticket));
    for (const auto& [id, part] : launch.parts) {
      Worker& at = *workers_[Index(id)];
      absl::StrAppend(&text, "\n  w", id, at.alive ? "" : " dead", part.lost ? " lost" : "", " ran ",
                      static_cast<int>(part.ran), part.end.has_value() ? " left" : "", part.hangs ? " hangs" : "",
                      part.aborted ? " aborted" : "", at.follower.Held(Ticket(ticket)) ? " held" : "", " epoch ",
                      at.follower.epoch());
      auto here = at.parts.find(ticket);
      if (here == at.parts.end()) continue;
      absl::StrAppend(&text, here->second.able ? " able" : "", here->second.bad ? " bad" : "", " memory missing ",
                      here->second.memory_missing);
      for (const Worker::Input& input : here->second.inputs) {
        const char* where = input.spec.same_device() ? "" : input.here ? " here" : " away";
        absl::StrAppend(&text, " <- t", input.spec.producer, where, input.bad ? " bad" : "",
                        input.spec.donate ? " donated" : "");
      }
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

void World::CheckLogs() {
  for (int s = 0; s < options_.slices; ++s) {
    if (slice_gone_[Index(s)]) continue;
    const Worker* leader = nullptr;
    for (uint32_t m = 0; m < options_.members; ++m) {
      const Worker& at = *workers_[Index(s) * options_.members + m];
      if (!at.alive || at.sequencer == nullptr || !at.sequencer->active()) continue;
      if (leader != nullptr && leader->sequencer->epoch() == at.sequencer->epoch()) {
        Violation("I7: two writers of one epoch");
      }
      if (leader == nullptr || at.sequencer->epoch() > leader->sequencer->epoch()) leader = &at;
    }
    if (leader == nullptr || leader->sequencer->epoch() < canon_epoch_[s]) continue;
    std::map<uint64_t, OrderEntry>& canon = canon_[Index(s)];
    const std::deque<OrderEntry>& log = leader->sequencer->log();
    if (leader->sequencer->epoch() > canon_epoch_[s]) {
      canon_epoch_[s] = leader->sequencer->epoch();
      for (uint32_t m = 0; m < options_.members; ++m) workers_[Index(s) * options_.members + m]->checked_through = 0;
      // What no survivor had is decided anew.
      const uint64_t first = log.empty() ? leader->sequencer->tail() + 1 : log.front().place;
      canon.erase(canon.lower_bound(first), canon.end());
      canon_through_[s] = 0;
    }
    for (const OrderEntry& entry : log) {
      if (entry.place <= canon_through_[s]) continue;
      canon_through_[s] = entry.place;
      auto before = canon.empty() ? canon.end() : std::prev(canon.end());
      for (auto it = before; entry.g != 0 && it != canon.end();) {
        if (it->second.g != 0) {
          if (it->second.g >= entry.g) Violation(absl::StrCat("I2: G ", entry.g, " after ", it->second.g));
          break;
        }
        it = it == canon.begin() ? canon.end() : std::prev(it);
      }
      canon[entry.place] = entry;
      if (entry.kind == OrderEntry::Kind::kVoid) ++seen_.voids;
      if (entry.kind == OrderEntry::Kind::kLaunch && entry.g != 0) g_of_[entry.ticket.value()] = entry.g;
    }
    for (uint32_t m = 0; m < options_.members; ++m) {
      Worker& at = *workers_[Index(s) * options_.members + m];
      if (!at.alive || at.follower.epoch() != canon_epoch_[s]) continue;
      for (const OrderEntry& entry : at.follower.log()) {
        if (entry.place <= at.checked_through) continue;
        at.checked_through = entry.place;
        auto known = canon.find(entry.place);
        if (known == canon.end() || !SameEntry(known->second, entry)) {
          Violation(absl::StrCat("I7: w", at.id, " has another entry at place ", entry.place));
        }
      }
    }
  }
}

void World::CheckEnd() {
  for (const auto& [ticket, launch] : launches_) {
    if (!launch.over) Violation(absl::StrCat("I6: t", ticket, " never ends"));
    bool lost = false, good = false, other = false;
    for (const auto& [worker, part] : launch.parts) {
      lost = lost || part.lost || part.aborted || !workers_[Index(worker)]->alive;
      good = good || part.end == PartEnd::kGood;
      other = other || (part.end.has_value() && part.end != PartEnd::kGood);
    }
    if (launch.spec.collective && !lost && good && other) {
      Violation(absl::StrCat("I4: t", ticket, " ended well on some devices only: ", Fate(ticket)));
    }
  }
  // One G, one launch, in all logs that are left.
  std::map<uint64_t, uint64_t> launch_of, number_of;
  for (int s = 0; s < options_.slices; ++s) {
    if (slice_gone_[Index(s)]) continue;
    for (const auto& [place, entry] : canon_[Index(s)]) {
      if (entry.kind != OrderEntry::Kind::kLaunch || entry.g == 0) continue;
      if (!launch_of.emplace(entry.g, entry.ticket.value()).second && launch_of[entry.g] != entry.ticket.value()) {
        Violation(absl::StrCat("I2: G ", entry.g, " is two launches"));
      }
      if (!number_of.emplace(entry.ticket.value(), entry.g).second && number_of[entry.ticket.value()] != entry.g) {
        Violation(absl::StrCat("I2: t", entry.ticket.value(), " has two Gs"));
      }
    }
  }
  for (const auto& worker : workers_) {
    if (!worker->alive || worker->sequencer == nullptr) continue;
    if (worker->sequencer->epoch() != epochs_[Index(worker->slice)]) continue;
    const std::vector<size_t> kept = worker->sequencer->remembered();
    if (std::any_of(kept.begin(), kept.end(), [](size_t n) { return n > 0; })) {
      Violation(absl::StrCat("a sequencer keeps something when all is over: ", absl::StrJoin(kept, " ")));
    }
  }
  if (spanner_ >= 0 && workers_[Index(spanner_)]->alive && workers_[Index(spanner_)]->spanner->remembered() > 0) {
    Violation("something is left in the spanner when all is over");
  }
}

}  // namespace landbridge::ordering
