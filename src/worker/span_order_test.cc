#include "worker/span_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace landbridge {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(SpanOrder, InTheOrderOfTheirNumbers) {
  SpanOrder order;
  const SpanOrder::Place first{3, 0}, second{7, 3};
  order.Arrive(Ticket(20), second, {});
  EXPECT_FALSE(order.Ready(Ticket(20)));
  order.Arrive(Ticket(10), first, {});
  EXPECT_TRUE(order.Ready(Ticket(10)));
  order.OnLeft(Ticket(10), &first);
  EXPECT_THAT(order.TakeReady(), ElementsAre(Ticket(20)));
  EXPECT_TRUE(order.Ready(Ticket(20)));
  order.OnLeft(Ticket(20), &second);
  EXPECT_EQ(order.waiting(), 0u);
  order.Arrive(Ticket(30), {8, 7}, {});
  EXPECT_TRUE(order.Ready(Ticket(30)));
}

TEST(SpanOrder, EarlierLaunchesOfItsDevicesGoFirst) {
  SpanOrder order;
  order.Arrive(Ticket(10), {1, 0}, {Ticket(4), Ticket(6)});
  order.OnLeft(Ticket(6), nullptr);
  EXPECT_THAT(order.TakeReady(), IsEmpty());
  order.OnLeft(Ticket(5), nullptr);
  EXPECT_FALSE(order.Ready(Ticket(10)));
  order.OnLeft(Ticket(4), nullptr);
  EXPECT_THAT(order.TakeReady(), ElementsAre(Ticket(10)));
}

// The second is dropped before its turn: the third still waits for the first, as it may on other workers.
TEST(SpanOrder, WhoLeavesEarlyOpensNoGap) {
  SpanOrder order;
  const SpanOrder::Place first{1, 0}, second{2, 1}, third{5, 2};
  order.Arrive(Ticket(10), first, {Ticket(3)});
  order.Arrive(Ticket(11), second, {});
  order.Arrive(Ticket(12), third, {});
  order.OnLeft(Ticket(11), &second);
  EXPECT_THAT(order.TakeReady(), IsEmpty());
  EXPECT_FALSE(order.Ready(Ticket(12)));
  order.OnLeft(Ticket(3), nullptr);
  EXPECT_THAT(order.TakeReady(), ElementsAre(Ticket(10)));
  order.OnLeft(Ticket(10), &first);
  EXPECT_THAT(order.TakeReady(), ElementsAre(Ticket(12)));
}

TEST(SpanOrder, VoidNumbersArePassed) {
  SpanOrder order;
  order.Arrive(Ticket(12), {9, 4}, {});
  order.OnVoid({4, 2});
  EXPECT_THAT(order.TakeReady(), IsEmpty());
  order.OnVoid({2, 0});
  EXPECT_THAT(order.TakeReady(), ElementsAre(Ticket(12)));
}

}  // namespace
}  // namespace landbridge
