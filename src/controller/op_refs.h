// Which arrays an operation makes, uses and ends: what its place in a worker's stream depends on.
//
// Thread-safety: pure functions and a plain table.
#pragma once

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge::ctl {

// Array ids (of buffer groups), coarser than shards, which only makes order stricter; and programs.
struct OpRefs {
  absl::InlinedVector<uint64_t, 8> makes;
  absl::InlinedVector<uint64_t, 8> uses;  // needs it; must come after its maker and before its end
  absl::InlinedVector<uint64_t, 8> ends;  // deletes or gives it away; must come after all uses
};
OpRefs RefsOf(const WorkerOp& op);

// A launch, upload or reshard: something that Progress reports.
bool IsNode(const WorkerOp& op);
Ticket TicketOf(const WorkerOp& op);  // none if it has none

// What waiting operations make and use.
class HeldRefs {
 public:
  void Add(const OpRefs& refs);
  void Remove(const OpRefs& refs);
  // An operation with these references has to come after one that waits.
  bool MustFollow(const OpRefs& refs) const;
  bool Holds(uint64_t array) const { return held_.contains(array); }
  bool empty() const { return held_.empty(); }
  void Clear() { held_.clear(); }

 private:
  struct Count {
    int makes = 0, uses = 0;
  };
  absl::flat_hash_map<uint64_t, Count> held_;
};

}  // namespace landbridge::ctl
