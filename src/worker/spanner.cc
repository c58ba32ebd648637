#include "worker/spanner.h"

#include <algorithm>
#include <utility>

namespace landbridge {

Spanner::Spanner(uint64_t epoch, const std::vector<SliceId>& slices, ToSequencers* sink) : epoch_(epoch), sink_(sink) {
  for (SliceId slice : slices) slices_[slice];
}

// ---------------------------------------------------------------- slices

void Spanner::OnSliceReport(const SliceReport& message) {
  auto it = slices_.find(message.slice);
  if (it == slices_.end() || message.spanner_epoch != epoch_) return;
  Slice& slice = it->second;
  if (message.epoch < slice.epoch || (message.epoch == slice.epoch && slice.reported)) return;
  // What an older writer called ready, the new one will say again.
  for (auto& [ticket, launch] : launches_) {
    if (launch.g == 0) launch.ready.erase(message.slice);
  }
  slice.epoch = message.epoch;
  slice.reported = true;
  slice.g_tail = message.g_tail;
  slice.g_seen = message.g_seen;
  slice.last_sent = message.g_tail;
  slice.horizon = std::max(slice.horizon, message.horizon);
  slice.placed = message.placed;
  std::vector<Ticket> withdrawn;
  for (Ticket ticket : message.withdrawn) {
    if (withdrawn_.insert(ticket).second) withdrawn.push_back(ticket);
  }
  if (active_) {
    slice.placed.clear();
    RepeatCommits(message.slice);
    for (Ticket ticket : withdrawn) Wake(ticket);
    TryAgain();
  } else {
    Activate();
  }
}

void Spanner::OnSliceLost(SliceId slice) {
  if (slices_.erase(slice) == 0) return;
  Forget();
  if (!active_) Activate();
}

void Spanner::Activate() {
  for (const auto& [id, slice] : slices_) {
    if (!slice.reported) return;
  }
  active_ = true;
  Forget();
  for (auto& [id, slice] : slices_) {
    last_g_ = std::max(last_g_, slice.g_seen);  // a G that was seen is used up, placed or not [9]
    for (const SliceReport::Placed& placed : slice.placed) Remember(placed);
    slice.placed.clear();
  }
  for (const auto& [id, slice] : slices_) RepeatCommits(id);
  std::vector<Ticket> tickets;
  for (const auto& [ticket, launch] : launches_) tickets.push_back(ticket);
  again_.insert(again_.end(), tickets.begin(), tickets.end());
  TryAgain();
}

void Spanner::Remember(const SliceReport::Placed& placed) {
  Launch& launch = launches_[placed.ticket];
  launch.slices = placed.slices;
  launch.g = placed.g;
  committed_[placed.g] = placed.ticket;
}

void Spanner::RepeatCommits(SliceId id) {
  const uint64_t tail = slices_.at(id).g_tail;
  for (auto it = committed_.upper_bound(tail); it != committed_.end(); ++it) {
    auto launch = launches_.find(it->second);
    if (launch == launches_.end()) continue;
    const std::vector<SliceId>& slices = launch->second.slices;
    if (std::find(slices.begin(), slices.end(), id) != slices.end()) SendCommit(id, it->second, it->first);
  }
}

void Spanner::SendCommit(SliceId id, Ticket ticket, uint64_t g) {
  auto it = slices_.find(id);
  if (it == slices_.end() || !it->second.reported) return;
  Commit commit;
  commit.spanner_epoch = epoch_;
  commit.epoch = it->second.epoch;
  commit.ticket = ticket;
  commit.g = g;
  commit.previous_g = it->second.last_sent;
  it->second.last_sent = g;
  sink_->ToSequencer(id, commit);
}

// ---------------------------------------------------------------- launches

void Spanner::OnReady(const Ready& message) {
  if (message.spanner_epoch != epoch_) return;
  auto slice = slices_.find(message.slice);
  if (slice == slices_.end() || !slice->second.reported || message.epoch != slice->second.epoch) return;
  if (message.ticket < horizon_) return;
  Launch& launch = launches_[message.ticket];
  if (launch.g != 0) return;
  if (!message.slices.empty()) launch.slices = message.slices;
  launch.ready.emplace(message.slice, message.after);
  if (active_) again_.push_back(message.ticket);
  TryAgain();
}

void Spanner::OnWithdrawn(const WithdrawnAt& message) {
  if (message.spanner_epoch != epoch_) return;
  auto slice = slices_.find(message.slice);
  if (slice == slices_.end() || message.epoch != slice->second.epoch || message.ticket < horizon_) return;
  if (withdrawn_.insert(message.ticket).second) Wake(message.ticket);
  TryAgain();
}

// A withdrawn launch will read nothing any more; but it makes nothing either [7].
bool Spanner::Satisfied(const After& after) const {
  if (after.ticket < horizon_) return true;  // over everywhere; if it made nothing, its consumers are being withdrawn
  if (withdrawn_.contains(after.ticket)) return !after.data;
  auto it = launches_.find(after.ticket);
  return it != launches_.end() && it->second.g != 0;
}

void Spanner::TryAssign(Ticket ticket) {
  auto it = launches_.find(ticket);
  if (it == launches_.end() || withdrawn_.contains(ticket)) return;
  Launch& launch = it->second;
  if (launch.g != 0 || launch.slices.empty()) return;
  for (SliceId slice : launch.slices) {
    if (!launch.ready.contains(slice)) return;
  }
  for (const auto& [slice, conditions] : launch.ready) {
    for (const After& after : conditions) {
      if (Satisfied(after)) continue;
      waiting_on_[after.ticket].push_back(ticket);
      return;
    }
  }
  launch.g = ++last_g_;
  launch.ready.clear();
  committed_[launch.g] = ticket;
  for (SliceId slice : launch.slices) SendCommit(slice, ticket, launch.g);
  Wake(ticket);
}

// Not at once: chains are long, stacks are not.
void Spanner::Wake(Ticket ticket) {
  auto it = waiting_on_.find(ticket);
  if (it == waiting_on_.end()) return;
  if (active_) again_.insert(again_.end(), it->second.begin(), it->second.end());
  waiting_on_.erase(it);
}

void Spanner::TryAgain() {
  while (!again_.empty()) {
    const Ticket ticket = again_.front();
    again_.pop_front();
    TryAssign(ticket);
  }
}

void Spanner::OnHorizon(const HorizonAt& message) {
  if (message.spanner_epoch != epoch_) return;
  auto it = slices_.find(message.slice);
  if (it == slices_.end() || message.epoch != it->second.epoch) return;
  it->second.horizon = std::max(it->second.horizon, message.horizon);
  Forget();
}

void Spanner::Forget() {
  if (slices_.empty()) return;
  Ticket low = horizon_;
  for (const auto& [id, slice] : slices_) low = std::max(low, slice.horizon);
  if (low <= horizon_) return;
  horizon_ = low;
  for (auto it = launches_.begin(); it != launches_.end() && it->first < low;) {
    if (it->second.g != 0) committed_.erase(it->second.g);
    it = launches_.erase(it);
  }
  withdrawn_.erase(withdrawn_.begin(), withdrawn_.lower_bound(low));
  while (!waiting_on_.empty() && waiting_on_.begin()->first < low) Wake(waiting_on_.begin()->first);
  TryAgain();
}

}  // namespace landbridge
