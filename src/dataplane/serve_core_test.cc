#include "dataplane/serve_core.h"

#include <string>
#include <vector>

#include "base/limits.h"
#include "dataplane/core_test_util.h"
#include "gtest/gtest.h"

namespace landbridge::dataplane {
namespace {

class FakeSource final : public Source {
 public:
  FakeSource(uint64_t size, bool copies) : size_(size), copies_(copies) {}
  uint64_t size() const override { return size_; }
  void Read(uint64_t, uint64_t, ReadDone) override { ADD_FAILURE() << "the core only records"; }

  bool copies() const override { return copies_; }

 private:
  const uint64_t size_;
  const bool copies_;
};

class ServeCoreTest : public testing::Test {
 protected:
  void Drain() {
    for (Action& action : core_.TakeActions()) {
      if (auto* a = std::get_if<SendMessage>(&action)) {
        EXPECT_EQ(a->message.type, MessageType::kRefuse);
        refusals_.push_back({a->peer, absl::Status(static_cast<absl::StatusCode>(a->message.code), a->text)});
      }
      if (auto* a = std::get_if<StartRead>(&action)) reads_.push_back(std::move(*a));
      if (auto* a = std::get_if<SendChunk>(&action)) sends_.push_back(std::move(*a));
      if (auto* a = std::get_if<RunQuiescent>(&action)) a->quiescent();
    }
  }
  void Publish(Key key, uint64_t size, PeerId allowed = PeerId(), bool copies = false) {
    core_.Publish(key, std::make_shared<FakeSource>(size, copies), allowed);
    Drain();
  }
  void Request(PeerId peer, Key key, uint64_t size, uint64_t offset = 0, PullId pull = PullId()) {
    Message m;
    m.key = key;
    m.offset = offset;
    m.size = size;
    m.end = offset + size;
    m.pull = pull.valid() ? pull : PullId(next_pull_++);
    core_.OnRequest(peer, m, true);
    Drain();
  }
  void AnswerRead(size_t index = 0) {
    const StartRead read = reads_.at(index);
    reads_.erase(reads_.begin() + static_cast<std::ptrdiff_t>(index));
    core_.OnReadDone(read.serve, Chunk{this, read.size, nullptr});
    Drain();
  }
  void Sent(size_t index = 0) {
    const ServeId serve = sends_.at(index).serve;
    sends_.erase(sends_.begin() + static_cast<std::ptrdiff_t>(index));
    core_.OnSent(serve, absl::OkStatus());
    Drain();
  }

  ServeCore core_{kSelf};
  uint64_t next_pull_ = 1;
  std::vector<std::pair<PeerId, absl::Status>> refusals_;
  std::vector<StartRead> reads_;
  std::vector<SendChunk> sends_;
};

TEST_F(ServeCoreTest, ServesInOrderOfPublication) {
  Request(kPeer, {1, 1}, 100);
  Request(kPeer, {1, 1}, 50, 50);
  EXPECT_EQ(core_.waiting(), 2u);
  EXPECT_TRUE(reads_.empty());
  Publish({1, 1}, 100);
  EXPECT_EQ(core_.waiting(), 0u);
  ASSERT_EQ(reads_.size(), 2u);
  EXPECT_EQ(reads_[0].size, 100u);
  EXPECT_EQ(reads_[1].offset, 50u);
  AnswerRead(1);
  ASSERT_EQ(sends_.size(), 1u);
  EXPECT_EQ(sends_[0].message.offset, 50u);
  EXPECT_TRUE(sends_[0].small);
  Sent();
  AnswerRead();
  Sent();
  EXPECT_EQ(core_.requests(), 0u);
}

TEST_F(ServeCoreTest, QuiescentWaitsForReadsAndSends) {
  Publish({1, 1}, 1000);
  Request(kPeer, {1, 1}, 100);
  Request(kPeer, {1, 1}, 200);
  Request(kOther, {1, 1}, 300);
  AnswerRead();  // sending
  int quiescent = 0;
  core_.Unpublish({1, 1}, absl::DataLossError("gone"), [&] { ++quiescent; });
  Drain();
  EXPECT_EQ(refusals_.size(), 2u);  // the reading ones
  EXPECT_EQ(refusals_[0].second, absl::DataLossError("gone"));
  AnswerRead();
  AnswerRead();
  EXPECT_TRUE(sends_.size() == 1u) << "bytes read after Unpublish are not sent";
  EXPECT_EQ(quiescent, 0);
  Sent();
  EXPECT_EQ(quiescent, 1);
  EXPECT_EQ(core_.requests(), 0u);
}

// Copies that sources make are bounded, for each peer and together; reads without copies pass them.
TEST_F(ServeCoreTest, CopiesWaitForStagingMemory) {
  const uint64_t chunk = limits::kTransferChunkBytes;
  const uint64_t per_peer = limits::kTransferStagedBytesPerPeer / chunk, all = limits::kTransferStagedBytesMax / chunk;
  const uint64_t peers = all / per_peer + 2;
  Publish({1, 1}, chunk, PeerId(), /*copies=*/true);
  Publish({1, 2}, chunk);
  for (uint64_t p = 0; p < peers; ++p) {
    for (uint64_t i = 0; i < 2 * per_peer; ++i) Request(PeerId(10 + p), {1, 1}, chunk);
    EXPECT_LE(reads_.size(), std::min((p + 1) * per_peer, all));
  }
  EXPECT_EQ(reads_.size(), all);
  EXPECT_EQ(core_.bytes_staged(), limits::kTransferStagedBytesMax);
  Request(PeerId(10), {1, 2}, chunk);
  EXPECT_EQ(reads_.size(), all + 1);
  AnswerRead(all);
  EXPECT_EQ(sends_.size(), 1u);
  Sent();
  // A chunk holds its share until the peer has it; then the next in line goes, and in the end all went.
  uint64_t served = 0;
  while (!reads_.empty()) {
    AnswerRead();
    ASSERT_EQ(sends_.size(), 1u);
    ASSERT_GT(core_.bytes_staged(), 0u);
    Sent();
    ++served;
    ASSERT_LE(core_.bytes_staged(), limits::kTransferStagedBytesMax);
  }
  EXPECT_EQ(served, 2 * per_peer * peers);
  EXPECT_EQ(core_.bytes_staged(), 0u);
}

TEST_F(ServeCoreTest, StagingMemoryOfALostPeerGoesToOthers) {
  const uint64_t chunk = limits::kTransferChunkBytes;
  Publish({1, 1}, chunk, PeerId(), /*copies=*/true);
  const uint64_t peers = limits::kTransferStagedBytesMax / limits::kTransferStagedBytesPerPeer;
  for (uint64_t p = 0; p < peers; ++p) {
    for (uint64_t i = 0; i < limits::kTransferStagedBytesPerPeer / chunk; ++i) Request(PeerId(10 + p), {1, 1}, chunk);
  }
  while (!reads_.empty()) AnswerRead();
  Request(kOther, {1, 1}, chunk);
  EXPECT_TRUE(reads_.empty());
  core_.OnPeerDown(PeerId(10));
  Drain();
  EXPECT_TRUE(reads_.empty()) << "its chunks are on their way until the transport says otherwise";
  while (core_.bytes_staged() == limits::kTransferStagedBytesMax) Sent();
  EXPECT_EQ(reads_.size(), 1u);
}

TEST_F(ServeCoreTest, PeerDownDropsWhatIsNotOnItsWay) {
  Publish({1, 1}, 1000);
  Request(kPeer, {1, 1}, 100);
  Request(kPeer, {1, 2}, 100);  // waits
  Request(kOther, {1, 2}, 100);
  AnswerRead();
  core_.OnPeerDown(kPeer);
  core_.OnPeerDown(PeerId(77));  // of whom nothing is known
  Drain();
  EXPECT_EQ(core_.waiting(), 1u);
  EXPECT_EQ(core_.sends(), 1u);
  Sent();
  EXPECT_EQ(core_.sends(), 0u);
  EXPECT_EQ(core_.requests(), 1u);
}

TEST_F(ServeCoreTest, ForgetDropsThePullsRequestsOnly) {
  Request(kPeer, {1, 1}, 100, 0, PullId(500));
  Request(kPeer, {1, 1}, 100, 100, PullId(500));
  Request(kPeer, {1, 1}, 100, 0, PullId(501));
  core_.OnForget(kOther, PullId(500));
  EXPECT_EQ(core_.waiting(), 3u);
  core_.OnForget(kPeer, PullId(500));
  EXPECT_EQ(core_.waiting(), 1u);
}

TEST_F(ServeCoreTest, SmallSendsHaveALaneOfTheirOwn) {
  const uint64_t big = limits::kTransferSmallBytesMax + 1;
  Publish({1, 1}, big);
  for (size_t i = 0; i < limits::kTransferSendsPerPeerMax + 5; ++i) {
    Request(kPeer, {1, 1}, big);
    AnswerRead();
  }
  EXPECT_EQ(sends_.size(), limits::kTransferSendsPerPeerMax);
  Request(kPeer, {1, 1}, 10);
  AnswerRead();
  ASSERT_EQ(sends_.size(), limits::kTransferSendsPerPeerMax + 1);
  EXPECT_TRUE(sends_.back().small);
  Sent();
  EXPECT_EQ(sends_.size(), limits::kTransferSendsPerPeerMax + 1);  // the next bulk one took its place
  EXPECT_FALSE(sends_.back().small);
}

TEST_F(ServeCoreTest, LimitsAreHit) {
  Publish({1, 1}, 1000);
  for (size_t i = 0; i < limits::kTransferReadsPerPeerMax + 3; ++i) Request(kPeer, {1, 1}, 10);
  EXPECT_EQ(reads_.size(), limits::kTransferReadsPerPeerMax);
  Request(kOther, {1, 1}, 10);  // other peers have slots of their own
  EXPECT_EQ(reads_.size(), limits::kTransferReadsPerPeerMax + 1);
  for (size_t i = core_.requests(); i < limits::kTransferRequestsPerPeerMax + 1; ++i) Request(kPeer, {1, 2}, 10);
  EXPECT_TRUE(refusals_.empty());
  Request(kPeer, {1, 2}, 10);
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_EQ(refusals_[0].second.code(), absl::StatusCode::kResourceExhausted);
  // One pull cannot flood either.
  for (size_t i = 0; i < 2 * limits::kTransferChunksPerPullMax + 1; ++i)
    Request(kOther, {1, 3}, 10, i, PullId(9999999));
  ASSERT_EQ(refusals_.size(), 2u);
  EXPECT_EQ(refusals_[1].second.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ServeCoreTest, TombstonesAreBounded) {
  for (uint64_t i = 0; i < limits::kTransferTombstonesMax + 10; ++i) {
    core_.Unpublish({1, i}, absl::AbortedError("no"), {});
  }
  EXPECT_EQ(core_.tombstones(), limits::kTransferTombstonesMax);
  Request(kPeer, {1, limits::kTransferTombstonesMax + 9}, 10);
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_EQ(refusals_[0].second, absl::AbortedError("no"));
}

TEST_F(ServeCoreTest, PublishedTwiceFailsLoudly) {
  Publish({1, 1}, 10);
  Publish({1, 1}, 10);
  Request(kPeer, {1, 1}, 10);
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_EQ(refusals_[0].second.code(), absl::StatusCode::kInternal);
}

TEST_F(ServeCoreTest, WaitingRequestsAreAdmittedWhenTheKeyComes) {
  Request(kPeer, {1, 1}, 100);
  Request(kOther, {1, 1}, 10);
  Publish({1, 1}, 50, kPeer);
  ASSERT_EQ(refusals_.size(), 2u);
  EXPECT_EQ(refusals_[0].second.code(), absl::StatusCode::kInvalidArgument);  // beyond its end
  EXPECT_EQ(refusals_[1].second.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(core_.requests(), 0u);
}

}  // namespace
}  // namespace landbridge::dataplane
