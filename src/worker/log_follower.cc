#include "worker/log_follower.h"

#include <algorithm>
#include <utility>

namespace landbridge {

Able LogFollower::AbleMessage(const Part& part) const {
  Able able;
  able.epoch = epoch_;
  able.member = member_;
  able.launch = part.launch;
  able.after = part.after;
  return able;
}

PartOver LogFollower::OverMessage(Ticket ticket, const Left& left) const {
  PartOver over;
  over.epoch = epoch_;
  over.member = member_;
  over.ticket = ticket;
  over.good = left.good;
  over.run_ns = left.run_ns;
  return over;
}

// ---------------------------------------------------------------- launches here

void LogFollower::Arrive(LaunchFacts launch, std::vector<uint32_t> devices) {
  const Ticket ticket = launch.candidate.ticket;
  auto [it, added] = parts_.try_emplace(ticket);
  if (!added) return;
  it->second.launch = std::move(launch);
  it->second.devices = std::move(devices);
  // It may have been withdrawn before it came.
  const LaunchVerdict* verdict = withdrawals_.Find(ticket);
  if (verdict == nullptr) return;
  if (IsFinal(verdict->verdict)) {
    LeaveAs(it, PartEnd::kDropped);
  } else {
    it->second.spoilt = verdict->verdict == Verdict::kFinish;
  }
}

void LogFollower::SetAble(Ticket ticket, std::vector<After> after) {
  auto it = parts_.find(ticket);
  if (it == parts_.end() || it->second.stage != Stage::kWaiting) return;
  it->second.stage = Stage::kAble;
  it->second.after = std::move(after);
  if (epoch_ > 0) order_->ToSequencer(slice_, AbleMessage(it->second));
}

void LogFollower::SetBadInput(Ticket ticket) {
  auto it = parts_.find(ticket);
  if (it != parts_.end()) it->second.bad_input = true;
}

bool LogFollower::WithdrawUnknown(Ticket ticket) {
  auto it = parts_.find(ticket);
  if (it == parts_.end()) return false;
  const LaunchFacts& launch = it->second.launch;
  if (it->second.stage != Stage::kWaiting || launch.spans() || launch.members.size() > 1) return false;
  LeaveAs(it, PartEnd::kDropped);
  Run();
  return true;
}

void LogFollower::OnRunDone(Ticket ticket, bool ok, DurationNs run_ns) {
  auto it = parts_.find(ticket);
  if (it == parts_.end() || it->second.stage != Stage::kStarted) return;
  Part& part = it->second;
  part.stage = Stage::kDone;
  part.run_ok = ok;
  part.run_ns = run_ns;
  if (Held(ticket)) return;  // the verdict says what it was good for [5]
  LeaveAs(it, part.spoilt || part.aborted ? PartEnd::kSpoilt : ok ? PartEnd::kGood : PartEnd::kFailed);
  Run();
}

void LogFollower::LeaveAs(Parts::iterator part, PartEnd end) {
  const Ticket ticket = part->first;
  Left left;
  left.good = end == PartEnd::kGood;
  left.ran = part->second.stage == Stage::kDone;
  left.run_ns = part->second.run_ns;
  for (uint32_t device : part->second.devices) look_at_.push_back(device);
  parts_.erase(part);
  withdrawals_.LetGo(ticket);
  left_.emplace(ticket, left);
  sink_->Leave(ticket, end);
  if (epoch_ > 0) order_->ToSequencer(slice_, OverMessage(ticket, left));
}

// ---------------------------------------------------------------- the log

void LogFollower::OnNewWriter(const NewWriter& message) {
  if (message.epoch <= epoch_) return;
  epoch_ = message.epoch;  // from here on nothing of an older writer counts [9]
  Tail tail;
  tail.epoch = epoch_;
  tail.member = member_;
  tail.first_place = first_place_;
  tail.g_before = g_before_;
  tail.entries.assign(log_.begin(), log_.end());
  for (const auto& [ticket, left] : left_) tail.over.push_back(OverMessage(ticket, left));
  for (const auto& [ticket, part] : parts_) {
    if (part.stage == Stage::kAble) tail.able.push_back(AbleMessage(part));
  }
  order_->ToSequencer(slice_, std::move(tail));
}

void LogFollower::OnAppend(const Append& message) {
  if (message.epoch != epoch_) return;
  if (message.first_place > tail() + 1) {  // what a lost writer did not get here is over
    log_.clear();
    first_place_ = message.first_place;
    g_before_ = std::max(g_before_, message.g_before);
  }
  for (const OrderEntry& entry : message.entries) {
    if (entry.place != tail() + 1) continue;  // known already; a stream has no gaps
    log_.push_back(entry);
    Apply(entry);
  }
  TrimTo(message.horizon);
  Run();
}

void LogFollower::Apply(const OrderEntry& entry) {
  if (entry.kind == OrderEntry::Kind::kVerdict) return ApplyVerdict(entry.verdict);
  if (entry.kind != OrderEntry::Kind::kLaunch) return;
  auto it = parts_.find(entry.ticket);
  if (it == parts_.end() || it->second.stage > Stage::kAble) return;
  it->second.stage = Stage::kPlaced;
  for (uint32_t device : it->second.devices) {
    queues_[device].push_back(entry.ticket);
    look_at_.push_back(device);
  }
}

void LogFollower::TrimTo(Ticket horizon) {
  if (horizon <= withdrawals_.horizon()) return;
  withdrawals_.TrimTo(horizon);
  while (!log_.empty() && log_.front().ticket < horizon) {
    g_before_ = std::max(g_before_, log_.front().g);
    log_.pop_front();
    ++first_place_;
  }
  left_.erase(left_.begin(), left_.lower_bound(horizon));
}

// ---------------------------------------------------------------- handing over

bool LogFollower::FirstOnItsDevices(Ticket ticket, const Part& part) const {
  return std::all_of(part.devices.begin(), part.devices.end(), [&](uint32_t device) {
    auto queue = queues_.find(device);
    return queue != queues_.end() && !queue->second.empty() && queue->second.front() == ticket;
  });
}

bool LogFollower::MayStart(const Part& part) const {
  const Ticket ticket = part.launch.candidate.ticket;
  if (Held(ticket)) return false;
  if (part.spoilt) return true;  // to finish, on whatever there is
  if (part.bad_input) return false;
  return std::none_of(part.after.begin(), part.after.end(), [&](const After& after) {
    if (!after.data) return false;
    if (Held(after.ticket)) return true;  // [5]
    auto producer = parts_.find(after.ticket);
    if (producer == parts_.end()) {
      auto left = left_.find(after.ticket);
      return left != left_.end() && !left->second.good;
    }
    return producer->second.stage < Stage::kStarted || producer->second.spoilt || producer->second.aborted;
  });
}

void LogFollower::Run() {
  while (!look_at_.empty()) {
    const uint32_t device = look_at_.back();
    look_at_.pop_back();
    std::deque<Ticket>& queue = queues_[device];
    while (!queue.empty()) {
      const Ticket ticket = queue.front();
      auto it = parts_.find(ticket);
      if (it == parts_.end()) {  // it left without a start
        queue.pop_front();
        continue;
      }
      Part& part = it->second;
      if (!MayStart(part) || !FirstOnItsDevices(ticket, part)) break;
      part.stage = Stage::kStarted;
      for (uint32_t other : part.devices) {
        queues_[other].pop_front();
        if (other != device) look_at_.push_back(other);
      }
      sink_->HandOver(ticket, part.bad_input);
    }
  }
}

// ---------------------------------------------------------------- withdrawing

void LogFollower::OnFreeze(const FreezeParts& message) {
  if (message.epoch != epoch_ || message.round < round_) return;
  round_ = message.round;
  FreezeAnswer answer;
  answer.epoch = epoch_;
  answer.member = member_;
  answer.round = message.round;
  for (Ticket ticket : message.tickets) {
    if (!withdrawals_.Reopen(ticket, message.round)) continue;  // a repeated question, perhaps
    PartAnswer part_answer;
    part_answer.ticket = ticket;
    part_answer.member = member_;
    auto part = parts_.find(ticket);
    if (part != parts_.end()) {
      withdrawals_.Hold(ticket);
      part_answer.state = part->second.stage >= Stage::kStarted ? PartState::kStarted : PartState::kNotStarted;
      part_answer.bad_input = part->second.bad_input && part_answer.state == PartState::kNotStarted;
    } else if (auto left = left_.find(ticket); left != left_.end()) {
      part_answer.state = left->second.ran ? PartState::kFinished : PartState::kNotStarted;
    } else {
      withdrawals_.Hold(ticket);  // not here yet, or not at all
      continue;
    }
    answer.parts.push_back(part_answer);
  }
  order_->ToSequencer(slice_, std::move(answer));
}

void LogFollower::ApplyVerdict(const LaunchVerdict& verdict) {
  const Ticket ticket = verdict.ticket;
  if (!withdrawals_.Take(verdict)) return;
  for (auto& [device, queue] : queues_) look_at_.push_back(device);  // consumers may have waited for it too
  auto it = parts_.find(ticket);
  if (it == parts_.end()) return;
  Part& part = it->second;
  if (verdict.verdict == Verdict::kFinish) part.spoilt = true;
  if (part.stage < Stage::kStarted) {
    // Others finished without a part that cannot start.
    const bool skipped = verdict.verdict == Verdict::kRelease && part.bad_input;
    if (IsFinal(verdict.verdict) || skipped) LeaveAs(it, PartEnd::kDropped);
    return;
  }
  if (part.stage == Stage::kDone) {
    const bool good = verdict.verdict == Verdict::kRelease && !part.spoilt;
    LeaveAs(it, !good ? PartEnd::kSpoilt : part.run_ok ? PartEnd::kGood : PartEnd::kFailed);
  } else if (verdict.verdict == Verdict::kAbort) {
    part.aborted = true;
    sink_->AbortRun(ticket);
  }
}

}  // namespace landbridge
