// Small collectives whose values are sent before anybody asks (CollectiveStep::pushed): what others bring waits in the call,
// which is there before its members are, and goes to its place when both have come.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "collectives/group_call.h"

namespace landbridge {

void GroupCall::AwaitPushes() {
  Begin();  // ends when all has come
  if (reduces()) {
    for (const Subtree& subtree : layout_.subtrees) awaited_ += subtree.worker != layout_.self ? 1 : 0;
    return;
  }
  const auto others = static_cast<int64_t>(layout_.members.size() - layout_.local_ranks.size());
  if (step_.kind == CollectiveOp::ALL_TO_ALL) {
    awaited_ = others * static_cast<int64_t>(layout_.local_ranks.size());
  } else {
    for (const CollectiveTensor& operand : step_.operands) awaited_ += operand.bytes > 0 ? others : 0;
  }
}

absl::Status GroupCall::Bring(int rank, int operand, absl::Span<const std::byte> value) {
  const auto bad = [&](absl::string_view what) {
    return absl::InternalError(
        absl::StrCat("a worker sent ", what, " of occurrence ", occurrence_, " of ", step_.name));
  };
  Values* place = nullptr;
  int64_t bytes = EagerBytes();
  if (reduces()) {
    const auto found = std::lower_bound(layout_.subtrees.begin(), layout_.subtrees.end(), rank,
                                        [](const Subtree& subtree, int wanted) { return subtree.first < wanted; });
    if (operand != 0 || found == layout_.subtrees.end() || found->first != rank) return bad("a sum that is none");
    place = &eager_.values[static_cast<size_t>(found - layout_.subtrees.begin())];
  } else {
    const bool all_to_all = step_.kind == CollectiveOp::ALL_TO_ALL;
    if (operand < 0 || (all_to_all ? operand >= layout_.size() || !IsLocal(operand)
                                   : operand >= static_cast<int>(step_.operands.size()))) {
      return bad("a value that is none");
    }
    bytes = all_to_all ? ExchangedBytes() : step_.operands[static_cast<size_t>(operand)].bytes;
    place = &brought_[{rank, operand}];
  }
  if (*place != nullptr) return bad("a second value");
  if (static_cast<int64_t>(value.size()) != bytes) return bad(absl::StrCat(value.size(), " bytes for ", bytes));
  *place = std::make_shared<std::vector<std::byte>>(value.begin(), value.end());
  --awaited_;
  return absl::OkStatus();
}

void GroupCall::OthersCame() { CameEagerly(); }

// --- What goes out.

void GroupCall::PushToOthers(int rank, int operand, Values values) {
  for (int worker = 0; worker < static_cast<int>(layout_.workers.size()); ++worker) {
    if (worker != layout_.self) sending_.push_back({Device(FirstRank(worker)), Key(kValues, rank, operand), values});
  }
}

void GroupCall::Prepared() {
  if (may_send_.End()) SendPushes();
}

void GroupCall::MaySend() {
  if (may_send_.End()) SendPushes();
}

void GroupCall::SendPushes() {
  for (Sending& sending : std::exchange(sending_, {})) {
    run_->Push(sending.device, sending.key, std::move(sending.values));
  }
}

void GroupCall::PushGathered() {
  std::vector<LocalCopy> copies;
  for (int i = 0; i < static_cast<int>(step_.operands.size()); ++i) {
    const int64_t bytes = step_.operands[static_cast<size_t>(i)].bytes;
    if (bytes == 0) continue;
    for (int rank : layout_.local_ranks) {
      const std::byte* from = OperandOf(rank, i);
      PushToOthers(rank, i, std::make_shared<std::vector<std::byte>>(from, from + bytes));
      copies.push_back({FirstResult(i) + rank * bytes, from, bytes});
    }
  }
  Prepared();
  CopyLater(std::move(copies));
  CameEagerly();
}

void GroupCall::PushExchanged() {
  const int64_t bytes = ExchangedBytes();
  std::vector<LocalCopy> copies;
  for (int mine : layout_.local_ranks) {
    for (int other = 0; other < layout_.size(); ++other) {
      const std::byte* from = ExchangedFrom(mine, other);
      if (IsLocal(other)) {
        copies.push_back({ExchangedPlace(mine, other), from, bytes});
      } else {
        sending_.push_back(
            {Device(other), Key(kValues, mine, other), std::make_shared<std::vector<std::byte>>(from, from + bytes)});
      }
    }
  }
  Prepared();
  CopyLater(std::move(copies));
  CameEagerly();
}

void GroupCall::PlaceBrought() {
  for (const auto& [name, values] : brought_) {
    const auto [rank, operand] = name;
    std::byte* to = step_.kind == CollectiveOp::ALL_TO_ALL
                        ? ExchangedPlace(rank, operand)
                        : FirstResult(operand) + rank * step_.operands[static_cast<size_t>(operand)].bytes;
    std::memcpy(to, values->data(), values->size());
  }
}

}  // namespace landbridge
