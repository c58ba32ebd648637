#include "worker/launch_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {
namespace {

bool IsHostKind(const std::string& memory_kind) {
  return memory_kind == "pinned_host" || memory_kind == "unpinned_host";
}

Sequencer::Options SequencerOptions(const WorkerLimits& limits) {
  Sequencer::Options options;
  options.placed_launches_max = std::max(1, limits.placed_launches_max);
  options.placed_run_time = limits::kPlacedRunTime;
  options.placed_pair_run_time = 2 * limits::kPlacedRunTime;
  options.placed_while_unknown = limits::kPlacedWhileUnknown;
  options.age_limit = limits::kLaunchAgeMax;
  return options;
}

std::unique_ptr<SchedulingPolicy> MakePolicy(const Scheduling& op) {
  switch (op.policy()) {
    case POLICY_PROPORTIONAL_SHARE: return MakeSharePolicy();
    case POLICY_PRIORITY: return MakePriorityPolicy(limits::kLaunchAgeMax);
    case POLICY_BACKWARD_FIRST:
      return MakeBackwardFirstPolicy(static_cast<int>(std::min(op.activation_budget(), limits::kActivationBudgetMax)),
                                     limits::kActivationStallMax);
    default: return MakeClientOrderPolicy();
  }
}

constexpr uint64_t kFirstEpoch = 1;

}  // namespace

LaunchQueue::LaunchQueue(CoreContext* context, const WorkerLimits& limits, SpanMember* spans)
    : context_(context),
      spans_(spans),
      sequencer_(SequencerOptions(limits), MakeClientOrderPolicy(), kFirstEpoch),
      in_order_(context->memory.devices()),
      queued_on_(context->memory.devices(), 0) {}

void LaunchQueue::OnScheduling(const Scheduling& op) {
  sequencer_.SetPolicy(MakePolicy(op));
  place_again_ = true;
}

// What waits may be chosen, or go past a budget, because time has passed.
void LaunchQueue::OnTime() { place_again_ = place_again_ || sequencer_.candidates() > 0; }

// ---------------------------------------------------------------- arrival

void LaunchQueue::CreateOutputs(Node& node) {
  const ExecutableInfo& info = node.program->info;
  node.outputs.reserve(static_cast<size_t>(node.op->outputs_size()));
  for (int o = 0; o < node.op->outputs_size(); ++o) {
    const TensorInfo& tensor = info.outputs(o);
    const bool host = IsHostKind(tensor.memory_kind());
    const ArrayId array(node.op->outputs(o));
    auto keep = [&](Buffer* buffer) {
      buffer->can_fail_alone = info.can_fail_on_one_shard();
      context_->buffers.Pin(*buffer);
      node.outputs.push_back(buffer);
    };
    if (node.layout != nullptr && !context_->buffers.AnyOf(array)) {
      keep(
          context_->buffers.CreateTogether(array, node.layout, host, tensor.device_bytes(), node.session, node.ticket));
      continue;
    }
    for (size_t d = 0; d < node.devices.size(); ++d) {
      keep(context_->buffers.Create(BufferRef{array, ShardOf(*node.op, static_cast<int>(d))},
                                    PoolId{node.devices[d], host}, tensor.device_bytes(), node.session, node.ticket));
    }
  }
}

WaiterKind LaunchQueue::InputWaiter(const Node& node) {
  if (node.program->info.has_side_effects()) return WaiterKind::kLaunchStrict;
  return node.program->info.num_devices() > 1 ? WaiterKind::kLaunchGang : WaiterKind::kLaunch;
}

bool LaunchQueue::IsUsable(const Node& node, const Buffer& input) {
  if (input.state != BufferState::kEnqueued || input.doubtful) return input.state == BufferState::kResident;
  const WaiterKind kind = InputWaiter(node);
  return kind == WaiterKind::kLaunch || (kind == WaiterKind::kLaunchGang && !input.can_fail_alone);
}

PoisonPtr LaunchQueue::TakeInputs(Node& node) {
  PoisonPtr poison;
  BufferTable& buffers = context_->buffers;
  for (Buffer* buffer : node.inputs) {
    buffers.Pin(*buffer);
    switch (buffer->state) {
      case BufferState::kPoisoned:
        if (poison == nullptr) poison = buffer->poison;
        break;
      case BufferState::kResident: break;
      case BufferState::kEnqueued:
        if (IsUsable(node, *buffer)) {
          buffers.AddWaiter(*buffer, Waiter{WaiterKind::kLaunchPoison, node.self});
          break;
        }
        [[fallthrough]];
      case BufferState::kPending:
        ++node.inputs_missing;
        if (!buffer->promised) ++node.inputs_unpromised;
        buffers.AddWaiter(*buffer, Waiter{InputWaiter(node), node.self});
        break;
    }
  }
  std::vector<bool> gives(static_cast<size_t>(node.op->args_size()), false);
  for (uint32_t parameter : node.op->donated()) gives[parameter] = true;
  size_t i = 0;
  for (const bool given : gives) {
    for (const size_t end = i + InputsOf(*node.inputs[i], node.op->devices_size()); i < end; ++i) {
      Buffer* buffer = node.inputs[i];
      if (!given) {
        buffers.AddUnplacedReader(*buffer);
        continue;
      }
      node.donated.push_back(buffer);
      if (!buffers.SetDonor(*buffer, Waiter{WaiterKind::kLaunch, node.self}, node.ticket, false)) {
        ++node.donations_missing;
      }
    }
  }
  return poison;
}

void LaunchQueue::ComputeNeeds(Node& node) const {
  // What a donated input holds passes to the outputs, as far as they are that large: a training loop stays flat.
  if (ComputeEvenNeeds(node)) return;
  MemoryNeeds outputs, given;
  auto add = [](const Buffer& buffer, MemoryNeeds* needs) {
    BufferTable::ForEachPlace(buffer, [&](BufferRef, PoolId pool) { needs->Add(pool, buffer.bytes); });
  };
  for (const Buffer* buffer : node.outputs) add(*buffer, &outputs);
  for (const Buffer* buffer : node.donated) {
    if (buffer->state != BufferState::kPoisoned) add(*buffer, &given);
  }
  for (const MemoryNeeds::Need& need : outputs.all()) {
    node.memory.Add(need.pool, need.bytes - std::min(need.bytes, given.BytesOf(need.pool)));
  }
  for (uint32_t device : node.devices)
    node.memory.Add(PoolId{device, false}, node.program->info.temp_bytes_per_device());
}

// What is made and given together needs the same on every device.
bool LaunchQueue::ComputeEvenNeeds(Node& node) {
  if (node.layout == nullptr) return false;
  int64_t made[2] = {0, 0}, given[2] = {0, 0};  // of device and host memory
  for (const Buffer* buffer : node.outputs) {
    if (buffer->whole == nullptr) return false;
    made[buffer->pool.host] = AddBytes(made[buffer->pool.host], buffer->bytes);
  }
  for (const Buffer* buffer : node.donated) {
    if (buffer->whole == nullptr) return false;
    if (buffer->state != BufferState::kPoisoned)
      given[buffer->pool.host] = AddBytes(given[buffer->pool.host], buffer->bytes);
  }
  const int64_t device_bytes =
      AddBytes(made[0] - std::min(made[0], given[0]), node.program->info.temp_bytes_per_device());
  const int64_t host_bytes = made[1] - std::min(made[1], given[1]);
  node.memory.Reserve(node.devices.size());
  for (uint32_t device : node.devices) {
    node.memory.Add(PoolId{device, false}, device_bytes);
    node.memory.Add(PoolId{device, true}, host_bytes);
  }
  return true;
}

void LaunchQueue::OnLaunch(std::unique_ptr<Launch> launch, TimeNs now) {
  Launch& op = *launch;
  const Ticket ticket(op.ticket());
  if (!context_->unfinished.TryEmplace(ticket).second) {
    ++context_->anomalies;
    return;
  }
  auto found = programs_.find(ExecutableId(op.executable()));
  Program* program = found == programs_.end() ? nullptr : found->second.get();
  LaunchBase no_base;
  absl::Status status = ExpandLaunch(program == nullptr ? &no_base : &program->launch_base, &op);
  if (status.ok()) status = CheckLaunch(op, program);
  if (status.ok() && context_->unfinished.size() > limits::kWorkerNodesMax) {
    status = absl::InvalidArgumentError(
        absl::StrCat("the controller sent more than ", limits::kWorkerNodesMax, " nodes ahead"));
  }
  Buffers inputs;
  ShardLayoutPtr layout;
  if (status.ok()) {
    layout = LayoutOf(op, program);
    status = FindInputs(op, layout.get(), &inputs);
  }
  if (status.ok() && op.span().has_failed()) status = StatusFromProto(op.span().failed());
  if (op.has_span()) spans_->OnHorizon(Ticket(op.span().horizon()));
  if (!status.ok()) {
    Reject(op, status);
    if (!spans_->Knows(NumberOf(op))) NeverStarts(op);
    return;
  }

  auto [handle, slot] = launches_.Add();
  Node& node = *slot;
  node.self = handle;
  node.op = std::move(launch);
  node.ticket = ticket;
  node.session = SessionId(node.op->session());
  node.program = program;
  node.devices.assign(node.op->devices().begin(), node.op->devices().end());
  node.layout = std::move(layout);
  node.inputs = std::move(inputs);
  node.arrived = now;
  *by_ticket_.TryEmplace(ticket).first = handle;
  ++program->queued;
  for (uint32_t device : node.devices) ++queued_on_[device];
  if (node.op->has_span()) {
    spans_->Arrive(NumberOf(*node.op), ticket, LogsOf(node.op->span()), {node.devices.begin(), node.devices.end()});
  }
  CreateOutputs(node);
  if (PoisonPtr poison = TakeInputs(node)) {
    Drop(node, poison);
    return;
  }
  if (!program->loaded) {
    node.load_missing = true;
    program->waiting.push_back(handle);
  }
  ComputeNeeds(node);
  const absl::Status fits =
      node.memory.Ask(context_->memory, MemoryAdmission::Key{ticket}, Waiter{WaiterKind::kLaunch, handle});
  if (!fits.ok()) {
    Drop(node, MakePoison(fits, ticket, node.op->user_context()));
    return;
  }
  if (node.memory.waiting() > 0) context_->memory_may_be_stuck = true;
  CheckRunnable(node, now);
}

// ---------------------------------------------------------------- runnable

bool LaunchQueue::Runnable(const Node& node) const {
  return !node.load_missing && node.inputs_missing == 0 && node.donations_missing == 0 && node.memory.waiting() == 0 &&
         (!node.op->has_span() || spans_->MayStart(NumberOf(*node.op)));
}

// From here on nothing but an error can keep it from starting: its workers may agree on its turn, and on that of what
// takes its outputs, before it has started.
void LaunchQueue::CheckPromise(Node& node) {
  if (node.promised || node.load_missing || node.inputs_unpromised > 0 || node.donations_missing > 0 ||
      node.memory.waiting() > 0) {
    return;
  }
  node.promised = true;
  std::vector<After> after;
  for (const Buffer* input : node.inputs) {
    if (input->state != BufferState::kPending) continue;
    const Node* producer = OfTicket(input->producer);
    if (producer == nullptr) continue;
    const After one{NumberOf(*producer->op), true};
    if (std::find(after.begin(), after.end(), one) == after.end()) after.push_back(one);
  }
  spans_->SetReady(NumberOf(*node.op), std::move(after));
  for (Buffer* output : node.outputs) context_->buffers.SetPromised(*output);
}

void LaunchQueue::NeverStarts(const Launch& op) {
  if (op.span().number() != 0) spans_->OnDropped(NumberOf(op));
}

void LaunchQueue::OnAbort(const AbortLaunch& op) {
  const Ticket ticket(op.ticket());
  const absl::Status why = StatusFromProto(op.why());
  Node* node = OfTicket(ticket);
  if (node == nullptr || node->stage == Stage::kPlaced || node->stage == Stage::kDone) {
    context_->sink->AbortLaunch(ticket, why);
  } else {
    Drop(*node, MakePoison(why, Ticket(op.why().root_ticket()), op.why().user_context()));
  }
}

LaunchQueue::Node* LaunchQueue::OfTicket(Ticket ticket) {
  const SlabHandle* handle = by_ticket_.Find(ticket);
  return handle == nullptr ? nullptr : launches_.Get(*handle);
}

void LaunchQueue::DropUnplaced(Ticket ticket, const PoisonPtr& why) {
  Node* node = OfTicket(ticket);
  if (node != nullptr && (node->stage == Stage::kWaiting || node->stage == Stage::kCandidate)) Drop(*node, why);
}

Candidate LaunchQueue::MakeCandidate(const Node& node) const {
  Candidate candidate;
  candidate.ticket = node.ticket;
  candidate.session = node.session;
  candidate.priority = node.op->priority();
  if (node.op->weight() > 0) candidate.weight = static_cast<double>(node.op->weight());
  candidate.phase = node.op->phase() == PHASE_FORWARD    ? Phase::kForward
                    : node.op->phase() == PHASE_BACKWARD ? Phase::kBackward
                                                         : Phase::kNone;
  candidate.devices.assign(node.devices.begin(), node.devices.end());
  candidate.estimated_run_ns = node.program->run_estimate;
  candidate.side_effects = node.program->info.has_side_effects();
  candidate.ready_since = node.ready_since;
  return candidate;
}

void LaunchQueue::CheckRunnable(Node& node, TimeNs now) {
  if (node.stage != Stage::kWaiting) return;
  if (node.op->has_span()) CheckPromise(node);
  if (!Runnable(node)) return;
  node.stage = Stage::kCandidate;
  node.ready_since = now;
  sequencer_.AddCandidate(MakeCandidate(node));
  place_again_ = true;
}

void LaunchQueue::OnWake(const BufferTable::Wake& wake, TimeNs now) {
  Node* node = launches_.Get(wake.who.handle);
  if (node == nullptr || node->stage == Stage::kPlaced || node->stage == Stage::kDone) return;
  switch (wake.event) {
    case BufferTable::Event::kMayTake: --node->donations_missing; break;
    case BufferTable::Event::kPromised: --node->inputs_unpromised; break;
    case BufferTable::Event::kMoreToTake: node->donations_missing += wake.more; return;
    case BufferTable::Event::kMore:
      node->inputs_missing += wake.more;
      if (!wake.was_promised) node->inputs_unpromised += wake.more;
      return;
    case BufferTable::Event::kUsable:
      --node->inputs_missing;
      if (!wake.was_promised) --node->inputs_unpromised;
      break;
    case BufferTable::Event::kDoubtful:
      ++node->inputs_missing;
      if (node->stage == Stage::kCandidate) {
        sequencer_.Withdraw(node->ticket);
        node->stage = Stage::kWaiting;
        place_again_ = true;
      }
      return;
    case BufferTable::Event::kPoisoned: Drop(*node, wake.poison); return;
  }
  CheckRunnable(*node, now);
}

void LaunchQueue::OnMemoryGranted(Waiter who, PoolId pool, TimeNs now) {
  Node* node = launches_.Get(who.handle);
  node->memory.Granted(pool);
  CheckRunnable(*node, now);
}

void LaunchQueue::OnMemoryNeverFits(const MemoryAdmission::Blocked& blocked) {
  Node* node = launches_.Get(blocked.who.handle);
  Drop(*node, MakePoison(context_->memory.DoesNotFit(blocked.pool, blocked.key, blocked.bytes), node->ticket,
                         node->op->user_context()));
}

void LaunchQueue::NeverPlaced(const Node& node) {
  if (node.stage == Stage::kCandidate) {
    sequencer_.Withdraw(node.ticket);
    place_again_ = true;  // it may have kept devices free
  }
  if (node.op->phase() != PHASE_NONE) {
    sequencer_.OnDropped(MakeCandidate(node));
    place_again_ = true;
  }
}

void LaunchQueue::Drop(Node& node, const PoisonPtr& why) {
  BufferTable& buffers = context_->buffers;
  NeverPlaced(node);
  NeverStarts(*node.op);
  node.memory.Drop(context_->memory, MemoryAdmission::Key{node.ticket});
  size_t next_donated = 0;  // in the order of inputs
  for (Buffer* buffer : node.inputs) {
    if (next_donated < node.donated.size() && node.donated[next_donated] == buffer) {
      ++next_donated;
      buffers.RequestDelete(*buffer);
    } else {
      buffers.RemoveUnplacedReader(*buffer);
    }
    buffers.Unpin(*buffer);
  }
  std::vector<BufferRef> refs;
  refs.reserve(node.outputs.size());
  for (Buffer* buffer : node.outputs) {
    BufferTable::ForEachPlace(*buffer, [&](BufferRef ref, PoolId) { refs.push_back(ref); });
    buffers.SetPoisoned(*buffer, why);
    buffers.Unpin(*buffer);
  }
  context_->report.Failed(refs, *why, node.ticket);
  if (node.op->report_at_once()) context_->report.Hurry();
  context_->NodeEnded(node.ticket);
  for (uint32_t device : node.devices) --queued_on_[device];
  Program& program = *node.program;
  by_ticket_.Erase(node.ticket);
  launches_.Erase(node.self);
  LeaveProgram(program);
}

// ---------------------------------------------------------------- the order log

void LaunchQueue::HandOver(Node& node, uint64_t place) {
  BufferTable& buffers = context_->buffers;
  node.stage = Stage::kPlaced;
  node.place = place;
  if (node.op->has_span()) spans_->OnStarted(NumberOf(*node.op));
  size_t next_donated = 0;
  bool uncertain = false;
  for (Buffer* buffer : node.inputs) {
    uncertain |= buffer->state == BufferState::kEnqueued && buffer->can_fail_alone;
    buffers.StartRunning(*buffer);
    if (next_donated < node.donated.size() && node.donated[next_donated] == buffer) {
      ++next_donated;
    } else {
      buffers.RemoveUnplacedReader(*buffer);
    }
  }
  for (uint32_t device : node.devices) {
    in_order_[device].push_back(node.self);
    --queued_on_[device];
  }
  ++running_;
  ++placed_;
  if (node.op->report_at_once()) ++hurried_;
  context_->sink->HandOver(node.op, place);
  for (Buffer* buffer : node.outputs) {
    buffers.SetInShell(*buffer);
    if (uncertain) buffers.SetCanFailAlone(*buffer);
    buffers.SetEnqueued(*buffer);
  }
  Program& program = *node.program;
  node.program = nullptr;
  LeaveProgram(program);
}

void LaunchQueue::OnLaunchDone(Ticket ticket, const absl::Status& status, DurationNs run_ns) {
  Node* node = OfTicket(ticket);
  if (node == nullptr || node->stage != Stage::kPlaced) {
    ++context_->anomalies;
    return;
  }
  run_ns = std::max<DurationNs>(run_ns, 0);
  node->stage = Stage::kDone;
  node->result = status;
  --running_;
  sequencer_.OnFinished(ticket, run_ns);
  place_again_ = true;
  if (status.ok() && run_ns > 0) {
    auto program = programs_.find(ExecutableId(node->op->executable()));
    if (program != programs_.end()) {
      DurationNs& estimate = program->second->run_estimate;
      const bool first = estimate == 0;
      estimate = first ? run_ns : (3 * estimate + run_ns) / 4;
      if (first) RenewCandidates(*program->second);
    }
  }
  if (!status.ok()) {
    for (Buffer* buffer : node->outputs) context_->buffers.SetDoubtful(*buffer);
  }
  look_at_.push_back(node->devices[0]);  // if another is before it there, that one will lead here
}

void LaunchQueue::RenewCandidates(const Program& program) {
  launches_.ForEach([&](SlabHandle, const Node& node) {
    if (node.stage != Stage::kCandidate || node.program != &program) return;
    sequencer_.Withdraw(node.ticket);
    sequencer_.AddCandidate(MakeCandidate(node));
  });
}

// A launch ends when everything before it on its devices has ended. So progress is in log order, and whether an input
// turned out good is known: plugins do not keep the order of completions, nor the error that came in with an input.
void LaunchQueue::End(Node& node) {
  BufferTable& buffers = context_->buffers;
  PoisonPtr poison;
  for (const Buffer* buffer : node.inputs) {
    if (buffer->state == BufferState::kPoisoned) {
      poison = buffer->poison;
      break;
    }
  }
  if (poison == nullptr && !node.result.ok()) poison = MakePoison(node.result, node.ticket, node.op->user_context());

  size_t next_donated = 0;
  for (Buffer* buffer : node.inputs) {
    buffers.StopRunning(*buffer);
    if (next_donated < node.donated.size() && node.donated[next_donated] == buffer) {
      ++next_donated;
      buffers.RequestDelete(*buffer);
    }
    buffers.Unpin(*buffer);
  }
  node.memory.Drop(context_->memory, MemoryAdmission::Key{node.ticket});
  std::vector<BufferRef> failed;
  for (Buffer* buffer : node.outputs) {
    if (poison == nullptr) {
      BufferTable::ForEachPlace(*buffer, [&](BufferRef, PoolId pool) { context_->memory.Grow(pool, buffer->bytes); });
      buffers.SetResident(*buffer);
    } else {
      BufferTable::ForEachPlace(*buffer, [&](BufferRef ref, PoolId) { failed.push_back(ref); });
      buffers.SetPoisoned(*buffer, poison);
    }
    buffers.Unpin(*buffer);
  }
  if (poison != nullptr) context_->report.Failed(failed, *poison, node.ticket);
  --placed_;
  if (node.op->report_at_once()) {
    --hurried_;
    context_->report.Hurry();
  }
  context_->NodeEnded(node.ticket);
  by_ticket_.Erase(node.ticket);
  launches_.Erase(node.self);
}

bool LaunchQueue::Advance(TimeNs now) {
  bool any = false;
  for (Ticket ticket : spans_->TakeStartable()) {
    if (Node* node = OfTicket(ticket)) CheckRunnable(*node, now);
  }
  while (!look_at_.empty()) {
    const uint32_t device = look_at_.back();
    look_at_.pop_back();
    if (in_order_[device].empty()) continue;
    const SlabHandle oldest = in_order_[device].front();
    Node& node = *launches_.Get(oldest);
    if (node.stage != Stage::kDone) continue;
    const bool first_everywhere = std::all_of(node.devices.begin(), node.devices.end(),
                                              [&](uint32_t d) { return in_order_[d].front() == oldest; });
    if (!first_everywhere) continue;  // the one before it will lead here again
    SlabHandle next;                  // mostly the same on all devices: looked at once
    for (uint32_t d : node.devices) {
      in_order_[d].pop_front();
      if (in_order_[d].empty() || in_order_[d].front() == next) continue;
      next = in_order_[d].front();
      look_at_.push_back(d);
    }
    End(node);
    any = true;
  }
  if (any || !std::exchange(place_again_, false)) {
    // Ends first: they wake, poison and free. Placing comes when nothing of that is left to do.
    place_again_ = place_again_ || any;
    return any;
  }
  for (const LogEntry& entry : sequencer_.Place(now)) {
    HandOver(*OfTicket(entry.ticket), entry.place);
    any = true;
  }
  return any;
}

// ---------------------------------------------------------------- withdrawing

void LaunchQueue::CancelSession(SessionId session, const PoisonPtr& why) {
  launches_.ForEach([&](SlabHandle, Node& node) {
    if (node.session == session && (node.stage == Stage::kWaiting || node.stage == Stage::kCandidate)) Drop(node, why);
  });
  sequencer_.OnSessionEnded(session);
}

void LaunchQueue::Fence(const PoisonPtr& why) {
  launches_.ForEach([&](SlabHandle, Node& node) {
    if (node.stage == Stage::kWaiting || node.stage == Stage::kCandidate) Drop(node, why);
  });
  std::vector<ExecutableId> ids;
  for (const auto& [id, program] : programs_) ids.push_back(id);
  std::sort(ids.begin(), ids.end());
  for (ExecutableId id : ids) {
    Program& program = *programs_.at(id);
    program.unload_requested = true;
    MaybeUnload(program);
  }
}

}  // namespace landbridge
