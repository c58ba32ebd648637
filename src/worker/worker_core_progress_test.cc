// The rules of the core: progress, deletes, odds and ends.
// [n] are the marked sentences of the ordering algorithm: each test is the counterexample that found the sentence, cut
// down to one worker.
#include "worker/worker_core.h"

#include <limits>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/worker_core_fixture_test_util.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---------------------------------------------------------------- progress, deletes, odds and ends

// A later launch of the same device that completes first is reported after the earlier one.
TEST_F(WorkerCoreTest, ProgressIsInLogOrderOfEachDevice) {
  Load(1, {{}, {100}});
  Load(2, {{}, {100}, {1}});
  Load(3, {{}, {100}, {0, 1}});
  Op(LaunchOp(1, 1, {}, {1}));
  Op(LaunchOp(2, 3, {}, {2}, {0, 1}));
  Done(2);
  EXPECT_THAT(Op(LaunchOp(3, 2, {}, {3}, {1})), ElementsAre("HandOver t3 @3"));
  Done(3);
  EXPECT_THAT(Reports(), IsEmpty());
  Done(1);
  EXPECT_THAT(Reports(), ElementsAre("Progress e1 @3 t1,t2,t3"));
}

TEST_F(WorkerCoreTest, DisjointDevicesReportIndependently) {
  Load(1, {{}, {100}});
  Load(2, {{}, {100}, {1}});
  Op(LaunchOp(1, 1, {}, {1}));
  Op(LaunchOp(2, 2, {}, {2}, {1}));
  Done(2);
  EXPECT_THAT(Reports(), ElementsAre("Progress e1 @0 t2"));
}

TEST_F(WorkerCoreTest, DeleteWaitsForUsers) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  Op(LaunchOp(3, 1, {1}, {3}));
  Op(PublishOp(4, 60, 1, 0, 9));
  EXPECT_THAT(Op(DeleteOp({1, 3, 2})), IsEmpty());
  EXPECT_THAT(UploadDone(2), ElementsAre("Free a2.0"));
  EXPECT_THAT(Done(3), ElementsAre("Free a3.0"));
  Op(UnpublishOp(60));
  core_->OnPublishQuiet(TransferId(60), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("Free a1.0"));
  EXPECT_EQ(core_->counts().buffers, 0u);
  EXPECT_EQ(Used(), 0);
}

TEST_F(WorkerCoreTest, NonsenseIsCountedAndDisturbsNothing) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  const size_t before = core_->counts().anomalies;
  Op(DeleteOp({77}));
  Op(WorkerOp());
  Op(UploadDataOp(99, "x"));
  Done(55);
  UploadDone(55);
  MakeDone(55, 0);
  MakeDone(55, -1);
  core_->OnPublishQuiet(TransferId(5), ++now_);
  core_->OnReadQuiet(5, ++now_);
  core_->OnLoadDone(ExecutableId(1), absl::OkStatus(), ++now_);
  Op(LaunchOp(2, 1, {1}, {2}));
  Op(LaunchOp(2, 1, {1}, {3}));  // the ticket again
  Op(DeleteOp({1}));
  Op(DeleteOp({1}));
  EXPECT_EQ(core_->counts().anomalies - before, 9u);
  EXPECT_THAT(Reports(), IsEmpty());
  EXPECT_THAT(Done(2), ElementsAre("Free a1.0"));
}

TEST_F(WorkerCoreTest, BadLaunchesPoisonWhatTheyWouldHaveMade) {
  Load(1, {{100}, {100}});
  Load(2, {{100}, {100}, {0, 1}});
  Resident(1, 1, 100);
  Resident(2, 2, 100, {1});
  struct Case {
    WorkerOp op;
    std::string what;
  };
  WorkerOp shards = LaunchOp(10, 1, {1}, {10});
  for (uint32_t i = 0; i < 2; ++i) shards.mutable_launch()->mutable_args(0)->add_shards()->set_array(1);
  std::vector<Case> cases = {
      {LaunchOp(10, 9, {1}, {10}), "x9 is not loaded"},
      {LaunchOp(10, 1, {1, 1}, {10}), "takes 1 arguments, not 2"},
      {LaunchOp(10, 1, {1}, {10, 11}), "makes 1 arrays, not 2"},
      {LaunchOp(10, 1, {1}, {10}, {0, 1}), "runs on 1 devices, not 2"},
      {LaunchOp(10, 1, {1}, {10}, {7}), "no device 7"},
      {LaunchOp(10, 1, {1}, {10}, {1}), "loaded for other devices"},
      {LaunchOp(10, 1, {5}, {10}), "takes a5.0, which was deleted or never made here"},
      {LaunchOp(10, 1, {2}, {10}), "takes a2.0 on device 0, but it is on device 1"},
      {LaunchOp(10, 1, {1}, {10}, {0}, {3}), "donates parameter 3"},
      {shards, "2 shards for 1 devices"},
  };
  for (Case& c : cases) {
    EXPECT_THAT(Op(c.op), IsEmpty());
    core_->Flush();
    ASSERT_EQ(sink_.reports.size(), 2u) << c.what;
    EXPECT_EQ(sink_.reports[0].failed().status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(sink_.reports[0].failed().status().message(), HasSubstr(c.what));
    EXPECT_THAT(sink_.reports[1].progress().tickets(), ElementsAre(10));
    sink_.TakeReports();
    Op(DeleteOp({10, 11}));
  }
  EXPECT_EQ(core_->counts().buffers, 2u);
  // An output that exists is left alone.
  Op(LaunchOp(10, 1, {1}, {2}));
  EXPECT_THAT(Reports(), ElementsAre("Failed  INVALID_ARGUMENT root=t10 uc=1010", "Progress e1 @0 t10"));
  EXPECT_THAT(Op(ReadOp(3, 2)), ElementsAre("StartRead 3"));
}

TEST_F(WorkerCoreTest, BadUploadsMakesAndLoads) {
  WorkerOp upload = UploadOp(1, 1, -5);
  Op(upload);
  upload = UploadOp(2, 2, 5);
  upload.mutable_upload()->mutable_dims()->Clear();
  for (int i = 0; i < 3; ++i) upload.mutable_upload()->add_dims(int64_t{1} << 40);
  Op(upload);
  Op(UploadOp(3, 3, 5, {4}));
  upload = UploadOp(4, 4, 5);
  upload.mutable_upload()->set_dtype(77);
  Op(upload);
  WorkerOp make = MakeOp(5);
  AddPart(&make, 5, 0, 0, 100)->add_pieces();  // a piece from nowhere
  AddLocal(AddPart(&make, 5, 1, 0, 100), 99, 0);
  Op(make);
  EXPECT_THAT(
      Reports(),
      ElementsAre("Failed a1.0 INVALID_ARGUMENT root=t1 uc=1001", "Failed a2.0 INVALID_ARGUMENT root=t2 uc=1002",
                  "Failed a3.0 INVALID_ARGUMENT root=t3 uc=1003", "Failed a4.0 INVALID_ARGUMENT root=t4 uc=1004",
                  "Failed a5.0 INVALID_ARGUMENT root=t5 uc=1005", "Failed a5.1 INVALID_ARGUMENT root=t5 uc=1005",
                  "UploadsDone 1,2,3,4", "Progress e1 @0 t1,t2,t3,t4,t5"));
  EXPECT_THAT(Op(LoadOp(1, {{}, {-1}})), IsEmpty());
  EXPECT_THAT(Op(LoadOp(2, {{}, {std::numeric_limits<int64_t>::max()}})), IsEmpty());
  EXPECT_THAT(Op(LoadOp(3, {{}, {1}, {0, 0}})), IsEmpty());
  EXPECT_THAT(Op(LoadOp(4, {{}, {1}, {9}})), IsEmpty());
  EXPECT_THAT(Reports(), ElementsAre("LoadDone x1 INVALID_ARGUMENT", "LoadDone x2 INVALID_ARGUMENT",
                                     "LoadDone x3 INVALID_ARGUMENT", "LoadDone x4 INVALID_ARGUMENT"));
}

TEST_F(WorkerCoreTest, UploadDataOfTheWrongSizeOrAnError) {
  Op(UploadOp(1, 1, 5, {0}, false));
  EXPECT_THAT(Op(UploadDataOp(1, "123")), ElementsAre("CancelUpload k1 INVALID_ARGUMENT"));
  UploadDone(1, absl::CancelledError(""));
  Op(UploadOp(2, 2, 5, {0}, false));
  WorkerOp error;
  error.mutable_upload_data()->set_key(2);
  *error.mutable_upload_data()->mutable_error() = Why(absl::StatusCode::kCancelled, "the client left");
  EXPECT_THAT(Op(error), ElementsAre("CancelUpload k2 CANCELLED"));
  UploadDone(2, absl::AbortedError(""));
  EXPECT_THAT(Reports(),
              ElementsAre("Failed a1.0 INVALID_ARGUMENT root=t1 uc=1001", "Failed a2.0 CANCELLED root=t2 uc=1002",
                          "UploadsDone 1,2", "Progress e1 @0 t1,t2"));
}

TEST_F(WorkerCoreTest, UnloadWaitsForQueuedLaunches) {
  Load(1, {{100}, {100}});
  Op(UploadOp(1, 1, 100));
  Op(LaunchOp(2, 1, {1}, {2}));
  WorkerOp unload;
  unload.mutable_unload()->set_executable(1);
  EXPECT_THAT(Op(unload), IsEmpty());
  EXPECT_THAT(UploadDone(1), ElementsAre("HandOver t2 @1", "Unload x1"));
  EXPECT_EQ(core_->counts().executables, 0u);
  Done(2);
  EXPECT_THAT(Reports(), ElementsAre("UploadsDone 1", "Progress e1 @1 t1,t2"));
}

TEST_F(WorkerCoreTest, WatchAnswersWhenAllAreThere) {
  Load(1, {{}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(2, 1, {}, {2}));
  Op(WatchOp(3, {1}));
  EXPECT_THAT(Reports(), ElementsAre("Watched 3 OK"));
  Op(WatchOp(4, {1, 2}));
  Op(DeleteOp({2}));  // a watch holds nothing, but is answered
  EXPECT_THAT(Reports(), IsEmpty());
  Done(2);
  EXPECT_THAT(Reports(), ElementsAre("Watched 4 OK", "Progress e1 @1 t2"));
  Op(WatchOp(5, {99}));
  EXPECT_THAT(Reports(), ElementsAre("Watched 5 INVALID_ARGUMENT"));
}

TEST_F(WorkerCoreTest, ReadReleasedBeforeItBeginsLeavesNothing) {
  Op(UploadOp(1, 1, 100));
  Op(ReadOp(5, 1));
  EXPECT_THAT(Op(ReleaseReadOp(5)), IsEmpty());
  EXPECT_THAT(UploadDone(1), IsEmpty());
  EXPECT_EQ(core_->counts().reads, 0u);
}

TEST_F(WorkerCoreTest, ReadReleasedBeforeItsAnswer) {
  Resident(1, 1, 100);
  Op(ReadOp(5, 1));
  EXPECT_THAT(Op(ReleaseReadOp(5)), ElementsAre("StopRead 5"));
  core_->OnReadDone(5, absl::OkStatus(), "x", false, ++now_);
  EXPECT_THAT(Reports(), IsEmpty());
  EXPECT_EQ(core_->counts().reads, 0u);
}

TEST_F(WorkerCoreTest, FenceDropsWhatWaitsAndLetsRunWhatRuns) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  Op(LaunchOp(3, 1, {1}, {3}));
  Op(LaunchOp(4, 1, {2}, {4}));
  Op(PublishOp(5, 60, 1, 0, 9));
  Op(ReadOp(6, 1));
  Op(WatchOp(7, {4}));
  core_->Fence(absl::FailedPreconditionError("the lease is over"), ++now_);
  EXPECT_THAT(sink_.TakeCalls(),
              ElementsAre("StopRead 6", "Unload x1", "CancelUpload k2 FAILED_PRECONDITION", "StopPublish tr60"));
  EXPECT_FALSE(core_->OldWorkEnded());
  EXPECT_THAT(Op(LaunchOp(9, 1, {1}, {9})), IsEmpty());
  core_->OnReadQuiet(6, ++now_);
  core_->OnPublishQuiet(TransferId(60), ++now_);
  UploadDone(2, absl::CancelledError(""));
  EXPECT_FALSE(core_->OldWorkEnded());
  Done(3);
  EXPECT_TRUE(core_->OldWorkEnded());
  EXPECT_THAT(Reports(), IsEmpty());
  const WorkerCore::Counts counts = core_->counts();
  EXPECT_EQ(counts.buffers + counts.launches + counts.transfers + counts.reads + counts.uploads + counts.executables +
                counts.watches,
            0u);
  EXPECT_EQ(Used(), 0);
}

TEST_F(WorkerCoreTest, AssembledArgumentsNameShardsOneByOne) {
  Load(1, {{100}, {100}, {0, 1}});
  Resident(1, 1, 100, {1});
  Resident(2, 2, 100, {0});
  WorkerOp launch = LaunchOp(3, 1, {0}, {3}, {0, 1});
  launch.mutable_launch()->mutable_args(0)->add_shards()->set_array(2);
  launch.mutable_launch()->mutable_args(0)->add_shards()->set_array(1);
  EXPECT_THAT(Op(launch), ElementsAre("HandOver t3 @1"));
}

TEST_F(WorkerCoreTest, PortableProgramRunsOnTheNamedDevice) {
  Load(1, {{}, {100}, {}});
  EXPECT_THAT(Op(LaunchOp(1, 1, {}, {1}, {1})), ElementsAre("HandOver t1 @1"));
  Done(1);
  EXPECT_EQ(Used(1), 100);
}

TEST_F(WorkerCoreTest, RunTimesSetHowFarAheadLaunchesArePlaced) {
  Load(1, {{}, {1}});
  for (uint64_t t = 1; t <= 40; ++t) Op(LaunchOp(t, 1, {}, {t}));
  EXPECT_EQ(Explain()["devices"][0]["placed"], 2);
  Heartbeat heartbeat;
  Done(1, absl::OkStatus(), kMillisecond);
  core_->FillDeviceUse(&heartbeat);
  EXPECT_EQ(heartbeat.devices(0).launches_placed(), 2u);  // t2 went in when the time was unknown
  Done(2, absl::OkStatus(), kMillisecond);
  heartbeat.Clear();
  core_->FillDeviceUse(&heartbeat);
  EXPECT_EQ(heartbeat.devices(0).launches_placed(), 5u);  // worth 5 ms
  EXPECT_EQ(heartbeat.devices(0).launches_queued(), 40u - 2u - 5u);
}

TEST_F(WorkerCoreTest, TooManyNodesAheadAreAMistakeOfTheController) {
  Load(1, {{}, {0}});
  for (uint64_t t = 1; t <= limits::kWorkerNodesMax; ++t) core_->OnOp(LaunchOp(t, 1, {}, {t}), now_);
  EXPECT_THAT(sink_.TakeReports(), IsEmpty());
  Op(LaunchOp(limits::kWorkerNodesMax + 1, 1, {}, {limits::kWorkerNodesMax + 1}));
  EXPECT_EQ(sink_.reports.size(), 1u);
  EXPECT_EQ(sink_.reports[0].failed().status().code(), static_cast<int>(absl::StatusCode::kInvalidArgument));
}

TEST_F(WorkerCoreTest, ExplainIsBoundedAndAnswersTheRequest) {
  Load(1, {std::vector<int64_t>(50, 1), {1}});
  Op(UploadOp(1, 1, 1));
  for (uint64_t t = 2; t < 2 + limits::kExplainedNodesMax + 10; ++t) {
    Op(LaunchOp(t, 1, std::vector<uint64_t>(50, 1), {t}));
  }
  const nlohmann::json json = Explain();
  EXPECT_EQ(json["launches"].size(), limits::kExplainedNodesMax);
  EXPECT_EQ(json["launches_total"], limits::kExplainedNodesMax + 10);
  EXPECT_EQ(json["launches"][0]["waits_for"].size(), limits::kExplainedReasonsMax + 1);
  EXPECT_EQ(json["launches"][0]["waits_for"].back()["count"], 50 - limits::kExplainedReasonsMax);
  EXPECT_EQ(json["launches"][0]["waits_for"][0]["ref"], "a1.0");
  EXPECT_EQ(json["launches"][0]["waits_for"][0]["made_by"], "t1");
  EXPECT_EQ(json["uploads"][0]["waits_for"][0]["what"], "bytes");
  WorkerOp op;
  op.mutable_explain()->set_request(12);
  Op(op);
  EXPECT_THAT(sink_.TakeReports(), ElementsAre("Explained 12"));
}

}  // namespace
}  // namespace landbridge
