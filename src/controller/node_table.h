// Launches, uploads and makes that have not ended, and tickets.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "base/ascending_map.h"
#include "base/ids.h"
#include "base/time.h"
#include "controller/cluster_table.h"
#include "controller/plan_table.h"

namespace landbridge::ctl {

struct Node {
  Life* life = nullptr;
  SessionId session;
  absl::InlinedVector<ArrayId, 2> makes;  // groups ...
  std::vector<uint32_t> shards;           // ... and which shards of them; empty: all
  absl::Status error;                     // that is known
  bool sent = false;
  TimeNs since = 0;
  PlanPtr plan;  // of a reshard
};

class NodeTable {
 public:
  static constexpr size_t kFailedKept = 65'536;

  Ticket NextTicket() { return Ticket(next_++); }
  bool Issued(Ticket ticket) const { return ticket.valid() && ticket.value() < next_; }

  // `track`: keep which arrays are not made yet, for Unfinished.
  explicit NodeTable(bool track) : track_(track) {}

  Node& Add(Ticket ticket, Life* life, SessionId session, TimeNs now);
  void AddArray(Node& node, ArrayId id);  // that it makes
  Node* Find(Ticket ticket) { return nodes_.Find(ticket); }
  const Node* Find(Ticket ticket) const { return nodes_.Find(ticket); }
  void Erase(Ticket ticket);
  // Some node that makes (a part of) it has not ended.
  bool Unfinished(ArrayId id) const { return unfinished_.contains(id); }
  size_t size() const { return nodes_.size(); }

  bool OldestSent(const Life* life, Ticket ticket) const {
    bool older = false;
    nodes_.ForEach(
        [&](Ticket other, const Node& node) { older = older || (node.sent && node.life == life && other < ticket); });
    return !older;
  }
  // Ascending tickets of those that `pick(node)`.
  template <typename Pick>
  std::vector<Ticket> Select(Pick pick) const {
    std::vector<Ticket> tickets;
    nodes_.ForEach([&](Ticket ticket, const Node& node) {
      if (pick(node)) tickets.push_back(ticket);
    });
    return tickets;
  }

  // How launches ended that failed: the latest ones, so that a late question has its answer.
  void KeepFailure(Ticket ticket, SessionId session, const absl::Status& error) {
    if (!failed_.emplace(ticket, std::make_pair(session, error)).second) return;
    failed_order_.push_back(ticket);
    if (failed_order_.size() > kFailedKept) {
      failed_.erase(failed_order_.front());
      failed_order_.pop_front();
    }
  }
  absl::Status Failure(Ticket ticket, SessionId session) const {
    auto it = failed_.find(ticket);
    return it == failed_.end() || it->second.first != session ? absl::OkStatus() : it->second.second;
  }
  void ForgetFailures(SessionId session) {
    std::deque<Ticket> kept;
    for (Ticket ticket : failed_order_) {
      auto it = failed_.find(ticket);
      if (it->second.first == session) {
        failed_.erase(it);
      } else {
        kept.push_back(ticket);
      }
    }
    failed_order_ = std::move(kept);
  }

 private:
  const bool track_;
  uint64_t next_ = 1;
  absl::flat_hash_map<ArrayId, int> unfinished_;
  AscendingMap<Ticket, Node> nodes_;
  absl::flat_hash_map<Ticket, std::pair<SessionId, absl::Status>> failed_;
  std::deque<Ticket> failed_order_;
};

}  // namespace landbridge::ctl
