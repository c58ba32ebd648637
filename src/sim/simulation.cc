#include "sim/simulation_impl.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace landbridge::sim {
namespace {

constexpr DurationNs kRunLimit = 20 * kSecond;    // for the clients' steps
constexpr DurationNs kRestLimit = 20 * kSecond;   // when faults have stopped
constexpr DurationNs kAnswerLimit = 5 * kSecond;  // without faults
// Phases are drawn at random: forward launches that nothing follows go past the budget one by one.
constexpr DurationNs kAnswerLimitWithPhases = 1200 * kSecond;

}  // namespace

Controller::Options Simulation::ControllerOptions(const Knobs& knobs) {
  Controller::Options options;
  options.space = 77;
  options.launches_per_worker_max = knobs.tight_memory ? 4 : 64;
  options.scheduling.set_policy(knobs.policy);
  options.scheduling.set_activation_budget(knobs.activation_budget);
  options.sequential_dispatch = knobs.sequential_dispatch;
  return options;
}

DurationNs Simulation::AnswerLimit() const {
  return knobs_.policy == POLICY_BACKWARD_FIRST ? kAnswerLimitWithPhases : kAnswerLimit;
}

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
  CheckGangs();
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
  if (random.NextBelow(2) == 0) knobs.spans = 0.5;
  if (random.NextBelow(4) == 0) knobs.repeat_mail = 0.05;
  if (kind >= 2 && knobs.spans > 0 && random.NextBelow(3) == 0) knobs.cut_mail = 0.2;
  return knobs;
}

Outcome RunSeed(uint64_t seed, const Knobs& knobs, std::function<void(const std::string&)> trace) {
  Simulation simulation(seed, knobs);
  simulation.TraceTo(std::move(trace));
  return simulation.Run();
}
Outcome RunSeed(uint64_t seed) { return RunSeed(seed, KnobsOfSeed(seed)); }

}  // namespace landbridge::sim
