#include "controller/withdrawals.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr PartState kNot = PartState::kNotStarted, kStarted = PartState::kStarted, kFinished = PartState::kFinished;
using Place = WithdrawnLaunch::Place;

class WithdrawalsTest : public ::testing::Test, protected WithdrawalSink {
 protected:
  WithdrawalsTest() : withdrawals_(kSecond, this) {}

  // A launch with one part on each of the slices, all at member 0.
  WithdrawnLaunch& Launch(uint64_t ticket, std::vector<int> slices, std::vector<uint64_t> producers = {}) {
    WithdrawnLaunch launch;
    launch.ticket = Ticket(ticket);
    for (int slice : slices) launch.parts.push_back({SliceId(slice), 0});
    for (uint64_t producer : producers) {
      launch.inputs.push_back({Ticket(producer), {SliceId(slices[0]), 0}, {SliceId(slices[0]), 0}});
    }
    graph_.push_back(launch);
    return graph_.back();
  }
  void Withdraw(std::vector<uint64_t> roots) { withdrawals_.Withdraw(TicketsOf(roots), 0); }
  static std::vector<Ticket> TicketsOf(const std::vector<uint64_t>& values) {
    std::vector<Ticket> tickets;
    for (uint64_t value : values) tickets.push_back(Ticket(value));
    return tickets;
  }
  void Answer(int slice, std::vector<std::pair<uint64_t, PartState>> states, uint64_t epoch = 1, uint64_t round = 0) {
    std::vector<PartAnswer> parts;
    for (const auto& [ticket, state] : states) parts.push_back({Ticket(ticket), 0, state, false});
    withdrawals_.OnFrozen(SliceId(slice), epoch, round == 0 ? withdrawals_.round() : round, parts, 0);
  }
  std::vector<std::string> Take() { return std::exchange(said_, {}); }

  std::vector<WithdrawnLaunch> Closure(const std::set<Ticket>& roots, const std::set<Ticket>& asked) override {
    std::vector<WithdrawnLaunch> set;
    std::set<Ticket> in;
    for (WithdrawnLaunch launch : graph_) {
      launch.root = roots.contains(launch.ticket);
      bool concerned = launch.root || asked.contains(launch.ticket);
      for (const auto& input : launch.inputs) concerned = concerned || in.contains(input.producer);
      if (!concerned) continue;
      in.insert(launch.ticket);
      set.push_back(launch);
    }
    return set;
  }
  void SendFreeze(SliceId slice, uint64_t round, std::vector<Ticket> tickets) override {
    said_.push_back(absl::StrCat("freeze s", slice.value(), " r", round, ": ", Join(tickets)));
  }
  void SendVerdicts(SliceId, std::vector<LaunchVerdict>) override {}
  void Decided(Ticket ticket, Verdict verdict, const std::vector<Place>& good) override {
    static const std::vector<std::string> kVerdicts{"drop ", "release ", "finish ", "abort "};
    std::string text = absl::StrCat(kVerdicts[static_cast<size_t>(verdict)], ticket.value());
    if (!good.empty()) absl::StrAppend(&text, " good on ", good.size());
    said_.push_back(text);
  }
  void Unanswered(SliceId slice) override { said_.push_back(absl::StrCat("silent s", slice.value())); }
  static std::string Join(const std::vector<Ticket>& tickets) {
    return absl::StrJoin(tickets, " ", [](std::string* out, Ticket ticket) { absl::StrAppend(out, ticket.value()); });
  }

  Withdrawals withdrawals_;
  std::vector<WithdrawnLaunch> graph_;
  std::vector<std::string> said_;
};

TEST_F(WithdrawalsTest, NotStartedAnywhereIsDropped) {
  Launch(1, {0, 1});
  Launch(2, {1});
  Withdraw({1});
  EXPECT_THAT(Take(), ElementsAre("freeze s0 r1: 1", "freeze s1 r1: 1"));
  Answer(0, {{1, kNot}});
  EXPECT_THAT(Take(), IsEmpty());
  Answer(1, {});  // not placed counts as not started
  EXPECT_THAT(Take(), ElementsAre("drop 1"));
}

TEST_F(WithdrawalsTest, SomeStartedAndAllAliveFinishes) {
  Launch(1, {0, 1});
  Withdraw({1});
  Answer(0, {{1, kStarted}});
  Answer(1, {{1, kNot}});
  EXPECT_EQ(Take().back(), "finish 1");
}

TEST_F(WithdrawalsTest, SomeFinishedAndAllAliveIsDone) {  // [4]
  Launch(1, {0, 1});
  Launch(2, {0}, {1});
  Withdraw({1});
  Answer(0, {{1, kFinished}, {2, kNot}});
  Answer(1, {{1, kStarted}});
  EXPECT_THAT(Take(), ElementsAre("freeze s0 r1: 1 2", "freeze s1 r1: 1", "release 1 good on 1", "release 2"));
}

TEST_F(WithdrawalsTest, AllSurvivorsFinishedIsDone) {  // [4]
  Launch(1, {0}).lost_part = true;
  Withdraw({1});
  Answer(0, {{1, kFinished}});
  EXPECT_EQ(Take().back(), "release 1 good on 1");
}

TEST_F(WithdrawalsTest, AGangThatLostAMemberIsAbortedAndWhatFinishedStays) {  // [4]
  Launch(1, {0, 1}).lost_part = true;
  Launch(2, {0}, {1});  // takes the shard that is finished
  Launch(3, {1}, {1});  // takes the other
  Withdraw({1});
  Answer(0, {{1, kFinished}, {2, kNot}});
  Answer(1, {{1, kStarted}, {3, kNot}});
  const auto said = Take();
  EXPECT_THAT(std::vector<std::string>(said.end() - 3, said.end()),
              ElementsAre("abort 1 good on 1", "release 2", "drop 3"));
}

TEST_F(WithdrawalsTest, NoStandInsForSideEffects) {
  Launch(1, {0, 1}).stand_ins = false;
  Withdraw({1});
  Answer(0, {{1, kStarted}});
  Answer(1, {{1, kNot}});
  EXPECT_EQ(Take().back(), "abort 1");
}

// Its input will never be made: it would hang, and its peers with it.
TEST_F(WithdrawalsTest, WhatStartedBehindAnAbortedLaunchIsAborted) {
  Launch(1, {0}).lost_part = true;
  Launch(2, {0, 1}, {1});
  Withdraw({1});
  Answer(0, {{1, kStarted}, {2, kStarted}});
  Answer(1, {{2, kStarted}});
  const auto said = Take();
  EXPECT_THAT(std::vector<std::string>(said.end() - 2, said.end()), ElementsAre("abort 1", "abort 2"));
}

TEST_F(WithdrawalsTest, NothingIsDecidedBeforeAllDependentsHaveAnswered) {  // [5]
  Launch(1, {0});
  Launch(2, {0, 1}, {1});
  Withdraw({1});
  Take();
  Answer(0, {{1, kStarted}, {2, kNot}});
  EXPECT_THAT(Take(), IsEmpty());
  Answer(1, {{2, kNot}});
  EXPECT_THAT(Take(), ElementsAre("finish 1", "drop 2"));
}

TEST_F(WithdrawalsTest, OneAtATime) {
  Launch(1, {0});
  Launch(2, {1});
  Withdraw({1});
  Withdraw({2});
  EXPECT_THAT(Take(), ElementsAre("freeze s0 r1: 1"));
  Answer(0, {});
  EXPECT_THAT(Take(), ElementsAre("drop 1", "freeze s1 r2: 2"));
}

TEST_F(WithdrawalsTest, ALossAsksAnewAboutAllThatIsHeld) {
  Launch(1, {0});
  Launch(2, {0}, {1});
  Launch(3, {0, 1});
  Withdraw({1});
  Take();
  // The root is over meanwhile; its dependent is still held.
  graph_.erase(graph_.begin());
  graph_[1].lost_part = true;
  withdrawals_.OnLost(TicketsOf({3}), 0);
  EXPECT_THAT(Take(), ElementsAre("freeze s0 r2: 2 3", "freeze s1 r2: 3"));
  Answer(0, {{2, kNot}}, 1, 1);  // to the question that was given up
  Answer(0, {{2, kNot}, {3, kNot}});
  Answer(1, {});
  EXPECT_THAT(Take(), ElementsAre("release 2", "drop 3"));
}

TEST_F(WithdrawalsTest, AnOpenQuestionIsRepeatedToANewSequencer) {  // [9]
  Launch(1, {0, 1});
  Withdraw({1});
  Answer(0, {{1, kNot}});
  Take();
  withdrawals_.OnSequencer(SliceId(0), 2, 0);
  EXPECT_THAT(Take(), ElementsAre("freeze s0 r1: 1"));
  Answer(1, {{1, kNot}});
  EXPECT_THAT(Take(), IsEmpty());
  Answer(0, {{1, kNot}}, 1);  // of the old one
  EXPECT_THAT(Take(), IsEmpty());
  Answer(0, {{1, kStarted}}, 2);
  EXPECT_THAT(Take(), ElementsAre("finish 1"));
  ASSERT_EQ(withdrawals_.VerdictsFor(SliceId(0)).size(), 1u);
  EXPECT_EQ(withdrawals_.VerdictsFor(SliceId(0))[0].verdict, Verdict::kFinish);
  withdrawals_.OnHorizon(Ticket(2));
  EXPECT_THAT(withdrawals_.VerdictsFor(SliceId(0)), IsEmpty());
}

// After Finish some parts may have run on stand-ins: a loss makes it Abort, never Release.
TEST_F(WithdrawalsTest, ALossAfterFinishAborts) {
  Launch(1, {0, 1});
  Withdraw({1});
  Answer(0, {{1, kStarted}});
  Answer(1, {{1, kNot}});
  graph_[0].lost_part = true;
  graph_[0].parts.pop_back();
  withdrawals_.OnLost(TicketsOf({1}), 0);
  Answer(0, {{1, kStarted}});
  EXPECT_EQ(Take().back(), "abort 1");
  withdrawals_.OnLost(TicketsOf({1}), 0);  // final: not asked again
  EXPECT_FALSE(withdrawals_.open());
}

TEST_F(WithdrawalsTest, WhatWasToEndOnStandInsIsNeverGood) {
  Launch(1, {0, 1});
  Withdraw({1});
  Answer(0, {{1, kStarted}});
  Answer(1, {{1, kNot}});
  graph_[0].lost_part = true;
  graph_[0].parts.pop_back();
  withdrawals_.OnLost(TicketsOf({1}), 0);
  Answer(0, {{1, kFinished}});
  EXPECT_EQ(Take().back(), "finish 1");
}

TEST_F(WithdrawalsTest, SilenceIsReportedAndALostSliceIsNotWaitedFor) {
  Launch(1, {0, 1});
  Withdraw({1});
  Take();
  Answer(0, {});
  withdrawals_.OnTime(kSecond / 2);
  EXPECT_THAT(Take(), IsEmpty());
  withdrawals_.OnTime(kSecond);
  EXPECT_THAT(Take(), ElementsAre("silent s1"));
  withdrawals_.OnSliceLost(SliceId(1), kSecond);
  EXPECT_THAT(Take(), ElementsAre("drop 1"));
}

}  // namespace
}  // namespace landbridge::ctl
