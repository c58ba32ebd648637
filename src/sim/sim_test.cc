// The simulation's own tests: that it repeats itself, that scenarios end as the rules say, and that it covers what it
// claims to. (The thousand seeds are a ctest entry of their own.)
#include "sim/simulation.h"

#include <string>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace landbridge::sim {
namespace {

std::string Text(const Outcome& outcome) { return absl::StrJoin(outcome.violations, "\n"); }

Knobs Calm() {
  Knobs knobs;
  knobs.slices = 2;
  knobs.devices = 2;
  knobs.sessions = 2;
  knobs.steps = 80;
  knobs.idle_max = 300 * kMillisecond;  // some seconds of virtual time
  return knobs;
}

TEST(SimTest, ASeedRepeatsItself) {
  for (uint64_t seed : {7, 29, 44}) {
    std::string first_trace, second_trace;
    const Knobs knobs = KnobsOfSeed(seed);
    const Outcome first = RunSeed(seed, knobs, [&](const std::string& line) { first_trace += line + "\n"; });
    const Outcome second = RunSeed(seed, knobs, [&](const std::string& line) { second_trace += line + "\n"; });
    EXPECT_EQ(first.events, second.events) << seed;
    EXPECT_EQ(first.reads_ok, second.reads_ok) << seed;
    EXPECT_EQ(first_trace, second_trace) << seed;
    EXPECT_FALSE(first_trace.empty());
  }
}

TEST(SimTest, FewSeedsKeepAllRulesAndCoverEveryKindOfWork) {
  Outcome total;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome outcome = RunSeed(seed);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    total.reads_ok += outcome.reads_ok;
    total.reads_failed += outcome.reads_failed;
    total.launches += outcome.launches;
    total.copies += outcome.copies;
    total.losses += outcome.losses;
    total.pulls += outcome.pulls;
    total.spans += outcome.spans;
    total.mails += outcome.mails;
  }
  EXPECT_GT(total.reads_ok, 1000u);
  EXPECT_GT(total.reads_failed, 50u);
  EXPECT_GT(total.launches, 500u);
  EXPECT_GT(total.copies, 300u);
  EXPECT_GT(total.losses, 10u);
  EXPECT_GT(total.pulls, 200u);
  EXPECT_GT(total.spans, 50u);
  EXPECT_GT(total.mails, 200u);
}

Knobs Spanning() {
  Knobs knobs = Calm();
  knobs.slices = 4;
  knobs.sessions = 3;
  knobs.spans = 0.7;
  knobs.repeat_mail = 0.05;
  return knobs;
}

// Launches over overlapping pairs of workers, of several sessions: without faults, all values are right.
TEST(SimTest, LaunchesThatSpanWorkersEndWithoutErrors) {
  uint64_t spans = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Knobs knobs = Spanning();
    if (seed % 3 == 0) knobs.message_max = 20 * kMillisecond;
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_EQ(outcome.reads_failed, 0u) << seed;
    spans += outcome.spans;
  }
  EXPECT_GT(spans, 200u);
}

// The control experiment: the same runs end because of the order that workers agree on, and for no other reason.
TEST(SimTest, WithoutTheirOrderLaunchesThatSpanWorkersWaitForEachOther) {
  int stalled = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    Knobs knobs = Spanning();
    if (seed % 3 == 0) knobs.message_max = 20 * kMillisecond;
    knobs.unordered = true;
    stalled += RunSeed(seed, knobs).violations.empty() ? 0 : 1;
  }
  EXPECT_GE(stalled, 3);
}

// The first worker has the spanner: another one takes over, and what the survivors have started ends in one order.
TEST(SimTest, WorkersThatHaveTheSpannerAreKilled) {
  uint64_t losses = 0, right = 0, spans = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    Knobs knobs = Spanning();
    for (int i = 0; i < 4; ++i) {
      knobs.faults.push_back({seed % 4 == 0 ? Fault::Kind::kPause : Fault::Kind::kKill, (150 + 400 * i) * kMillisecond,
                              (i + static_cast<int>(seed)) % 4, 4 * kSecond});
    }
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    losses += outcome.losses;
    right += outcome.reads_ok;
    spans += outcome.spans;
  }
  EXPECT_GE(losses, 48u);
  EXPECT_GT(right, 500u);
  EXPECT_GT(spans, 200u);
}

// Two workers do not hear each other any more, whoever has the spanner: what they would have to agree on ends with an error,
// everything else with its value, and nothing waits for ever.
TEST(SimTest, MailBetweenTwoWorkersIsLostForGood) {
  uint64_t failed = 0, right = 0, spans = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    Knobs knobs = Spanning();
    const int slice = static_cast<int>(seed % 4), other = static_cast<int>((seed % 4 + 1 + seed / 4 % 3) % 4);
    knobs.faults.push_back({Fault::Kind::kCutMail, 100 * kMillisecond, slice, 100 * kSecond, other});
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_EQ(outcome.losses, 0u) << seed;
    failed += outcome.reads_failed;
    right += outcome.reads_ok;
    spans += outcome.spans;
  }
  EXPECT_GT(failed, 20u);
  EXPECT_GT(right, 500u);
  EXPECT_GT(spans, 100u);
}

TEST(SimTest, NoFaultMeansNoErrorAndNoLoss) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Outcome outcome = RunSeed(seed, Calm());
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_EQ(outcome.losses, 0u) << seed;
    EXPECT_EQ(outcome.reads_failed, 0u) << seed;
    EXPECT_GT(outcome.reads_ok, 0u) << seed;
  }
}

// SIGSTOP past the lease, then SIGCONT: the holder has given the worker up, the worker fences itself when it looks at
// the clock, and serves again under a new grant. One loss, all errors are about that slice, everything ends.
TEST(SimTest, AWorkerStoppedPastItsLeaseIsFencedAndComesBack) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Knobs knobs = Calm();
    knobs.faults = {{Fault::Kind::kPause, 200 * kMillisecond, 0, 5 * kSecond}};
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_GE(outcome.losses, 1u) << seed;
    EXPECT_LE(outcome.losses, 2u) << seed;
    EXPECT_GT(outcome.reads_ok, 0u) << seed;
  }
}

// Shorter than the lease: nobody notices more than a delay.
TEST(SimTest, AShortStopIsNoLoss) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Knobs knobs = Calm();
    knobs.faults = {{Fault::Kind::kPause, 300 * kMillisecond, 1, 900 * kMillisecond}};
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_EQ(outcome.losses, 0u) << seed;
    EXPECT_EQ(outcome.reads_failed, 0u) << seed;
  }
}

TEST(SimTest, BrokenStreamsResumeWithoutLoss) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Knobs knobs = Calm();
    for (int i = 0; i < 12; ++i)
      knobs.faults.push_back({Fault::Kind::kBreakStream, (40 + 70 * i) * kMillisecond, i % 2, 0});
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_EQ(outcome.losses, 0u) << seed;
    EXPECT_EQ(outcome.reads_failed, 0u) << seed;
  }
}

TEST(SimTest, TheResourceManagersRestartEndsNoLease) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Knobs knobs = Calm();
    knobs.faults = {{Fault::Kind::kRestartRm, 100 * kMillisecond, 0, 700 * kMillisecond}};
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_EQ(outcome.losses, 0u) << seed;
    EXPECT_EQ(outcome.reads_failed, 0u) << seed;
  }
}

TEST(SimTest, KillOfEitherEndDuringATransfer) {
  uint64_t losses = 0, failed = 0;
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    Knobs knobs = Calm();
    knobs.slices = 3;
    (seed % 2 == 0 ? knobs.kill_source_of_pull : knobs.kill_target_of_pull) = 1 + static_cast<int>(seed % 5);
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    losses += outcome.losses;
    failed += outcome.reads_failed;
  }
  EXPECT_GE(losses, 12u);
  EXPECT_GT(failed, 0u);
}

// Clients that only move arrays, from any layout to any other, over one slice and over two: every value is right, or
// an error that names a slice that was hurt; nothing stays behind.
TEST(SimTest, KillOfEitherEndInTheMiddleOfAReshard) {
  uint64_t losses = 0, failed = 0, right = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    Knobs knobs = Calm();
    knobs.slices = 3;
    knobs.only_reshards = true;
    (seed % 2 == 0 ? knobs.kill_source_of_pull : knobs.kill_target_of_pull) = 1 + static_cast<int>(seed % 11) * 3;
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_GT(outcome.copies, 40u);
    losses += outcome.losses;
    failed += outcome.reads_failed;
    right += outcome.reads_ok;
  }
  EXPECT_GE(losses, 20u);
  EXPECT_GT(failed, 0u);
  EXPECT_GT(right, 500u);
}

TEST(SimTest, ReshardsWithoutFaultsAreAllRight) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Knobs knobs = Calm();
    knobs.slices = 4;
    knobs.devices = 4;
    knobs.only_reshards = true;
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_EQ(outcome.reads_failed, 0u) << seed;
    EXPECT_GT(outcome.pulls, 100u) << seed;
  }
}

TEST(SimTest, ReshardsOfAWorkerThatIsStoppedPastItsLease) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Knobs knobs = Calm();
    knobs.slices = 3;
    knobs.only_reshards = true;
    knobs.faults = {{Fault::Kind::kPause, 200 * kMillisecond, 0, 5 * kSecond}};
    const Outcome outcome = RunSeed(seed, knobs);
    ASSERT_TRUE(outcome.violations.empty()) << "seed " << seed << ": " << Text(outcome);
    EXPECT_GE(outcome.losses, 1u) << seed;
  }
}

}  // namespace
}  // namespace landbridge::sim
