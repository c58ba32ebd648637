// The rules of the core: donation.
// [n] are the marked sentences of the ordering algorithm: each test is the counterexample that found the sentence, cut
// down to one worker.
#include "worker/worker_core.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/worker_core_fixture_test_util.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// ---------------------------------------------------------------- donation

// Rule (c) and [1] on one worker: the reader that is not in the log yet comes before the donor, on each device.
TEST_F(WorkerCoreTest, ReaderBeforeDonor) {
  Load(1, {{100, 100}, {100}});
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  EXPECT_THAT(Op(LaunchOp(3, 1, {1, 2}, {3})), IsEmpty());         // reads a1, waits for a2
  EXPECT_THAT(Op(LaunchOp(4, 2, {1}, {4}, {0}, {0})), IsEmpty());  // donates a1
  EXPECT_EQ(Explain()["launches"][1]["waits_for"][0]["what"], "readers");
  EXPECT_THAT(UploadDone(2), ElementsAre("HandOver t3 @1", "HandOver t4 @2"));
}

TEST_F(WorkerCoreTest, WithdrawnReaderLetsTheDonorGo) {
  Load(1, {{100, 100}, {100}});
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  Op(LaunchOp(3, 1, {1, 2}, {3}));
  Op(LaunchOp(4, 2, {1}, {4}, {0}, {0}));
  EXPECT_THAT(UploadDone(2, absl::DataLossError("gone")), ElementsAre("Free a2.0", "HandOver t4 @1"));
}

TEST_F(WorkerCoreTest, DonorWaitsForTransfersOfItsInput) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(PublishOp(2, 60, 1, 0, 9)), ElementsAre("StartPublish tr60"));
  EXPECT_THAT(Op(LaunchOp(3, 2, {1}, {3}, {0}, {0})), ElementsAre("SnapshotPublish tr60"));
  EXPECT_THAT(Op(UnpublishOp(60)), ElementsAre("StopPublish tr60"));  // the peer was quicker than the copy
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t3 @1"));
  core_->OnPublishQuiet(TransferId(60), ++now_);  // of the copy, too late: nobody minds
  EXPECT_EQ(core_->counts().transfers, 0u);
  EXPECT_EQ(core_->counts().send_snapshots, 0u);
}

TEST_F(WorkerCoreTest, DonorGoesWhenItsInputIsSentFromACopy) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  Op(PublishOp(2, 60, 1, 0, 9));
  Op(PublishOp(2, 61, 1, 0, 9));
  EXPECT_THAT(Op(LaunchOp(3, 2, {1}, {3}, {0}, {0})), ElementsAre("SnapshotPublish tr60", "SnapshotPublish tr61"));
  core_->OnPublishQuiet(TransferId(61), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), IsEmpty());  // the other one still reads it
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t3 @1"));
  EXPECT_EQ(core_->counts().send_snapshots, 2u);
  EXPECT_EQ(core_->counts().transfers, 2u);  // they go on
  EXPECT_THAT(Done(3), ElementsAre("Free a1.0"));
  EXPECT_THAT(Op(UnpublishOp(60)), ElementsAre("StopPublish tr60"));
  EXPECT_THAT(Op(PeerLostOp(9)), ElementsAre("StopPublish tr61", "PeerLost i9"));
  EXPECT_EQ(core_->counts().transfers, 0u);
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_EQ(core_->counts().anomalies, 0u);
}

TEST_F(WorkerCoreTest, ASendThatStartsWhenItsDonorWaitsIsToldSo) {
  Load(2, {{100}, {100}});
  Op(UploadOp(1, 1, 100));
  EXPECT_THAT(Op(PublishOp(2, 60, 1, 0, 9)), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(3, 2, {1}, {3}, {0}, {0})), IsEmpty());
  EXPECT_THAT(UploadDone(1), ElementsAre("StartPublish tr60", "SnapshotPublish tr60"));
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t3 @1"));
}

TEST_F(WorkerCoreTest, QuietWithoutADonorChangesNothing) {
  Resident(1, 1, 100);
  Op(PublishOp(2, 60, 1, 0, 9));
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_EQ(core_->counts().send_snapshots, 0u);
  EXPECT_THAT(Op(UnpublishOp(60)), ElementsAre("StopPublish tr60"));
  EXPECT_EQ(core_->counts().transfers, 1u);
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_EQ(core_->counts().transfers, 0u);
}

TEST_F(WorkerCoreTest, DonorWaitsForLocalMakeThatReads) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  WorkerOp make = MakeOp(2);
  AddLocal(AddPart(&make, 2, 0, 1, 100), 1, 0);
  EXPECT_THAT(Op(make), ElementsAre("StartMake t2/0"));
  EXPECT_THAT(Op(LaunchOp(3, 2, {1}, {3}, {0}, {0})), IsEmpty());
  EXPECT_THAT(MakeDone(2, 0), ElementsAre("HandOver t3 @1"));
}

TEST_F(WorkerCoreTest, OpenReadIsAskedForASnapshot) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(ReadOp(5, 1)), ElementsAre("StartRead 5"));
  EXPECT_THAT(Op(LaunchOp(3, 2, {1}, {3}, {0}, {0})), ElementsAre("SnapshotRead 5"));
  core_->OnReadQuiet(5, ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t3 @1"));
  core_->OnReadDone(5, absl::OkStatus(), "", true, ++now_);
  EXPECT_THAT(Reports(), ElementsAre("ReadReady 5 OK published"));
  EXPECT_THAT(Op(ReleaseReadOp(5)), ElementsAre("StopRead 5"));
  EXPECT_EQ(core_->counts().reads, 0u);
}

TEST_F(WorkerCoreTest, WaitingReadStartsWithASnapshotWhenADonorWaits) {
  Load(1, {{}, {100}});
  Load(2, {{100}, {100}});
  EXPECT_THAT(Op(LaunchOp(1, 1, {}, {1})), ElementsAre("HandOver t1 @1"));
  EXPECT_THAT(Op(ReadOp(5, 1)), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(3, 2, {1}, {3}, {0}, {0})), IsEmpty());
  EXPECT_THAT(Done(1), ElementsAre("StartRead 5 snapshot"));
  core_->OnReadDone(5, absl::OkStatus(), "bytes", false, ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t3 @2"));
  EXPECT_THAT(Reports(), ElementsAre("ReadReady 5 OK", "Progress e1 @1 t1"));
}

TEST_F(WorkerCoreTest, UseAfterDonationIsAnError) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(3, 2, {1}, {3}, {0}, {0}));
  EXPECT_THAT(Op(LaunchOp(4, 2, {1}, {4})), IsEmpty());
  Op(ReadOp(5, 1));
  EXPECT_THAT(Reports(), ElementsAre("Failed a4.0 INVALID_ARGUMENT root=t4 uc=1004", "ReadReady 5 INVALID_ARGUMENT",
                                     "Progress e1 @0 t4"));
}

// The plugin answers this clash with an error after part of the gang may have begun.
TEST_F(WorkerCoreTest, DonatingWhatIsReadBesidesIsRefused) {
  Load(1, {{100, 100}, {100}});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(LaunchOp(3, 1, {1, 1}, {3}, {0}, {1})), ElementsAre("Free a1.0"));
  EXPECT_THAT(Reports(), ElementsAre("Failed a3.0 INVALID_ARGUMENT root=t3 uc=1003", "Progress e1 @0 t3"));
  EXPECT_EQ(Used(), 0);
}

TEST_F(WorkerCoreTest, DonatedInputIsFreedAfterTheLaunch) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(3, 2, {1}, {3}, {0}, {0}));
  EXPECT_THAT(Done(3), ElementsAre("Free a1.0"));
  EXPECT_EQ(core_->counts().buffers, 1u);
  EXPECT_EQ(Used(), 100);
  const size_t anomalies = core_->counts().anomalies;
  EXPECT_THAT(Op(DeleteOp({1})), IsEmpty());  // the controller's own delete of it does no harm
  EXPECT_EQ(core_->counts().anomalies, anomalies + 1);
}

TEST_F(WorkerCoreTest, DonatedInputOfAFailedLaunchIsLost) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(3, 2, {1}, {3}, {0}, {0}));
  EXPECT_THAT(Done(3, absl::InvalidArgumentError("bad")), ElementsAre("Free a1.0", "Free a3.0"));
  EXPECT_EQ(Used(), 0);
}

TEST_F(WorkerCoreTest, DonatingMakeWaitsUntilNobodyElseNeedsTheSource) {
  Load(2, {{100}, {100}});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(LaunchOp(2, 2, {1}, {2})), ElementsAre("HandOver t2 @1"));
  WorkerOp make = MakeOp(3);
  AddLocal(AddPart(&make, 3, 0, 0, 100), 1, 0, true);
  EXPECT_THAT(Op(make), IsEmpty());  // placed is not enough: a make is not in the device's order
  EXPECT_THAT(Done(2), ElementsAre("StartMake t3/0"));
  EXPECT_THAT(MakeDone(3, 0), ElementsAre("Free a1.0"));
}

}  // namespace
}  // namespace landbridge
