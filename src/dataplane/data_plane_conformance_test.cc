// One suite for every implementation of DataPlane.
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/limits.h"
#include "dataplane/data_plane.h"
#include "dataplane/in_process_data_plane.h"
#include "dataplane/test_pattern.h"
#include "dataplane/ucx_data_plane.h"
#include "gtest/gtest.h"

namespace landbridge::dataplane {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

std::shared_ptr<std::vector<std::byte>> Bytes(uint64_t size, uint64_t seed) {
  return std::make_shared<std::vector<std::byte>>(TestPattern(size, seed));
}

absl::Span<const std::byte> View(const std::shared_ptr<std::vector<std::byte>>& bytes) {
  return {bytes->data(), bytes->size()};
}

// A pull's outcome; fails the test when done comes twice.
class Outcome {
 public:
  std::function<void(absl::Status)> Callback() {
    return [state = state_](absl::Status status) {
      ASSERT_EQ(state->calls.fetch_add(1), 0) << "done was called twice";
      state->status = std::move(status);
      state->done.Notify();
    };
  }
  bool Done() const { return state_->done.HasBeenNotified(); }
  absl::Status Wait() const {
    if (!state_->done.WaitForNotificationWithTimeout(kPatience)) return absl::DeadlineExceededError("test gave up");
    return state_->status;
  }

 private:
  struct State {
    std::atomic<int> calls{0};
    absl::Notification done;
    absl::Status status;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Hands out reads only when told to, in any order, from the test's thread.
class HeldSource final : public Source {
 public:
  struct Open {
    uint64_t offset;
    uint64_t size;
    ReadDone done;
  };
  explicit HeldSource(std::shared_ptr<std::vector<std::byte>> bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_->size(); }
  void Read(uint64_t offset, uint64_t size, ReadDone done) override {
    absl::MutexLock lock(&mutex_);
    open_.push_back({offset, size, std::move(done)});
  }
  // Waits for a read; the last one or the first.
  Open Take(bool last = false) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(+[](std::deque<Open>* o) { return !o->empty(); }, &open_), kPatience);
    EXPECT_FALSE(open_.empty());
    Open open = last ? std::move(open_.back()) : std::move(open_.front());
    last ? open_.pop_back() : open_.pop_front();
    return open;
  }
  void Answer(const Open& open) { open.done(Chunk{bytes_->data() + open.offset, open.size, bytes_}); }
  void AnswerAll() {
    std::deque<Open> open;
    {
      absl::MutexLock lock(&mutex_);
      open.swap(open_);
    }
    for (const Open& read : open) Answer(read);
  }

 private:
  const std::shared_ptr<std::vector<std::byte>> bytes_;
  absl::Mutex mutex_;
  std::deque<Open> open_;
};

enum class Kind { kInProcess, kUcxAuto, kUcxTcp };

class DataPlaneTest : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<DataPlane> Make(uint64_t id, Authorizer authorizer = {}, Token token = {1, 2}) {
    DataPlaneOptions options;
    options.self = PeerId(id);
    options.token = token;
    options.authorizer = std::move(authorizer);
    options.peer_failed = [this](PeerId peer, absl::Status) {
      absl::MutexLock lock(&mutex_);
      failed_.push_back(peer);
    };
    if (GetParam() == Kind::kInProcess) return fabric_.MakeDataPlane(std::move(options));
    UcxOptions ucx;
    ucx.base = std::move(options);
    if (GetParam() == Kind::kUcxTcp) ucx.transports = "tcp";
    auto plane = MakeUcxDataPlane(std::move(ucx));
    EXPECT_TRUE(plane.ok()) << plane.status();
    return *std::move(plane);
  }
  static void Introduce(DataPlane& a, DataPlane& b) {
    ASSERT_TRUE(a.AddPeer(b.self(), b.address()).ok());
    ASSERT_TRUE(b.AddPeer(a.self(), a.address()).ok());
  }
  // Waits until the predicate holds; events are asynchronous, so some facts can only be seen by asking again.
  template <typename Predicate>
  static bool Eventually(Predicate predicate) {
    const absl::Time end = absl::Now() + kPatience;
    while (!predicate()) {
      if (absl::Now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // True when everything that was sent before has been handled: a small pull passed behind it.
  static void RoundTrip(DataPlane& from, DataPlane& source) {
    static std::atomic<uint64_t> next{1};
    const Key key{0xfeed, next++};
    auto bytes = Bytes(16, key.id);
    source.PublishSpan(key, View(bytes), bytes);
    std::vector<std::byte> dst(16);
    Outcome outcome;
    from.Pull(source.self(), key, 0, dst.data(), dst.size(), outcome.Callback());
    ASSERT_TRUE(outcome.Wait().ok());
    source.Unpublish(key, absl::FailedPreconditionError("used up"));
  }

  InProcessFabric fabric_;
  absl::Mutex mutex_;
  std::vector<PeerId> failed_;
};

TEST_P(DataPlaneTest, PullsEverySize) {
  auto source = Make(101);
  auto sink = Make(102);
  Introduce(*source, *sink);
  const uint64_t sizes[] = {0, 1, 63, 4096, limits::kTransferInlineBytesMax, limits::kTransferInlineBytesMax + 1,
                            limits::kTransferSmallBytesMax, limits::kTransferSmallBytesMax + 1,
                            limits::kTransferChunkBytes, limits::kTransferChunkBytes + 1,
                            9 * limits::kTransferChunkBytes + 12345, 256u << 20};
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
  const std::pair<uint64_t, uint64_t> spans[] = {{0, 10}, {17, 5000}, {3u << 20, 5u << 20}, {(10u << 20) - 1, 1},
                                                 {10u << 20, 0}};
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

// After done, the memory is the caller's again: whatever the source still does, nothing lands.
TEST_P(DataPlaneTest, NothingLandsAfterACancelledPull) {
  auto source = Make(161);
  auto sink = Make(162);
  Introduce(*source, *sink);
  const uint64_t size = 32u << 20;
  auto bytes = Bytes(size, 9);
  std::vector<std::byte> dst(size);
  for (uint64_t round = 0; round < 12; ++round) {
    auto held = std::make_shared<HeldSource>(bytes);
    const Key key{5, round};
    source->Publish(key, held);
    Outcome outcome;
    const PullId pull = sink->Pull(source->self(), key, 0, dst.data(), size, outcome.Callback());
    held->Answer(held->Take());
    std::vector<HeldSource::Open> open;
    for (int i = 0; i < 3; ++i) open.push_back(held->Take());
    // Chunks on their way, cancelled at some moment of their landing.
    for (size_t i = 0; i < open.size(); ++i) {
      if (i == round % 4) sink->Cancel(pull, absl::AbortedError("changed my mind"));
      held->Answer(open[i]);
    }
    sink->Cancel(pull, absl::AbortedError("changed my mind"));
    ASSERT_EQ(outcome.Wait(), absl::AbortedError("changed my mind"));
    std::memset(dst.data(), 0x5a, size);
    absl::Notification quiescent;
    source->Unpublish(key, absl::AbortedError("over"), [&] { quiescent.Notify(); });
    // Reads asked for after the cancel.
    ASSERT_TRUE(Eventually([&] {
      held->AnswerAll();
      return quiescent.HasBeenNotified();
    }));
    RoundTrip(*sink, *source);
    ASSERT_EQ(FirstOther(dst.data(), size, std::byte{0x5a}), size) << "late byte";
  }
  EXPECT_TRUE(Eventually([&] { return sink->Stats().pulls_open == 0 && sink->Stats().pulls_quarantined == 0; }));
}

TEST_P(DataPlaneTest, CancelOfAWaitingPullTellsTheSource) {
  auto source = Make(163);
  auto sink = Make(164);
  Introduce(*source, *sink);
  std::vector<std::byte> dst(10);
  Outcome outcome;
  const PullId pull = sink->Pull(source->self(), {5, 99}, 0, dst.data(), 10, outcome.Callback());
  ASSERT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 1; }));
  sink->Cancel(pull, absl::AbortedError("no"));
  EXPECT_EQ(outcome.Wait(), absl::AbortedError("no"));
  EXPECT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 0; }));
  sink->Cancel(pull, absl::AbortedError("again"));  // nothing: it is done
  RoundTrip(*sink, *source);
}

TEST_P(DataPlaneTest, ClosePeerInTheMiddle) {
  for (uint64_t round = 0; round < 6; ++round) {
    auto source = Make(200 + 2 * round);
    auto sink = Make(201 + 2 * round);
    Introduce(*source, *sink);
    const uint64_t size = 64u << 20;
    auto bytes = Bytes(size, 9);
    source->PublishSpan({6, round}, View(bytes), bytes);
    std::vector<std::byte> dst(size), small(100);
    Outcome bulk, waiting;
    sink->Pull(source->self(), {6, round}, 0, dst.data(), size, bulk.Callback());
    sink->Pull(source->self(), {6, 1000}, 0, small.data(), 100, waiting.Callback());
    ASSERT_TRUE(Eventually([&] { return sink->Stats().bytes_received >= round * (4u << 20); }));
    sink->ClosePeer(source->self(), absl::DataLossError("worker died"));
    EXPECT_EQ(waiting.Wait(), absl::DataLossError("worker died"));
    const absl::Status status = bulk.Wait();
    ASSERT_TRUE(status.ok() || status == absl::DataLossError("worker died")) << status;
    std::memset(dst.data(), 0x77, size);
    // The other end finds out, or is told; either way its memory is its own again.
    source->ClosePeer(sink->self(), absl::DataLossError("worker died"));
    absl::Notification quiescent;
    source->Unpublish({6, round}, absl::AbortedError("over"), [&] { quiescent.Notify(); });
    ASSERT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
    ASSERT_EQ(FirstOther(dst.data(), size, std::byte{0x77}), size) << "late byte";
    Outcome after;
    sink->Pull(source->self(), {6, round}, 0, small.data(), 10, after.Callback());
    EXPECT_EQ(after.Wait().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(sink->AddPeer(source->self(), source->address()).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Eventually([&] { return source->Stats().sends_in_flight == 0; }));
  }
}

// A peer that was given up is not served, though it does not know that yet.
TEST_P(DataPlaneTest, RequestsOfAClosedPeerAreDropped) {
  auto source = Make(171);
  auto sink = Make(172);
  Introduce(*source, *sink);
  auto bytes = Bytes(100, 1);
  source->PublishSpan({7, 1}, View(bytes), bytes);
  RoundTrip(*sink, *source);
  source->ClosePeer(sink->self(), absl::AbortedError("fenced"));
  std::vector<std::byte> dst(100);
  Outcome outcome;
  sink->Pull(source->self(), {7, 1}, 0, dst.data(), 100, outcome.Callback());
  sink->ClosePeer(source->self(), absl::AbortedError("gave up"));
  const absl::Status status = outcome.Wait();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 0; }));
}

TEST_P(DataPlaneTest, AuthorizerAndAllowedPeerDecide) {
  auto source = Make(181, [](PeerId peer, const Key& key) { return peer == PeerId(182) || key.id == 1; });
  auto friendly = Make(182);
  auto stranger = Make(183);
  Introduce(*source, *friendly);
  Introduce(*source, *stranger);
  auto bytes = Bytes(100, 1);
  source->PublishSpan({8, 1}, View(bytes), bytes);
  source->PublishSpan({8, 2}, View(bytes), bytes);
  source->PublishSpan({8, 3}, View(bytes), bytes, {PeerId(183)});
  auto pull = [&](DataPlane& plane, uint64_t id) {
    std::vector<std::byte> dst(100);
    Outcome outcome;
    plane.Pull(source->self(), {8, id}, 0, dst.data(), 100, outcome.Callback());
    const absl::Status status = outcome.Wait();
    EXPECT_EQ(status.ok(), dst == *bytes);
    return status.code();
  };
  EXPECT_EQ(pull(*friendly, 1), absl::StatusCode::kOk);
  EXPECT_EQ(pull(*stranger, 1), absl::StatusCode::kOk);
  EXPECT_EQ(pull(*friendly, 2), absl::StatusCode::kOk);
  EXPECT_EQ(pull(*stranger, 2), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(pull(*friendly, 3), absl::StatusCode::kPermissionDenied);
  // Refused at once, not after waiting for the key.
  EXPECT_EQ(pull(*stranger, 4), absl::StatusCode::kPermissionDenied);
}

TEST_P(DataPlaneTest, AnotherTokenGetsNothing) {
  auto source = Make(191);
  auto sink = Make(192, {}, Token{1, 3});
  Introduce(*source, *sink);
  auto bytes = Bytes(100, 1);
  source->PublishSpan({8, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(100);
  Outcome outcome;
  const PullId pull = sink->Pull(source->self(), {8, 1}, 0, dst.data(), 100, outcome.Callback());
  ASSERT_TRUE(Eventually([&] { return source->Stats().messages_dropped == 1; }));
  EXPECT_FALSE(outcome.Done());
  sink->Cancel(pull, absl::AbortedError("no answer"));
  EXPECT_EQ(outcome.Wait(), absl::AbortedError("no answer"));
  EXPECT_EQ(source->Stats().bytes_sent, 0u);
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

TEST_P(DataPlaneTest, IntroductionsAreChecked) {
  auto a = Make(221);
  auto b = Make(222);
  EXPECT_EQ(a->AddPeer(b->self(), "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a->AddPeer(b->self(), std::string(5000, 'x')).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a->AddPeer(PeerId(999), b->address()).code(), absl::StatusCode::kInvalidArgument);
  std::vector<std::byte> dst(10);
  Outcome unknown;
  a->Pull(b->self(), {1, 1}, 0, dst.data(), 10, unknown.Callback());
  EXPECT_EQ(unknown.Wait().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(a->AddPeer(b->self(), b->address()).ok());
  EXPECT_TRUE(a->AddPeer(b->self(), b->address()).ok());
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

TEST_P(DataPlaneTest, ShutdownEndsEverything) {
  auto source = Make(251);
  auto sink = Make(252);
  Introduce(*source, *sink);
  auto bytes = Bytes(64u << 20, 1);
  std::weak_ptr<std::vector<std::byte>> watch = bytes;
  auto held = std::make_shared<HeldSource>(Bytes(100, 1));
  source->PublishSpan({1, 1}, View(bytes), bytes);
  source->Publish({1, 2}, held);
  std::vector<std::byte> dst(bytes->size()), small(100);
  bytes.reset();
  Outcome bulk, reading, waiting;
  sink->Pull(source->self(), {1, 1}, 0, dst.data(), dst.size(), bulk.Callback());
  sink->Pull(source->self(), {1, 2}, 0, small.data(), 100, reading.Callback());
  sink->Pull(source->self(), {1, 3}, 0, small.data(), 100, waiting.Callback());
  HeldSource::Open open = held->Take();
  absl::Notification quiescent;
  source->Unpublish({1, 2}, absl::AbortedError("x"), [&] { quiescent.Notify(); });
  EXPECT_EQ(reading.Wait(), absl::AbortedError("x"));
  sink->Shutdown();
  EXPECT_TRUE(bulk.Done());
  EXPECT_TRUE(waiting.Done());
  EXPECT_EQ(waiting.Wait().code(), absl::StatusCode::kFailedPrecondition);
  source->Shutdown();
  EXPECT_TRUE(quiescent.HasBeenNotified());
  EXPECT_TRUE(watch.expired()) << "somebody still holds published bytes";
  held->Answer(open);  // into nothing
  Outcome after;
  sink->Pull(source->self(), {1, 1}, 0, dst.data(), 10, after.Callback());
  EXPECT_TRUE(after.Done());
  EXPECT_EQ(after.Wait().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(source->AddPeer(sink->self(), sink->address()).code(), absl::StatusCode::kFailedPrecondition);
  source->Shutdown();
}

// A peer that leaves without a word: its pulls end, the others' do not.
TEST_P(DataPlaneTest, PeerThatShutsDownFailsOnlyItsPulls) {
  auto source = Make(261);
  auto other = Make(262);
  auto sink = Make(263);
  Introduce(*source, *sink);
  Introduce(*other, *sink);
  RoundTrip(*sink, *source);
  RoundTrip(*sink, *other);
  std::vector<std::byte> a(100), b(100);
  Outcome from_source, from_other;
  sink->Pull(source->self(), {1, 1}, 0, a.data(), 100, from_source.Callback());
  sink->Pull(other->self(), {1, 1}, 0, b.data(), 100, from_other.Callback());
  ASSERT_TRUE(Eventually([&] { return source->Stats().reads_waiting == 1; }));
  source->Shutdown();
  source.reset();
  EXPECT_EQ(from_source.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(from_other.Done());
  auto bytes = Bytes(100, 1);
  other->PublishSpan({1, 1}, View(bytes), bytes);
  EXPECT_TRUE(from_other.Wait().ok());
  EXPECT_TRUE(b == *bytes);
  absl::MutexLock lock(&mutex_);
  for (PeerId peer : failed_) EXPECT_EQ(peer, PeerId(261));
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

INSTANTIATE_TEST_SUITE_P(All, DataPlaneTest, testing::Values(Kind::kInProcess, Kind::kUcxAuto, Kind::kUcxTcp),
                         [](const testing::TestParamInfo<Kind>& instance) {
                           switch (instance.param) {
                             case Kind::kInProcess: return "InProcess";
                             case Kind::kUcxAuto: return "UcxAuto";
                             case Kind::kUcxTcp: return "UcxTcp";
                           }
                           return "";
                         });

// What a resumed process does after it was given up: see also ucx_process_test.cc.
TEST(InProcessDataPlaneTest, PausedPeerThatIsClosedWritesNothingWhenItResumes) {
  InProcessFabric fabric;
  auto source = fabric.MakeDataPlane({PeerId(1), {}, {}, {}});
  auto sink = fabric.MakeDataPlane({PeerId(2), {}, {}, {}});
  ASSERT_TRUE(source->AddPeer(sink->self(), sink->address()).ok());
  ASSERT_TRUE(sink->AddPeer(source->self(), source->address()).ok());
  const uint64_t size = 16u << 20;
  auto bytes = Bytes(size, 1);
  source->PublishSpan({1, 1}, View(bytes), bytes);
  fabric.SetPaused(source->self(), true);
  std::vector<std::byte> dst(size);
  Outcome outcome;
  sink->Pull(source->self(), {1, 1}, 0, dst.data(), size, outcome.Callback());
  sink->ClosePeer(source->self(), absl::DataLossError("silent"));
  EXPECT_EQ(outcome.Wait(), absl::DataLossError("silent"));
  std::memset(dst.data(), 0x11, size);
  fabric.SetPaused(source->self(), false);
  absl::Notification quiescent;
  source->Unpublish({1, 1}, absl::AbortedError("over"), [&] { quiescent.Notify(); });
  ASSERT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
  source->Shutdown();
  EXPECT_EQ(FirstOther(dst.data(), size, std::byte{0x11}), size) << "late byte";
}

}  // namespace
}  // namespace landbridge::dataplane
