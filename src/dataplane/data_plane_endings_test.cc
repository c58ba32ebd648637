// How pulls, peers and data planes end, and who may pull at all: one suite over all implementations.
#include "base/limits.h"
#include "dataplane/data_plane_test_util.h"

namespace landbridge::dataplane {
namespace {

using DataPlaneEndingsTest = DataPlaneTest;

// After done, the memory is the caller's again: whatever the source still does, nothing lands.
TEST_P(DataPlaneEndingsTest, NothingLandsAfterACancelledPull) {
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

TEST_P(DataPlaneEndingsTest, CancelOfAWaitingPullTellsTheSource) {
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

TEST_P(DataPlaneEndingsTest, ClosePeerInTheMiddle) {
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
    EXPECT_EQ(after.Wait(), absl::DataLossError("worker died"));
    EXPECT_EQ(sink->AddPeer(source->self(), source->address()).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(Eventually([&] { return source->Stats().sends_in_flight == 0; }));
  }
}

// A peer that was given up is not served, though it does not know that yet.
TEST_P(DataPlaneEndingsTest, RequestsOfAClosedPeerAreDropped) {
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

TEST_P(DataPlaneEndingsTest, AuthorizerAndAllowedPeerDecide) {
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

TEST_P(DataPlaneEndingsTest, AnotherTokenGetsNothing) {
  auto source = Make(191);
  auto sink = Make(192, {}, Token{1, 3});
  Introduce(*source, *sink);
  auto bytes = Bytes(100, 1);
  source->PublishSpan({8, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(100);
  Outcome outcome;
  sink->Pull(source->self(), {8, 1}, 0, dst.data(), 100, outcome.Callback());
  EXPECT_EQ(outcome.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(dst, std::vector<std::byte>(100));
  // Nor does the source take from it.
  sink->PublishSpan({8, 2}, View(bytes), bytes);
  Outcome reverse;
  source->Pull(sink->self(), {8, 2}, 0, dst.data(), 100, reverse.Callback());
  EXPECT_EQ(reverse.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(dst, std::vector<std::byte>(100));
  EXPECT_EQ(source->Stats().bytes_sent + sink->Stats().bytes_sent, 0u);
}

TEST_P(DataPlaneEndingsTest, IntroductionsAreChecked) {
  auto a = Make(221);
  auto b = Make(222);
  EXPECT_EQ(a->AddPeer(b->self(), "").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(a->AddPeer(b->self(), std::string(5000, 'x')).code(), absl::StatusCode::kInvalidArgument);
  // Nobody of that name lives there.
  EXPECT_TRUE(a->AddPeer(PeerId(999), b->address()).ok());
  std::vector<std::byte> nothing(10);
  Outcome nobody;
  a->Pull(PeerId(999), {1, 1}, 0, nothing.data(), 10, nobody.Callback());
  EXPECT_EQ(nobody.Wait().code(), absl::StatusCode::kUnavailable);
  std::vector<std::byte> dst(10);
  Outcome unknown;
  a->Pull(b->self(), {1, 1}, 0, dst.data(), 10, unknown.Callback());
  EXPECT_EQ(unknown.Wait().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(a->AddPeer(b->self(), b->address()).ok());
  EXPECT_TRUE(a->AddPeer(b->self(), b->address()).ok());
}

TEST_P(DataPlaneEndingsTest, ShutdownEndsEverything) {
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
TEST_P(DataPlaneEndingsTest, PeerThatShutsDownFailsOnlyItsPulls) {
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

INSTANTIATE_TEST_SUITE_P(All, DataPlaneEndingsTest, testing::ValuesIn(kAllKinds), KindName);

// What a resumed process does after it was given up: see also data_plane_process_test.cc.
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
