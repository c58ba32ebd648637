#include "collectives/group_call.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "collectives/reduce.h"

namespace landbridge {
namespace {

// Copies and reductions above this are left to the executor.
constexpr int64_t kInlineBytesMax = 64 << 10;
// What one thread does of a reduction on one worker.
constexpr int64_t kLocalPartBytes = 4 << 20;

}  // namespace

bool GroupCall::Join(int rank, CollectiveCall call) {
  members_.push_back({rank, std::move(call)});
  return members_.size() == layout_.local_ranks.size();
}

void GroupCall::Drop(const absl::Status& why) {
  for (Member& member : members_) run_->Finish(std::move(member.call.done), why);
  members_.clear();
}

void GroupCall::Start() {
  member_of_rank_.assign(static_cast<size_t>(layout_.size()), members_.size());
  for (size_t m = 0; m < members_.size(); ++m) member_of_rank_[static_cast<size_t>(members_[m].rank)] = m;
  switch (step_.kind) {
    case CollectiveOp::ALL_REDUCE:
    case CollectiveOp::REDUCE_SCATTER: StartReduction(); break;
    case CollectiveOp::ALL_GATHER: StartGather(); break;
    case CollectiveOp::ALL_TO_ALL: StartExchange(); break;
    case CollectiveOp::COLLECTIVE_PERMUTE: StartPermute(); break;
    default: LB_CHECK(false);
  }
  if (tasks_.End()) Complete(/*inside=*/true);
}

// --- Tasks.

void GroupCall::End(const absl::Status& status) {
  if (!status.ok() && tasks_.Note(status)) run_->Fail(status);
  if (tasks_.End()) Complete();
}

void GroupCall::Complete(bool inside) {
  const absl::Status status = tasks_.status();
  auto finish = [self = shared_from_this(), status](bool here) {
    if (status.ok() && self->copy_to_others_) self->CopyToOtherMembers();
    for (Member& member : self->members_) {
      // The last one's program is in its call still, and goes on when that returns.
      const bool last = &member == &self->members_.back();
      if (here && last) {
        self->run_->FinishHere(std::move(member.call.done), status);
      } else {
        self->run_->Finish(std::move(member.call.done), status);
      }
    }
  };
  int64_t copied = 0;
  for (const CollectiveTensor& result : step_.results) copied += result.bytes;
  copied *= static_cast<int64_t>(members_.size()) - 1;
  if (!status.ok() || !copy_to_others_ || copied <= kInlineBytesMax) return finish(inside);
  run_->Execute([finish = std::move(finish)] { finish(false); });
}

void GroupCall::CopyToOtherMembers() {
  for (size_t m = 1; m < members_.size(); ++m) {
    for (size_t i = 0; i < step_.results.size(); ++i) {
      std::memcpy(members_[m].call.results[i], members_[0].call.results[i],
                  static_cast<size_t>(step_.results[i].bytes));
    }
  }
}

void GroupCall::Run(absl::AnyInvocable<void()> work) {
  Begin();
  run_->Execute([self = shared_from_this(), work = std::move(work)]() mutable {
    work();
    self->End(absl::OkStatus());
  });
}

void GroupCall::CopyLater(std::vector<LocalCopy> copies) {
  int64_t bytes = 0;
  for (const LocalCopy& copy : copies) bytes += copy.bytes;
  auto work = [copies = std::move(copies)] {
    for (const LocalCopy& copy : copies) {
      if (copy.from == nullptr)
        std::memset(copy.to, 0, static_cast<size_t>(copy.bytes));
      else
        std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
  };
  if (bytes <= kInlineBytesMax) return work();
  Run(std::move(work));
}

void GroupCall::Take(int rank, const CollectiveKey& key, int64_t offset, std::byte* into, int64_t bytes,
                     absl::AnyInvocable<void()> then) {
  Begin();
  auto done = [self = shared_from_this(), then = std::move(then)](const absl::Status& status) mutable {
    if (status.ok() && then) then();
    self->End(status);
  };
  if (bytes == 0) return done(absl::OkStatus());
  run_->Pull(Device(rank), key, offset, into, bytes, std::move(done));
}

const std::byte* GroupCall::Partials::Find(int first, int count) const {
  for (size_t t = 0; t < subtrees.size(); ++t) {
    if (subtrees[t].first == first && subtrees[t].count == count && values[t] != nullptr) return values[t]->data();
  }
  return nullptr;
}

void GroupCall::TakePartials(Partials& partials, absl::Span<const int> ranks, int operand, int64_t offset,
                             int64_t bytes, absl::AnyInvocable<void(const absl::Status&)> then) {
  struct Taking {
    Countdown left{1};  // one for us
    absl::AnyInvocable<void(const absl::Status&)> then;
  };
  auto taking = std::make_shared<Taking>();
  taking->then = std::move(then);
  auto come = [taking](const absl::Status& status) {
    if (!status.ok()) taking->left.Note(status);
    if (taking->left.End()) taking->then(taking->left.status());
  };
  Begin();  // until all pulls are posted
  for (size_t t = 0; t < partials.subtrees.size(); ++t) {
    const Subtree& subtree = partials.subtrees[t];
    if (subtree.worker == layout_.self) continue;
    partials.values[t] = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
    if (bytes == 0) continue;
    taking->left.Add();
    Begin();
    const int rank = ranks.empty() ? subtree.first : ranks[static_cast<size_t>(subtree.first)];
    run_->Pull(Device(rank), Key(kValues, rank, operand), offset, partials.values[t]->data(), bytes,
               [self = shared_from_this(), come](const absl::Status& status) {
                 come(status);
                 self->End(status);
               });
  }
  come(absl::OkStatus());
  End(absl::OkStatus());
}

void GroupCall::OfferInPlace(const CollectiveKey& key, std::shared_ptr<Outgoing> outgoing) {
  Begin();
  run_->Publish(key, std::move(outgoing), [self = shared_from_this()] { self->End(absl::OkStatus()); });
}

void GroupCall::OfferMemory(const CollectiveKey& key, const std::byte* data, int64_t bytes, int64_t expected) {
  if (expected == 0) return;
  if (!small()) return OfferInPlace(key, std::make_shared<OutgoingMemory>(data, bytes, expected, nullptr));
  auto copy = std::make_shared<std::vector<std::byte>>(data, data + bytes);
  run_->Publish(key, std::make_shared<OutgoingMemory>(copy->data(), bytes, expected, copy), {});
}

// --- Reductions.

void GroupCall::StartReduction() {
  if (layout_.workers.size() == 1) return ReduceLocally();
  copy_to_others_ = step_.kind == CollectiveOp::ALL_REDUCE;
  if (small()) return ExchangeEagerly();
  if (layout_.hierarchical()) return ReduceOverSlices();
  ExchangeInParts();
}

ElementRange GroupCall::PieceOf(int rank, int operand) const {
  const int64_t elements = step_.results[static_cast<size_t>(operand)].elements;
  return {rank * elements, (rank + 1) * elements};
}

std::vector<ElementRange> GroupCall::PartsOf(int worker, int operand) const {
  if (step_.kind == CollectiveOp::ALL_REDUCE) {
    return {layout_.OwnedBy(worker, step_.operands[static_cast<size_t>(operand)].elements)};
  }
  std::vector<ElementRange> parts;
  for (int rank = 0; rank < layout_.size(); ++rank) {
    if (layout_.worker_of_rank[static_cast<size_t>(rank)] == worker) parts.push_back(PieceOf(rank, operand));
  }
  return parts;
}

void GroupCall::ReduceLocally() {
  copy_to_others_ = step_.kind == CollectiveOp::ALL_REDUCE;
  const bool inside = step_.operand_bytes * layout_.size() <= kInlineBytesMax;
  for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
    const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(i)];
    const int64_t at_once = std::max(kOwnedAlignment, ElementsIn(tensor.dtype, kLocalPartBytes));
    auto reduce = [this, i, inside, &tensor, at_once](ElementRange range, std::byte* out) {
      for (int64_t begin = range.begin; begin < range.end; begin += at_once) {
        const int64_t count = std::min(at_once, range.end - begin);
        const int64_t offset = BytesOfElements(tensor.dtype, begin);
        std::byte* to = out + BytesOfElements(tensor.dtype, begin - range.begin);
        auto work = [this, i, &tensor, count, offset, to] {
          ReduceTree(layout_.size(), tensor.dtype, step_.reduction, count, to,
                     [&](int first, int ranks) { return ranks == 1 ? OperandOf(first, i) + offset : nullptr; });
        };
        inside ? work() : Run(work);
      }
    };
    if (step_.kind == CollectiveOp::ALL_REDUCE) {
      reduce({0, tensor.elements}, FirstResult(i));
    } else {
      for (int rank : layout_.local_ranks) reduce(PieceOf(rank, i), ResultOf(rank, i));
    }
  }
}

// Small: everybody takes everything, all operands at once, and reduces it.
void GroupCall::ExchangeEagerly() {
  const int64_t bytes = EagerBytes();
  for (size_t t = 0; t < layout_.subtrees.size(); ++t) {
    const Subtree& subtree = layout_.subtrees[t];
    if (subtree.worker != layout_.self) continue;
    auto values = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
    eager_.values[t] = values;
    int64_t offset = 0;
    for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
      const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(i)];
      ReduceSubtree(subtree, tensor.dtype, step_.reduction, tensor.elements, values->data() + offset,
                    [&](int first, int ranks) { return ranks == 1 ? OperandOf(first, i) : nullptr; });
      offset += AlignedOperand(tensor.bytes);
    }
    if (bytes == 0) continue;
    if (pushed()) {
      PushToOthers(subtree.first, 0, std::move(values));
      continue;
    }
    run_->Publish(Key(kValues, subtree.first, 0),
                  std::make_shared<OutgoingMemory>(values->data(), bytes, bytes * OtherWorkers(), values), {});
  }
  pushed() ? Prepared() : Prepare();
  CameEagerly();
}

void GroupCall::Prepare() {
  if (MayAsk()) AskEagerly();
}

// True once: who gets it asks. Its task keeps the call from being over before all has been asked for.
bool GroupCall::MayAsk() {
  absl::MutexLock lock(&mutex_);
  if (std::exchange(asked_, true)) return false;
  Begin();
  return true;
}

void GroupCall::AskEagerly() {
  TakePartials(eager_, {}, 0, 0, EagerBytes(), [this](const absl::Status& status) {
    if (status.ok()) CameEagerly();
  });
  End(absl::OkStatus());
}

void GroupCall::CameEagerly() {
  if (!eager_missing_.End()) return;
  auto work = [this] {
    reduces() ? ReduceEagerly() : PlaceBrought();
    if (pushed()) End(absl::OkStatus());
  };
  // Where the last of it came in: another thread would have to wake up for less work than that takes.
  const auto values = static_cast<int64_t>(reduces() ? layout_.subtrees.size() : layout_.members.size());
  if (EagerBytes() * values <= kInlineBytesMax) return work();
  Run(work);
}

int64_t GroupCall::EagerBytes() const {
  int64_t bytes = 0;
  for (const CollectiveTensor& tensor : step_.operands) bytes += AlignedOperand(tensor.bytes);
  return bytes;
}

void GroupCall::ReduceEagerly() {
  int64_t offset = 0;
  for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
    const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(i)];
    auto reduce = [&](ElementRange range, std::byte* out) {
      const int64_t from = offset + BytesOfElements(tensor.dtype, range.begin);
      ReduceTree(layout_.size(), tensor.dtype, step_.reduction, range.size(), out,
                 [&](int first, int ranks) -> const std::byte* {
                   const std::byte* values = eager_.Find(first, ranks);
                   return values == nullptr ? nullptr : values + from;
                 });
    };
    if (step_.kind == CollectiveOp::ALL_REDUCE) {
      reduce({0, tensor.elements}, FirstResult(i));
    } else {
      for (int rank : layout_.local_ranks) reduce(PieceOf(rank, i), ResultOf(rank, i));
    }
    offset += AlignedOperand(tensor.bytes);
  }
}

// Large: each worker reduces a part, out of what it takes of it from all others. Of an all-reduce the reduced parts are
// then exchanged. Each worker sends and receives a bandwidth-optimal number of bytes, and needs little memory.
void GroupCall::ExchangeInParts() {
  for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
    const DType dtype = step_.operands[static_cast<size_t>(i)].dtype;
    OfferPartials(i);
    if (step_.kind == CollectiveOp::ALL_REDUCE) {
      const ElementRange part = layout_.OwnedBy(layout_.self, step_.operands[static_cast<size_t>(i)].elements);
      StartPart(i, part, FirstResult(i) + BytesOfElements(dtype, part.begin));
      TakeParts(i);
    } else {
      for (int rank : layout_.local_ranks) StartPart(i, PieceOf(rank, i), ResultOf(rank, i));
    }
  }
}

void GroupCall::OfferPartials(int operand) {
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(operand)];
  int64_t expected = 0;
  for (int worker = 0; worker < static_cast<int>(layout_.workers.size()); ++worker) {
    if (worker == layout_.self) continue;
    for (const ElementRange& part : PartsOf(worker, operand)) expected += BytesOf(tensor.dtype, part);
  }
  if (expected == 0) return;
  for (const Subtree& subtree : layout_.subtrees) {
    if (subtree.worker == layout_.self) OfferSubtree(subtree, subtree.first, {}, operand, expected);
  }
}

void GroupCall::OfferSubtree(const Subtree& subtree, int rank, absl::Span<const int> ranks, int operand,
                             int64_t expected) {
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(operand)];
  const CollectiveKey key = Key(kValues, rank, operand);
  if (subtree.count == 1) {
    return OfferInPlace(key,
                        std::make_shared<OutgoingMemory>(OperandOf(rank, operand), tensor.bytes, expected, nullptr));
  }
  auto compute = [self = shared_from_this(), &tensor, subtree, ranks, operand](int64_t offset, int64_t bytes,
                                                                               std::byte* out) {
    ReduceSubtree(subtree, tensor.dtype, self->step_.reduction, ElementsIn(tensor.dtype, bytes), out,
                  [&](int first, int count) -> const std::byte* {
                    if (count != 1) return nullptr;
                    const int of_group = ranks.empty() ? first : ranks[static_cast<size_t>(first)];
                    return self->OperandOf(of_group, operand) + offset;
                  });
  };
  OfferInPlace(key, std::make_shared<OutgoingValues>(
                        tensor.bytes, expected,
                        [run = run_](absl::AnyInvocable<void()> task) { run->Execute(std::move(task)); }, compute));
}

void GroupCall::StartPart(int operand, ElementRange part, std::byte* out, int name) {
  if (part.size() == 0) return;
  const DType dtype = step_.operands[static_cast<size_t>(operand)].dtype;
  auto pipeline = std::make_shared<Pipeline>();
  pipeline->operand = operand;
  pipeline->part = part;
  pipeline->out = out;
  pipeline->name = name;
  pipeline->piece_elements = ElementsIn(dtype, kCollectivePieceBytes);
  pipeline->pieces = (part.size() + pipeline->piece_elements - 1) / pipeline->piece_elements;
  pipeline->left = pipeline->pieces;
  for (int i = 0; i < kCollectivePiecesInFlight; ++i) NextPiece(pipeline);
}

void GroupCall::NextPiece(const std::shared_ptr<Pipeline>& pipeline) {
  const int64_t index = pipeline->next.fetch_add(1, std::memory_order_relaxed);
  if (index >= pipeline->pieces) return;
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(pipeline->operand)];
  const int64_t begin = pipeline->part.begin + index * pipeline->piece_elements;
  const ElementRange piece{begin, std::min(begin + pipeline->piece_elements, pipeline->part.end)};
  if (layout_.hierarchical()) return NextPieceOverSlices(pipeline, piece);
  auto partials = std::make_shared<Partials>(layout_.subtrees);
  TakePartials(*partials, {}, pipeline->operand, BytesOfElements(tensor.dtype, begin), BytesOf(tensor.dtype, piece),
               [this, pipeline, piece, partials](const absl::Status& status) {
                 if (!status.ok()) return;
                 Run([this, pipeline, piece, partials] { ReducePiece(pipeline, piece, *partials); });
               });
}

void GroupCall::ReducePiece(const std::shared_ptr<Pipeline>& pipeline, ElementRange piece, const Partials& partials) {
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(pipeline->operand)];
  std::byte* out = pipeline->out + BytesOfElements(tensor.dtype, piece.begin - pipeline->part.begin);
  ReduceTree(layout_.size(), tensor.dtype, step_.reduction, piece.size(), out,
             [&](int first, int ranks) -> const std::byte* {
               if (ranks == 1 && IsLocal(first)) {
                 return OperandOf(first, pipeline->operand) + BytesOfElements(tensor.dtype, piece.begin);
               }
               return partials.Find(first, ranks);
             });
  PieceReduced(pipeline);
}

void GroupCall::PieceReduced(const std::shared_ptr<Pipeline>& pipeline) {
  if (pipeline->left.fetch_sub(1, std::memory_order_acq_rel) != 1) return NextPiece(pipeline);
  if (step_.kind != CollectiveOp::ALL_REDUCE) return;
  if (layout_.hierarchical()) return ShareOverSlices(pipeline->operand);
  ShareParts(pipeline->operand);
}

void GroupCall::ShareParts(int operand) {
  const DType dtype = step_.operands[static_cast<size_t>(operand)].dtype;
  const ElementRange part = layout_.OwnedBy(layout_.self, step_.operands[static_cast<size_t>(operand)].elements);
  const int64_t bytes = BytesOf(dtype, part);
  OfferInPlace(Key(kReduced, layout_.local_ranks[0], operand),
               std::make_shared<OutgoingMemory>(FirstResult(operand) + BytesOfElements(dtype, part.begin), bytes,
                                                bytes * OtherWorkers(), nullptr));
}

void GroupCall::TakeParts(int operand) {
  const CollectiveTensor& tensor = step_.operands[static_cast<size_t>(operand)];
  std::vector<bool> taken(layout_.workers.size(), false);
  for (int rank = 0; rank < layout_.size(); ++rank) {
    const int worker = layout_.worker_of_rank[static_cast<size_t>(rank)];
    if (worker == layout_.self || taken[static_cast<size_t>(worker)]) continue;
    taken[static_cast<size_t>(worker)] = true;
    const ElementRange part = layout_.OwnedBy(worker, tensor.elements);
    Take(rank, Key(kReduced, rank, operand), 0, FirstResult(operand) + BytesOfElements(tensor.dtype, part.begin),
         BytesOf(tensor.dtype, part));
  }
}

// --- Moves.

void GroupCall::StartGather() {
  copy_to_others_ = true;
  if (pushed()) return PushGathered();
  if (layout_.hierarchical() && !small()) return GatherOverSlices();
  std::vector<LocalCopy> copies;
  for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
    const int64_t bytes = step_.operands[static_cast<size_t>(i)].bytes;
    for (int rank = 0; rank < layout_.size(); ++rank) {
      std::byte* place = FirstResult(i) + rank * bytes;
      if (IsLocal(rank)) {
        OfferMemory(Key(kValues, rank, i), OperandOf(rank, i), bytes, bytes * OtherWorkers());
        copies.push_back({place, OperandOf(rank, i), bytes});
      } else {
        Take(rank, Key(kValues, rank, i), 0, place, bytes);
      }
    }
  }
  CopyLater(std::move(copies));
}

void GroupCall::StartExchange() {
  if (pushed()) return PushExchanged();
  const int64_t bytes = ExchangedBytes();
  std::vector<LocalCopy> copies;
  for (int mine : layout_.local_ranks) {
    for (int other = 0; other < layout_.size(); ++other) {
      if (IsLocal(other)) {
        copies.push_back({ExchangedPlace(mine, other), ExchangedFrom(mine, other), bytes});
      } else {
        OfferMemory(Key(kValues, mine, other), ExchangedFrom(mine, other), bytes, bytes);
        Take(other, Key(kValues, other, mine), 0, ExchangedPlace(other, mine), bytes);
      }
    }
  }
  CopyLater(std::move(copies));
}

void GroupCall::StartPermute() {
  std::vector<LocalCopy> copies;
  for (int mine : layout_.local_ranks) {
    const int32_t target = step_.target_of[static_cast<size_t>(mine)];
    const int32_t source = step_.source_of[static_cast<size_t>(mine)];
    for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
      const int64_t bytes = step_.operands[static_cast<size_t>(i)].bytes;
      if (target >= 0 && !IsLocal(target)) OfferMemory(Key(kValues, mine, i), OperandOf(mine, i), bytes, bytes);
      if (source < 0)
        copies.push_back({ResultOf(mine, i), nullptr, bytes});
      else if (IsLocal(source))
        copies.push_back({ResultOf(mine, i), OperandOf(source, i), bytes});
      else
        Take(source, Key(kValues, source, i), 0, ResultOf(mine, i), bytes);
    }
  }
  CopyLater(std::move(copies));
}

}  // namespace landbridge
