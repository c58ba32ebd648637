#include "worker/shell/holder_stream.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/core_test_util.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class HolderStreamTest : public ::testing::Test {
 protected:
  HolderStreamTest() : stream_(MakeCallbacks(true)) {
    WorkerLimits limits;
    limits.device_bytes = {1 << 20};
    core_ = std::make_unique<WorkerCore>(Incarnation(7), limits, &sink_);
    EXPECT_TRUE(stream_.Resume(0).ok());
  }
  HolderStream::Callbacks MakeCallbacks(bool in_turns) {
    HolderStream::Callbacks callbacks;
    callbacks.send = [this](const std::string& payload) {
      ControlFrame frame;
      EXPECT_TRUE(frame.ParseFromString(payload));
      acks_.push_back(frame.ack());
      return true;
    };
    callbacks.on_heartbeat = [this](int64_t) {
      ++heartbeats_;
      return true;
    };
    if (in_turns) callbacks.left_over = [this] { ++left_over_; };
    return callbacks;
  }
  // Deletes of `arrays` arrays that nobody knows: the core counts each one.
  static ControlFrame Deletes(uint64_t first, int ops, int arrays) {
    ControlFrame frame;
    frame.set_first_seq(first);
    for (int i = 0; i < ops; ++i) {
      WorkerOp op;
      for (int a = 0; a < arrays; ++a) op.mutable_delete_()->add_arrays(static_cast<uint64_t>(a) + 1);
      *frame.add_ops() = op;
    }
    return frame;
  }
  absl::Status Take(const ControlFrame& frame) { return stream_.OnFrame(frame.SerializeAsString(), *core_, kSecond); }
  size_t deleted() const { return core_->counts().anomalies; }
  std::vector<uint64_t> AcksOfAHeartbeat() {
    stream_.SendHeartbeat(Heartbeat(), kSecond);
    return std::exchange(acks_, {});
  }

  std::vector<uint64_t> acks_;
  int heartbeats_ = 0, left_over_ = 0;
  RecordingSink sink_;
  std::unique_ptr<WorkerCore> core_;
  HolderStream stream_;
};

// A frame may end hundreds of thousands of arrays; the heartbeat behind it is seen before they are gone, and what is not
// applied is not acknowledged.
TEST_F(HolderStreamTest, HeartbeatsDoNotWaitForOps) {
  constexpr auto kPerTurn = static_cast<size_t>(limits::kOpsPerTurn);
  ASSERT_TRUE(Take(Deletes(1, 5, limits::kOpsPerTurn - 1)).ok());
  EXPECT_EQ(deleted(), kPerTurn - 1);
  EXPECT_EQ(left_over_, 1);
  ControlFrame beat = Deletes(6, 1, 1);
  beat.mutable_heartbeat()->set_number(1);
  ASSERT_TRUE(Take(beat).ok());
  EXPECT_EQ(heartbeats_, 1);
  EXPECT_EQ(deleted(), kPerTurn - 1);  // in its turn
  EXPECT_EQ(left_over_, 1);
  EXPECT_THAT(AcksOfAHeartbeat(), ElementsAre(1));
  EXPECT_EQ(stream_.received_ops(), 6u);  // nothing is sent again when the connection breaks
  for (int turn = 2; turn <= 5; ++turn) {
    stream_.ApplyMore(*core_, kSecond);
    EXPECT_EQ(deleted(), static_cast<size_t>(turn) * (kPerTurn - 1));
    EXPECT_EQ(left_over_, turn);
  }
  stream_.ApplyMore(*core_, kSecond);
  EXPECT_EQ(deleted(), 5 * (kPerTurn - 1) + 1);
  EXPECT_EQ(left_over_, 5);
  EXPECT_THAT(AcksOfAHeartbeat(), ElementsAre(6));
}

TEST_F(HolderStreamTest, ManySmallOpsAreOneTurn) {
  ASSERT_TRUE(Take(Deletes(1, static_cast<int>(limits::kOpsPerTurn) / 2, 1)).ok());
  EXPECT_EQ(left_over_, 0);
  EXPECT_THAT(AcksOfAHeartbeat(), ElementsAre(static_cast<uint64_t>(limits::kOpsPerTurn) / 2));
}

TEST_F(HolderStreamTest, NothingIsAppliedAfterTheGrant) {
  ASSERT_TRUE(Take(Deletes(1, 3, limits::kOpsPerTurn)).ok());
  stream_.Fence();
  stream_.ApplyMore(*core_, kSecond);
  EXPECT_EQ(deleted(), static_cast<size_t>(limits::kOpsPerTurn));
  EXPECT_THAT(AcksOfAHeartbeat(), IsEmpty());
}

TEST_F(HolderStreamTest, WithoutTurnsAFrameIsAppliedAtOnce) {
  HolderStream whole(MakeCallbacks(false));
  ASSERT_TRUE(whole.Resume(0).ok());
  ASSERT_TRUE(whole.OnFrame(Deletes(1, 3, limits::kOpsPerTurn).SerializeAsString(), *core_, kSecond).ok());
  EXPECT_EQ(deleted(), 3u * static_cast<size_t>(limits::kOpsPerTurn));
  EXPECT_EQ(left_over_, 0);
}

}  // namespace
}  // namespace landbridge
