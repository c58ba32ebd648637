// How the members of one collective lie on workers, and in which order their values are reduced.
//
// Sums of floating-point numbers depend on the order of additions. Ours is a fixed binary tree over ranks, cut at the
// largest power of two: (((0 1) (2 3)) ((4 5) (6 7))). It does not depend on which worker holds which rank, so a
// program has the same result, bit for bit, on one worker of eight devices, two of four or four of two; and a worker
// whose ranks form a subtree adds them up before anything travels.
//
// Thread-safety: pure functions and plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "proto/landbridge/collectives.pb.h"

namespace landbridge {

// Ranks [first, first + count).
struct Subtree {
  int first = 0;
  int count = 0;
  int worker = 0;  // index into GroupLayout::workers
  friend bool operator==(const Subtree&, const Subtree&) = default;
};

// Elements [begin, end).
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

struct GroupLayout {
  std::vector<int32_t> members;      // logical devices, by rank
  std::vector<Incarnation> workers;  // distinct, in order of their lowest rank
  std::vector<int> worker_of_rank;
  int self = 0;                   // our index in `workers`; -1: no rank is ours
  std::vector<int> local_ranks;   // ours, ascending
  std::vector<Subtree> subtrees;  // every rank in one: the largest that lie on one worker; ascending

  int size() const { return static_cast<int>(members.size()); }

  // `worker_of_device`: by logical device.
  static GroupLayout Make(absl::Span<const int32_t> members, absl::Span<const Incarnation> worker_of_device,
                          Incarnation self);

  // The part of `elements` that a worker reduces for all. Parts are in the order of `workers`, proportional to
  // their ranks, begin at multiples of kOwnedAlignment, and cover everything.
  ElementRange OwnedBy(int worker, int64_t elements) const;
};

inline constexpr int64_t kOwnedAlignment = 64;  // elements: a cache line at least, and whole bytes of packed types

// Reduces ranks [0, ranks) elementwise in the tree's order into `out`. `input(first, count)`: the values of a subtree
// if they are there, reduced already, else null (asked from the root down; single ranks must be there).
void ReduceTree(int ranks, DType dtype, CollectiveOp::Reduction reduction, int64_t elements, std::byte* out,
                absl::FunctionRef<const std::byte*(int first, int count)> input);
// The same for the ranks of one subtree of a larger tree.
void ReduceSubtree(const Subtree& subtree, DType dtype, CollectiveOp::Reduction reduction, int64_t elements,
                   std::byte* out, absl::FunctionRef<const std::byte*(int first, int count)> input);

}  // namespace landbridge
