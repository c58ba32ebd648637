// What every implementation of DataPlane does when all goes well: one suite over all of them.
#include "base/limits.h"
#include "dataplane/data_plane_test_util.h"

namespace landbridge::dataplane {
namespace {

TEST_P(DataPlaneTest, PullsEverySize) {
  auto source = Make(101);
  auto sink = Make(102);
  Introduce(*source, *sink);
  const uint64_t sizes[] = {0,
                            1,
                            63,
                            4096,
                            limits::kTransferInlineBytesMax,
                            limits::kTransferInlineBytesMax + 1,
                            limits::kTransferSmallBytesMax,
                            limits::kTransferSmallBytesMax + 1,
                            limits::kTransferChunkBytes,
                            limits::kTransferChunkBytes + 1,
                            9 * limits::kTransferChunkBytes + 12345,
                            256u << 20};
  uint64_t total = 0;
  for (uint64_t size : sizes) {
    const Key key{7, size};
    auto bytes = Bytes(size, size);
    source->PublishSpan(key, View(bytes), bytes);
    std::vector<std::byte> dst(size);
    Outcome outcome;
    sink->Pull(source->self(), key, 0, dst.data(), size, outcome.Callback());
    ASSERT_TRUE(outcome.Wait().ok()) << size << " " << outcome.Wait();
    ASSERT_TRUE(dst == *bytes) << size;
    total += size;
  }
  EXPECT_EQ(sink->Stats().bytes_received, total);
  EXPECT_TRUE(Eventually([&] { return source->Stats().bytes_sent == total; }));
  EXPECT_EQ(source->Stats().bytes_received, 0u);
  EXPECT_EQ(sink->Stats().bytes_sent, 0u);
  EXPECT_EQ(sink->Stats().peers.at(0).peer, source->self());
  EXPECT_EQ(sink->Stats().peers.at(0).bytes_received, total);
  EXPECT_TRUE(Eventually([&] { return sink->Stats().pulls_open == 0; }));
}

TEST_P(DataPlaneTest, PullsSpansAtOffsets) {
  auto source = Make(111);
  auto sink = Make(112);
  Introduce(*source, *sink);
  auto bytes = Bytes(10u << 20, 5);
  source->PublishSpan({1, 1}, View(bytes), bytes);
  const std::pair<uint64_t, uint64_t> spans[] = {
      {0, 10}, {17, 5000}, {3u << 20, 5u << 20}, {(10u << 20) - 1, 1}, {10u << 20, 0}};
  for (auto [offset, size] : spans) {
    std::vector<std::byte> dst(size + 2, std::byte{0xee});
    Outcome outcome;
    sink->Pull(source->self(), {1, 1}, offset, dst.data() + 1, size, outcome.Callback());
    ASSERT_TRUE(outcome.Wait().ok()) << outcome.Wait();
    EXPECT_EQ(dst.front(), std::byte{0xee});
    EXPECT_EQ(dst.back(), std::byte{0xee});
    EXPECT_TRUE(size == 0 || std::memcmp(dst.data() + 1, bytes->data() + offset, size) == 0) << offset;
  }
}

TEST_P(DataPlaneTest, ManyInFlightBothWays) {
  std::unique_ptr<DataPlane> planes[] = {Make(121), Make(122)};
  Introduce(*planes[0], *planes[1]);
  struct One {
    std::shared_ptr<std::vector<std::byte>> bytes;
    std::vector<std::byte> dst;
    Outcome outcome;
  };
  std::deque<One> all;
  std::mt19937_64 random(3);
  for (uint64_t i = 0; i < 1200; ++i) {
    const int from = static_cast<int>(i % 2);
    One& one = all.emplace_back();
    const uint64_t size = i % 100 == 0 ? 5u << 20 : random() % 30'000;
    one.bytes = Bytes(size, i);
    one.dst.resize(size);
    const Key key{9, i};
    // Half of the keys come after their pull.
    if (i % 4 < 2) planes[from]->PublishSpan(key, View(one.bytes), one.bytes);
    planes[1 - from]->Pull(planes[from]->self(), key, 0, one.dst.data(), size, one.outcome.Callback());
    if (i % 4 >= 2) planes[from]->PublishSpan(key, View(one.bytes), one.bytes);
  }
  for (One& one : all) {
    ASSERT_TRUE(one.outcome.Wait().ok()) << one.outcome.Wait();
    ASSERT_TRUE(one.dst == *one.bytes);
  }
}

TEST_P(DataPlaneTest, PullWaitsForPublishAndDoesNotHoldUpOthers) {
  auto source = Make(131);
  auto sink = Make(132);
  Introduce(*source, *sink);
  auto bytes = Bytes(8u << 20, 1);
  std::vector<std::vector<std::byte>> waiting_dst(40, std::vector<std::byte>(8u << 20));
  std::vector<Outcome> waiting(40);
  for (uint64_t i = 0; i < 40; ++i) {
    sink->Pull(source->self(), {2, i}, 0, waiting_dst[i].data(), waiting_dst[i].size(), waiting[i].Callback());
  }
  ASSERT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 40; }));
  // Far more waiting bytes than the window has; a ready one passes them all.
  source->PublishSpan({2, 1000}, View(bytes), bytes);
  std::vector<std::byte> dst(bytes->size());
  Outcome ready;
  sink->Pull(source->self(), {2, 1000}, 0, dst.data(), dst.size(), ready.Callback());
  ASSERT_TRUE(ready.Wait().ok());
  EXPECT_TRUE(dst == *bytes);
  for (const Outcome& outcome : waiting) EXPECT_FALSE(outcome.Done());
  for (uint64_t i = 0; i < 40; ++i) source->PublishSpan({2, i}, View(bytes), bytes);
  for (uint64_t i = 0; i < 40; ++i) {
    ASSERT_TRUE(waiting[i].Wait().ok());
    ASSERT_TRUE(waiting_dst[i] == *bytes);
  }
  EXPECT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 0; }));
}

TEST_P(DataPlaneTest, UnpublishAnswersWaitingAndLaterPulls) {
  auto source = Make(141);
  auto sink = Make(142);
  Introduce(*source, *sink);
  std::vector<std::byte> dst(100);
  Outcome waiting;
  sink->Pull(source->self(), {3, 1}, 0, dst.data(), 100, waiting.Callback());
  ASSERT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 1; }));
  absl::Notification quiescent;
  source->Unpublish({3, 1}, absl::DataLossError("slice0: worker i7 died"), [&] { quiescent.Notify(); });
  EXPECT_EQ(waiting.Wait(), absl::DataLossError("slice0: worker i7 died"));
  ASSERT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
  Outcome later;
  sink->Pull(source->self(), {3, 1}, 0, dst.data(), 100, later.Callback());
  EXPECT_EQ(later.Wait(), absl::DataLossError("slice0: worker i7 died"));
  // A publication that comes too late does not revive it.
  auto bytes = Bytes(100, 1);
  source->PublishSpan({3, 1}, View(bytes), bytes);
  Outcome revived;
  sink->Pull(source->self(), {3, 1}, 0, dst.data(), 100, revived.Callback());
  EXPECT_EQ(revived.Wait(), absl::DataLossError("slice0: worker i7 died"));
}

TEST_P(DataPlaneTest, CloseSpaceAnswersEveryKeyOfIt) {
  auto source = Make(146);
  auto sink = Make(147);
  Introduce(*source, *sink);
  auto bytes = Bytes(100, 1);
  source->PublishSpan({50, 1}, View(bytes), bytes);
  source->PublishSpan({51, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(100);
  Outcome waiting;
  sink->Pull(source->self(), {50, 2}, 0, dst.data(), 100, waiting.Callback());
  ASSERT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 1; }));
  absl::Notification quiescent;
  source->CloseSpace(50, absl::FailedPreconditionError("grant 50 is fenced"), [&] { quiescent.Notify(); });
  ASSERT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
  EXPECT_EQ(waiting.Wait(), absl::FailedPreconditionError("grant 50 is fenced"));
  for (uint64_t id : {1, 2, 77}) {
    Outcome outcome;
    sink->Pull(source->self(), {50, id}, 0, dst.data(), 100, outcome.Callback());
    EXPECT_EQ(outcome.Wait(), absl::FailedPreconditionError("grant 50 is fenced")) << id;
  }
  Outcome other;
  sink->Pull(source->self(), {51, 1}, 0, dst.data(), 100, other.Callback());
  EXPECT_TRUE(other.Wait().ok());
  EXPECT_TRUE(dst == *bytes);
}

TEST_P(DataPlaneTest, SlowSourceAnswersInAnyOrderFromAnyThread) {
  auto source = Make(151);
  auto sink = Make(152);
  Introduce(*source, *sink);
  const uint64_t size = 7 * limits::kTransferChunkBytes + 11;
  auto bytes = Bytes(size, 4);
  auto held = std::make_shared<HeldSource>(bytes);
  source->Publish({4, 1}, held);
  std::vector<std::byte> dst(size);
  Outcome outcome;
  sink->Pull(source->self(), {4, 1}, 0, dst.data(), size, outcome.Callback());
  for (int i = 0; i < 8; ++i) {
    EXPECT_FALSE(outcome.Done());
    HeldSource::Open open = held->Take(/*last=*/true);
    std::thread([&] { held->Answer(open); }).join();
  }
  ASSERT_TRUE(outcome.Wait().ok());
  EXPECT_TRUE(dst == *bytes);
}

TEST_P(DataPlaneTest, SourceErrorAndWrongSizeFailThePull) {
  auto source = Make(156);
  auto sink = Make(157);
  Introduce(*source, *sink);
  auto bytes = Bytes(100, 4);
  auto held = std::make_shared<HeldSource>(bytes);
  source->Publish({4, 2}, held);
  std::vector<std::byte> dst(100);
  Outcome failed;
  sink->Pull(source->self(), {4, 2}, 0, dst.data(), 100, failed.Callback());
  held->Take().done(absl::ResourceExhaustedError("host pool is full"));
  EXPECT_EQ(failed.Wait(), absl::ResourceExhaustedError("host pool is full"));
  Outcome wrong;
  sink->Pull(source->self(), {4, 2}, 0, dst.data(), 100, wrong.Callback());
  held->Take().done(Chunk{bytes->data(), 99, bytes});
  EXPECT_EQ(wrong.Wait().code(), absl::StatusCode::kInternal);
}

TEST_P(DataPlaneTest, QuiescentWaitsForOpenReads) {
  auto source = Make(158);
  auto sink = Make(159);
  Introduce(*source, *sink);
  auto bytes = Bytes(100, 4);
  auto held = std::make_shared<HeldSource>(bytes);
  source->Publish({4, 3}, held);
  std::vector<std::byte> dst(100);
  Outcome outcome;
  sink->Pull(source->self(), {4, 3}, 0, dst.data(), 100, outcome.Callback());
  HeldSource::Open open = held->Take();
  absl::Notification quiescent;
  source->Unpublish({4, 3}, absl::AbortedError("stop"), [&] { quiescent.Notify(); });
  EXPECT_EQ(outcome.Wait(), absl::AbortedError("stop"));
  EXPECT_FALSE(quiescent.HasBeenNotified());
  held->Answer(open);
  EXPECT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
}

TEST_P(DataPlaneTest, BadRangesAreRefused) {
  auto source = Make(211);
  auto sink = Make(212);
  Introduce(*source, *sink);
  auto bytes = Bytes(100, 1);
  source->PublishSpan({8, 1}, View(bytes), bytes);
  auto pull = [&](uint64_t offset, uint64_t size) {
    std::vector<std::byte> dst(128, std::byte{1});
    Outcome outcome;
    sink->Pull(source->self(), {8, 1}, offset, dst.data(), size, outcome.Callback());
    const absl::Status status = outcome.Wait();
    EXPECT_EQ(dst, std::vector<std::byte>(128, std::byte{1}));
    return status.code();
  };
  EXPECT_EQ(pull(0, 101), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pull(100, 1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pull(1, 1u << 30), absl::StatusCode::kInvalidArgument);  // refused before its first byte
  EXPECT_EQ(pull(~uint64_t{0}, 2), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(pull(0, limits::kTransferBytesMax + 1), absl::StatusCode::kInvalidArgument);
}

// The control plane introduces both ends, but not at the same moment.
TEST_P(DataPlaneTest, RequestsWaitForTheIntroduction) {
  auto source = Make(231);
  auto sink = Make(232);
  ASSERT_TRUE(sink->AddPeer(source->self(), source->address()).ok());
  auto bytes = Bytes(100'000, 1);
  source->PublishSpan({1, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(100'000);
  Outcome outcome;
  sink->Pull(source->self(), {1, 1}, 0, dst.data(), dst.size(), outcome.Callback());
  EXPECT_FALSE(outcome.Done());
  ASSERT_TRUE(source->AddPeer(sink->self(), sink->address()).ok());
  ASSERT_TRUE(outcome.Wait().ok());
  EXPECT_TRUE(dst == *bytes);
}

TEST_P(DataPlaneTest, PullsFromItself) {
  auto plane = Make(241);
  ASSERT_TRUE(plane->AddPeer(plane->self(), plane->address()).ok());
  auto bytes = Bytes(20u << 20, 1);
  plane->PublishSpan({1, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(bytes->size());
  Outcome outcome;
  plane->Pull(plane->self(), {1, 1}, 0, dst.data(), dst.size(), outcome.Callback());
  ASSERT_TRUE(outcome.Wait().ok()) << outcome.Wait();
  EXPECT_TRUE(dst == *bytes);
}

// Everything at once, from several threads, with cancels and errors; every done comes once with right bytes.
TEST_P(DataPlaneTest, Stress) {
  std::vector<std::unique_ptr<DataPlane>> planes;
  for (uint64_t i = 0; i < 3; ++i) planes.push_back(Make(300 + i));
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = i + 1; j < 3; ++j) Introduce(*planes[i], *planes[j]);
  }
  std::atomic<int> ok{0}, cancelled{0}, refused{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t + 17);
      struct One {
        std::shared_ptr<std::vector<std::byte>> bytes;
        std::vector<std::byte> dst;
        Outcome outcome;
      };
      std::deque<One> all;
      for (uint64_t i = 0; i < 300; ++i) {
        DataPlane& from = *planes[random() % 3];
        DataPlane& to = *planes[(from.self().value() - 300 + 1 + random() % 2) % 3];
        One& one = all.emplace_back();
        const uint64_t size = random() % 3 == 0 ? random() % (6u << 20) : random() % 100'000;
        one.bytes = Bytes(size, i * 3 + t);
        one.dst.resize(size);
        const Key key{t, i};
        const bool early = random() % 2 == 0;
        if (early) from.PublishSpan(key, View(one.bytes), one.bytes);
        const PullId pull = to.Pull(from.self(), key, 0, one.dst.data(), size, one.outcome.Callback());
        switch (random() % 8) {
          case 0: to.Cancel(pull, absl::AbortedError("cancel")); break;
          case 1: from.Unpublish(key, absl::DataLossError("gone")); break;
          default: break;
        }
        if (!early) from.PublishSpan(key, View(one.bytes), one.bytes);
      }
      for (One& one : all) {
        const absl::Status status = one.outcome.Wait();
        if (status.ok()) {
          ASSERT_TRUE(one.dst == *one.bytes);
          ++ok;
        } else if (status == absl::AbortedError("cancel")) {
          ++cancelled;
        } else {
          ASSERT_EQ(status, absl::DataLossError("gone"));
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ok + cancelled + refused, 900);
  EXPECT_GT(ok, 600);
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(refused, 0);
  for (auto& plane : planes) {
    EXPECT_TRUE(Eventually([&] {
      const DataPlaneStats stats = plane->Stats();
      return stats.pulls_open == 0 && stats.sends_in_flight == 0 && stats.reads_waiting == 0;
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(All, DataPlaneTest, testing::ValuesIn(kAllKinds), KindName);

}  // namespace
}  // namespace landbridge::dataplane
