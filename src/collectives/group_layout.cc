#include "collectives/group_layout.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/log.h"
#include "collectives/reduce.h"

namespace landbridge {
namespace {

// Blocks that stay in the cache while the tree goes over them.
constexpr int64_t kBlockBytes = 32 << 10;

int SplitOf(int count) { return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1))); }

void FindSubtrees(const std::vector<int>& worker_of_rank, int first, int count, std::vector<Subtree>& out) {
  const int worker = worker_of_rank[static_cast<size_t>(first)];
  bool together = true;
  for (int r = first; r < first + count; ++r) together = together && worker_of_rank[static_cast<size_t>(r)] == worker;
  if (together) {
    out.push_back({first, count, worker});
    return;
  }
  const int split = SplitOf(count);
  FindSubtrees(worker_of_rank, first, split, out);
  FindSubtrees(worker_of_rank, first + split, count - split, out);
}

// Where the first `count` of `of` equal shares end.
int64_t CutAt(int64_t elements, int64_t count, int64_t of) {
  if (count == of) return elements;
  // elements * count / of without overflow.
  const int64_t share = elements / of * count + elements % of * count / of;
  return share / kOwnedAlignment * kOwnedAlignment;
}

ElementRange ShareOf(ElementRange range, int64_t index, int64_t of) {
  return {range.begin + CutAt(range.size(), index, of), range.begin + CutAt(range.size(), index + 1, of)};
}

// One block of a reduction.
class Block {
 public:
  Block(DType dtype, CollectiveOp::Reduction reduction, int64_t elements, int64_t offset_bytes,
        absl::FunctionRef<const std::byte*(int, int)> input, std::vector<std::vector<std::byte>>& scratch)
      : dtype_(dtype),
        reduction_(reduction),
        elements_(elements),
        offset_bytes_(offset_bytes),
        input_(input),
        scratch_(scratch) {}

  // Where the value is: an input's own place, or `out`.
  const std::byte* Evaluate(int first, int count, std::byte* out, size_t depth) {
    if (const std::byte* there = input_(first, count); there != nullptr) return there + offset_bytes_;
    LB_CHECK(count > 1);
    const int split = SplitOf(count);
    const std::byte* left = Evaluate(first, split, out, depth);
    if (scratch_.size() <= depth) scratch_.emplace_back(static_cast<size_t>(kBlockBytes));
    std::byte* beside = scratch_[depth].data();
    const std::byte* right = Evaluate(first + split, count - split, beside, depth + 1);
    Reduce(dtype_, reduction_, out, left, right, elements_);
    return out;
  }

 private:
  const DType dtype_;
  const CollectiveOp::Reduction reduction_;
  const int64_t elements_, offset_bytes_;
  absl::FunctionRef<const std::byte*(int, int)> input_;
  std::vector<std::vector<std::byte>>& scratch_;  // by depth
};

}  // namespace

GroupLayout GroupLayout::Make(absl::Span<const int32_t> members, absl::Span<const Incarnation> worker_of_device,
                              Incarnation self, absl::Span<const uint32_t> slice_of_device) {
  GroupLayout layout;
  layout.members.assign(members.begin(), members.end());
  layout.self = -1;
  for (int rank = 0; rank < layout.size(); ++rank) {
    const Incarnation worker = worker_of_device[static_cast<size_t>(members[static_cast<size_t>(rank)])];
    auto found = std::find(layout.workers.begin(), layout.workers.end(), worker);
    const int index = static_cast<int>(found - layout.workers.begin());
    if (found == layout.workers.end()) {
      layout.workers.push_back(worker);
      layout.first_rank.push_back(rank);
    }
    layout.worker_of_rank.push_back(index);
    if (worker == self) {
      layout.self = index;
      layout.local_ranks.push_back(rank);
    }
  }
  FindSubtrees(layout.worker_of_rank, 0, layout.size(), layout.subtrees);
  layout.FindSlices(slice_of_device);
  return layout;
}

void GroupLayout::FindSlices(absl::Span<const uint32_t> slice_of_device) {
  std::vector<uint32_t> names;
  for (size_t worker = 0; worker < workers.size(); ++worker) {
    const auto device = static_cast<size_t>(members[static_cast<size_t>(first_rank[worker])]);
    const uint32_t name = slice_of_device.empty() ? 0 : slice_of_device[device];
    const auto found = std::find(names.begin(), names.end(), name);
    slice_of_worker.push_back(static_cast<int>(found - names.begin()));
    if (found == names.end()) {
      names.push_back(name);
      slices.emplace_back();
    }
    GroupSlice& slice = slices[static_cast<size_t>(slice_of_worker.back())];
    if (static_cast<int>(worker) == self) {
      self_slice = slice_of_worker.back();
      self_place = static_cast<int>(slice.workers.size());
    }
    slice.workers.push_back(static_cast<int>(worker));
  }
  for (int rank = 0; rank < size(); ++rank) {
    const int worker = worker_of_rank[static_cast<size_t>(rank)];
    slices[static_cast<size_t>(slice_of_worker[static_cast<size_t>(worker)])].ranks.push_back(rank);
  }
  for (GroupSlice& slice : slices) {
    std::vector<int> worker_of_position;
    for (int rank : slice.ranks) worker_of_position.push_back(worker_of_rank[static_cast<size_t>(rank)]);
    FindSubtrees(worker_of_position, 0, static_cast<int>(slice.ranks.size()), slice.subtrees);
  }
}

ElementRange GroupLayout::OwnedBy(int worker, int64_t elements) const {
  if (slices.size() > 1) return ShareOf({0, elements}, worker, static_cast<int64_t>(workers.size()));
  int64_t before = 0, own = 0;
  for (int index : worker_of_rank) {
    if (index < worker) ++before;
    if (index == worker) ++own;
  }
  return {CutAt(elements, before, size()), CutAt(elements, before + own, size())};
}

ElementRange GroupLayout::SlicePart(int home, int slice, int place, int64_t elements) const {
  const ElementRange part = ShareOf({0, elements}, home, static_cast<int64_t>(slices.size()));
  return ShareOf(part, place, static_cast<int64_t>(slices[static_cast<size_t>(slice)].workers.size()));
}

int GroupLayout::HandlerOf(int rank, int slice) const {
  const int worker = worker_of_rank[static_cast<size_t>(rank)];
  const int home = slice_of_worker[static_cast<size_t>(worker)];
  if (home == slice) return worker;
  const std::vector<int>& ranks = slices[static_cast<size_t>(home)].ranks;
  const std::vector<int>& handlers = slices[static_cast<size_t>(slice)].workers;
  const auto position = static_cast<size_t>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return handlers[position % handlers.size()];
}

void ReduceSubtree(const Subtree& subtree, DType dtype, CollectiveOp::Reduction reduction, int64_t elements,
                   std::byte* out, absl::FunctionRef<const std::byte*(int, int)> input) {
  std::vector<std::vector<std::byte>> scratch;
  scratch.reserve(64);  // deeper than any tree: pointers into it stay
  const int64_t per_block = kBlockBytes * 8 / DeviceElementBits(dtype);
  for (int64_t begin = 0; begin < elements; begin += per_block) {
    const int64_t count = std::min(per_block, elements - begin);
    const int64_t offset = BytesOfElements(dtype, begin);
    std::byte* block_out = out + offset;
    const std::byte* value =
        Block(dtype, reduction, count, offset, input, scratch).Evaluate(subtree.first, subtree.count, block_out, 0);
    if (value != block_out) std::memcpy(block_out, value, static_cast<size_t>(BytesOfElements(dtype, count)));
  }
}

void ReduceTree(int ranks, DType dtype, CollectiveOp::Reduction reduction, int64_t elements, std::byte* out,
                absl::FunctionRef<const std::byte*(int, int)> input) {
  ReduceSubtree({0, ranks, 0}, dtype, reduction, elements, out, input);
}

}  // namespace landbridge
