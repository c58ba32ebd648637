// Values that are sent before anybody asks: one suite over all implementations.
#include <map>

#include "dataplane/data_plane_test_util.h"

namespace landbridge::dataplane {
namespace {

class DataPlanePushesTest : public DataPlaneTest {
 protected:
  // What one listener was told.
  struct Told {
    absl::Mutex mutex;
    std::map<uint64_t, std::vector<std::byte>> values ABSL_GUARDED_BY(mutex);
    std::vector<absl::Status> ended ABSL_GUARDED_BY(mutex);
    size_t count() {
      absl::MutexLock lock(&mutex);
      return values.size();
    }
    std::vector<absl::Status> ends() {
      absl::MutexLock lock(&mutex);
      return ended;
    }
  };
  static std::shared_ptr<Told> Listen(DataPlane& plane, uint64_t space, std::vector<PeerId> peers) {
    auto told = std::make_shared<Told>();
    plane.Listen(space, std::move(peers),
                 {.value =
                      [told](PeerId, const Key& key, absl::Span<const std::byte> value) {
                        absl::MutexLock lock(&told->mutex);
                        EXPECT_TRUE(told->values.try_emplace(key.id, value.begin(), value.end()).second);
                      },
                  .ended =
                      [told](PeerId, const absl::Status& why) {
                        absl::MutexLock lock(&told->mutex);
                        told->ended.push_back(why);
                      }});
    return told;
  }
  static Chunk Value(uint64_t size, uint64_t seed) {
    auto bytes = Bytes(size, seed);
    return {bytes->data(), bytes->size(), bytes};
  }
};

TEST_P(DataPlanePushesTest, ValuesArriveBeforeAndAfterTheyAreWanted) {
  auto a = Make(501), b = Make(502);
  Introduce(*a, *b);
  Listen(*a, 9, {b->self()});
  std::atomic<int> gone{0};
  for (uint64_t id = 1; id <= 5; ++id) EXPECT_FALSE(a->Push(b->self(), {9, id}, Value(100, id), [&] { ++gone; }));
  EXPECT_EQ(a->Stats().pushes_waiting, 5u);
  auto told = Listen(*b, 9, {a->self()});
  ASSERT_TRUE(Eventually([&] { return told->count() == 5; }));
  EXPECT_TRUE(Eventually([&] { return gone == 5; }));
  for (uint64_t id = 6; id <= 10; ++id) EXPECT_TRUE(a->Push(b->self(), {9, id}, Value(id == 6 ? 0 : 8192, id), {}));
  ASSERT_TRUE(Eventually([&] { return told->count() == 10; }));
  {
    absl::MutexLock lock(&told->mutex);
    for (auto& [id, value] : told->values) EXPECT_EQ(value, *Bytes(id <= 5 ? 100 : id == 6 ? 0 : 8192, id)) << id;
  }
  EXPECT_EQ(a->Stats().bytes_sent, 5 * 100u + 4 * 8192u);
  EXPECT_EQ(b->Stats().bytes_received, 5 * 100u + 4 * 8192u);
  EXPECT_EQ(b->Stats().peers[0].bytes_received, 5 * 100u + 4 * 8192u);
  // A late one is dropped and counted, and nothing is left at either end.
  b->Unlisten(9);
  a->Push(b->self(), {9, 11}, Value(10, 1), {});
  EXPECT_TRUE(Eventually([&] { return b->Stats().messages_dropped == 1; }));
  EXPECT_EQ(told->count(), 10u);
  a->Unlisten(9);
  EXPECT_TRUE(Eventually([&] { return a->Stats().push_outlets + b->Stats().push_outlets == 0; }));
}

// More than a socket holds, from several threads, beside pulls: each value comes once.
TEST_P(DataPlanePushesTest, ManyAtOnceFromSeveralThreads) {
  auto a = Make(503), b = Make(504);
  Introduce(*a, *b);
  Listen(*a, 9, {b->self()});
  auto told = Listen(*b, 9, {a->self()});
  ASSERT_TRUE(Eventually([&] { return a->Stats().push_outlets == 1; }));
  auto bytes = Bytes(1u << 20, 3);
  a->PublishSpan({10, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(bytes->size());
  constexpr uint64_t kThreads = 4, kEach = 300;
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) a->Push(b->self(), {9, t * kEach + i}, Value(8000 + i % 100, t), {});
    });
  }
  Outcome pulled;
  b->Pull(a->self(), {10, 1}, 0, dst.data(), dst.size(), pulled.Callback());
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(pulled.Wait().ok());
  EXPECT_EQ(dst, *bytes);
  ASSERT_TRUE(Eventually([&] { return told->count() == kThreads * kEach; }));
  absl::MutexLock lock(&told->mutex);
  for (auto& [id, value] : told->values) ASSERT_EQ(value, *Bytes(8000 + id % kEach % 100, id / kEach)) << id;
}

TEST_P(DataPlanePushesTest, ClosedSpacesAndPeersAreTold) {
  auto a = Make(505), b = Make(506);
  Introduce(*a, *b);
  auto now = Listen(*b, 9, {a->self()});
  ASSERT_TRUE(Eventually([&] { return a->Stats().push_outlets == 1; }));
  a->CloseSpace(9, absl::DataLossError("device 7 went away"));
  ASSERT_TRUE(Eventually([&] { return now->ends().size() == 1; }));
  EXPECT_EQ(now->ends()[0], absl::DataLossError("device 7 went away"));
  a->CloseSpace(10, absl::AbortedError("cancelled"));
  auto late = Listen(*b, 10, {a->self()});
  ASSERT_TRUE(Eventually([&] { return late->ends().size() == 1; }));
  EXPECT_EQ(late->ends()[0], absl::AbortedError("cancelled"));
  auto open = Listen(*b, 11, {a->self()});
  b->ClosePeer(a->self(), absl::DataLossError("worker died"));
  ASSERT_TRUE(Eventually([&] { return open->ends().size() == 1; }));
  EXPECT_EQ(open->ends()[0], absl::DataLossError("worker died"));
  auto after = Listen(*b, 12, {a->self()});
  ASSERT_TRUE(Eventually([&] { return after->ends().size() == 1; }));
  EXPECT_EQ(after->ends()[0], absl::DataLossError("worker died"));
}

TEST_P(DataPlanePushesTest, ABrokenConnectionIsTold) {
  auto a = Make(507), b = Make(508);
  Introduce(*a, *b);
  auto told = Listen(*b, 9, {a->self()});
  ASSERT_TRUE(Eventually([&] { return a->Stats().push_outlets == 1; }));
  a->Shutdown();
  ASSERT_TRUE(Eventually([&] { return told->ends().size() == 1; }));
  EXPECT_EQ(told->ends()[0].code(), absl::StatusCode::kUnavailable);
  b->Push(a->self(), {9, 1}, Value(10, 1), {});
  b->CloseSpace(9, absl::AbortedError("over"));
  EXPECT_TRUE(Eventually([&] { return b->Stats().pushes_waiting + b->Stats().push_outlets == 0; }));
}

TEST_P(DataPlanePushesTest, TheAuthorizerDecidesWhoListens) {
  auto a = Make(509, [](PeerId, const Key& key) { return key.space == 9; });
  auto b = Make(510);
  Introduce(*a, *b);
  auto allowed = Listen(*b, 9, {a->self()});
  auto refused = Listen(*b, 10, {a->self()});
  ASSERT_TRUE(Eventually([&] { return refused->ends().size() == 1; }));
  EXPECT_EQ(refused->ends()[0].code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(allowed->ends().empty());
}

INSTANTIATE_TEST_SUITE_P(All, DataPlanePushesTest, testing::ValuesIn(kAllKinds), KindName);

}  // namespace
}  // namespace landbridge::dataplane
