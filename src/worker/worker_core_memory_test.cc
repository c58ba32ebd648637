// The rules of the core: admission of memory.
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
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---------------------------------------------------------------- memory

// [2] t3 needs 600 of 1000 and waits; t4 needs 100 and would fit, but then t3 might never.
TEST_F(SmallMemoryTest, YoungerLaunchNeverReservesPastAnOlderOne) {
  Load(1, {{}, {500}});
  Load(2, {{}, {600}});
  Load(3, {{}, {100}});
  EXPECT_THAT(Op(LaunchOp(1, 1, {}, {1})), ElementsAre("HandOver t1 @1"));
  EXPECT_THAT(Op(LaunchOp(3, 2, {}, {3})), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(4, 3, {}, {4})), IsEmpty());
  const auto launches = Explain()["launches"];
  EXPECT_EQ(launches[1]["waits_for"][0]["what"], "memory");
  EXPECT_EQ(launches[1]["waits_for"][0]["bytes"], 600);
  EXPECT_EQ(launches[2]["waits_for"][0]["behind"], "t3");
  Op(DeleteOp({1}));
  EXPECT_THAT(Done(1), ElementsAre("Free a1.0", "HandOver t3 @2", "HandOver t4 @3"));
}

// It makes nothing that could carry the error, and somebody may wait for it.
TEST_F(SmallMemoryTest, AFailureOfALaunchWithoutOutputsIsTold) {
  Load(1, {{}, {}});
  EXPECT_THAT(Op(LaunchOp(1, 1, {}, {})), ElementsAre("HandOver t1 @1"));
  core_->OnLaunchDone(Ticket(1), absl::InvalidArgumentError("its callback raised"), 0, 0);
  core_->Flush();
  ASSERT_EQ(sink_.reports.size(), 2u);
  EXPECT_EQ(sink_.reports[0].failed().refs_size(), 0);
  EXPECT_EQ(sink_.reports[0].failed().status().root_ticket(), 1u);
  EXPECT_EQ(sink_.reports[0].failed().status().message(), "its callback raised");
  EXPECT_THAT(sink_.reports[1].progress().tickets(), ElementsAre(1));
}

// A device's figures, as they are now.
TEST_F(SmallMemoryTest, TellsTheMemoryOfItsDevices) {
  Load(1, {{}, {500}});
  Op(LaunchOp(1, 1, {}, {1}));
  WorkerOp ask;
  ask.mutable_ask_memory()->set_request(7);
  Op(ask);
  core_->Flush();
  ASSERT_FALSE(sink_.reports.empty());
  const MemoryUse& use = sink_.reports.back().memory_use();
  EXPECT_EQ(use.request(), 7u);
  ASSERT_GE(use.devices_size(), 1);
  EXPECT_EQ(use.devices(0).bytes_in_use(), 500);
  EXPECT_EQ(use.devices(0).bytes_limit(), 1000);
}

// Uploads and makes stand in the same line.
TEST_F(SmallMemoryTest, UploadsAndMakesCarryTicketsToo) {
  Load(1, {{}, {800}});
  EXPECT_THAT(Op(LaunchOp(1, 1, {}, {1})), ElementsAre("HandOver t1 @1"));
  EXPECT_THAT(Op(UploadOp(2, 2, 300, {0}, false)), IsEmpty());
  WorkerOp make = MakeOp(3);
  AddRemote(AddPart(&make, 3, 0, 0, 100), 70, 9);
  EXPECT_THAT(Op(make), IsEmpty());
  EXPECT_THAT(Op(UploadDataOp(2, std::string(300, 'x'))), IsEmpty());  // kept until there is memory
  Op(DeleteOp({1}));
  EXPECT_THAT(Done(1), ElementsAre("Free a1.0", "StartUpload k2", "UploadBytes k2 300", "StartMake t3/0"));
}

TEST_F(SmallMemoryTest, WhatCannotFitAfterAllEarlierWorkFails) {
  Load(1, {{}, {500}});
  Load(2, {{}, {600}});
  Op(LaunchOp(1, 1, {}, {1}));
  EXPECT_THAT(Op(LaunchOp(2, 2, {}, {2})), IsEmpty());
  EXPECT_THAT(Reports(), IsEmpty());  // a1 might still be deleted by then
  Done(1);
  EXPECT_THAT(Reports(), ElementsAre("Failed a2.0 RESOURCE_EXHAUSTED root=t2 uc=1002", "Progress e1 @1 t1,t2"));
  EXPECT_EQ(Used(), 500);
}

TEST_F(SmallMemoryTest, ErrorNamesDeviceRequestUseAndLimit) {
  Load(1, {{}, {500}});
  Op(LaunchOp(1, 1, {}, {1}));
  Done(1);
  Reports();
  Op(UploadOp(2, 2, 600));
  ASSERT_EQ(sink_.reports.size(), 1u);
  EXPECT_THAT(sink_.reports[0].failed().status().message(),
              HasSubstr("t2 needs 600 bytes on device 0: 500 of 1000 bytes are in use"));
  Reports();
  Op(UploadOp(3, 3, 2000, {1}));
  EXPECT_THAT(Reports(),
              ElementsAre("Failed a3.0 RESOURCE_EXHAUSTED root=t3 uc=1003", "UploadsDone 3", "Progress e1 @1 t3"));
}

// A deleted array that an older transfer or an open read still holds will be free some day: wait. One that only a
// younger transfer holds may wait for us: fail.
TEST_F(SmallMemoryTest, WaitsForOlderTransfersAndOpenReads) {
  Load(2, {{}, {600}});
  Resident(1, 1, 500);
  Op(PublishOp(2, 60, 1, 0, 9));
  Op(ReadOp(5, 1));
  Op(DeleteOp({1}));
  EXPECT_THAT(Op(LaunchOp(3, 2, {}, {3})), IsEmpty());
  EXPECT_THAT(Reports(), IsEmpty());
  Op(UnpublishOp(60));
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_THAT(Reports(), IsEmpty());
  core_->OnReadDone(5, absl::OkStatus(), "x", false, ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("Free a1.0", "HandOver t3 @1"));
}

TEST_F(SmallMemoryTest, DoesNotWaitForYoungerTransfers) {
  Load(2, {{}, {600}});
  Op(UploadOp(1, 1, 500));
  Op(LaunchOp(3, 2, {}, {3}));
  Op(PublishOp(4, 60, 1, 0, 9));
  Op(DeleteOp({1}));
  EXPECT_THAT(UploadDone(1), ElementsAre("StartPublish tr60"));
  EXPECT_THAT(Reports(),
              ElementsAre("Failed a3.0 RESOURCE_EXHAUSTED root=t3 uc=1003", "UploadsDone 1", "Progress e1 @0 t1,t3"));
}

// A training loop that donates its state needs the state once, however far ahead it is dispatched.
TEST_F(SmallMemoryTest, DonatedTrainingLoopStaysFlat) {
  Load(1, {{600}, {600}, {0}, 50});
  Resident(1, 100, 600);
  for (uint64_t step = 0; step < 8; ++step) {
    Op(LaunchOp(10 + step, 1, {100 + step}, {101 + step}, {0}, {0}));
  }
  EXPECT_EQ(Used(), 600 + 8 * 50);  // only the scratch memory is reserved per launch
  for (uint64_t step = 0; step < 8; ++step) {
    Done(10 + step);
    EXPECT_EQ(Used(), 600 + (7 - static_cast<int64_t>(step)) * 50);
  }
  EXPECT_EQ(core_->counts().buffers, 1u);
}

TEST_F(SmallMemoryTest, DonationThatCoversLessThanTheOutputs) {
  Load(1, {{100}, {300}});
  Resident(1, 1, 100);
  Op(LaunchOp(2, 1, {1}, {2}, {0}, {0}));
  EXPECT_EQ(Used(), 300);
  Done(2);
  EXPECT_EQ(Used(), 300);
}

TEST_F(SmallMemoryTest, DonationThatIsMoreThanTheOutputsFreesTheRest) {
  Load(1, {{300}, {100}});
  Resident(1, 1, 300);
  Op(LaunchOp(2, 1, {1}, {2}, {0}, {0}));
  EXPECT_EQ(Used(), 300);
  Done(2);
  EXPECT_EQ(Used(), 100);
}

TEST_F(SmallMemoryTest, UploadsAreMadeOnEveryTarget) {
  EXPECT_THAT(Op(UploadOp(1, 1, 400, {0, 1})), ElementsAre("StartUpload k1"));
  EXPECT_EQ(Used(0), 400);
  EXPECT_EQ(Used(1), 400);
  UploadDone(1, absl::UnavailableError("peer"));
  EXPECT_EQ(Used(0) + Used(1), 0);
}

TEST_F(SmallMemoryTest, HostMemoryIsNotDeviceMemory) {
  WorkerOp op = UploadOp(1, 1, 5000);
  op.mutable_upload()->mutable_targets(0)->set_memory(MEMORY_PINNED_HOST);
  EXPECT_THAT(Op(op), ElementsAre("StartUpload k1"));
  EXPECT_EQ(Used(), 0);
}

TEST_F(SmallMemoryTest, CancelledPullKeepsItsMemoryUntilNothingCanLand) {
  WorkerOp make = MakeOp(1);
  AddRemote(AddPart(&make, 1, 0, 0, 700), 70, 9);
  EXPECT_THAT(Op(make), ElementsAre("StartMake t1/0"));
  EXPECT_THAT(Op(PeerLostOp(9)), ElementsAre("CancelMake t1/0 DATA_LOSS", "PeerLost i9"));
  EXPECT_EQ(Used(), 700);
  EXPECT_THAT(Op(UploadOp(2, 2, 700)), IsEmpty());
  EXPECT_THAT(MakeDone(1, 0, absl::CancelledError("cancelled")), ElementsAre("Free a1.0", "StartUpload k2"));
  EXPECT_THAT(Reports(), ElementsAre("TransfersDone 70 DATA_LOSS root=t1 uc=1001",
                                     "Failed a1.0 DATA_LOSS root=t1 uc=1001", "Progress e1 @0 t1"));
}

}  // namespace
}  // namespace landbridge
