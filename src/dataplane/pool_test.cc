#include "dataplane/pool.h"

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace landbridge::dataplane {
namespace {

constexpr uint64_t kPoolChunk = 2u << 20;
constexpr PoolOptions kOptions = {4 * kPoolChunk, 2 * kPoolChunk, kPoolChunk};

TEST(PoolTest, GivesAlignedChunksAndTakesThemBack) {
  Pool pool(kOptions);
  Pool::Lease lease = pool.TryAcquire(kPoolChunk);
  ASSERT_TRUE(lease);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(lease.data()) % kPoolChunk, 0u);
  EXPECT_EQ(lease.size(), kPoolChunk);
  std::memset(lease.data(), 1, kPoolChunk);
  std::byte* data = lease.data();
  EXPECT_EQ(pool.Stats().bytes_in_use, kPoolChunk);
  lease = {};
  EXPECT_EQ(pool.Stats().bytes_in_use, 0u);
  EXPECT_EQ(pool.Stats().bytes_idle, kPoolChunk);
  Pool::Lease again = pool.TryAcquire(kPoolChunk - 5);
  EXPECT_EQ(again.data(), data);
  EXPECT_EQ(again.size(), kPoolChunk - 5);
  EXPECT_EQ(pool.Stats().allocations, 1u);
  EXPECT_EQ(pool.Stats().grants, 2u);
}

TEST(PoolTest, SmallRequestsCostTheirSize) {
  Pool pool(kOptions);
  std::vector<Pool::Lease> leases;
  for (int i = 0; i < 100; ++i) leases.push_back(pool.TryAcquire(1000));
  EXPECT_EQ(pool.Stats().bytes_in_use, 100'000u);
  leases.clear();
  EXPECT_EQ(pool.Stats().bytes_in_use, 0u);
  EXPECT_EQ(pool.Stats().bytes_idle, 0u);
}

TEST(PoolTest, BoundHoldsAndThoseInLineComeInOrder) {
  Pool pool(kOptions);
  std::vector<Pool::Lease> held;
  for (int i = 0; i < 4; ++i) held.push_back(pool.TryAcquire(kPoolChunk));
  EXPECT_FALSE(pool.TryAcquire(1));
  std::vector<int> order;
  std::vector<Pool::Lease> granted;
  std::vector<Pool::WaitId> waits;
  for (int i = 0; i < 3; ++i) {
    waits.push_back(pool.Acquire(kPoolChunk, [&, i](Pool::Lease lease) {
      ASSERT_TRUE(lease);
      order.push_back(i);
      granted.push_back(std::move(lease));
    }));
  }
  EXPECT_EQ(pool.Stats().waiting, 3u);
  EXPECT_TRUE(order.empty());
  EXPECT_TRUE(pool.Withdraw(waits[1]));
  EXPECT_FALSE(pool.Withdraw(waits[1]));
  held.pop_back();
  EXPECT_EQ(order, (std::vector<int>{0}));
  EXPECT_FALSE(pool.Withdraw(waits[0]));
  held.pop_back();
  EXPECT_EQ(order, (std::vector<int>{0, 2}));
  EXPECT_EQ(pool.Stats().allocations, 4u) << "chunks pass from hand to hand";
  EXPECT_LE(pool.Stats().bytes_in_use_peak, kOptions.bytes_max);
}

TEST(PoolTest, ALargeRequestInFrontIsNotOvertaken) {
  Pool pool(kOptions);
  std::vector<Pool::Lease> held;
  for (int i = 0; i < 3; ++i) held.push_back(pool.TryAcquire(kPoolChunk));
  held.push_back(pool.TryAcquire(kPoolChunk / 2));
  std::vector<Pool::Lease> granted;
  const Pool::WaitId large = pool.Acquire(kPoolChunk, [&](Pool::Lease lease) { granted.push_back(std::move(lease)); });
  ASSERT_NE(large, 0u);
  pool.Acquire(100, [&](Pool::Lease lease) { granted.push_back(std::move(lease)); });
  EXPECT_FALSE(pool.TryAcquire(100));
  EXPECT_TRUE(granted.empty());
  EXPECT_TRUE(pool.Withdraw(large));  // and what it held back goes on
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].size(), 100u);
}

TEST(PoolTest, IdleMemoryIsBounded) {
  Pool pool(kOptions);
  {
    std::vector<Pool::Lease> held;
    for (int i = 0; i < 4; ++i) held.push_back(pool.TryAcquire(kPoolChunk));
  }
  EXPECT_EQ(pool.Stats().bytes_idle, kOptions.idle_bytes_max);
}

TEST(PoolTest, LeasesOutliveThePoolAndThoseInLineAreTold) {
  Pool::Lease lease;
  bool told = false;
  {
    Pool pool({kPoolChunk, kPoolChunk, kPoolChunk});
    lease = pool.TryAcquire(kPoolChunk);
    pool.Acquire(kPoolChunk, [&](Pool::Lease none) {
      EXPECT_FALSE(none);
      told = true;
    });
  }
  EXPECT_TRUE(told);
  std::memset(lease.data(), 7, lease.size());
}

TEST(PoolTest, ManyThreads) {
  Pool pool(kOptions);
  std::atomic<int> granted{0}, withdrawn{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 2000; ++i) {
        const uint64_t bytes = random() % 2 == 0 ? kPoolChunk : 1 + random() % 5000;
        auto held = std::make_shared<Pool::Lease>();
        const Pool::WaitId wait = pool.Acquire(bytes, [&granted, bytes](Pool::Lease lease) {
          ASSERT_EQ(lease.size(), bytes);
          lease.data()[0] = lease.data()[bytes - 1] = std::byte{1};
          ++granted;
        });
        if (wait != 0 && random() % 3 == 0 && pool.Withdraw(wait)) ++withdrawn;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(granted + withdrawn, 8000);
  EXPECT_EQ(pool.Stats().bytes_in_use, 0u);
  EXPECT_EQ(pool.Stats().waiting, 0u);
  EXPECT_LE(pool.Stats().bytes_in_use_peak, kOptions.bytes_max);
}

}  // namespace
}  // namespace landbridge::dataplane
