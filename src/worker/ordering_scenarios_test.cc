// Hand-written cases of scheduler.md's marked sentences, in the world of ordering_world_test_util.h. Those that a
// worker could leave out are also run with a worker that does: the world must notice.
#include "gtest/gtest.h"
#include "worker/ordering_world_test_util.h"

namespace landbridge::ordering {
namespace {

constexpr At kA{0, 0}, kB{1, 0}, kB2{1, 1};  // slice 0; slice 1 on two workers

// Deterministic: every message takes as long.
WorldOptions Steady(uint32_t members = 2) {
  WorldOptions options;
  options.members = members;
  options.message_min = options.message_max = 10 * kMicrosecond;
  return options;
}

Spec On(std::vector<At> devices, DurationNs run = 100 * kMicrosecond) {
  Spec spec;
  spec.devices = std::move(devices);
  spec.run = run;
  return spec;
}

Spec With(Spec spec, uint64_t producer, At from, At to, bool donate = false) {
  spec.inputs.push_back({producer, from, to, donate});
  return spec;
}

// ---------------------------------------------------------------- in the usual course

TEST(OrderingScenario, ALateSpanningLaunchHoldsUpNobody) {
  World world(Steady());
  const uint64_t slow = world.Issue(On({kB2}, 10 * kMillisecond));
  const uint64_t late = world.Issue(With(On({kA, kB}), slow, kB2, kB));
  const uint64_t local = world.Issue(On({kA}));
  const uint64_t ready = world.Issue(On({kA, kB}));
  world.Run(world.now() + 2 * kMillisecond);
  EXPECT_EQ(world.Fate(local), "g");
  EXPECT_EQ(world.Fate(ready), "gg");
  EXPECT_FALSE(world.Over(late));
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Fate(late), "gg");
  EXPECT_EQ(world.G(ready), 1u);
  EXPECT_EQ(world.G(late), 2u);
}

// Conditional reports: the next step gets its place while the one before it is still on its way.
TEST(OrderingScenario, ALoopOfSpanningLaunchesOverlapsItsOrdering) {
  World world(Steady(1));
  uint64_t before = world.Issue(On({kA, kB}));
  for (int i = 0; i < 5; ++i) {
    before = world.Issue(With(With(On({kA, kB}), before, kA, kA, true), before, kB, kB, true));
  }
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Log(0), "1 2 3 4 5 6");
  EXPECT_EQ(world.Log(1), "1 2 3 4 5 6");
  EXPECT_GE(world.seen().conditional, 5);
  // Six runs, and a start; not six rounds of messages between them.
  EXPECT_LT(world.now() - kSecond, 6 * (100 + 50) * kMicrosecond + 100 * kMicrosecond);
}

// ---------------------------------------------------------------- [1]

bool DonorAfterReportedReader(bool forget, World** made) {
  static std::unique_ptr<World> world;
  WorldOptions options = Steady();
  options.forget_spanning_readers = forget;
  world = std::make_unique<World>(options);
  *made = world.get();
  const uint64_t array = world->Issue(On({kA}));
  const uint64_t slow = world->Issue(On({kB2}, 5 * kMillisecond));
  // Able on slice 0 long before slice 1.
  world->Issue(With(With(On({kA, kB}), array, kA, kA), slow, kB2, kB));
  world->Issue(With(On({kA, kB}), array, kA, kA, true));
  return world->Run();
}

TEST(OrderingScenario, ASpanningReaderThatIsReportedIsAConditionOfTheDonor) {  // [1]
  World* world = nullptr;
  ASSERT_TRUE(DonorAfterReportedReader(false, &world)) << world->violation();
  EXPECT_EQ(world->Log(0), "1 3 4");
  EXPECT_LT(world->G(3), world->G(4));
  EXPECT_FALSE(DonorAfterReportedReader(true, &world));
  EXPECT_NE(world->violation().find("t3 with t1 as an input, which was donated before"), std::string::npos)
      << world->violation();
}

// ---------------------------------------------------------------- [2]

bool TwoThatNeedEachOthersMemory(bool as_it_comes, World** made) {
  static std::unique_ptr<World> world;
  WorldOptions options = Steady(1);
  options.memory = 1;
  options.memory_as_it_comes = as_it_comes;
  world = std::make_unique<World>(options);
  *made = world.get();
  world->Issue(On({kB}, 2 * kMillisecond));  // holds B's memory while the others come
  world->Issue(On({kA, kB}));
  world->Issue(On({kA, kB}));
  return world->Run();
}

TEST(OrderingScenario, MemoryGoesInTicketOrder) {  // [2]
  World* world = nullptr;
  ASSERT_TRUE(TwoThatNeedEachOthersMemory(false, &world)) << world->violation();
  EXPECT_EQ(world->Log(0), "2 3");
  EXPECT_FALSE(TwoThatNeedEachOthersMemory(true, &world));
  EXPECT_NE(world->violation().find("I6"), std::string::npos) << world->violation();
}

// ---------------------------------------------------------------- withdrawals

// Started on slice 0; slice 1 has not heard of its G.
struct HalfStarted {
  HalfStarted() : world(Steady(1)) {
    world.Run(world.now() + kMillisecond);
    world.Block(0, 1);
    launch = world.Issue(On({kA, kB}, kMillisecond));
    world.Run(world.now() + kMillisecond);
    EXPECT_NE(world.HowFar(launch, 0), Ran::kNo);
    EXPECT_EQ(world.HowFar(launch, 1), Ran::kNo);
  }
  World world;
  uint64_t launch = 0;
};

TEST(OrderingScenario, WhatStartedSomewhereEndsEverywhereAndIsPoisoned) {  // Finish, and [3]: the Commit still counts
  HalfStarted half;
  half.world.Cancel({half.launch});
  half.world.Run(half.world.now() + kMillisecond);
  half.world.Open(0, 1);
  ASSERT_TRUE(half.world.Run()) << half.world.violation();
  EXPECT_EQ(half.world.Fate(half.launch), "ss");
  EXPECT_EQ(half.world.seen().finishes, 1);
  EXPECT_EQ(half.world.Log(1), "-1 1");
}

TEST(OrderingScenario, WhatIsDroppedUsesUpItsNumber) {  // [3]
  World world(Steady(1));
  world.Run(world.now() + kMillisecond);
  world.Block(0, 0);  // the spanner's word, here too
  world.Block(0, 1);
  const uint64_t dropped = world.Issue(On({kA, kB}));
  world.Run(world.now() + kMillisecond);
  world.Open(0, 0);
  world.Block(0, 1);
  world.Cancel({dropped});
  world.Run(world.now() + kMillisecond);
  world.Open(0, 1);
  const uint64_t next = world.Issue(On({kA, kB}));
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_NE(world.Fate(dropped), "gg");
  EXPECT_EQ(world.Fate(next), "gg");
}

// A launch that is issued while its producer is held waits for the verdict, wherever it runs.
TEST(OrderingScenario, NothingMadeByAHeldLaunchIsUsed) {  // [5]
  HalfStarted half;
  World& world = half.world;
  world.Block(1, -1);  // slice 1's answer to the question is late
  world.Cancel({half.launch});
  world.Run(world.now() + kMillisecond);
  const uint64_t consumer = world.Issue(With(On({kA}), half.launch, kA, kA));
  world.Run(world.now() + kMillisecond);
  EXPECT_EQ(world.Log(0), "1 2");                  // it has its place ...
  EXPECT_EQ(world.HowFar(consumer, 0), Ran::kNo);  // ... and does not start
  world.Open(1, -1);
  world.Open(0, 1);
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Fate(half.launch), "ss");
  EXPECT_EQ(world.Fate(consumer), "d");
}

// Dependents that started on what is withdrawn are asked in the same breath, and spoilt.
TEST(OrderingScenario, DependentsThatStartedEndWithIt) {  // [5]
  HalfStarted half;
  World& world = half.world;
  const uint64_t consumer = world.Issue(With(On({kA}), half.launch, kA, kA));
  world.Run(world.now() + kMillisecond);
  EXPECT_NE(world.HowFar(consumer, 0), Ran::kNo);
  world.Cancel({half.launch});
  world.Run(world.now() + kMillisecond);
  world.Open(0, 1);
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Fate(half.launch), "ss");
  EXPECT_EQ(world.Fate(consumer), "s");
}

TEST(OrderingScenario, SideEffectsWaitForTheEndOfTheirProducers) {  // [6]
  for (const bool early : {false, true}) {
    WorldOptions options = Steady(1);
    options.side_effects_early = early;
    World world(options);
    const uint64_t producer = world.Issue(On({kA}, 2 * kMillisecond));
    Spec effects = With(On({kA}), producer, kA, kA);
    effects.side_effects = true;
    const uint64_t consumer = world.Issue(effects);
    const bool fine = world.Run(world.now() + kMillisecond);
    EXPECT_EQ(fine, !early) << world.violation();
    if (early) {
      EXPECT_NE(world.violation().find("[6]"), std::string::npos);
      continue;
    }
    EXPECT_EQ(world.Log(0), "1");
    ASSERT_TRUE(world.Run()) << world.violation();
    EXPECT_EQ(world.Fate(consumer), "g");
  }
}

TEST(OrderingScenario, AWithdrawnReaderLetsTheDonorGo) {  // [8]
  for (const bool keep : {false, true}) {
    WorldOptions options = Steady();
    options.keep_readers_of_dropped = keep;
    World world(options);
    const uint64_t slow = world.Issue(On({kB2}, 50 * kMillisecond));
    const uint64_t array = world.Issue(On({kA}, 2 * kMillisecond));
    const uint64_t reader = world.Issue(With(With(On({kB}), array, kA, kB), slow, kB2, kB));
    world.Block(0, 2);  // the bytes are long on their way
    world.Run(world.now() + kMillisecond);
    const uint64_t donor = world.Issue(With(On({kA}), array, kA, kA, true));
    world.Cancel({reader});
    world.Run(world.now() + 10 * kMillisecond);
    EXPECT_EQ(world.Fate(reader), "d");
    EXPECT_EQ(world.Fate(donor), keep ? "" : "g");
    world.Open(0, 2);
    ASSERT_TRUE(world.Run()) << world.violation();
    EXPECT_EQ(world.Fate(donor), "g");
  }
}

// ---------------------------------------------------------------- losses

TEST(OrderingScenario, WhatFinishedBeforeALossStays) {  // [4]
  World world(Steady(1));
  Spec apart = On({kA, kB}, kMillisecond);
  apart.collective = false;
  world.Run(world.now() + kMillisecond);
  const uint64_t slow = world.Issue(On({kB}, 20 * kMillisecond));
  const uint64_t launch = world.Issue(apart);
  world.Run(world.now() + 5 * kMillisecond);
  EXPECT_EQ(world.HowFar(launch, 0), Ran::kEnded);
  world.Kill(1);
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Fate(slow), "l");
  EXPECT_EQ(world.Fate(launch), "gl");
  EXPECT_EQ(world.seen().releases, 1);
}

TEST(OrderingScenario, AGangThatLostAMemberIsAborted) {
  World world(Steady(1));
  world.Run(world.now() + kMillisecond);
  const uint64_t launch = world.Issue(On({kA, kB}, 20 * kMillisecond));
  const uint64_t behind = world.Issue(With(On({kA}), launch, kA, kA));
  const uint64_t other = world.Issue(On({kA}));
  world.Run(world.now() + 5 * kMillisecond);
  world.Kill(1);
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Fate(launch), "sl");
  EXPECT_EQ(world.Fate(behind), "s");  // its input never comes: aborted too
  EXPECT_EQ(world.Fate(other), "g");
  EXPECT_EQ(world.seen().aborts, 2);
}

// The sequencer of slice 1 is lost after it appended; nobody else heard of it.
TEST(OrderingScenario, TheNextSequencerPlacesWhatACommitRestsOn) {  // [9]
  World world(Steady());
  world.Run(world.now() + kMillisecond);
  world.Block(2, 3);  // the log of slice 1 does not reach its other worker
  const uint64_t local = world.Issue(On({kB2}));
  const uint64_t spanning = world.Issue(With(On({kA, kB2}, kMillisecond), local, kB2, kB2));
  world.Run(world.now() + kMillisecond);
  EXPECT_EQ(world.G(spanning), 1u);
  EXPECT_EQ(world.HowFar(spanning, 0), Ran::kRunning);  // it rests on an entry that only the lost worker has
  EXPECT_EQ(world.HowFar(spanning, 3), Ran::kNo);
  world.Kill(2);
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Log(1), "1 2");
  EXPECT_EQ(world.Fate(local), "g");
  EXPECT_EQ(world.Fate(spanning), "gg");
  EXPECT_EQ(world.G(spanning), 1u);
}

// The writer was replaced without a loss, and its last words are on their way.
TEST(OrderingScenario, AWorkerThatHasSentItsTailRefusesTheOldWriter) {  // [9]
  World world(Steady());
  world.Run(world.now() + kMillisecond);
  world.Block(2, 3);
  const uint64_t first = world.Issue(On({kB2}));
  world.Run(world.now() + kMillisecond);
  EXPECT_EQ(world.HowFar(first, 3), Ran::kNo);
  world.MoveSequencer(1, 3);
  world.Run(world.now() + kMillisecond);
  world.Open(2, 3);
  const uint64_t second = world.Issue(On({kB2}));
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Fate(first), "g");
  EXPECT_EQ(world.Fate(second), "g");
}

TEST(OrderingScenario, ANewSpannerGoesOnAboveWhatAnySliceHasSeen) {  // [9]
  HalfStarted half;
  World& world = half.world;
  world.MoveSpanner(1);
  world.Run(world.now() + kMillisecond);
  world.Open(0, 1);  // the old spanner's Commit comes first, and is refused
  const uint64_t next = world.Issue(On({kA, kB}));
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Log(0), "1 2");
  EXPECT_EQ(world.Log(1), "1 2");  // the new one has repeated it
  EXPECT_EQ(world.G(half.launch), 1u);
  EXPECT_EQ(world.G(next), 2u);
  EXPECT_EQ(world.Fate(next), "gg");
}

// A withdrawal is open when the sequencer is lost: its successor is asked again, and hears of verdicts first.
TEST(OrderingScenario, AnOpenQuestionSurvivesTheSequencer) {  // [9]
  World world(Steady());
  world.Run(world.now() + kMillisecond);
  world.Block(2, 3);
  const uint64_t launch = world.Issue(On({kA, kB2}, kMillisecond));
  world.Run(world.now() + kMillisecond);
  world.Cancel({launch});
  world.Run(world.now() + 200 * kMicrosecond);
  EXPECT_FALSE(world.Over(launch));  // slice 1 cannot answer for its other worker
  world.Kill(2);
  ASSERT_TRUE(world.Run()) << world.violation();
  EXPECT_EQ(world.Fate(launch), "ss");
  EXPECT_EQ(world.seen().finishes, 1);
}

// ---------------------------------------------------------------- I8

TEST(OrderingScenario, TheSameCallsGiveTheSameLog) {
  std::string logs[2];
  for (std::string& log : logs) {
    WorldOptions options;
    options.seed = 17;
    World world(options);
    uint64_t before = 0;
    for (int i = 0; i < 30; ++i) {
      Spec spec = i % 3 == 0 ? On({kA, kB, kB2}) : i % 3 == 1 ? On({kA}) : On({kB, kB2});
      if (before != 0 && i % 4 == 0) spec = With(spec, before, kA, spec.devices[0]);
      const uint64_t ticket = world.Issue(spec);
      if (i % 3 != 2) before = ticket;
    }
    ASSERT_TRUE(world.Run()) << world.violation();
    log = world.Log(0) + " | " + world.Log(1);
  }
  EXPECT_EQ(logs[0], logs[1]);
}

}  // namespace
}  // namespace landbridge::ordering
