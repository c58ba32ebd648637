// Large collectives of a group in several slices (GroupLayout::hierarchical). What crosses between slices does so
// once for all workers of a slice:
//
//   reductions  each worker handles a share of each slice's part: sums it over its own slice, as other slices ask for
//               it; those of its own slice's part it sums over the slices, too. An all-reduce then goes the same way
//               back: into each slice once, and from worker to worker in it.
//   all-gather  each value of another slice is taken by one worker, from whom its mates take it.
//
// An all-reduce of n bytes over k slices thus sends 2 n (k - 1) / k bytes from each of them to others. Values are summed in
// the tree's order within each slice, then over the slices.
#include <algorithm>
#include <utility>

#include "collectives/group_call.h"

namespace landbridge {
namespace {

ElementRange Overlap(const ElementRange& a, const ElementRange& b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace

void GroupCall::ReduceOverSlices() {
  for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
    OfferToMates(i);
    if (step_.kind == CollectiveOp::ALL_REDUCE) {
      for (int home = 0; home < static_cast<int>(layout_.slices.size()); ++home) {
        const ElementRange part = SlicePart(home, layout_.self_slice, layout_.self_place, i);
        if (home == layout_.self_slice)
          StartPart(i, part, ResultAt(i, part.begin), NameOf(home));
        else
          OfferToSlices(i, NameOf(home), part);
      }
      TakeReduced(i);
    } else {
      for (int rank = 0; rank < layout_.size(); ++rank) {
        if (IsLocal(rank))
          StartPart(i, PieceOf(rank, i), ResultOf(rank, i), rank);
        else if (SliceOf(rank) != layout_.self_slice && layout_.HandlerOf(rank, layout_.self_slice) == layout_.self)
          OfferToSlices(i, rank, PieceOf(rank, i));
      }
    }
  }
}

// The other workers of our slice take what they handle of our subtrees' sums, each piece once.
void GroupCall::OfferToMates(int operand) {
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(operand)];
  int64_t expected = 0;
  if (step_.kind == CollectiveOp::ALL_REDUCE) {
    for (int home = 0; home < static_cast<int>(layout_.slices.size()); ++home) {
      for (int place = 0; place <= static_cast<int>(Mates()); ++place) {
        if (place == layout_.self_place) continue;
        expected += BytesOf(tensor.dtype, SlicePart(home, layout_.self_slice, place, operand));
      }
    }
  } else {
    for (int rank = 0; rank < layout_.size(); ++rank) {
      if (layout_.HandlerOf(rank, layout_.self_slice) != layout_.self)
        expected += BytesOf(tensor.dtype, PieceOf(rank, operand));
    }
  }
  if (expected == 0) return;
  for (const Subtree& subtree : slice().subtrees) {
    if (subtree.worker != layout_.self) continue;
    OfferSubtree(subtree, slice().ranks[static_cast<size_t>(subtree.first)], slice().ranks, operand, expected);
  }
}

// Sums over our slice of what another one reduces: worked out when it asks.
void GroupCall::OfferToSlices(int operand, int name, ElementRange part) {
  const DType dtype = step_.operands[static_cast<size_t>(operand)].dtype;
  const int64_t size = BytesOf(dtype, part);
  if (size == 0) return;
  auto fetch = [self = shared_from_this(), operand, part, dtype](int64_t offset, int64_t bytes,
                                                                 dataplane::ReadDone done) {
    const int64_t begin = part.begin + ElementsIn(dtype, offset);
    const ElementRange piece{begin, std::min(part.end, begin + ElementsIn(dtype, bytes))};
    self->SumOfSlice(operand, piece, [done = std::move(done), bytes](auto values) {
      if (!values.ok()) return done(values.status());
      done(dataplane::Chunk{(*values)->data(), static_cast<uint64_t>(bytes), *values});
    });
  };
  OfferInPlace(Key(kSliceValues, name, operand), std::make_shared<OutgoingLater>(size, size, std::move(fetch)));
}

// `done`: on the executor; after an error on any thread.
void GroupCall::SumOfSlice(int operand, ElementRange piece, SliceValuesDone done) {
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(operand)];
  const int64_t offset = BytesOfElements(tensor.dtype, piece.begin);
  const int64_t bytes = BytesOf(tensor.dtype, piece);
  auto partials = std::make_shared<Partials>(slice().subtrees);
  auto reduce = [this, partials, &tensor, operand, piece, offset, bytes] {
    auto out = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
    ReduceTree(static_cast<int>(slice().ranks.size()), tensor.dtype, step_.reduction, piece.size(), out->data(),
               [&](int first, int count) -> const std::byte* {
                 const int rank = slice().ranks[static_cast<size_t>(first)];
                 if (count == 1 && IsLocal(rank)) return OperandOf(rank, operand) + offset;
                 return partials->Find(first, count);
               });
    return out;
  };
  TakePartials(*partials, slice().ranks, operand, offset, bytes,
               [this, reduce, done = std::move(done)](const absl::Status& status) mutable {
                 if (!status.ok()) return done(status);
                 Run([reduce, done = std::move(done)]() mutable { done(reduce()); });
               });
}

void GroupCall::NextPieceOverSlices(const std::shared_ptr<Pipeline>& pipeline, ElementRange piece) {
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(pipeline->operand)];
  auto sums = std::make_shared<std::vector<Values>>(layout_.slices.size());
  auto missing = std::make_shared<Countdown>(1);
  // Not reached after an error, which ends the call by itself.
  auto arrived = [this, pipeline, piece, sums, missing, &tensor] {
    if (!missing->End()) return;
    Run([this, pipeline, piece, sums, &tensor] {
      std::byte* out = pipeline->out + BytesOfElements(tensor.dtype, piece.begin - pipeline->part.begin);
      ReduceTree(
          static_cast<int>(sums->size()), tensor.dtype, step_.reduction, piece.size(), out,
          [&](int first, int count) { return count == 1 ? (*sums)[static_cast<size_t>(first)]->data() : nullptr; });
      PieceReduced(pipeline);
    });
  };
  auto begin = [missing] { missing->Add(); };
  for (int other = 0; other < static_cast<int>(layout_.slices.size()); ++other) {
    if (other == layout_.self_slice) continue;
    auto& values = (*sums)[static_cast<size_t>(other)];
    values = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(BytesOf(tensor.dtype, piece)));
    TakeSliceValues(*pipeline, piece, other, values->data(), arrived, begin);
  }
  SumOfSlice(pipeline->operand, piece, [this, sums, arrived](auto values) {
    if (!values.ok()) return;
    (*sums)[static_cast<size_t>(layout_.self_slice)] = *std::move(values);
    arrived();
  });
}

// From those workers of slice `other` that handle it. `begin` comes before each pull.
void GroupCall::TakeSliceValues(const Pipeline& pipeline, ElementRange piece, int other, std::byte* into,
                                const std::function<void()>& arrived, const std::function<void()>& begin) {
  const DType dtype = step_.operands[static_cast<size_t>(pipeline.operand)].dtype;
  auto take = [&](int worker, ElementRange handled) {
    const ElementRange both = Overlap(handled, piece);
    if (both.size() == 0) return;
    begin();
    Take(FirstRank(worker), Key(kSliceValues, pipeline.name, pipeline.operand),
         BytesOfElements(dtype, both.begin - handled.begin), into + BytesOfElements(dtype, both.begin - piece.begin),
         BytesOf(dtype, both), arrived);
  };
  if (step_.kind != CollectiveOp::ALL_REDUCE) return take(layout_.HandlerOf(pipeline.name, other), pipeline.part);
  const std::vector<int>& workers = layout_.slices[static_cast<size_t>(other)].workers;
  for (size_t place = 0; place < workers.size(); ++place) {
    take(workers[place], SlicePart(layout_.self_slice, other, static_cast<int>(place), pipeline.operand));
  }
}

// Our share of our slice's part is reduced: our mates take it, and each other slice once.
void GroupCall::ShareOverSlices(int operand) {
  const DType dtype = step_.operands[static_cast<size_t>(operand)].dtype;
  const ElementRange part = SlicePart(layout_.self_slice, layout_.self_slice, layout_.self_place, operand);
  const int64_t bytes = BytesOf(dtype, part);
  OfferInPlace(Key(kReduced, NameOf(layout_.self_slice), operand),
               std::make_shared<OutgoingMemory>(ResultAt(operand, part.begin), bytes, bytes * (Mates() + OtherSlices()),
                                                nullptr));
}

void GroupCall::TakeReduced(int operand) {
  const DType dtype = step_.operands[static_cast<size_t>(operand)].dtype;
  for (int home = 0; home < static_cast<int>(layout_.slices.size()); ++home) {
    if (home != layout_.self_slice) TakeIntoSlice(operand, home);
    for (size_t place = 0; place < slice().workers.size(); ++place) {
      const int mate = slice().workers[place];
      if (mate == layout_.self) continue;
      const ElementRange part = SlicePart(home, layout_.self_slice, static_cast<int>(place), operand);
      Take(FirstRank(mate), Key(kReduced, NameOf(home), operand), 0, ResultAt(operand, part.begin),
           BytesOf(dtype, part));
    }
  }
}

// Our share of another slice's part, from those who reduced it, for us and our mates.
void GroupCall::TakeIntoSlice(int operand, int home) {
  const DType dtype = step_.operands[static_cast<size_t>(operand)].dtype;
  const ElementRange share = SlicePart(home, layout_.self_slice, layout_.self_place, operand);
  const int64_t bytes = BytesOf(dtype, share);
  if (bytes == 0) return;
  auto missing = std::make_shared<Countdown>(1);
  auto arrived = [this, missing, share, bytes, operand, home] {
    if (!missing->End() || Mates() == 0) return;
    OfferInPlace(Key(kReduced, NameOf(home), operand),
                 std::make_shared<OutgoingMemory>(ResultAt(operand, share.begin), bytes, bytes * Mates(), nullptr));
  };
  const std::vector<int>& workers = layout_.slices[static_cast<size_t>(home)].workers;
  for (size_t place = 0; place < workers.size(); ++place) {
    const ElementRange reduced = SlicePart(home, home, static_cast<int>(place), operand);
    const ElementRange both = Overlap(reduced, share);
    if (both.size() == 0) continue;
    missing->Add();
    Take(FirstRank(workers[place]), Key(kReduced, NameOf(home), operand),
         BytesOfElements(dtype, both.begin - reduced.begin), ResultAt(operand, both.begin), BytesOf(dtype, both),
         arrived);
  }
  arrived();
}

void GroupCall::GatherOverSlices() {
  std::vector<LocalCopy> copies;
  for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
    const int64_t bytes = step_.operands[static_cast<size_t>(i)].bytes;
    if (bytes == 0) continue;
    for (int rank = 0; rank < layout_.size(); ++rank) {
      std::byte* place = FirstResult(i) + rank * bytes;
      const CollectiveKey brought = Key(kValues, rank, i), passed_on = Key(kReduced, rank, i);
      const int handler = layout_.HandlerOf(rank, layout_.self_slice);
      if (IsLocal(rank)) {
        OfferMemory(brought, OperandOf(rank, i), bytes, bytes * (Mates() + OtherSlices()));
        copies.push_back({place, OperandOf(rank, i), bytes});
      } else if (SliceOf(rank) == layout_.self_slice) {
        Take(rank, brought, 0, place, bytes);
      } else if (handler == layout_.self) {
        Take(rank, brought, 0, place, bytes,
             [this, passed_on, place, bytes] { OfferMemory(passed_on, place, bytes, bytes * Mates()); });
      } else {
        Take(FirstRank(handler), passed_on, 0, place, bytes);
      }
    }
  }
  CopyLater(std::move(copies));
}

}  // namespace landbridge
