#include "env/fine_timers.h"

#include <memory>
#include <vector>

#include "env/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;

TEST(FineTimersTest, RunInTheOrderOfTheirTimesAndNeverEarly) {
  Loop loop;
  const std::unique_ptr<FineTimers> timers = FineTimers::Make(&loop).value();
  std::vector<int> ran;
  const TimeNs start = MonotonicClock().Now();
  auto note = [&](int which, DurationNs delay) {
    timers->RunAt(start + delay, [&ran, which, due = start + delay] {
      EXPECT_GE(MonotonicClock().Now(), due);
      ran.push_back(which);
    });
  };
  note(3, 300 * kMicrosecond);
  note(1, 100 * kMicrosecond);
  timers->RunAt(0, [&] { ran.push_back(0); });
  note(2, 200 * kMicrosecond);
  while (ran.size() < 4) loop.RunOnce(kSecond);
  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 3));
}

TEST(FineTimersTest, ATaskMayAddTimers) {
  Loop loop;
  const std::unique_ptr<FineTimers> timers = FineTimers::Make(&loop).value();
  int left = 100;
  const TimeNs start = MonotonicClock().Now();
  std::function<void()> next = [&] {
    if (--left > 0) timers->RunAfter(50 * kMicrosecond, next);
  };
  next();
  while (left > 0) loop.RunOnce(kSecond);
  EXPECT_GE(MonotonicClock().Now() - start, 99 * 50 * kMicrosecond);
}

TEST(FineTimersTest, DropsWhatHasNotRun) {
  Loop loop;
  auto held = std::make_shared<int>(0);
  {
    const std::unique_ptr<FineTimers> timers = FineTimers::Make(&loop).value();
    timers->RunAfter(kSecond, [held] { ++*held; });
    loop.RunOnce(0);
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
  loop.RunOnce(0);
  EXPECT_EQ(*held, 0);
}

}  // namespace
}  // namespace landbridge
