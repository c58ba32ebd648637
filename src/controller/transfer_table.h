// Bytes on their way from one worker to another: one entry per edge of a reshard plan in use. Its pieces have transfer
// numbers one after the other; the first stands for all.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/ids.h"
#include "controller/cluster_table.h"
#include "controller/plan_table.h"

namespace landbridge::ctl {

struct Transfer {
  SessionId session;
  Life* from = nullptr;
  Life* to = nullptr;
  ArrayId target;  // what it makes
  PlanPtr plan;
  uint32_t edge = 0;             // of the plan
  bool published = false;        // the source's worker was told
  bool asked = false;            // the destination's worker was told
  std::vector<ArrayId> sources;  // what the bytes are part of; only kept for sequential dispatch

  const ReshardEdge& plan_edge() const { return plan->plan.edges[edge]; }
  uint32_t pieces() const { return static_cast<uint32_t>(plan_edge().pieces.size()); }
};

class TransferTable {
 public:
  TransferId Add(Transfer transfer) {
    const TransferId id(next_);
    next_ += transfer.pieces();
    transfers_.emplace(id, std::move(transfer));
    return id;
  }
  Transfer* Find(TransferId id) {
    auto it = transfers_.find(id);
    return it == transfers_.end() ? nullptr : &it->second;
  }
  const Transfer* Find(TransferId id) const { return const_cast<TransferTable*>(this)->Find(id); }
  void Erase(TransferId id) { transfers_.erase(id); }
  size_t size() const { return transfers_.size(); }

  // Ascending, those that `pick(transfer)`.
  template <typename Pick>
  std::vector<TransferId> Select(Pick pick) const {
    std::vector<TransferId> ids;
    for (const auto& [id, transfer] : transfers_) {
      if (pick(transfer)) ids.push_back(id);
    }
    std::sort(ids.begin(), ids.end());
    return ids;
  }

 private:
  uint64_t next_ = 1;
  absl::flat_hash_map<TransferId, Transfer> transfers_;
};

}  // namespace landbridge::ctl
