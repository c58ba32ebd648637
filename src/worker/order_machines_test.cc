// The ordering machines one by one: LogFollower, SliceSequencer, Spanner.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/log_follower.h"
#include "worker/slice_sequencer.h"
#include "worker/spanner.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Recorder : public OrderSink, public FollowerSink {
 public:
  void ToMember(SliceId, uint32_t member, OrderMessage message) override {
    to_member[member].push_back(std::move(message));
  }
  void ToSequencer(SliceId slice, OrderMessage message) override {
    if (const auto* commit = std::get_if<Commit>(&message)) {
      commits.push_back(absl::StrCat("s", slice.value(), " t", commit->ticket.value(), " g", commit->g, " after ",
                                     commit->previous_g));
    }
    to_sequencer.push_back(std::move(message));
  }
  void ToSpanner(OrderMessage message) override { to_spanner.push_back(std::move(message)); }
  void ToCoordinator(Frozen message) override { frozen.push_back(std::move(message)); }
  void HandOver(Ticket ticket, bool stand_ins) override {
    done.push_back(absl::StrCat("run ", ticket.value(), stand_ins ? " on stand-ins" : ""));
  }
  void AbortRun(Ticket ticket) override { done.push_back(absl::StrCat("abort ", ticket.value())); }
  void Leave(Ticket ticket, PartEnd end) override {
    static const std::vector<std::string> kEnds{"good ", "dropped ", "failed ", "spoilt "};
    done.push_back(absl::StrCat(kEnds[static_cast<size_t>(end)], ticket.value()));
  }
  std::vector<std::string> Take() { return std::exchange(done, {}); }
  std::vector<std::string> Commits() { return std::exchange(commits, {}); }

  std::map<uint32_t, std::vector<OrderMessage>> to_member;
  std::vector<OrderMessage> to_sequencer, to_spanner;
  std::vector<Frozen> frozen;
  std::vector<std::string> done, commits;
};

LaunchFacts Facts(uint64_t ticket, std::vector<uint32_t> devices, std::vector<uint32_t> members = {0}, int slices = 1) {
  LaunchFacts facts;
  facts.candidate.ticket = Ticket(ticket);
  facts.candidate.devices = std::move(devices);
  facts.members = std::move(members);
  for (int s = 0; s < slices; ++s) facts.slices.push_back(SliceId(s));
  return facts;
}

OrderEntry Entry(uint64_t place, uint64_t ticket, std::vector<uint32_t> devices = {0}, uint64_t g = 0) {
  OrderEntry entry;
  entry.place = place;
  entry.ticket = Ticket(ticket);
  entry.g = g;
  entry.devices = std::move(devices);
  entry.members = {0};
  if (g != 0) entry.slices = {SliceId(0), SliceId(1)};
  return entry;
}

OrderEntry Said(uint64_t place, uint64_t ticket, Verdict verdict, uint64_t round = 1) {
  OrderEntry entry;
  entry.place = place;
  entry.kind = OrderEntry::Kind::kVerdict;
  entry.ticket = Ticket(ticket);
  entry.verdict = {Ticket(ticket), verdict, round};
  return entry;
}

// ---------------------------------------------------------------- LogFollower

class LogFollowerTest : public ::testing::Test {
 protected:
  LogFollowerTest() : follower_(SliceId(0), 0, &recorder_, &recorder_) { follower_.OnNewWriter({1}); }

  void Arrive(uint64_t ticket, std::vector<uint32_t> devices = {0}, std::vector<After> after = {}) {
    follower_.Arrive(Facts(ticket, devices), devices);
    follower_.SetAble(Ticket(ticket), std::move(after));
  }
  void Log(std::vector<OrderEntry> entries, uint64_t epoch = 1) {
    Append append;
    append.epoch = epoch;
    append.entries = std::move(entries);
    follower_.OnAppend(append);
  }
  void Freeze(uint64_t round, std::vector<uint64_t> tickets, uint64_t epoch = 1) {
    FreezeParts message{epoch, round, {}};
    for (uint64_t ticket : tickets) message.tickets.push_back(Ticket(ticket));
    follower_.OnFreeze(message);
  }
  const FreezeAnswer& Answer() { return std::get<FreezeAnswer>(recorder_.to_sequencer.back()); }

  Recorder recorder_;
  LogFollower follower_;
};

TEST_F(LogFollowerTest, HandsOverInLogOrderOnEachDeviceOnly) {
  Arrive(1, {0});
  Arrive(2, {0, 1});
  Arrive(3, {1});
  Freeze(1, {1});
  Log({Entry(1, 1, {0}), Entry(2, 3, {1}), Entry(3, 2, {0, 1})});
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 3"));  // 2 waits for 1 on device 0
  Log({Said(4, 1, Verdict::kRelease)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 1", "run 2"));
}

TEST_F(LogFollowerTest, RepeatedAndOldMessagesChangeNothing) {  // [9]
  Arrive(1);
  Arrive(2);
  Log({Entry(1, 1)});
  Log({Entry(1, 1)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 1"));
  follower_.OnNewWriter({2});
  const Tail& tail = std::get<Tail>(recorder_.to_sequencer.back());
  EXPECT_EQ(tail.epoch, 2u);
  ASSERT_EQ(tail.entries.size(), 1u);
  ASSERT_EQ(tail.able.size(), 1u);
  EXPECT_EQ(tail.able[0].launch.candidate.ticket, Ticket(2));
  Log({Entry(2, 2)}, 1);  // the old writer's
  Freeze(1, {2}, 1);
  EXPECT_THAT(recorder_.Take(), IsEmpty());
  EXPECT_EQ(follower_.tail(), 1u);
  Log({Entry(2, 2)}, 2);
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 2"));
}

TEST_F(LogFollowerTest, AnswersHowFarEachPartIs) {
  Arrive(1);
  Arrive(2);
  Arrive(3);
  Log({Entry(1, 1), Entry(2, 2)});
  follower_.OnRunDone(Ticket(1), true, 5);
  follower_.SetBadInput(Ticket(3));
  Freeze(1, {1, 2, 3, 9});
  ASSERT_EQ(Answer().parts.size(), 3u);  // 9 has no part here
  EXPECT_EQ(Answer().parts[0].state, PartState::kFinished);
  EXPECT_EQ(Answer().parts[1].state, PartState::kStarted);
  EXPECT_EQ(Answer().parts[2].state, PartState::kNotStarted);
  EXPECT_TRUE(Answer().parts[2].bad_input);
  EXPECT_FALSE(follower_.Held(Ticket(1)));
  EXPECT_TRUE(follower_.Held(Ticket(2)));
}

// [5]: what ends while it is held is not visible before the verdict.
TEST_F(LogFollowerTest, TheVerdictSaysWhatAHeldRunWasGoodFor) {
  for (const auto& [verdict, end] : std::vector<std::pair<Verdict, std::string>>{
           {Verdict::kRelease, "good "}, {Verdict::kFinish, "spoilt "}, {Verdict::kAbort, "spoilt "}}) {
    static uint64_t ticket = 0;
    static uint64_t place = 0;
    static uint64_t round = 0;
    Arrive(++ticket);
    Log({Entry(++place, ticket)});
    Freeze(++round, {ticket});
    recorder_.Take();
    follower_.OnRunDone(Ticket(ticket), true, 5);
    EXPECT_THAT(recorder_.Take(), IsEmpty());
    Log({Said(++place, ticket, verdict, round)});
    EXPECT_THAT(recorder_.Take(), ElementsAre(absl::StrCat(end, ticket)));
    Log({Said(++place, ticket, Verdict::kDrop, round)});  // nothing can change it any more
    EXPECT_THAT(recorder_.Take(), IsEmpty());
  }
}

TEST_F(LogFollowerTest, ConsumersOfAHeldLaunchWait) {  // [5]
  Arrive(1);
  Arrive(2, {0}, {{Ticket(1), true}});
  Log({Entry(1, 1)});
  Freeze(1, {1});
  Log({Entry(2, 2)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 1"));
  Log({Said(3, 1, Verdict::kRelease)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 2"));
}

TEST_F(LogFollowerTest, ConsumersOfWhatWasDroppedOrSpoiltNeverStart) {
  Arrive(1);
  Arrive(2, {0}, {{Ticket(1), true}});
  Freeze(1, {1});
  Log({Entry(1, 1), Entry(2, 2), Said(3, 1, Verdict::kDrop)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("dropped 1"));
  follower_.SetBadInput(Ticket(2));
  Freeze(2, {2});
  EXPECT_TRUE(Answer().parts[0].bad_input);
  Log({Said(4, 2, Verdict::kDrop, 2)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("dropped 2"));
}

TEST_F(LogFollowerTest, FinishesOnStandInsWhereAnInputIsBad) {
  Arrive(1);
  follower_.SetBadInput(Ticket(1));
  Log({Entry(1, 1)});
  EXPECT_THAT(recorder_.Take(), IsEmpty());
  Freeze(1, {1});
  Log({Said(2, 1, Verdict::kFinish)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 1 on stand-ins"));
  follower_.OnRunDone(Ticket(1), true, 5);
  EXPECT_THAT(recorder_.Take(), ElementsAre("spoilt 1"));
}

// A loss changes a verdict that was not final; what ran on stand-ins never becomes good.
TEST_F(LogFollowerTest, ASecondQuestionReplacesTheFirstVerdict) {
  Arrive(1);
  Log({Entry(1, 1)});
  Freeze(1, {1});
  Log({Said(2, 1, Verdict::kFinish, 1)});
  Freeze(1, {1});  // late repetition of the first question
  EXPECT_FALSE(follower_.Held(Ticket(1)));
  Freeze(2, {1});
  EXPECT_TRUE(follower_.Held(Ticket(1)));
  Log({Said(3, 1, Verdict::kAbort, 2)});
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 1", "abort 1"));
  follower_.OnRunDone(Ticket(1), false, 5);
  EXPECT_THAT(recorder_.Take(), ElementsAre("spoilt 1"));
}

TEST_F(LogFollowerTest, AVerdictMayComeBeforeTheLaunch) {
  Freeze(1, {1});
  Log({Said(1, 1, Verdict::kDrop)});
  follower_.Arrive(Facts(1, {0}), {0});
  EXPECT_THAT(recorder_.Take(), ElementsAre("dropped 1"));
}

TEST_F(LogFollowerTest, OnlyWhatNobodyKnowsMayBeWithdrawnAlone) {
  follower_.Arrive(Facts(1, {0}), {0});
  EXPECT_TRUE(follower_.WithdrawUnknown(Ticket(1)));
  Arrive(2);  // able: the sequencer knows it
  EXPECT_FALSE(follower_.WithdrawUnknown(Ticket(2)));
  follower_.Arrive(Facts(3, {0, 1}, {0, 1}), {0});
  EXPECT_FALSE(follower_.WithdrawUnknown(Ticket(3)));
  follower_.Arrive(Facts(4, {0}, {0}, 2), {0});
  EXPECT_FALSE(follower_.WithdrawUnknown(Ticket(4)));
}

TEST_F(LogFollowerTest, ForgetsWhatIsOverEverywhere) {
  for (uint64_t t = 1; t <= 3; ++t) Arrive(t);
  Log({Entry(1, 1), Entry(2, 2), Entry(3, 3)});
  for (uint64_t t = 1; t <= 3; ++t) follower_.OnRunDone(Ticket(t), true, 1);
  Append append;
  append.epoch = 1;
  append.horizon = Ticket(4);
  follower_.OnAppend(append);
  EXPECT_EQ(follower_.remembered(), 0u);
  EXPECT_EQ(follower_.tail(), 3u);
}

// A writer that was lost had forgotten entries that never got here: all over, so they are passed.
TEST_F(LogFollowerTest, PassesWhatItMissedAndIsOver) {
  Arrive(7);
  follower_.OnNewWriter({2});
  Append append;
  append.epoch = 2;
  append.first_place = 5;
  append.g_before = 3;
  append.entries = {Entry(5, 7)};
  follower_.OnAppend(append);
  EXPECT_THAT(recorder_.Take(), ElementsAre("run 7"));
  follower_.OnNewWriter({3});
  EXPECT_EQ(std::get<Tail>(recorder_.to_sequencer.back()).g_before, 3u);
}

// ---------------------------------------------------------------- SliceSequencer

class SliceSequencerTest : public ::testing::Test {
 protected:
  void Start(std::vector<uint32_t> members = {0}, std::vector<Tail> tails = {{}}, uint64_t epoch = 1,
             std::vector<LaunchVerdict> verdicts = {}) {
    SliceSequencer::Grant grant;
    grant.slice = SliceId(0);
    grant.epoch = epoch_ = epoch;
    grant.members = members;
    grant.verdicts = std::move(verdicts);
    grant.spanner_epoch = 1;
    sequencer_ = std::make_unique<SliceSequencer>(grant, Sequencer::Options(), MakeClientOrderPolicy(), &recorder_);
    for (size_t i = 0; i < tails.size(); ++i) {
      tails[i].epoch = epoch;
      tails[i].member = members[i];
      for (Able& able : tails[i].able) {
        able.epoch = epoch;
        able.member = members[i];
      }
      sequencer_->OnTail(tails[i], 0);
    }
  }
  void MakeAble(LaunchFacts launch, std::vector<After> after = {}, uint32_t member = 0) {
    sequencer_->OnAble({epoch_, member, std::move(launch), std::move(after)}, 0);
  }
  void Over(uint64_t ticket, bool good = true, uint32_t member = 0) {
    sequencer_->OnPartOver({epoch_, member, Ticket(ticket), good, 1}, 0);
  }
  void Committed(uint64_t ticket, uint64_t g, uint64_t previous, uint64_t spanner_epoch = 1) {
    sequencer_->OnCommit({spanner_epoch, epoch_, Ticket(ticket), g, previous}, 0);
  }
  std::string Log() const {
    std::string text;
    for (const OrderEntry& entry : sequencer_->log()) {
      absl::StrAppend(&text, text.empty() ? "" : " ", entry.kind == OrderEntry::Kind::kVerdict ? "-" : "",
                      entry.kind == OrderEntry::Kind::kVoid ? "v" : "", entry.ticket.value());
    }
    return text;
  }
  // "2 after 1" for each report since the last call.
  std::vector<std::string> Reported() {
    std::vector<std::string> reports;
    for (const OrderMessage& message : std::exchange(recorder_.to_spanner, {})) {
      const auto* ready = std::get_if<Ready>(&message);
      if (ready == nullptr) continue;
      std::string text = absl::StrCat(ready->ticket.value());
      for (const After& after : ready->after) {
        absl::StrAppend(&text, after.data ? " needs " : " after ", after.ticket.value());
      }
      reports.push_back(text);
    }
    return reports;
  }

  Recorder recorder_;
  std::unique_ptr<SliceSequencer> sequencer_;
  uint64_t epoch_ = 1;
};

TEST_F(SliceSequencerTest, WaitsUntilAllMembersAreAbleAndTheGroundIsInTheLog) {
  Start({0, 1}, {{}, {}});
  MakeAble(Facts(2, {0, 1}, {0, 1}), {{Ticket(1), true}}, 0);
  MakeAble(Facts(2, {0, 1}, {0, 1}), {}, 1);
  EXPECT_EQ(Log(), "");
  MakeAble(Facts(1, {0}), {}, 0);
  EXPECT_EQ(Log(), "1 2");
  const auto& append = std::get<Append>(recorder_.to_member[1].back());
  EXPECT_EQ(append.entries.size(), 2u);
}

TEST_F(SliceSequencerTest, AWithdrawnReaderIsGroundEnoughAWithdrawnProducerIsNot) {  // [7]
  Start();
  MakeAble(Facts(3, {0}), {{Ticket(1), false}});
  MakeAble(Facts(4, {0}), {{Ticket(1), true}});
  Over(1, false);
  EXPECT_EQ(Log(), "3");
}

TEST_F(SliceSequencerTest, ReportsSpanningLaunchesOnReportedOnes) {  // [1]
  Start();
  MakeAble(Facts(1, {0}, {0}, 2));
  MakeAble(Facts(2, {0}, {0}, 2), {{Ticket(1), true}});
  MakeAble(Facts(3, {0}, {0}, 2), {{Ticket(2), false}});
  MakeAble(Facts(4, {0}), {{Ticket(1), false}});  // local: waits for the log
  MakeAble(Facts(5, {0}, {0}, 2), {{Ticket(4), true}});
  EXPECT_THAT(Reported(), ElementsAre("1", "2 needs 1", "3 after 2"));
  Committed(1, 1, 0);
  EXPECT_EQ(Log(), "1 4");
  EXPECT_THAT(Reported(), ElementsAre("5"));
}

TEST_F(SliceSequencerTest, AppendsInTheOrderOfG) {
  Start();
  MakeAble(Facts(1, {0}, {0}, 2));
  MakeAble(Facts(2, {0}, {0}, 2));
  Committed(1, 7, 4);
  EXPECT_EQ(Log(), "");
  Committed(2, 4, 0);
  Committed(2, 4, 0);
  EXPECT_EQ(Log(), "2 1");
  EXPECT_EQ(sequencer_->g_tail(), 7u);
}

TEST_F(SliceSequencerTest, AFrozenLaunchKeepsItsPlaceADroppedOneUsesUpItsNumber) {  // [3]
  Start();
  for (uint64_t t = 1; t <= 3; ++t) MakeAble(Facts(t, {0}, {0}, 2));
  sequencer_->OnFreeze(1, {Ticket(1), Ticket(2)});
  sequencer_->OnVerdicts({{Ticket(2), Verdict::kDrop, 1}}, 0);
  Committed(1, 1, 0);
  Committed(2, 2, 1);
  Committed(3, 3, 2);
  EXPECT_EQ(Log(), "-2 1 v2 3");
  bool told = false;
  for (const OrderMessage& message : recorder_.to_spanner) told = told || std::holds_alternative<WithdrawnAt>(message);
  EXPECT_TRUE(told);
}

TEST_F(SliceSequencerTest, AFrozenLocalLaunchIsNotPlacedUntilItIsReleased) {
  Start({0, 1}, {{}, {}});
  sequencer_->OnFreeze(1, {Ticket(1)});
  MakeAble(Facts(1, {0}));
  EXPECT_EQ(Log(), "");
  EXPECT_TRUE(recorder_.frozen.empty());
  sequencer_->OnFreezeAnswer({1, 0, 1, {}});
  sequencer_->OnFreezeAnswer({1, 0, 1, {}});
  EXPECT_TRUE(recorder_.frozen.empty());
  sequencer_->OnFreezeAnswer({1, 1, 1, {}});
  EXPECT_EQ(recorder_.frozen.size(), 1u);
  sequencer_->OnVerdicts({{Ticket(1), Verdict::kRelease, 1}}, 0);
  EXPECT_EQ(Log(), "-1 1");
}

TEST_F(SliceSequencerTest, ALostMemberAnswersNoMore) {
  Start({0, 1}, {{}, {}});
  sequencer_->OnFreeze(1, {Ticket(1)});
  sequencer_->OnFreezeAnswer({1, 0, 1, {}});
  sequencer_->OnMemberLost(1, 0);
  EXPECT_EQ(recorder_.frozen.size(), 1u);
}

TEST_F(SliceSequencerTest, TheLongestTailWinsAndOthersGetTheRest) {  // [9]
  Tail shorter, longer;
  shorter.entries = {Entry(1, 1, {0}, 1)};
  longer.entries = {Entry(1, 1, {0}, 1), Entry(2, 2, {0}), Said(3, 9, Verdict::kDrop)};
  Start({0, 1}, {shorter}, 2);
  EXPECT_FALSE(sequencer_->active());
  MakeAble(Facts(9, {0}));  // kept, and refused once the log is known
  EXPECT_EQ(Log(), "");
  longer.epoch = 2;
  longer.member = 1;
  sequencer_->OnTail(longer, 0);
  EXPECT_TRUE(sequencer_->active());
  EXPECT_EQ(Log(), "1 2 -9");
  EXPECT_EQ(std::get<Append>(recorder_.to_member[0].back()).entries.size(), 2u);
  EXPECT_EQ(recorder_.to_member[1].size(), 1u);  // NewWriter only
  const auto& report = std::get<SliceReport>(recorder_.to_spanner.front());
  EXPECT_EQ(report.g_tail, 1u);
  ASSERT_EQ(report.placed.size(), 1u);
  EXPECT_THAT(report.withdrawn, ElementsAre(Ticket(9)));
}

TEST_F(SliceSequencerTest, ARepeatedCommitBringsWhatItRestsOn) {  // [9]
  Tail tail;
  Able local, spanning;
  local.launch = Facts(1, {0});
  local.launch.candidate.session = SessionId(1);
  spanning.launch = Facts(2, {0}, {0}, 2);
  spanning.after = {{Ticket(1), true}};
  tail.able = {spanning, local};
  // Its device is taken: the policy itself would not place it.
  tail.entries = {Entry(1, 10), Entry(2, 11)};
  Start({0}, {tail}, 2);
  EXPECT_EQ(Log(), "10 11");
  Committed(2, 1, 0);
  EXPECT_EQ(Log(), "10 11 1 2");
}

TEST_F(SliceSequencerTest, HearsVerdictsBeforeItAppendsAnything) {  // [9]
  Tail tail;
  Able able;
  able.launch = Facts(1, {0});
  tail.able = {able};
  Start({0}, {tail}, 2, {{Ticket(1), Verdict::kDrop, 1}});
  EXPECT_EQ(Log(), "-1");
}

// As deep as a client may dispatch ahead.
TEST_F(SliceSequencerTest, LongChainsNeedNoStack) {
  Start();
  constexpr uint64_t kLaunches = 60'000;
  for (uint64_t t = 2; t <= kLaunches; ++t) MakeAble(Facts(t, {0}, {0}, 2), {{Ticket(t - 1), true}});
  EXPECT_THAT(Reported(), IsEmpty());
  MakeAble(Facts(1, {0}, {0}, 2));
  EXPECT_EQ(Reported().size(), kLaunches);
}

TEST_F(SliceSequencerTest, RefusesWhatNoWorkerSays) {
  Start();
  MakeAble(Facts(1, {4'000'000'000}));
  MakeAble(Facts(2, {}));
  MakeAble(Facts(3, {0}), {{Ticket(3), true}});
  MakeAble(Facts(4, {0}), {{Ticket(5), true}});
  MakeAble(Facts(5, {0}));
  EXPECT_EQ(Log(), "5");
}

// What is reported before the report itself would be lost.
TEST_F(SliceSequencerTest, ReportsItselfBeforeAnythingElse) {
  Tail tail;
  Able able;
  able.launch = Facts(1, {0}, {0}, 2);
  tail.able = {able};
  Start({0}, {tail}, 2, {{Ticket(1), Verdict::kRelease, 1}});
  ASSERT_EQ(recorder_.to_spanner.size(), 2u);
  EXPECT_TRUE(std::holds_alternative<SliceReport>(recorder_.to_spanner[0]));
  EXPECT_TRUE(std::holds_alternative<Ready>(recorder_.to_spanner[1]));
}

TEST_F(SliceSequencerTest, ANewSpannerHearsWhatWasSeenAndOldOnesAreRefused) {  // [9]
  Start();
  MakeAble(Facts(1, {0}, {0}, 2));
  MakeAble(Facts(2, {0}, {0}, 2));
  Committed(1, 1, 0);
  Committed(2, 5, 3);  // its forerunner never comes
  recorder_.to_spanner.clear();
  sequencer_->OnNewSpanner({2}, 0);
  const auto& report = std::get<SliceReport>(recorder_.to_spanner.front());
  EXPECT_EQ(report.g_tail, 1u);
  EXPECT_EQ(report.g_seen, 5u);
  EXPECT_THAT(Reported(), ElementsAre("2"));
  Committed(2, 3, 1, 1);
  EXPECT_EQ(Log(), "1");
  MakeAble(Facts(3, {0}, {0}, 2));
  Committed(3, 3, 1, 2);  // placed elsewhere; what the old spanner said to come after it is void
  EXPECT_EQ(Log(), "1 3");
  Committed(2, 6, 3, 2);
  EXPECT_EQ(Log(), "1 3 2");
}

TEST_F(SliceSequencerTest, ForgetsWhatIsOverEverywhere) {
  Start();
  MakeAble(Facts(1, {0}));
  MakeAble(Facts(2, {0}, {0}, 2));
  sequencer_->OnFreeze(1, {Ticket(3)});
  sequencer_->OnVerdicts({{Ticket(3), Verdict::kDrop, 1}}, 0);
  Committed(2, 1, 0);
  sequencer_->OnHorizon(Ticket(4), 0);  // the controller may hear of the ends first
  Over(1);
  Over(2);
  for (size_t kept : sequencer_->remembered()) EXPECT_EQ(kept, 0u);
  MakeAble(Facts(1, {0}));  // a late repetition
  EXPECT_EQ(Log(), "");
}

// ---------------------------------------------------------------- Spanner

class SpannerTest : public ::testing::Test {
 protected:
  SpannerTest() : spanner_(1, {SliceId(0), SliceId(1), SliceId(2)}, &recorder_) {}
  void ReportFrom(int slice, uint64_t epoch = 1, uint64_t g_tail = 0, uint64_t g_seen = 0,
                  std::vector<SliceReport::Placed> placed = {}) {
    SliceReport report;
    report.slice = SliceId(slice);
    report.epoch = epoch;
    report.spanner_epoch = 1;
    report.g_tail = g_tail;
    report.g_seen = std::max(g_tail, g_seen);
    report.placed = std::move(placed);
    spanner_.OnSliceReport(report);
  }
  void All() {
    for (int s = 0; s < 3; ++s) ReportFrom(s);
  }
  void IsReady(uint64_t ticket, int slice, std::vector<After> after = {},
               std::vector<SliceId> slices = {SliceId(0), SliceId(1)}, uint64_t epoch = 1) {
    spanner_.OnReady({SliceId(slice), epoch, 1, Ticket(ticket), std::move(slices), std::move(after)});
  }
  Recorder recorder_;
  Spanner spanner_;
};

TEST_F(SpannerTest, NumbersWhatAllSlicesCallReady) {
  All();
  IsReady(5, 0);
  IsReady(4, 1);
  IsReady(4, 1);
  EXPECT_THAT(recorder_.Commits(), IsEmpty());
  IsReady(4, 0);
  EXPECT_THAT(recorder_.Commits(), ElementsAre("s0 t4 g1 after 0", "s1 t4 g1 after 0"));
  IsReady(6, 1, {}, {SliceId(1), SliceId(2)});
  IsReady(6, 2, {}, {SliceId(1), SliceId(2)});
  EXPECT_THAT(recorder_.Commits(), ElementsAre("s1 t6 g2 after 1", "s2 t6 g2 after 0"));
}

TEST_F(SpannerTest, ConditionsWaitForANumber) {  // [7]
  All();
  IsReady(2, 0, {{Ticket(1), true}});
  IsReady(2, 1);
  EXPECT_THAT(recorder_.Commits(), IsEmpty());
  IsReady(1, 0);
  IsReady(1, 1);
  EXPECT_THAT(recorder_.Commits(),
              ElementsAre("s0 t1 g1 after 0", "s1 t1 g1 after 0", "s0 t2 g2 after 1", "s1 t2 g2 after 1"));
}

TEST_F(SpannerTest, LongChainsNeedNoStack) {
  All();
  constexpr uint64_t kLaunches = 60'000;
  for (uint64_t t = 2; t <= kLaunches; ++t) {
    IsReady(t, 0, {{Ticket(t - 1), true}});
    IsReady(t, 1);
  }
  EXPECT_THAT(recorder_.Commits(), IsEmpty());
  IsReady(1, 0);
  IsReady(1, 1);
  EXPECT_EQ(recorder_.Commits().size(), 2 * kLaunches);
}

TEST_F(SpannerTest, AWithdrawnLaunchSatisfiesOrderNeverData) {  // [7]
  All();
  for (uint64_t ticket : {2, 3}) {
    IsReady(ticket, 0, {{Ticket(1), ticket == 2}});
    IsReady(ticket, 1);
  }
  IsReady(1, 0);
  spanner_.OnWithdrawn({SliceId(0), 1, 1, Ticket(1)});
  EXPECT_THAT(recorder_.Commits(), ElementsAre("s0 t3 g1 after 0", "s1 t3 g1 after 0"));
  IsReady(1, 1);  // too late
  EXPECT_THAT(recorder_.Commits(), IsEmpty());
}

TEST_F(SpannerTest, ReportsOfAnOldWriterAreForgotten) {  // [9]
  All();
  IsReady(1, 0);
  ReportFrom(0, 2);
  IsReady(1, 1);
  EXPECT_THAT(recorder_.Commits(), IsEmpty());
  IsReady(1, 0, {}, {SliceId(0), SliceId(1)}, 1);  // late
  EXPECT_THAT(recorder_.Commits(), IsEmpty());
  IsReady(1, 0, {}, {SliceId(0), SliceId(1)}, 2);
  EXPECT_EQ(recorder_.Commits().size(), 2u);
}

TEST_F(SpannerTest, RepeatsWhatANewWriterLacks) {  // [9]
  All();
  for (uint64_t ticket = 1; ticket <= 3; ++ticket) {
    IsReady(ticket, 0);
    IsReady(ticket, 1);
  }
  recorder_.Commits();
  ReportFrom(1, 2, 1);
  EXPECT_THAT(recorder_.Commits(), ElementsAre("s1 t2 g2 after 1", "s1 t3 g3 after 2"));
}

TEST_F(SpannerTest, ANewOneGoesOnAboveAllThatWasSeen) {  // [9]
  const std::vector<SliceId> both{SliceId(0), SliceId(1)};
  ReportFrom(0, 1, 4, 4, {{Ticket(7), 4, both}});
  ReportFrom(1, 1, 2, 9);
  IsReady(8, 0);
  IsReady(8, 1);
  EXPECT_FALSE(spanner_.active());
  EXPECT_THAT(recorder_.Commits(), IsEmpty());
  ReportFrom(2, 1, 0);
  EXPECT_TRUE(spanner_.active());
  EXPECT_THAT(recorder_.Commits(), ElementsAre("s1 t7 g4 after 2", "s0 t8 g10 after 4", "s1 t8 g10 after 4"));
}

TEST_F(SpannerTest, ALostSliceHoldsUpNoOther) {
  ReportFrom(0);
  ReportFrom(1);
  spanner_.OnSliceLost(SliceId(2));
  EXPECT_TRUE(spanner_.active());
}

// What is over everywhere is no condition any more, and is forgotten.
TEST_F(SpannerTest, ForgetsWhatNoSliceCanNameAnyMore) {
  All();
  IsReady(1, 0);
  IsReady(1, 1);
  IsReady(2, 0, {{Ticket(1), true}});
  for (int s = 0; s < 3; ++s) spanner_.OnHorizon({SliceId(s), 1, 1, Ticket(2)});
  recorder_.Commits();
  IsReady(2, 1);
  EXPECT_EQ(recorder_.Commits().size(), 2u);
  for (int s = 0; s < 3; ++s) spanner_.OnHorizon({SliceId(s), 1, 1, Ticket(3)});
  EXPECT_EQ(spanner_.remembered(), 0u);
}

}  // namespace
}  // namespace landbridge
