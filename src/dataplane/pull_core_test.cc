#include "dataplane/pull_core.h"

#include <optional>
#include <string>
#include <vector>

#include "base/limits.h"
#include "dataplane/core_test_util.h"
#include "gtest/gtest.h"

namespace landbridge::dataplane {
namespace {

constexpr uint64_t kChunk = limits::kTransferChunkBytes;

// Runs a PullCore by hand: collects what it asks for.
class PullCoreTest : public testing::Test {
 protected:
  PullId Start(uint64_t size, PeerId peer = kPeer, uint64_t offset = 0) {
    const PullId id(next_pull_++);
    core_.Start(id, peer, {1, id.value()}, offset, memory_, size, [this, id](absl::Status status) {
      ASSERT_FALSE(done_.contains(id));
      done_[id] = status;
    });
    Drain();
    return id;
  }
  void Drain() {
    for (Action& action : core_.TakeActions()) {
      if (auto* a = std::get_if<SendMessage>(&action)) sent_.push_back(a->message);
      if (auto* a = std::get_if<StartReceive>(&action)) receives_.push_back(*a);
      if (auto* a = std::get_if<RejectOffer>(&action)) rejected_.push_back(a->offer);
      if (auto* a = std::get_if<FinishPull>(&action)) a->done(a->status);
    }
  }
  // The source holds the chunk at `offset` ready.
  OfferId Offer(PullId pull, uint64_t offset, uint64_t size, PeerId peer = kPeer) {
    Message m;
    m.type = MessageType::kData;
    m.pull = pull;
    m.offset = offset;
    m.size = size;
    const OfferId offer(next_offer_++);
    core_.OnOffer(peer, m, size, offer);
    Drain();
    return offer;
  }
  void Land(size_t index, absl::Status status = absl::OkStatus()) {
    const ReceiveId id = receives_.at(index).receive;
    receives_.erase(receives_.begin() + static_cast<std::ptrdiff_t>(index));
    core_.OnLanded(id, status);
    Drain();
  }
  uint64_t ReceivingBytes() const {
    uint64_t total = 0;
    for (const StartReceive& r : receives_) total += r.size;
    return total;
  }

  PullCore core_{kSelf};
  char memory_[1] = {};  // addresses are only computed with, never written, here
  uint64_t next_pull_ = 1;
  uint64_t next_offer_ = 1;
  std::vector<Message> sent_;
  std::vector<StartReceive> receives_;
  std::vector<OfferId> rejected_;
  absl::flat_hash_map<PullId, absl::Status> done_;
};

TEST_F(PullCoreTest, AsksForOneChunkUntilTheSourceAnswers) {
  const PullId pull = Start(10 * kChunk, kPeer, 100);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].type, MessageType::kRequest);
  EXPECT_EQ(sent_[0].offset, 100u);
  EXPECT_EQ(sent_[0].size, kChunk);
  EXPECT_EQ(sent_[0].end, 100 + 10 * kChunk);
  Offer(pull, 100, kChunk);
  EXPECT_EQ(sent_.size(), limits::kTransferChunksPerPullMax);
  ASSERT_EQ(receives_.size(), 1u);
  EXPECT_EQ(static_cast<char*>(receives_[0].dst), memory_);
  Land(0);
  EXPECT_EQ(sent_.size(), limits::kTransferChunksPerPullMax + 1);
  EXPECT_TRUE(done_.empty());
}

TEST_F(PullCoreTest, WindowPerPeerAndInAllHolds) {
  std::vector<PullId> pulls;
  // More peers than the whole window feeds.
  const uint64_t peers = limits::kTransferWindowBytesTotal / limits::kTransferWindowBytesPerPeer + 2;
  for (uint64_t p = 0; p < peers; ++p) {
    for (int i = 0; i < 3; ++i) {
      const PullId pull = Start(8 * kChunk, PeerId(10 + p));
      Offer(pull, 0, kChunk, PeerId(10 + p));
      for (uint64_t c = 1; c < 4; ++c) Offer(pull, c * kChunk, kChunk, PeerId(10 + p));
    }
    uint64_t of_peer = 0;
    for (const StartReceive& r : receives_) of_peer += r.peer == PeerId(10 + p) ? r.size : 0;
    EXPECT_LE(of_peer, limits::kTransferWindowBytesPerPeer);
  }
  EXPECT_EQ(ReceivingBytes(), limits::kTransferWindowBytesTotal);
  // As chunks land, every peer gets its turn.
  absl::flat_hash_set<PeerId> served;
  for (int i = 0; i < 200 && !receives_.empty(); ++i) {
    served.insert(receives_[0].peer);
    Land(0);
    ASSERT_LE(ReceivingBytes(), limits::kTransferWindowBytesTotal);
  }
  EXPECT_EQ(served.size(), peers);
  EXPECT_EQ(core_.bytes_fetching(), ReceivingBytes());
}

TEST_F(PullCoreTest, PullsTakeTurns) {
  const PullId a = Start(100 * kChunk);
  const PullId b = Start(100 * kChunk);
  for (uint64_t c = 0; c < 4; ++c) Offer(a, c * kChunk, kChunk);  // fills the window alone
  for (uint64_t c = 0; c < 4; ++c) Offer(b, c * kChunk, kChunk);
  const size_t window = limits::kTransferWindowBytesPerPeer / kChunk;
  ASSERT_EQ(receives_.size(), window);
  Land(0);
  Land(0);
  // What came free went to b: a has nothing ready any more.
  EXPECT_EQ(receives_.size(), window);
  Offer(a, 4 * kChunk, kChunk);
  Offer(a, 5 * kChunk, kChunk);
  std::vector<ReceiveId> before;
  Land(0);
  Land(0);
  EXPECT_EQ(receives_.size(), window);
}

TEST_F(PullCoreTest, SmallPullsPassAFullWindow) {
  const PullId bulk = Start(100 * kChunk);
  for (uint64_t c = 0; c < 4; ++c) Offer(bulk, c * kChunk, kChunk);
  const size_t window = receives_.size();
  const PullId small = Start(limits::kTransferSmallBytesMax);
  Offer(small, 0, limits::kTransferSmallBytesMax);
  ASSERT_EQ(receives_.size(), window + 1);
  Land(window);
  EXPECT_TRUE(done_.at(small).ok());
}

TEST_F(PullCoreTest, CancelIsQuarantinedUntilChunksHaveLanded) {
  const PullId pull = Start(8 * kChunk);
  Offer(pull, 0, kChunk);
  Offer(pull, kChunk, kChunk);
  ASSERT_EQ(receives_.size(), 2u);
  core_.Cancel(pull, absl::AbortedError("stop"));
  Drain();
  EXPECT_TRUE(done_.empty());
  EXPECT_EQ(core_.pulls_quarantined(), 1u);
  EXPECT_EQ(sent_.back().type, MessageType::kForget);
  // What the source had sent already is refused, and inline data has no place to go.
  const OfferId late = Offer(pull, 2 * kChunk, kChunk);
  EXPECT_EQ(rejected_, std::vector<OfferId>{late});
  Message m;
  m.pull = pull;
  m.offset = 3 * kChunk;
  m.size = kChunk;
  void* dst = nullptr;
  EXPECT_FALSE(core_.OnInlineData(kPeer, m, kChunk, &dst));
  Land(0);
  EXPECT_TRUE(done_.empty());
  Land(0, absl::UnavailableError("broken"));
  EXPECT_EQ(done_.at(pull), absl::AbortedError("stop"));
  EXPECT_EQ(core_.pulls_quarantined(), 0u);
  EXPECT_EQ(core_.pulls_open(), 0u);
}

TEST_F(PullCoreTest, UnaskedAndMisshapenDataIsRefused) {
  const PullId pull = Start(100);
  auto inline_data = [&](PeerId peer, PullId id, uint64_t offset, uint64_t size, uint64_t length) {
    Message m;
    m.pull = id;
    m.offset = offset;
    m.size = size;
    void* dst = nullptr;
    return core_.OnInlineData(peer, m, length, &dst);
  };
  EXPECT_FALSE(inline_data(kOther, pull, 0, 100, 100));  // not its pull
  EXPECT_FALSE(inline_data(kPeer, PullId(77), 0, 100, 100));
  EXPECT_FALSE(inline_data(kPeer, pull, 1, 100, 100));
  EXPECT_FALSE(inline_data(kPeer, pull, 0, 101, 101));   // would overflow
  EXPECT_FALSE(inline_data(kPeer, pull, 0, 100, 5000));  // announces less than it brings
  EXPECT_FALSE(inline_data(kPeer, pull, 0, 99, 99));
  EXPECT_TRUE(inline_data(kPeer, pull, 0, 100, 100));
  Offer(pull, 0, 5000);
  Offer(pull, 0, 100, kOther);
  EXPECT_EQ(rejected_.size(), 2u);
  EXPECT_TRUE(receives_.empty());
  Offer(pull, 0, 100);
  Offer(pull, 0, 100);  // a second time
  EXPECT_EQ(receives_.size(), 1u);
  EXPECT_EQ(rejected_.size(), 3u);
}

TEST_F(PullCoreTest, PeerDownEndsItsPullsAndRejectsItsOffers) {
  const PullId receiving = Start(8 * kChunk);
  for (uint64_t c = 0; c < 4; ++c) Offer(receiving, c * kChunk, kChunk);
  const PullId offered = Start(8 * kChunk);
  Offer(offered, 0, kChunk);  // the window is full
  const size_t window = limits::kTransferWindowBytesPerPeer / kChunk;
  ASSERT_EQ(receives_.size(), window);
  const PullId waiting = Start(10);
  const PullId elsewhere = Start(10, kOther);
  core_.OnPeerDown(kPeer, absl::DataLossError("died"));
  Drain();
  EXPECT_EQ(rejected_.size(), 4 - window + 1);  // of both pulls
  EXPECT_EQ(done_.at(offered), absl::DataLossError("died"));
  EXPECT_EQ(done_.at(waiting), absl::DataLossError("died"));
  EXPECT_FALSE(done_.contains(receiving));
  EXPECT_FALSE(done_.contains(elsewhere));
  while (!receives_.empty()) Land(0, absl::UnavailableError("closed"));
  EXPECT_EQ(done_.at(receiving), absl::DataLossError("died"));
  EXPECT_EQ(core_.bytes_fetching(), 0u);
  EXPECT_EQ(core_.pulls_open(), 1u);
}

TEST_F(PullCoreTest, FailedChunkFailsThePull) {
  const PullId pull = Start(3 * kChunk);
  Offer(pull, 0, kChunk);
  Land(0, absl::UnavailableError("broken"));
  EXPECT_EQ(done_.at(pull), absl::UnavailableError("broken"));
}

TEST_F(PullCoreTest, LimitsAreHit) {
  const PullId huge = Start(limits::kTransferBytesMax + 1);
  EXPECT_EQ(done_.at(huge).code(), absl::StatusCode::kInvalidArgument);
  for (size_t i = 0; i < limits::kTransferPullsPerPeerMax; ++i) Start(10);
  const PullId last = Start(10);
  EXPECT_EQ(done_.at(last).code(), absl::StatusCode::kResourceExhausted);
  const PullId other = Start(10, kOther);
  EXPECT_FALSE(done_.contains(other));
}

}  // namespace
}  // namespace landbridge::dataplane
