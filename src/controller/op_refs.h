// Which arrays an operation makes, uses and ends: what its place in a worker's stream depends on.
//
// Thread-safety: pure functions and a plain table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "base/ascending_map.h"
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

// What operations that wait in a queue make and use. Operations are numbered in the order of the queue, which they leave at its
// front: what is remembered of those that have left is told from the others by its number, and need not be taken away one by
// one.
class HeldRefs {
 public:
  void Add(const OpRefs& refs, uint64_t order);
  // An operation with these references has to come after one that waits. `front`: the number of the queue's first.
  bool MustFollow(const OpRefs& refs, uint64_t front) const;
  bool Holds(uint64_t array, uint64_t front) const;
  void Clear() { held_.Clear(); }
  // So many wait. Forgets what has left, now and then.
  void Trim(size_t waiting, uint64_t front);

 private:
  static constexpr size_t kKeptMin = 1024;
  struct Latest {  // numbers, from 1, of the last operations that make and that use it
    uint64_t makes = 0, uses = 0;
  };
  AscendingMap<uint64_t, Latest> held_;
  size_t trim_at_ = kKeptMin;
};

}  // namespace landbridge::ctl
