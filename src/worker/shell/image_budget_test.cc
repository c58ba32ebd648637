#include "worker/shell/image_budget.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;

TEST(ImageBudget, GrantsInOrderWithinTheBound) {
  ImageBudget budget(100);
  std::vector<int> order;
  std::vector<ImageBudget::Grant> held(5);
  auto ask = [&](int who, int64_t bytes) {
    budget.Acquire(bytes, [&order, &held, who](ImageBudget::Grant grant) {
      order.push_back(who);
      held[static_cast<size_t>(who)] = std::move(grant);
    });
  };
  ask(0, 60);
  ask(1, 40);
  ask(2, 50);
  ask(3, 1);  // would fit, but is behind 2
  EXPECT_THAT(order, ElementsAre(0, 1));
  EXPECT_EQ(budget.bytes_out(), 100);
  EXPECT_EQ(budget.waiting(), 2u);
  held[1].reset();
  EXPECT_THAT(order, ElementsAre(0, 1)) << "50 do not fit beside 60";
  held[0].reset();
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3));
  held.clear();
  EXPECT_EQ(budget.bytes_out(), 0);
}

TEST(ImageBudget, WhatIsLargerThanAllGoesAlone) {
  ImageBudget budget(100);
  ImageBudget::Grant small, large;
  budget.Acquire(10, [&](ImageBudget::Grant grant) { small = std::move(grant); });
  budget.Acquire(1000, [&](ImageBudget::Grant grant) { large = std::move(grant); });
  EXPECT_EQ(large, nullptr);
  small.reset();
  EXPECT_NE(large, nullptr);
  EXPECT_EQ(budget.bytes_out(), 1000);
}

TEST(ImageBudget, GrantsOutliveIt) {
  ImageBudget::Grant grant;
  {
    ImageBudget budget(10);
    budget.Acquire(5, [&](ImageBudget::Grant g) { grant = std::move(g); });
  }
  EXPECT_NE(grant, nullptr);
  grant.reset();
}

}  // namespace
}  // namespace landbridge
