#include "env/loop.h"

#include <csignal>
#include <memory>
#include <thread>
#include <unistd.h>
#include <vector>

#include "env/file.h"
#include "env/process.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Loop, PostsFromManyThreadsKeepTheirOrder) {
  Loop loop;
  constexpr int kThreads = 4;
  constexpr int kPosts = 2000;
  std::vector<int> next(kThreads, 0);
  int done = 0;
  bool in_order = true;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPosts; ++i) {
        loop.Post([&, t, i] {
          in_order = in_order && next[static_cast<size_t>(t)]++ == i;
          if (++done == kThreads * kPosts) loop.Stop();
        });
      }
    });
  }
  loop.Run();
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(done, kThreads * kPosts);
}

TEST(Loop, KnowsItsLongestTurn) {
  Loop loop;
  const DurationNs length = 20 * kMillisecond;
  loop.Post([&] {
    for (const TimeNs end = loop.Now() + length; loop.Now() < end;) {
    }
    loop.RunAfter(kMillisecond, [&] { loop.Stop(); });
  });
  loop.Run();
  EXPECT_GE(loop.longest_turn(), length);
}

TEST(Loop, ItsOwnPostsKeepTheirOrderAmongThoseOfOthers) {
  Loop loop;
  std::vector<int> ran;
  std::thread other;
  loop.Post([&] {
    loop.Post([&] { ran.push_back(1); });
    other = std::thread([&] {
      loop.Post([&] {
        ran.push_back(2);
        loop.Post([&] {
          ran.push_back(3);
          loop.Stop();
        });
      });
    });
    other.join();
  });
  loop.Run();
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
}

// A task that always posts itself must not keep timers and sockets from their turn.
TEST(Loop, ATaskThatPostsItselfLeavesRoomForTimers) {
  Loop loop;
  int runs = 0;
  std::function<void()> again = [&] {
    ++runs;
    loop.Post(again);
  };
  loop.Post(again);
  loop.RunAfter(5 * kMillisecond, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_GT(runs, 1);
}

TEST(Loop, WhatWasPostedInsideRunsInTheNextRun) {
  Loop loop;
  bool ran = false;
  loop.Post([&] {
    loop.Stop();
    loop.Post([&] {
      loop.Post([&] {
        ran = true;
        loop.Stop();
      });
    });
  });
  loop.Run();
  loop.Run();
  EXPECT_TRUE(ran);
}

TEST(Loop, TimersFireInOrderAndCanBeCancelled) {
  Loop loop;
  std::vector<int> fired;
  loop.RunAfter(20 * kMillisecond, [&] { fired.push_back(2); });
  loop.RunAfter(5 * kMillisecond, [&] { fired.push_back(1); });
  auto cancelled = loop.RunAfter(10 * kMillisecond, [&] { fired.push_back(9); });
  loop.Cancel(cancelled);
  loop.Cancel(cancelled);
  loop.Cancel(0);
  const TimeNs start = loop.Now();
  loop.RunAfter(30 * kMillisecond, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_THAT(fired, ElementsAre(1, 2));
  EXPECT_GE(loop.Now() - start, 30 * kMillisecond);
}

TEST(Loop, PeriodicTimerMayCancelItself) {
  Loop loop;
  int runs = 0;
  Loop::TimerId timer = 0;
  timer = loop.RunEvery(kMillisecond, [&] {
    if (++runs == 3) {
      loop.Cancel(timer);
      loop.RunAfter(20 * kMillisecond, [&] { loop.Stop(); });
    }
  });
  loop.Run();
  EXPECT_EQ(runs, 3);
}

TEST(Loop, StopBeforeRunEndsIt) {
  Loop loop;
  loop.Stop();
  loop.Run();
  loop.Post([&] { loop.Stop(); });
  loop.Run();
}

TEST(Loop, SpinningLoopStillRunsTimersAndPosts) {
  Loop loop;
  loop.SetSpin(2 * kMillisecond);
  int posts = 0;
  std::thread poster([&] {
    for (int i = 0; i < 100; ++i) loop.Post([&] { ++posts; });
    loop.Post([&] { loop.RunAfter(10 * kMillisecond, [&] { loop.Stop(); }); });
  });
  loop.Run();
  poster.join();
  EXPECT_EQ(posts, 100);
}

TEST(Loop, DropsWhatWasNotRun) {
  auto alive = std::make_shared<int>(1);
  {
    Loop loop;
    loop.Post([alive] {});
    loop.RunAfter(kSecond, [alive] {});
    EXPECT_EQ(alive.use_count(), 3);
  }
  EXPECT_EQ(alive.use_count(), 1);
}

TEST(Loop, Signals) {
  Loop loop;
  int seen = 0;
  ASSERT_TRUE(loop.OnSignal(SIGUSR1,
                            [&] {
                              ++seen;
                              loop.Stop();
                            })
                  .ok());
  kill(getpid(), SIGUSR1);
  loop.Run();
  EXPECT_EQ(seen, 1);
  EXPECT_FALSE(loop.OnSignal(SIGKILL, [] {}).ok());
}

TEST(Process, ReportsExitCodesAndSignals) {
  Loop loop;
  const std::string log = ::testing::TempDir() + "/lb_process_" + std::to_string(getpid());
  unlink(log.c_str());
  ProcessOptions options;
  options.args = {"sh", "-c", "echo out $LB_TEST_VALUE; echo err >&2; exit 3"};
  options.env["LB_TEST_VALUE"] = "v";
  options.stdout_file = options.stderr_file = log;
  ProcessExit exit;
  auto process = Process::Spawn(&loop, options, [&](ProcessExit ended) {
    exit = ended;
    loop.Stop();
  });
  ASSERT_TRUE(process.ok()) << process.status();
  EXPECT_GT((*process)->pid(), 0);
  loop.Run();
  EXPECT_EQ(exit.code, 3);
  EXPECT_EQ(exit.ToString(), "exit code 3");
  EXPECT_FALSE((*process)->running());
  EXPECT_EQ(*ReadFile(log), "out v\nerr\n");

  ProcessOptions sleeper;
  sleeper.args = {"sleep", "1000"};
  auto victim = Process::Spawn(&loop, sleeper, [&](ProcessExit ended) {
    exit = ended;
    loop.Stop();
  });
  ASSERT_TRUE(victim.ok());
  (*victim)->Kill(SIGKILL);
  loop.Run();
  EXPECT_EQ(exit.signal, SIGKILL);
  EXPECT_THAT(exit.ToString(), HasSubstr("signal 9"));
  (*victim)->Kill(SIGKILL);  // ignored

  ProcessOptions missing;
  missing.args = {"/nonexistent/program"};
  auto none = Process::Spawn(&loop, missing, [](ProcessExit) { FAIL(); });
  EXPECT_EQ(none.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("/nonexistent/program"));
  unlink(log.c_str());
}

TEST(File, ReadWriteAndLimits) {
  const std::string folder = ::testing::TempDir() + "/lb_file_" + std::to_string(getpid());
  ASSERT_TRUE(MakeDirectories(folder + "/a/b").ok());
  ASSERT_TRUE(MakeDirectories(folder + "/a/b").ok());
  const std::string path = folder + "/a/b/f";
  ASSERT_TRUE(WriteFileAtomically(path, "one").ok());
  ASSERT_TRUE(WriteFileAtomically(path, "two").ok());
  EXPECT_EQ(*ReadFile(path), "two");
  EXPECT_EQ(*ReadFile(path, 3), "two");
  EXPECT_EQ(ReadFile(path, 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ReadFile(path + "x").status().message()), HasSubstr(path + "x"));
  EXPECT_EQ(WriteFileAtomically(folder + "/none/f", "x").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(MakeDirectories(path + "/c").ok());
  EXPECT_TRUE(FileExists(path));

  const std::string lock_path = folder + "/lock";
  EXPECT_EQ(FileLockHolder(lock_path), 0);
  auto lock = FileLock::TryLock(lock_path);
  ASSERT_TRUE(lock.ok()) << lock.status();
  EXPECT_EQ(FileLockHolder(lock_path), getpid());
  auto second = FileLock::TryLock(lock_path);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(std::to_string(getpid())));
  lock->reset();
  EXPECT_EQ(FileLockHolder(lock_path), 0);
  EXPECT_TRUE(FileLock::TryLock(lock_path).ok());
}

TEST(Random, SeededIsReproducibleAndSpreads) {
  SeededRandom a(42), b(42), c(43);
  EXPECT_EQ(a.Next(), b.Next());
  EXPECT_NE(a.Next(), c.Next());
  std::vector<int> counts(10, 0);
  for (int i = 0; i < 10'000; ++i) ++counts[a.NextBelow(10)];
  for (int count : counts) EXPECT_NEAR(count, 1000, 150);
  EXPECT_NE(SystemRandom().NextNonZero(), SystemRandom().NextNonZero());
  EXPECT_EQ(SystemRandom().NextBytes(13).size(), 13u);
}

}  // namespace
}  // namespace landbridge
