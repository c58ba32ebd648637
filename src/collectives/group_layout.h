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

// The members of a group that lie in one slice.
struct GroupSlice {
  std::vector<int> ranks;         // of the group, ascending
  std::vector<int> workers;       // indices into GroupLayout::workers, ascending
  std::vector<Subtree> subtrees;  // as GroupLayout's, of positions in `ranks`
};

struct GroupLayout {
  std::vector<int32_t> members;      // logical devices, by rank
  std::vector<Incarnation> workers;  // distinct, in order of their lowest rank
  std::vector<int> worker_of_rank;
  int self = 0;                    // our index in `workers`; -1: no rank is ours
  std::vector<int> local_ranks;    // ours, ascending
  std::vector<Subtree> subtrees;   // every rank in one: the largest that lie on one worker; ascending
  std::vector<int> first_rank;     // the lowest of each worker
  std::vector<GroupSlice> slices;  // in order of their lowest rank
  std::vector<int> slice_of_worker;
  int self_slice = -1;  // index into `slices`; -1: no rank is ours
  int self_place = -1;  // position in that slice's `workers`

  int size() const { return static_cast<int>(members.size()); }
  // Some slice has several workers, or ranks that are no subtree: it sums its values up by itself before they cross to
  // others, and what crosses does so once for all its workers.
  bool hierarchical() const { return slices.size() > 1 && subtrees.size() > slices.size(); }

  // `worker_of_device`, `slice_of_device`: by logical device; the latter may be empty: all in one slice.
  static GroupLayout Make(absl::Span<const int32_t> members, absl::Span<const Incarnation> worker_of_device,
                          Incarnation self, absl::Span<const uint32_t> slice_of_device = {});

  // The part of `elements` that a worker reduces for all. Parts are in the order of `workers`, proportional to
  // their ranks (over several slices: equal), begin at multiples of kOwnedAlignment, and cover everything.
  ElementRange OwnedBy(int worker, int64_t elements) const;

  // Of a hierarchical reduction each slice has an equal part that is reduced there for all (`home`). Each slice divides
  // every home's part among its own workers: what the worker at `place` of `slice` handles. Aligned as above.
  ElementRange SlicePart(int home, int slice, int place, int64_t elements) const;
  // Of what is counted by ranks (pieces of a reduce-scatter, values of an all-gather): who in `slice` handles that of
  // `rank`. In the rank's own slice: its worker. Index into `workers`.
  int HandlerOf(int rank, int slice) const;

 private:
  void FindSlices(absl::Span<const uint32_t> slice_of_device);
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
