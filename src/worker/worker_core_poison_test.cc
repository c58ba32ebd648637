// The rules of the core: poison.
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

// ---------------------------------------------------------------- poison

TEST_F(WorkerCoreTest, PoisonSpreadsWithItsRoot) {
  Load(1, {{100}, {100}});
  Load(2, {{100, 100}, {100, 100}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  EXPECT_THAT(Op(LaunchOp(3, 1, {2}, {3})), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(4, 2, {1, 3}, {4, 5})), IsEmpty());
  EXPECT_THAT(Op(WatchOp(6, {1, 5})), IsEmpty());
  EXPECT_THAT(Op(ReadOp(7, 4)), IsEmpty());
  EXPECT_THAT(Op(PublishOp(8, 60, 5, 0, 9)), IsEmpty());
  WorkerOp make = MakeOp(9);
  AddLocal(AddPart(&make, 9, 0, 1, 200), 4, 0);
  AddRemote(make.mutable_make()->mutable_buffers(0), 61, 9);
  EXPECT_THAT(Op(make), IsEmpty());
  EXPECT_THAT(UploadDone(2, absl::DataLossError("lost")), ElementsAre("Free a2.0", "FailPublish tr60 DATA_LOSS"));
  const Strings reports = Reports();
  EXPECT_THAT(reports,
              ::testing::UnorderedElementsAre(
                  "Failed a2.0 DATA_LOSS root=t2 uc=1002", "Failed a3.0 DATA_LOSS root=t2 uc=1002",
                  "Failed a4.0,a5.0 DATA_LOSS root=t2 uc=1002", "ReadReady 7 DATA_LOSS root=t2 uc=1002",
                  "Watched 6 DATA_LOSS root=t2 uc=1002", "Failed a9.0 DATA_LOSS root=t2 uc=1002",
                  "TransfersDone 61 DATA_LOSS root=t2 uc=1002", "UploadsDone 2", "Progress e1 @0 t2,t3,t4,t9"));
  EXPECT_EQ(reports.back(), "Progress e1 @0 t2,t3,t4,t9");
  // Whoever comes later finds the error.
  Op(LaunchOp(10, 1, {5}, {10}));
  Op(ReadOp(11, 10));
  EXPECT_THAT(Op(PublishOp(12, 62, 10, 0, 9)), ElementsAre("FailPublish tr62 DATA_LOSS"));
  EXPECT_THAT(Reports(), ElementsAre("Failed a10.0 DATA_LOSS root=t2 uc=1002", "ReadReady 11 DATA_LOSS root=t2 uc=1002",
                                     "Progress e1 @0 t10"));
  Op(UnpublishOp(60));
  Op(UnpublishOp(62));
  Op(DeleteOp({1, 2, 3, 4, 5, 9, 10}));
  EXPECT_EQ(core_->counts().buffers, 0u);
  EXPECT_EQ(core_->counts().transfers, 0u);
}

TEST_F(WorkerCoreTest, PoisonedByTheController) {
  Load(1, {{100}, {100}});
  WorkerOp poison;
  poison.mutable_poison()->set_ticket(1);
  SetTarget(poison.mutable_poison()->add_targets(), 1, 0, 0);
  *poison.mutable_poison()->mutable_why() = Why(absl::StatusCode::kDataLoss, "slice1 was lost");
  poison.mutable_poison()->mutable_why()->set_root_ticket(44);
  Op(poison);
  Op(LaunchOp(2, 1, {1}, {2}));
  EXPECT_THAT(Reports(), ElementsAre("Failed a2.0 DATA_LOSS root=t44", "Progress e1 @0 t2"));
}

// [5] on one worker: from the moment an input is known to be bad, nothing that was made from it is offered, read or
// used, although the consumer was handed over and its own completion says that all is well.
TEST_F(WorkerCoreTest, NothingMadeFromABadInputIsEverShown) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(2, 1, {1}, {2}));
  EXPECT_THAT(Op(LaunchOp(3, 1, {2}, {3})), ElementsAre("HandOver t3 @2"));
  Op(PublishOp(4, 60, 3, 0, 9));
  Op(ReadOp(5, 3));
  EXPECT_THAT(Done(3), IsEmpty());  // completions may come in any order
  EXPECT_THAT(Reports(), IsEmpty());
  EXPECT_THAT(Done(2, absl::InvalidArgumentError("bad")),
              ElementsAre("Free a2.0", "Free a3.0", "FailPublish tr60 INVALID_ARGUMENT"));
  EXPECT_THAT(Reports(), ElementsAre("Failed a2.0 INVALID_ARGUMENT root=t2 uc=1002",
                                     "Failed a3.0 INVALID_ARGUMENT root=t2 uc=1002",
                                     "ReadReady 5 INVALID_ARGUMENT root=t2 uc=1002", "Progress e1 @2 t2,t3"));
}

// t3 has failed, but is not looked at before t2, which may be the cause. Meanwhile nothing may be handed over with what
// it made: neither a launch that comes now nor one that was runnable already. A gang would hang with an error inside.
TEST_F(WorkerCoreTest, NothingIsHandedOverWithAnInputThatIsInDoubt) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(2, 1, {1}, {2}));
  Op(LaunchOp(3, 1, {1}, {3}));
  EXPECT_THAT(Op(LaunchOp(4, 1, {3}, {4})), IsEmpty());  // runnable, no room
  EXPECT_EQ(Explain()["launches"][2]["state"], "runnable");
  EXPECT_THAT(Done(3, absl::InvalidArgumentError("bad")), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(5, 1, {3}, {5})), IsEmpty());
  EXPECT_EQ(Explain()["launches"][2]["waits_for"][0]["ref"], "a3.0");
  EXPECT_THAT(Done(2), ElementsAre("Free a3.0"));
  EXPECT_THAT(Reports(), ElementsAre("Failed a3.0 INVALID_ARGUMENT root=t3 uc=1003",
                                     "Failed a4.0 INVALID_ARGUMENT root=t3 uc=1003",
                                     "Failed a5.0 INVALID_ARGUMENT root=t3 uc=1003", "Progress e1 @2 t2,t3,t4,t5"));
}

// The plugin's own text for a bad input ("Error dispatching computation") never replaces the first error.
TEST_F(WorkerCoreTest, TheFirstErrorWins) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(2, 1, {1}, {2}));
  Op(LaunchOp(3, 1, {2}, {3}));
  Done(3, absl::InvalidArgumentError("Error dispatching computation"));
  Done(2, absl::ResourceExhaustedError("no memory"));
  EXPECT_THAT(Reports(), ElementsAre("Failed a2.0 RESOURCE_EXHAUSTED root=t2 uc=1002",
                                     "Failed a3.0 RESOURCE_EXHAUSTED root=t2 uc=1002", "Progress e1 @2 t2,t3"));
}

// [4] A launch that has finished is done, not withdrawn: what fails afterwards does not take its results away.
TEST_F(WorkerCoreTest, FinishedLaunchStaysFinished) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(2, 1, {1}, {2}));
  Op(LaunchOp(3, 1, {2}, {3}));
  Done(2);
  Op(CancelSessionOp(2));  // somebody else's
  Done(3, absl::InvalidArgumentError("bad"));
  Reports();
  EXPECT_THAT(Op(ReadOp(5, 2)), ElementsAre("StartRead 5"));
}

// [8] A withdrawn launch gives back memory and reader edges.
TEST_F(SmallMemoryTest, WithdrawnLaunchReleasesMemoryAndReaderEdges) {
  Load(1, {{100, 100}, {700}});
  Load(2, {{100}, {100}});
  Load(3, {{}, {600}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  Op(LaunchOp(3, 1, {1, 2}, {3}));                      // reserves 700, reads a1
  Op(LaunchOp(4, 2, {1}, {4}, {0}, {0}));               // donates a1
  EXPECT_THAT(Op(LaunchOp(5, 3, {}, {5})), IsEmpty());  // no room
  EXPECT_THAT(UploadDone(2, absl::DataLossError("lost")), ElementsAre("Free a2.0", "HandOver t4 @1", "HandOver t5 @2"));
}

// [8] ... and cancels the pulls of what only it would have used: the controller knows who else needs them, so here
// it is the session's end that cancels.
TEST_F(WorkerCoreTest, CancelSessionWithdrawsAndFrees) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  WorkerOp make = MakeOp(3);
  AddRemote(AddPart(&make, 3, 0, 0, 100), 61, 9);
  Op(make);
  Op(LaunchOp(4, 1, {1}, {4}));
  Op(LaunchOp(5, 1, {2}, {5}));
  Op(ReadOp(6, 1));
  Resident(7, 7, 100, {0}, 2);
  EXPECT_THAT(Op(CancelSessionOp(1)),
              ElementsAre("StopRead 6", "CancelUpload k2 CANCELLED", "CancelMake t3/0 CANCELLED"));
  EXPECT_THAT(Reports(), ElementsAre("ReadReady 6 CANCELLED", "Failed a5.0 CANCELLED", "Progress e1 @0 t5"));
  core_->OnReadQuiet(6, ++now_);
  EXPECT_THAT(sink_.TakeCalls(), IsEmpty());  // t4 still uses a1
  EXPECT_THAT(Done(4), ElementsAre("Free a1.0", "Free a4.0"));
  EXPECT_THAT(UploadDone(2, absl::CancelledError("")), ElementsAre("Free a2.0"));
  EXPECT_THAT(MakeDone(3, 0), ElementsAre("Free a3.0"));  // it had just come
  EXPECT_EQ(core_->counts().buffers, 1u);
  EXPECT_EQ(core_->counts().launches + core_->counts().uploads + core_->counts().reads + core_->counts().transfers, 0u);
  EXPECT_EQ(Used(), 100);
}

TEST_F(WorkerCoreTest, LostPeerEndsWhatItTookPartIn) {
  Resident(1, 1, 100);
  Op(PublishOp(2, 60, 1, 0, 9));
  Op(PublishOp(3, 61, 1, 0, 8));
  WorkerOp make = MakeOp(4);
  AddRemote(AddPart(&make, 4, 0, 0, 100), 62, 9);
  AddRemote(AddPart(&make, 4, 1, 0, 100), 63, 8);
  Op(make);
  EXPECT_THAT(Op(PeerLostOp(9)), ElementsAre("CancelMake t4/0 DATA_LOSS", "StopPublish tr60", "PeerLost i9"));
  MakeDone(4, 0, absl::UnavailableError("connection reset"));
  MakeDone(4, 1);
  EXPECT_THAT(Reports(),
              ElementsAre("TransfersDone 62 DATA_LOSS root=t4 uc=1004", "Failed a4.0 DATA_LOSS root=t4 uc=1004",
                          "TransfersDone 63 OK", "Progress e1 @0 t4"));
}

}  // namespace
}  // namespace landbridge
