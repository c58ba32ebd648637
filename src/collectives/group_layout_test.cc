#include "collectives/group_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>

namespace landbridge {
namespace {

using testing::ElementsAre;

std::vector<Incarnation> Workers(std::vector<uint64_t> ids) {
  std::vector<Incarnation> workers;
  for (uint64_t id : ids) workers.push_back(Incarnation(id));
  return workers;
}

TEST(GroupLayout, WorkersInOrderOfTheirFirstRank) {
  // Devices 0..3 on workers 10, 10, 20, 30; ranks are devices 3, 0, 2, 1.
  const GroupLayout layout = GroupLayout::Make({3, 0, 2, 1}, Workers({10, 10, 20, 30}), Incarnation(10));
  EXPECT_THAT(layout.workers, ElementsAre(Incarnation(30), Incarnation(10), Incarnation(20)));
  EXPECT_THAT(layout.worker_of_rank, ElementsAre(0, 1, 2, 1));
  EXPECT_THAT(layout.local_ranks, ElementsAre(1, 3));
  EXPECT_EQ(layout.self, 1);
  EXPECT_THAT(layout.subtrees, ElementsAre(Subtree{0, 1, 0}, Subtree{1, 1, 1}, Subtree{2, 1, 2}, Subtree{3, 1, 1}));
}

TEST(GroupLayout, RanksOfOneWorkerFormTheLargestSubtrees) {
  std::vector<int32_t> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_THAT(GroupLayout::Make(ranks, Workers({1, 1, 1, 1, 2, 2, 2, 2}), Incarnation(1)).subtrees,
              ElementsAre(Subtree{0, 4, 0}, Subtree{4, 4, 1}));
  EXPECT_THAT(GroupLayout::Make(ranks, Workers({1, 1, 1, 2, 2, 2, 2, 2}), Incarnation(1)).subtrees,
              ElementsAre(Subtree{0, 2, 0}, Subtree{2, 1, 0}, Subtree{3, 1, 1}, Subtree{4, 4, 1}));
  EXPECT_THAT(GroupLayout::Make({0, 1, 2}, Workers({1, 1, 1}), Incarnation(2)).subtrees, ElementsAre(Subtree{0, 3, 0}));
}

TEST(GroupLayout, OwnedPartsCoverEverythingOnce) {
  for (int64_t elements : {0, 1, 63, 64, 1000, 4096, 1'000'003}) {
    const GroupLayout layout = GroupLayout::Make({0, 1, 2, 3, 4}, Workers({1, 2, 2, 3, 3}), Incarnation(1));
    int64_t next = 0;
    for (int worker = 0; worker < 3; ++worker) {
      const ElementRange part = layout.OwnedBy(worker, elements);
      EXPECT_EQ(part.begin, next);
      EXPECT_GE(part.end, part.begin);
      EXPECT_EQ(part.begin % kOwnedAlignment, 0);
      next = part.end;
    }
    EXPECT_EQ(next, elements);
  }
  const GroupLayout layout = GroupLayout::Make({0, 1, 2, 3}, Workers({1, 2, 2, 2}), Incarnation(1));
  EXPECT_EQ(layout.OwnedBy(0, 4096), (ElementRange{0, 1024}));
  EXPECT_EQ(layout.OwnedBy(1, int64_t{1} << 60).end, int64_t{1} << 60);
}

TEST(GroupLayout, EverySliceDividesEveryPartAmongItsWorkers) {
  // Ranks 0..4 on workers 1, 2, 2, 3, 1, which are in slices 7, 9, 7.
  const GroupLayout layout =
      GroupLayout::Make({0, 1, 2, 3, 4}, Workers({1, 2, 2, 3, 1}), Incarnation(3), {7, 9, 9, 7, 7});
  ASSERT_EQ(layout.slices.size(), 2u);
  EXPECT_TRUE(layout.hierarchical());
  EXPECT_THAT(layout.slices[0].ranks, ElementsAre(0, 3, 4));
  EXPECT_THAT(layout.slices[0].workers, ElementsAre(0, 2));
  EXPECT_THAT(layout.slices[0].subtrees, ElementsAre(Subtree{0, 1, 0}, Subtree{1, 1, 2}, Subtree{2, 1, 0}));
  EXPECT_THAT(layout.slices[1].subtrees, ElementsAre(Subtree{0, 2, 1}));
  EXPECT_EQ(layout.self_slice, 0);
  EXPECT_EQ(layout.self_place, 1);
  EXPECT_EQ(layout.HandlerOf(1, 0), 0);
  EXPECT_EQ(layout.HandlerOf(2, 0), 2);
  EXPECT_EQ(layout.HandlerOf(4, 0), 0);
  EXPECT_EQ(layout.HandlerOf(4, 1), 1);
  EXPECT_EQ(layout.SlicePart(1, 0, 1, 4096), (ElementRange{3072, 4096}));
  for (int64_t elements : {0, 1, 63, 64, 1000, 4096, 1'000'003}) {
    for (int slice : {0, 1}) {
      int64_t next = 0;
      for (int home : {0, 1}) {
        for (int place = 0; place < static_cast<int>(layout.slices[static_cast<size_t>(slice)].workers.size());
             ++place) {
          const ElementRange part = layout.SlicePart(home, slice, place, elements);
          EXPECT_EQ(part.begin, next);
          EXPECT_EQ(part.begin % kOwnedAlignment, 0);
          next = part.end;
        }
      }
      EXPECT_EQ(next, elements);
    }
  }
  EXPECT_FALSE(GroupLayout::Make({0, 1}, Workers({1, 2}), Incarnation(1), {0, 1}).hierarchical());
  EXPECT_FALSE(GroupLayout::Make({0, 1}, Workers({1, 2}), Incarnation(1)).hierarchical());
}

// What one order of additions gives, and the same by partial sums of any subtrees.
TEST(ReduceTree, SameBitsFromPartialSums) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 1000);
  constexpr int64_t kElements = 20'000;  // more than a block
  for (int ranks : {1, 2, 3, 5, 8, 13}) {
    std::vector<std::vector<float>> values(static_cast<size_t>(ranks), std::vector<float>(kElements));
    for (auto& value : values) {
      for (float& x : value) x = normal(random);
    }
    auto leaf = [&](int first, int count) {
      return count == 1 ? reinterpret_cast<const std::byte*>(values[static_cast<size_t>(first)].data()) : nullptr;
    };
    std::vector<float> whole(kElements), again(kElements);
    ReduceTree(ranks, DType::kF32, CollectiveOp::SUM, kElements, reinterpret_cast<std::byte*>(whole.data()), leaf);
    for (int round = 0; round < 5; ++round) {
      std::vector<Incarnation> workers;
      for (int r = 0; r < ranks; ++r) workers.push_back(Incarnation(1 + random() % 3));
      std::vector<int32_t> members(static_cast<size_t>(ranks));
      std::iota(members.begin(), members.end(), 0);
      const GroupLayout layout = GroupLayout::Make(members, workers, Incarnation(1));
      std::vector<std::vector<float>> partials;
      for (const Subtree& subtree : layout.subtrees) {
        ReduceSubtree(subtree, DType::kF32, CollectiveOp::SUM, kElements,
                      reinterpret_cast<std::byte*>(partials.emplace_back(kElements).data()), leaf);
      }
      ReduceTree(ranks, DType::kF32, CollectiveOp::SUM, kElements, reinterpret_cast<std::byte*>(again.data()),
                 [&](int first, int count) -> const std::byte* {
                   for (size_t t = 0; t < partials.size(); ++t) {
                     if (layout.subtrees[t].first == first && layout.subtrees[t].count == count) {
                       return reinterpret_cast<const std::byte*>(partials[t].data());
                     }
                   }
                   return nullptr;
                 });
      EXPECT_EQ(std::memcmp(whole.data(), again.data(), kElements * sizeof(float)), 0) << ranks;
    }
  }
  // The order is ((a b) (c d)).
  const std::vector<float> v{1e8f, 1, -1e8f, 1};
  float sum = 0;
  ReduceTree(4, DType::kF32, CollectiveOp::SUM, 1, reinterpret_cast<std::byte*>(&sum), [&](int first, int count) {
    return count == 1 ? reinterpret_cast<const std::byte*>(&v[static_cast<size_t>(first)]) : nullptr;
  });
  EXPECT_EQ(sum, (1e8f + 1.0f) + (-1e8f + 1.0f));
}

}  // namespace
}  // namespace landbridge
