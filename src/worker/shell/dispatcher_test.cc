#include "worker/shell/dispatcher.h"

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;

TEST(Dispatcher, KeepsTheOrderOfEachDevice) {
  constexpr int kDevices = 4;
  constexpr int kItems = 5000;
  Dispatcher dispatcher(kDevices);
  std::mt19937 random(11);
  std::vector<std::vector<int>> want(kDevices), got(kDevices);
  std::atomic<int> inside[kDevices] = {};
  std::atomic<int> overlaps = 0;
  for (int i = 0; i < kItems; ++i) {
    std::set<int> devices;
    const int count = random() % 3 == 0 ? 1 + static_cast<int>(random() % kDevices) : 1;
    while (static_cast<int>(devices.size()) < count) devices.insert(static_cast<int>(random() % kDevices));
    for (int device : devices) want[static_cast<size_t>(device)].push_back(i);
    std::vector<int> list(devices.begin(), devices.end());
    std::shuffle(list.begin(), list.end(), random);
    dispatcher.Enqueue(list, [&, list, i] {
      for (int device : list) {
        if (inside[device].fetch_add(1) != 0) overlaps.fetch_add(1);
        got[static_cast<size_t>(device)].push_back(i);  // no lock: one item at a time per device
      }
      for (int device : list) inside[device].fetch_sub(1);
    });
  }
  dispatcher.Shutdown();
  EXPECT_EQ(got, want);
  EXPECT_EQ(overlaps.load(), 0);
}

TEST(Dispatcher, QuickWorkRunsInPlaceUnlessSomethingIsBeforeIt) {
  Dispatcher dispatcher(2);
  const std::thread::id here = std::this_thread::get_id();
  std::vector<std::string> order;
  auto note = [&](std::string name) {
    return [&, name] { order.push_back(name + (std::this_thread::get_id() == here ? " here" : " there")); };
  };
  dispatcher.RunOrEnqueue(0, note("first"));
  EXPECT_THAT(order, ElementsAre("first here"));
  absl::Notification begun, release;
  dispatcher.Enqueue({0, 1}, [&] {
    begun.Notify();
    release.WaitForNotification();
    order.push_back("wide");
  });
  begun.WaitForNotification();
  dispatcher.RunOrEnqueue(0, note("behind"));
  release.Notify();
  dispatcher.Shutdown();
  EXPECT_THAT(order, ElementsAre("first here", "wide", "behind there"));
  dispatcher.RunOrEnqueue(0, note("late"));
  EXPECT_EQ(order.size(), 3u);
}

TEST(Dispatcher, ABlockedDeviceDoesNotHoldOthers) {
  Dispatcher dispatcher(2);
  absl::Notification release, other, wide;
  dispatcher.Enqueue({0}, [&] { release.WaitForNotification(); });
  dispatcher.Enqueue({1}, [&] { other.Notify(); });
  other.WaitForNotification();
  while (dispatcher.queued() > 1) std::this_thread::yield();  // it counts until it has returned
  std::vector<std::string> order;
  dispatcher.Enqueue({0, 1}, [&] { order.push_back("wide"); });
  dispatcher.Enqueue({1}, [&] {
    order.push_back("behind");
    wide.Notify();
  });
  EXPECT_EQ(dispatcher.queued(), 3u);
  EXPECT_FALSE(wide.HasBeenNotified());
  release.Notify();
  wide.WaitForNotification();
  dispatcher.Shutdown();
  EXPECT_THAT(order, ElementsAre("wide", "behind"));
}

TEST(Dispatcher, ShutdownIssuesWhatIsQueuedAndRefusesMore) {
  Dispatcher dispatcher(3);
  std::atomic<int> issued = 0;
  absl::Notification release;
  dispatcher.Enqueue({0, 1, 2}, [&] { release.WaitForNotification(); });
  for (int i = 0; i < 100; ++i) dispatcher.Enqueue({i % 3}, [&] { ++issued; });
  release.Notify();
  dispatcher.Shutdown();
  EXPECT_EQ(issued.load(), 100);
  EXPECT_EQ(dispatcher.queued(), 0u);
}

TEST(Dispatcher, ShutdownWhenIdle) {
  Dispatcher dispatcher(1);
  dispatcher.Shutdown();
  dispatcher.Enqueue({0}, [] { FAIL() << "refused after Shutdown"; });
  EXPECT_EQ(dispatcher.queued(), 0u);
}

TEST(Dispatcher, CapturesDieBeforeTheNextItem) {
  Dispatcher dispatcher(1);
  auto argument = std::make_shared<int>(5);
  std::weak_ptr<int> watch = argument;
  dispatcher.Enqueue({0}, [argument = std::move(argument)] { EXPECT_EQ(*argument, 5); });
  bool gone = false;
  dispatcher.Enqueue({0}, [&] { gone = watch.expired(); });
  dispatcher.Shutdown();
  EXPECT_TRUE(gone);
}

}  // namespace
}  // namespace landbridge
