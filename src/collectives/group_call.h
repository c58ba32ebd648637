// One collective of one group, once: what this worker's members bring, what it takes from the others.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "collectives/collective_engine.h"
#include "collectives/group_layout.h"
#include "collectives/outgoing.h"
#include "collectives/reduce.h"

namespace landbridge {

// What a call needs of its run. Thread-safety: all members from any thread, but Finish and Publish's `drained` may not
// be called with locks held that `done` takes.
class RunContext {
 public:
  virtual ~RunContext() = default;
  virtual void Execute(absl::AnyInvocable<void()> task) = 0;
  // `done` runs in this call.
  virtual void FinishHere(absl::AnyInvocable<void(const absl::Status&)> done, const absl::Status& status) = 0;
  // `done` runs on the executor.
  virtual void Finish(absl::AnyInvocable<void(const absl::Status&)> done, const absl::Status& status) = 0;
  // `drained` (may be empty) runs once: when peers have taken everything, or never will.
  virtual void Publish(const CollectiveKey& key, std::shared_ptr<Outgoing> outgoing,
                       absl::AnyInvocable<void()> drained) = 0;
  // From the worker of `device`. `done` once; after it no byte lands.
  virtual void Pull(int32_t device, const CollectiveKey& key, int64_t offset, std::byte* into, int64_t bytes,
                    absl::AnyInvocable<void(const absl::Status&)> done) = 0;
  // The worker of `device` gets the values before it asks.
  virtual void Push(int32_t device, const CollectiveKey& key, std::shared_ptr<std::vector<std::byte>> values) = 0;
  virtual void Fail(const absl::Status& why) = 0;
};

// Things that have to end, and the first error among them. Thread-safety: all members from any thread.
class Countdown {
 public:
  explicit Countdown(int64_t count) : left_(count) {}
  void Add() { left_.fetch_add(1, std::memory_order_relaxed); }
  // True: it is the first error.
  bool Note(const absl::Status& error) {
    absl::MutexLock lock(&mutex_);
    const bool first = status_.ok();
    status_.Update(error);
    return first;
  }
  // True: that was the last.
  bool End() { return left_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  std::atomic<int64_t> left_;
  mutable absl::Mutex mutex_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

// A call is made of tasks: pulls, reductions, copies, and sends that peers have yet to take. It is over when the last
// of them is; the first that fails fails the run, which ends all others soon.
//
// Thread-safety: Join and Drop under the run's lock, before Start; the rest by itself.
class GroupCall : public std::enable_shared_from_this<GroupCall> {
 public:
  // `step` and `layout` live as long as the run.
  GroupCall(std::shared_ptr<RunContext> run, const CollectiveStep& step, const GroupLayout& layout, int32_t op,
            int64_t occurrence)
      : run_(std::move(run)), step_(step), layout_(layout), op_(op), occurrence_(occurrence) {
    if (pushed()) AwaitPushes();
  }

  // True: all local members are here now.
  bool Join(int rank, CollectiveCall call);
  // Gives a call up that has not started.
  void Drop(const absl::Status& why);
  // In the call of the last member, whose `done` may run inside.
  void Start();

  // --- Of calls whose values are pushed. They wait for what others bring until it all came, or EndPushes.
  bool pushed() const { return step_.pushed && layout_.workers.size() > 1; }
  // Under the run's lock. A value of `rank`, which that worker has; INTERNAL: none that this call waits for.
  absl::Status Bring(int rank, int operand, absl::Span<const std::byte> value);
  bool AllCame() const { return awaited_ == 0; }         // under the run's lock
  void OthersCame();                                     // AllCame; once, any thread
  void MaySend();                                        // once: who gets our values has room for them (see Run::Place)
  void EndPushes(const absl::Status& why) { End(why); }  // it has begun, and will never be told OthersCame

  // Asks for what others will bring before our members are here; then it comes at once when it is there. At most once, any
  // thread, also beside Start.
  void Prepare();
  bool CanPrepare() const {
    return reduces() && small() && !step_.pushed && step_.operand_bytes > 0 && layout_.workers.size() > 1;
  }

 private:
  struct Member {
    int rank = 0;
    CollectiveCall call;
  };
  struct LocalCopy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;  // null: zeros
    int64_t bytes = 0;
  };
  using Values = std::shared_ptr<std::vector<std::byte>>;
  // What subtrees bring to a reduction.
  struct Partials {
    explicit Partials(const std::vector<Subtree>& of) : subtrees(of), values(of.size()) {}
    // Null: no such subtree, or it is ours.
    const std::byte* Find(int first, int count) const;
    const std::vector<Subtree>& subtrees;
    std::vector<Values> values;  // by index into `subtrees`
  };
  // One part of an operand that we reduce, piece by piece.
  struct Pipeline {
    int operand = 0;
    ElementRange part;
    std::byte* out = nullptr;
    int name = 0;  // over several slices: the rank in the keys of what they bring for this part
    int64_t piece_elements = 0;
    std::atomic<int64_t> next{0};  // pieces begun
    std::atomic<int64_t> left{0};  // pieces not reduced
    int64_t pieces = 0;
  };
  // Phases of CollectiveKey.
  static constexpr int kValues = 0;       // what members bring: sums of a subtree
  static constexpr int kReduced = 1;      // parts that were reduced for all, values that came into a slice for all
  static constexpr int kSliceValues = 2;  // the sum over all members in a slice, for another slice

  static int64_t ElementsIn(DType dtype, int64_t bytes) { return bytes * 8 / DeviceElementBits(dtype); }
  static int64_t BytesOf(DType dtype, const ElementRange& range) { return BytesOfElements(dtype, range.size()); }

  // Tasks. `done` of each is called once.
  void Begin() { tasks_.Add(); }
  void End(const absl::Status& status);
  void Run(absl::AnyInvocable<void()> work);  // a task on the executor
  void CopyLater(std::vector<LocalCopy> copies);
  // Pulls from the worker of `rank`; `then` (may be empty) runs on the data plane's thread if all went well.
  void Take(int rank, const CollectiveKey& key, int64_t offset, std::byte* into, int64_t bytes,
            absl::AnyInvocable<void()> then = {});
  // Takes the bytes [offset, offset + bytes) of an operand's sums over those of the subtrees that other workers have. `then`,
  // which keeps `partials`: when all have come, with the first error, on any thread. `ranks`: see OfferSubtree.
  void TakePartials(Partials& partials, absl::Span<const int> ranks, int operand, int64_t offset, int64_t bytes,
                    absl::AnyInvocable<void(const absl::Status&)> then);
  // Memory of the program's, which is ours until peers have taken `expected` bytes; or, of small calls, a copy of it.
  void OfferMemory(const CollectiveKey& key, const std::byte* data, int64_t bytes, int64_t expected);
  void OfferInPlace(const CollectiveKey& key, std::shared_ptr<Outgoing> outgoing);
  // `inside`: in the call of the last member.
  void Complete(bool inside = false);
  void CopyToOtherMembers();

  void StartReduction();
  void ReduceLocally();
  void ExchangeEagerly();
  bool MayAsk();  // and begins a task, which AskEagerly ends
  void AskEagerly();
  void CameEagerly();
  void ReduceEagerly();
  int64_t EagerBytes() const;
  // group_call_pushes.cc
  void AwaitPushes();
  void PushGathered();
  void PushExchanged();
  void PushToOthers(int rank, int operand, Values values);
  void Prepared();
  void SendPushes();
  void PlaceBrought();
  void ExchangeInParts();
  void OfferPartials(int operand);
  // `name`: see Pipeline.
  void StartPart(int operand, ElementRange part, std::byte* out, int name = 0);
  void NextPiece(const std::shared_ptr<Pipeline>& pipeline);
  void ReducePiece(const std::shared_ptr<Pipeline>& pipeline, ElementRange piece, const Partials& partials);
  void PieceReduced(const std::shared_ptr<Pipeline>& pipeline);
  // `ranks`: of the subtree's positions; empty: they are ranks. `rank`: of the first.
  void OfferSubtree(const Subtree& subtree, int rank, absl::Span<const int> ranks, int operand, int64_t expected);
  void ShareParts(int operand);
  void TakeParts(int operand);
  void StartGather();
  void StartExchange();
  void StartPermute();

  // Over several slices (group_call_slices.cc).
  using SliceValuesDone = absl::AnyInvocable<void(absl::StatusOr<Values>)>;
  void ReduceOverSlices();
  void OfferToMates(int operand);
  void OfferToSlices(int operand, int name, ElementRange part);
  void SumOfSlice(int operand, ElementRange piece, SliceValuesDone done);
  void NextPieceOverSlices(const std::shared_ptr<Pipeline>& pipeline, ElementRange piece);
  void TakeSliceValues(const Pipeline& pipeline, ElementRange piece, int other, std::byte* into,
                       const std::function<void()>& arrived, const std::function<void()>& begin);
  void ShareOverSlices(int operand);
  void TakeReduced(int operand);
  void TakeIntoSlice(int operand, int home);
  void GatherOverSlices();
  ElementRange SlicePart(int home, int slice, int place, int operand) const {
    return layout_.SlicePart(home, slice, place, step_.operands[static_cast<size_t>(operand)].elements);
  }
  const GroupSlice& slice() const { return layout_.slices[static_cast<size_t>(layout_.self_slice)]; }
  // What names the part of slice `home` in keys.
  int NameOf(int home) const { return layout_.slices[static_cast<size_t>(home)].ranks[0]; }
  int FirstRank(int worker) const { return layout_.first_rank[static_cast<size_t>(worker)]; }
  int SliceOf(int rank) const {
    const int worker = layout_.worker_of_rank[static_cast<size_t>(rank)];
    return layout_.slice_of_worker[static_cast<size_t>(worker)];
  }
  int64_t Mates() const { return static_cast<int64_t>(slice().workers.size()) - 1; }
  int64_t OtherSlices() const { return static_cast<int64_t>(layout_.slices.size()) - 1; }
  std::byte* ResultAt(int operand, int64_t element) const {
    return FirstResult(operand) + BytesOfElements(step_.operands[static_cast<size_t>(operand)].dtype, element);
  }

  // The elements of operand `operand` of a reduction that `worker` reduces, for all or for its own ranks.
  std::vector<ElementRange> PartsOf(int worker, int operand) const;
  ElementRange PieceOf(int rank, int operand) const;  // of a reduce-scatter
  std::byte* ResultOf(int rank, int operand) const { return member(rank).call.results[static_cast<size_t>(operand)]; }
  const std::byte* OperandOf(int rank, int operand) const {
    return member(rank).call.operands[static_cast<size_t>(operand)];
  }
  // An all-to-all has an operand for each rank, or one of as many parts. What `from` has for `to`; at the receiver it is
  // the value number `from`.
  bool by_operand() const { return static_cast<int>(step_.operands.size()) == layout_.size(); }
  int64_t ExchangedBytes() const {
    return by_operand() ? step_.operands[0].bytes : step_.operands[0].bytes / layout_.size();
  }
  const std::byte* ExchangedFrom(int from, int to) const {
    return by_operand() ? OperandOf(from, to) : OperandOf(from, 0) + to * ExchangedBytes();
  }
  std::byte* ExchangedPlace(int from, int to) const {
    return by_operand() ? ResultOf(to, from) : ResultOf(to, 0) + from * ExchangedBytes();
  }
  std::byte* FirstResult(int operand) const { return members_[0].call.results[static_cast<size_t>(operand)]; }
  bool reduces() const { return step_.kind == CollectiveOp::ALL_REDUCE || step_.kind == CollectiveOp::REDUCE_SCATTER; }
  bool small() const { return step_.operand_bytes <= kCollectiveEagerBytesMax; }
  const Member& member(int rank) const { return members_[member_of_rank_.at(static_cast<size_t>(rank))]; }
  bool IsLocal(int rank) const { return layout_.worker_of_rank[static_cast<size_t>(rank)] == layout_.self; }
  int32_t Device(int rank) const { return layout_.members[static_cast<size_t>(rank)]; }
  CollectiveKey Key(int phase, int rank, int operand) const { return {phase, op_, occurrence_, Device(rank), operand}; }
  int64_t OtherWorkers() const { return static_cast<int64_t>(layout_.workers.size()) - 1; }

  const std::shared_ptr<RunContext> run_;
  const CollectiveStep& step_;
  const GroupLayout& layout_;
  const int32_t op_;
  const int64_t occurrence_;
  std::vector<Member> members_;  // ours, as they came; fixed from Start on
  std::vector<size_t> member_of_rank_;
  bool copy_to_others_ = false;  // the first member's results are everybody's
  Countdown tasks_{1};           // one until it has started
  // Of small reductions.
  absl::Mutex mutex_;
  bool asked_ ABSL_GUARDED_BY(mutex_) = false;
  Partials eager_{layout_.subtrees};
  Countdown eager_missing_{2};  // ours, and what others bring
  // Of those that are pushed.
  struct Sending {
    int32_t device = 0;  // whose worker gets it
    CollectiveKey key;
    Values values;
  };
  int64_t awaited_ = 0;                                       // values that have not come; under the run's lock
  absl::flat_hash_map<std::pair<int, int>, Values> brought_;  // by rank and operand; of moves
  std::vector<Sending> sending_;
  Countdown may_send_{2};  // it is prepared, and there is room
};

}  // namespace landbridge
