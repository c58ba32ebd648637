#include "worker/simulated/transfer_board.h"

#include "worker/simulated/simulated_limits.h"

namespace landbridge {

void TransferBoard::Answer(Done done, absl::StatusOr<SimulatedBytes> answer) {
  post_([done = std::move(done), answer = std::move(answer)] { done(answer); });
}

void TransferBoard::Publish(Incarnation source, TransferId transfer, Incarnation allowed_peer, SimulatedBytes packed) {
  const Id id{source, transfer};
  const Box& box = boxes_[id] = Box{allowed_peer, std::move(packed)};
  auto waiters = waiting_.extract(id);
  if (waiters.empty()) return;
  for (Waiter& waiter : waiters.mapped()) {
    if (!allowed_peer.valid() || waiter.peer == allowed_peer) {
      Answer(std::move(waiter.done), box.packed);
    } else {
      Answer(std::move(waiter.done), absl::PermissionDeniedError("the bytes are offered to another worker"));
    }
  }
}

void TransferBoard::Withdraw(Incarnation source, TransferId transfer, const absl::Status& why) {
  const Id id{source, transfer};
  boxes_.erase(id);
  const absl::Status reason = why.ok() ? absl::FailedPreconditionError("the transfer has ended") : why;
  if (ended_.emplace(id, reason).second) {
    ended_order_.push_back(id);
    if (ended_order_.size() > limits::kSimulatedEndedTransfersMax) {
      ended_.erase(ended_order_.front());
      ended_order_.pop_front();
    }
  }
  EndWaiters(id, Incarnation(), reason);
}

void TransferBoard::Pull(Incarnation source, TransferId transfer, Incarnation peer, Done done) {
  const Id id{source, transfer};
  if (auto box = boxes_.find(id); box != boxes_.end()) {
    const Incarnation allowed = box->second.allowed_peer;
    if (allowed.valid() && allowed != peer) {
      return Answer(std::move(done), absl::PermissionDeniedError("the bytes are offered to another worker"));
    }
    return Answer(std::move(done), box->second.packed);
  }
  if (auto ended = ended_.find(id); ended != ended_.end()) return Answer(std::move(done), ended->second);
  waiting_[id].push_back({peer, std::move(done)});
}

void TransferBoard::EndWaiters(const Id& id, Incarnation peer, const absl::Status& why) {
  auto it = waiting_.find(id);
  if (it == waiting_.end()) return;
  std::vector<Waiter>& waiters = it->second;
  for (size_t i = 0; i < waiters.size();) {
    if (peer.valid() && waiters[i].peer != peer) {
      ++i;
      continue;
    }
    Answer(std::move(waiters[i].done), why);
    waiters.erase(waiters.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (waiters.empty()) waiting_.erase(it);
}

void TransferBoard::Cancel(Incarnation source, TransferId transfer, Incarnation peer, const absl::Status& why) {
  EndWaiters({source, transfer}, peer, why);
}

void TransferBoard::CancelAll(Incarnation source, Incarnation peer, const absl::Status& why) {
  std::vector<Id> ids;
  for (const auto& [id, waiters] : waiting_) {
    if (id.first == source) ids.push_back(id);
  }
  for (const Id& id : ids) EndWaiters(id, peer, why);
}

void TransferBoard::End(Incarnation life) {
  absl::erase_if(boxes_, [life](const auto& entry) { return entry.first.first == life; });
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    std::erase_if(it->second, [life](const Waiter& waiter) { return waiter.peer == life; });
    if (it->second.empty())
      waiting_.erase(it++);
    else
      ++it;
  }
}

}  // namespace landbridge
