#include "worker/span_order.h"

#include <algorithm>
#include <utility>

namespace landbridge {

void SpanOrder::Arrive(Ticket ticket, Place place, const std::vector<Ticket>& before) {
  Waiting& waiting = waiting_[ticket];
  waiting.previous = place.previous;
  waiting.before.insert(before.begin(), before.end());
  by_previous_[place.previous] = ticket;
}

bool SpanOrder::Ready(Ticket ticket) const {
  auto it = waiting_.find(ticket);
  return it != waiting_.end() && it->second.previous == head_ && it->second.before.empty();
}

void SpanOrder::Check(Ticket ticket) {
  if (Ready(ticket)) ready_.push_back(ticket);
}

void SpanOrder::OnLeft(Ticket ticket, const Place* place) {
  if (place != nullptr) {
    if (waiting_.erase(ticket) != 0) by_previous_.erase(place->previous);
    OnVoid(*place);
  }
  if (waiting_.empty()) return;
  std::vector<Ticket> freed;
  for (auto& [follower, waiting] : waiting_) {
    if (waiting.before.erase(ticket) != 0) freed.push_back(follower);
  }
  std::sort(freed.begin(), freed.end());
  for (Ticket follower : freed) Check(follower);
}

void SpanOrder::OnVoid(Place place) {
  left_after_[place.previous] = place.number;
  const uint64_t before = head_;
  for (auto it = left_after_.find(head_); it != left_after_.end(); it = left_after_.find(head_)) {
    head_ = it->second;
    left_after_.erase(it);
  }
  if (head_ == before) return;
  if (auto next = by_previous_.find(head_); next != by_previous_.end()) Check(next->second);
}

std::vector<Ticket> SpanOrder::TakeReady() { return std::exchange(ready_, {}); }

}  // namespace landbridge
