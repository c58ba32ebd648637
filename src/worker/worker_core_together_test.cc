// The rules of the core: shards that one launch makes are one buffer until somebody names one of them alone.
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/worker_core.h"
#include "worker/worker_core_fixture_test_util.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<uint32_t> kBoth = {0, 1};

WorkerOp DeleteShardOp(uint64_t array, uint32_t shard) {
  WorkerOp op;
  BufferRefProto* ref = op.mutable_delete_()->add_shards();
  ref->set_array(array);
  ref->set_shard(shard);
  return op;
}

class TogetherTest : public WorkerCoreTest {
 protected:
  void SetUp() override {
    Load(1, {{}, {100}, kBoth});
    Load(2, {{100}, {100}, kBoth});
    Load(3, {{100, 100}, {100}, kBoth, 0, /*can_fail_on_one_shard=*/true});
  }
};

TEST_F(TogetherTest, WhoeverWaitsGoesOnWaitingForEachPart) {
  Op(LaunchOp(1, 3, {9, 9}, {1}, kBoth));  // a9 is unknown: an error
  Op(LaunchOp(2, 1, {}, {2}, kBoth));
  Op(LaunchOp(3, 3, {2, 2}, {3}, kBoth));                       // can fail on one shard alone:
  EXPECT_THAT(Op(LaunchOp(4, 2, {3}, {4}, kBoth)), IsEmpty());  // waits until t3 is done
  Op(WatchOp(50, {3}));                                         // so does this
  EXPECT_THAT(Op(ReadOp(60, 3, 1)), IsEmpty());                 // names one shard of a3
  EXPECT_THAT(Op(DeleteShardOp(2, 0)), IsEmpty());              // t3 still uses it
  EXPECT_EQ(core_->counts().buffers, 8u);
  EXPECT_EQ(Explain()["launches"].size(), 3u);
  EXPECT_THAT(Done(2), IsEmpty());
  Reports();
  EXPECT_THAT(Done(3), ElementsAre("Free a2.0", "StartRead 60", "HandOver t4 @3"));
  EXPECT_THAT(Reports(), ElementsAre("Watched 50 OK", "Progress e1 @2 t3"));
  Done(4);
  EXPECT_THAT(Op(DeleteOp({2, 3, 4})), ElementsAre("Free a2.1", "Free a3.0", "Free a4.0", "Free a4.1"));
  core_->OnReadDone(60, absl::OkStatus(), "bytes", false, ++now_);
  EXPECT_EQ(core_->counts().buffers, 2u);  // the errors of a1
  EXPECT_EQ(core_->counts().anomalies, 0u);
  EXPECT_EQ(Used(0) + Used(1), 0);
}

TEST_F(TogetherTest, AnErrorReachesEveryPartOnce) {
  Op(LaunchOp(1, 1, {}, {1}, kBoth));
  Op(LaunchOp(2, 2, {1}, {2}, kBoth));  // behind t1 on both devices
  Op(ReadOp(60, 1, 0));
  Op(ReadOp(61, 2, 1));
  Done(1, absl::InternalError("broken"));
  EXPECT_THAT(Reports(), ElementsAre("Failed a1.0,a1.1 INTERNAL root=t1 uc=1001",
                                     "ReadReady 60 INTERNAL root=t1 uc=1001", "Progress e1 @1 t1"));
  Done(2);
  EXPECT_THAT(Reports(), ElementsAre("Failed a2.0,a2.1 INTERNAL root=t1 uc=1001",
                                     "ReadReady 61 INTERNAL root=t1 uc=1001", "Progress e1 @2 t2"));
  Op(DeleteOp({1, 2}));
  EXPECT_EQ(core_->counts().buffers, 0u);
  EXPECT_EQ(Used(0) + Used(1), 0);
}

TEST_F(TogetherTest, ADonorWaitsForTheReadersOfEachPart) {
  Op(LaunchOp(1, 1, {}, {1}, kBoth));
  Done(1);
  Op(UploadOp(2, 2, 100, kBoth));
  EXPECT_THAT(Op(LaunchOp(3, 3, {1, 2}, {3}, kBoth)), IsEmpty());    // reads a1, waits for a2
  EXPECT_THAT(Op(LaunchOp(4, 2, {1}, {4}, kBoth, {0})), IsEmpty());  // takes a1, waits for t3
  EXPECT_THAT(Op(LaunchOp(5, 2, {1}, {5}, kBoth)), IsEmpty());       // too late: refused
  EXPECT_THAT(Op(DeleteShardOp(1, 1)), IsEmpty());                   // separates what t4 has been promised
  EXPECT_EQ(Explain()["launches"][1]["waits_for"].size(), 2u);
  EXPECT_THAT(UploadDone(2), ElementsAre("HandOver t3 @2", "HandOver t4 @3"));
  Done(3);
  EXPECT_THAT(Done(4), ElementsAre("Free a1.0", "Free a1.1"));
}

TEST_F(TogetherTest, PartsServeLaunchesOfOneDevice) {
  Load(4, {{100}, {100}, {1}});
  Op(LaunchOp(1, 1, {}, {1}, kBoth));
  WorkerOp one = LaunchOp(2, 4, {0}, {2}, {1});
  BufferRefProto* shard = one.mutable_launch()->mutable_args(0)->add_shards();
  shard->set_array(1);
  shard->set_shard(1);
  EXPECT_THAT(Op(std::move(one)), ElementsAre("HandOver t2 @2"));
  // The same array as a whole and by its shards in one launch.
  WorkerOp mixed = LaunchOp(3, 3, {1, 0}, {3}, kBoth);
  for (uint32_t i : kBoth) {
    shard = mixed.mutable_launch()->mutable_args(1)->add_shards();
    shard->set_array(1);
    shard->set_shard(i);
  }
  Done(1);
  Done(2);
  EXPECT_THAT(Op(std::move(mixed)), ElementsAre("HandOver t3 @3"));
  EXPECT_THAT(Op(DeleteOp({1})), IsEmpty());
  EXPECT_THAT(Done(3), ElementsAre("Free a1.0", "Free a1.1"));
}

}  // namespace
}  // namespace landbridge
