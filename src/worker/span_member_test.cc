// One worker's end of the order of launches that span workers, and several around a spanner.
#include "worker/span_member.h"

#include <deque>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/spanner.h"
#include "worker/worker_limits.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class SpanMemberTest : public ::testing::Test, public ToTheSpanner {
 protected:
  void ToSpanner(OrderMessage message) override { sent_.push_back(std::move(message)); }
  void Arrive(uint64_t number, std::vector<uint32_t> devices) {
    member_.Arrive(Ticket(number), Ticket(100 + number), {SliceId(1), SliceId(2)}, std::move(devices));
  }
  void Ready(uint64_t number, std::vector<uint32_t> devices) {
    Arrive(number, std::move(devices));
    member_.SetReady(Ticket(number), {});
  }
  void Commit(uint64_t number, uint64_t g, uint64_t previous_g, uint64_t epoch = 1) {
    member_.OnCommit({epoch, 1, Ticket(number), g, previous_g});
  }
  std::vector<uint64_t> Startable() {
    std::vector<uint64_t> tickets;
    for (Ticket ticket : member_.TakeStartable()) tickets.push_back(ticket.value());
    return tickets;
  }
  template <typename Message>
  std::vector<Message> Take() {
    std::vector<Message> taken;
    for (const OrderMessage& message : std::exchange(sent_, {})) {
      if (const auto* one = std::get_if<Message>(&message)) taken.push_back(*one);
    }
    return taken;
  }
  std::deque<OrderMessage> sent_;
  SpanMember member_{this};
};

TEST_F(SpanMemberTest, EachDeviceFollowsTheNumbersThatConcernIt) {
  member_.Join(SliceId(1), 1);
  Ready(1, {0, 1});
  Ready(2, {1});
  Ready(3, {2});
  EXPECT_FALSE(member_.MayStart(Ticket(1)));
  Commit(1, 4, 0);
  Commit(2, 6, 4);
  Commit(3, 7, 6);
  EXPECT_THAT(Startable(), ElementsAre(101, 103));
  EXPECT_TRUE(member_.MayStart(Ticket(1)));
  EXPECT_FALSE(member_.MayStart(Ticket(2)));
  EXPECT_TRUE(member_.MayStart(Ticket(3)));
  member_.OnStarted(Ticket(1));
  EXPECT_THAT(Startable(), ElementsAre(102));
  member_.OnStarted(Ticket(2));
  member_.OnStarted(Ticket(3));
  EXPECT_EQ(member_.waiting(), 0u);
}

// The control experiment's member: nobody is asked, nothing waits for a turn, and a spanner's word changes nothing.
TEST_F(SpanMemberTest, UnorderedOnesAskNobody) {
  SpanMember member(this, /*unordered=*/true);
  member.Join(SliceId(1), 1);
  static_cast<void>(Take<SliceReport>());
  for (uint64_t number : {1, 2}) {
    member.Arrive(Ticket(number), Ticket(100 + number), {SliceId(1), SliceId(2)}, {0});
    EXPECT_TRUE(member.MayStart(Ticket(number)));
  }
  member.SetReady(Ticket(2), {});
  member.Join(SliceId(1), 2);
  EXPECT_THAT(Take<landbridge::Ready>(), IsEmpty());
  member.OnStarted(Ticket(2));
  EXPECT_TRUE(member.MayStart(Ticket(1)));
  member.OnStarted(Ticket(1));
  EXPECT_EQ(member.waiting(), 0u);
}

TEST_F(SpanMemberTest, OneThatIsDroppedFreesItsDevices) {
  member_.Join(SliceId(1), 1);
  Ready(1, {0});
  Ready(2, {0, 1});
  Ready(3, {1});
  Commit(1, 1, 0);
  Commit(2, 2, 1);
  Commit(3, 3, 2);
  EXPECT_THAT(Startable(), ElementsAre(101));
  member_.OnDropped(Ticket(2));
  EXPECT_THAT(Startable(), ElementsAre(101, 103));  // the first is named again, which does no harm
  EXPECT_EQ(Take<WithdrawnAt>().size(), 1u);
  member_.OnDropped(Ticket(4));  // never came
  EXPECT_EQ(Take<WithdrawnAt>().size(), 1u);
}

TEST_F(SpanMemberTest, CommitsAreTakenInTheirOrderAndOnce) {
  member_.Join(SliceId(1), 1);
  Ready(1, {0});
  Ready(2, {0});
  Commit(2, 5, 3);
  EXPECT_THAT(Startable(), IsEmpty());
  Commit(1, 3, 0);
  EXPECT_THAT(Startable(), ElementsAre(101));
  Commit(1, 3, 0);
  Commit(2, 5, 3);
  EXPECT_THAT(Startable(), IsEmpty());
  EXPECT_EQ(member_.g_tail(), 5u);
}

TEST_F(SpanMemberTest, ANewSpannerHearsWhatIsNumberedAndWhatIsReady) {
  Ready(1, {0});  // nobody to tell yet
  EXPECT_THAT(Take<landbridge::Ready>(), IsEmpty());
  member_.Join(SliceId(1), 1);
  EXPECT_EQ(Take<landbridge::Ready>().size(), 1u);
  Ready(2, {0});
  Ready(3, {0});
  Arrive(4, {0});
  Commit(1, 1, 0);
  Commit(3, 9, 8);  // one is missing before it
  member_.OnStarted(Ticket(1));
  member_.OnDropped(Ticket(4));
  sent_.clear();
  member_.Join(SliceId(1), 1);  // no news
  EXPECT_TRUE(sent_.empty());
  member_.Join(SliceId(1), 2);
  ASSERT_EQ(sent_.size(), 3u);
  const auto& report = std::get<SliceReport>(sent_[0]);
  EXPECT_EQ(report.g_tail, 1u);
  EXPECT_EQ(report.g_seen, 9u);
  ASSERT_EQ(report.placed.size(), 1u);
  EXPECT_EQ(report.placed[0].ticket, Ticket(1));
  EXPECT_THAT(report.withdrawn, ElementsAre(Ticket(4)));
  EXPECT_EQ(std::get<landbridge::Ready>(sent_[1]).ticket, Ticket(2));
  EXPECT_EQ(std::get<landbridge::Ready>(sent_[2]).ticket, Ticket(3));
  Commit(2, 2, 1, 1);  // of the old one
  EXPECT_THAT(Startable(), ElementsAre(101));
}

TEST_F(SpanMemberTest, TheHorizonForgetsAndIsToldNowAndThen) {
  member_.Join(SliceId(1), 1);
  for (uint64_t n = 1; n <= limits::kSpanHorizonStep; ++n) {
    Ready(n, {0});
    Commit(n, n, n - 1);
    member_.OnStarted(Ticket(n));
    member_.OnHorizon(Ticket(n));
    EXPECT_EQ(member_.remembered(), 1u);
  }
  const std::vector<HorizonAt> told = Take<HorizonAt>();
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].horizon, Ticket(limits::kSpanHorizonStep));
  EXPECT_TRUE(member_.Knows(Ticket(1)));
}

}  // namespace
}  // namespace landbridge
