#include "worker/span_member.h"

#include <algorithm>
#include <utility>

#include "worker/worker_limits.h"

namespace landbridge {

// ---------------------------------------------------------------- the spanner

void SpanMember::Join(SliceId log, uint64_t spanner_epoch) {
  if (spanner_epoch <= spanner_epoch_) return;
  log_ = log;
  spanner_epoch_ = spanner_epoch;
  kept_.clear();  // started nowhere: the new spanner repeats them, or goes on above them
  Report();
  for (const auto& [number, part] : parts_) {
    if (part.ready && part.g == 0) SendReady(number, part);
  }
}

void SpanMember::Report() {
  SliceReport report;
  report.slice = log_;
  report.epoch = kLogEpoch;
  report.spanner_epoch = spanner_epoch_;
  report.g_tail = g_tail_;
  report.g_seen = g_seen_;
  report.horizon = horizon_;
  for (const auto& [g, placed] : placed_) report.placed.push_back({placed.number, g, placed.logs});
  report.withdrawn.assign(withdrawn_.begin(), withdrawn_.end());
  horizon_told_ = horizon_;
  sink_->ToSpanner(std::move(report));
}

void SpanMember::SendReady(Ticket number, const Part& part) {
  if (unordered_) return;
  // One of them names all: with hundreds of workers that is most of the message.
  const bool first = part.logs.front() == log_;
  sink_->ToSpanner(
      Ready{log_, kLogEpoch, spanner_epoch_, number, first ? part.logs : std::vector<SliceId>(), part.after});
}

void SpanMember::OnCommit(const Commit& message) {
  if (message.spanner_epoch != spanner_epoch_ || message.g <= g_tail_) return;
  g_seen_ = std::max(g_seen_, message.g);
  kept_.emplace(message.previous_g, message);
  for (auto next = kept_.find(g_tail_); next != kept_.end(); next = kept_.find(g_tail_)) {
    const Commit commit = next->second;
    kept_.erase(next);
    Place(commit);
  }
}

void SpanMember::Place(const Commit& commit) {
  g_tail_ = commit.g;
  auto it = parts_.find(commit.ticket);
  if (it == parts_.end()) return;  // withdrawn meanwhile: it only uses up its G
  Part& part = it->second;
  part.g = commit.g;
  placed_[commit.g] = {commit.ticket, part.logs};
  g_of_[commit.ticket] = commit.g;
  for (uint32_t device : part.devices) queues_[device].push_back(commit.ticket);
  if (FirstOnItsDevices(commit.ticket, part)) startable_.push_back(part.ticket);
}

void SpanMember::OnHorizon(Ticket horizon) {
  if (horizon <= horizon_) return;
  horizon_ = horizon;
  withdrawn_.erase(withdrawn_.begin(), withdrawn_.lower_bound(horizon));
  const auto first_kept = g_of_.lower_bound(horizon);
  for (auto it = g_of_.begin(); it != first_kept; ++it) placed_.erase(it->second);
  g_of_.erase(g_of_.begin(), first_kept);
  if (spanner_epoch_ == 0 || horizon_.value() - horizon_told_.value() < limits::kSpanHorizonStep) return;
  horizon_told_ = horizon_;
  sink_->ToSpanner(HorizonAt{log_, kLogEpoch, spanner_epoch_, horizon_});
}

// ---------------------------------------------------------------- launches

void SpanMember::Arrive(Ticket number, Ticket ticket, std::vector<SliceId> logs, std::vector<uint32_t> devices) {
  Part& part = parts_[number];
  part.ticket = ticket;
  part.logs = std::move(logs);
  part.devices = std::move(devices);
}

void SpanMember::SetReady(Ticket number, std::vector<After> after) {
  Part& part = parts_.at(number);
  part.ready = true;
  part.after = std::move(after);
  if (spanner_epoch_ > 0) SendReady(number, part);
}

bool SpanMember::FirstOnItsDevices(Ticket number, const Part& part) const {
  return std::all_of(part.devices.begin(), part.devices.end(), [&](uint32_t device) {
    auto queue = queues_.find(device);
    return queue != queues_.end() && !queue->second.empty() && queue->second.front() == number;
  });
}

bool SpanMember::MayStart(Ticket number) const {
  auto it = parts_.find(number);
  if (it == parts_.end()) return false;
  return unordered_ || (it->second.g != 0 && FirstOnItsDevices(number, it->second));
}

void SpanMember::Look(uint32_t device) {
  std::deque<Ticket>& queue = queues_[device];
  if (queue.empty()) return;
  auto it = parts_.find(queue.front());
  if (FirstOnItsDevices(it->first, it->second)) startable_.push_back(it->second.ticket);
}

void SpanMember::OnStarted(Ticket number) {
  auto it = parts_.find(number);
  const std::vector<uint32_t> devices = std::move(it->second.devices);
  parts_.erase(it);
  if (unordered_) return;
  for (uint32_t device : devices) queues_[device].pop_front();
  for (uint32_t device : devices) Look(device);
}

void SpanMember::OnDropped(Ticket number) {
  if (auto it = parts_.find(number); it != parts_.end()) {
    const Part part = std::move(it->second);
    parts_.erase(it);
    if (part.g != 0) {
      for (uint32_t device : part.devices) std::erase(queues_[device], number);
      for (uint32_t device : part.devices) Look(device);
    }
  }
  if (number < horizon_ || !withdrawn_.insert(number).second) return;
  if (spanner_epoch_ > 0) sink_->ToSpanner(WithdrawnAt{log_, kLogEpoch, spanner_epoch_, number});
}

std::vector<Ticket> SpanMember::WaitingFor(SliceId log) const {
  std::vector<Ticket> tickets;
  for (const auto& [number, part] : parts_) {
    if (!log.valid() || std::binary_search(part.logs.begin(), part.logs.end(), log)) tickets.push_back(part.ticket);
  }
  return tickets;
}

std::vector<Ticket> SpanMember::TakeStartable() { return std::exchange(startable_, {}); }

}  // namespace landbridge
