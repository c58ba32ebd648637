// The rules of the core, one by one. [n] are the marked sentences of the ordering algorithm: each test is the
// counterexample that found the sentence, cut down to one worker.
#include "worker/worker_core.h"

#include <limits>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/core_test_util.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

class WorkerCoreTest : public ::testing::Test {
 protected:
  explicit WorkerCoreTest(std::vector<int64_t> device_bytes = {1 << 20, 1 << 20}) {
    WorkerLimits limits;
    limits.device_bytes = std::move(device_bytes);
    core_ = std::make_unique<WorkerCore>(Incarnation(7), limits, &sink_);
  }

  // What the core says to do in answer.
  Strings Op(WorkerOp op) {
    core_->OnOp(std::move(op), ++now_);
    return sink_.TakeCalls();
  }
  Strings Done(uint64_t ticket, const absl::Status& status = absl::OkStatus(), DurationNs run_ns = kMicrosecond) {
    core_->OnLaunchDone(Ticket(ticket), status, run_ns, ++now_);
    return sink_.TakeCalls();
  }
  Strings UploadDone(uint64_t key, const absl::Status& status = absl::OkStatus()) {
    core_->OnUploadDone(key, status, ++now_);
    return sink_.TakeCalls();
  }
  Strings MakeDone(uint64_t ticket, int index, const absl::Status& status = absl::OkStatus()) {
    core_->OnMakeDone(Ticket(ticket), index, status, ++now_);
    return sink_.TakeCalls();
  }
  Strings Reports() {
    core_->Flush();
    return sink_.TakeReports();
  }
  void Load(uint64_t id, const ProgramSpec& spec) {
    Op(LoadOp(id, spec));
    core_->OnLoadDone(ExecutableId(id), absl::OkStatus(), ++now_);
    sink_.TakeCalls();
    sink_.TakeReports();
  }
  // A resident array, one shard per device.
  void Resident(uint64_t ticket, uint64_t array, int64_t bytes, std::vector<uint32_t> devices = {0},
                uint64_t session = 1) {
    Op(UploadOp(ticket, array, bytes, std::move(devices), true, session));
    UploadDone(ticket);
    Reports();
  }
  int64_t Used(size_t device = 0) { return core_->counts().device_bytes_reserved[device]; }
  nlohmann::json Explain() { return nlohmann::json::parse(core_->ExplainJson(now_)); }

  RecordingSink sink_;
  std::unique_ptr<WorkerCore> core_;
  TimeNs now_ = kSecond;
};

// ---------------------------------------------------------------- runnable

// A -> B -> C without asking anybody: B and C follow as soon as their producer is handed over on the same device.
TEST_F(WorkerCoreTest, ChainIsHandedOverAtOnce) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(LaunchOp(2, 1, {1}, {2})), ElementsAre("HandOver t2 @1"));
  EXPECT_THAT(Op(LaunchOp(3, 1, {2}, {3})), ElementsAre("HandOver t3 @2"));
  EXPECT_THAT(Op(LaunchOp(4, 1, {3}, {4})), IsEmpty());  // K is two while the run time is unknown
  EXPECT_THAT(Done(2), ElementsAre("HandOver t4 @3"));
  EXPECT_THAT(Done(3), IsEmpty());
  EXPECT_THAT(Done(4), IsEmpty());
  EXPECT_THAT(Reports(), ElementsAre("Progress e1 @3 t2,t3,t4"));
  EXPECT_THAT(Reports(), IsEmpty());
}

// ---------------------------------------------------------------- what is told when

TEST_F(WorkerCoreTest, ProgressThatNobodyWaitsForIsCollected) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  uint64_t ticket = 1;
  auto run = [&](bool report_at_once) {
    ++ticket;
    WorkerOp op = LaunchOp(ticket, 1, {1}, {ticket});
    op.mutable_launch()->set_report_at_once(report_at_once);
    Op(std::move(op));
    Done(ticket);
    core_->Flush(/*all=*/false);
    return sink_.TakeReports();
  };
  EXPECT_THAT(run(false), IsEmpty());
  EXPECT_TRUE(core_->HoldsProgress());
  EXPECT_THAT(run(true), ElementsAre("Progress e1 @2 t2,t3"));  // those before it come along
  EXPECT_FALSE(core_->HoldsProgress());
  for (size_t i = 1; i < limits::kProgressTicketsMax; ++i) ASSERT_THAT(run(false), IsEmpty());
  EXPECT_EQ(run(false).size(), 1u);
  EXPECT_THAT(run(false), IsEmpty());
  core_->Flush();
  EXPECT_EQ(sink_.TakeReports().size(), 1u);
  EXPECT_FALSE(core_->HoldsProgress());
}

TEST_F(WorkerCoreTest, SaysWhetherAnEndIsWaitedFor) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  EXPECT_FALSE(core_->WaitsForLaunches());
  Op(LaunchOp(2, 1, {1}, {2}));
  Op(LaunchOp(3, 1, {2}, {3}));
  EXPECT_FALSE(core_->WaitsForLaunches());  // both run, nobody asks
  Op(LaunchOp(4, 1, {3}, {4}));
  EXPECT_TRUE(core_->WaitsForLaunches());  // it needs the place of one that runs
  Done(2);
  EXPECT_FALSE(core_->WaitsForLaunches());
  Op(WatchOp(9, {4}));
  EXPECT_TRUE(core_->WaitsForLaunches());
  Done(3);
  EXPECT_TRUE(core_->WaitsForLaunches());
  Done(4);
  EXPECT_FALSE(core_->WaitsForLaunches());
  WorkerOp awaited = LaunchOp(5, 1, {4}, {5});
  awaited.mutable_launch()->set_report_at_once(true);
  Op(std::move(awaited));
  EXPECT_TRUE(core_->WaitsForLaunches());
  Done(5);
  EXPECT_FALSE(core_->WaitsForLaunches());
  Op(LaunchOp(6, 1, {5}, {6}));
  Op(ReadOp(20, 6));
  EXPECT_TRUE(core_->WaitsForLaunches());
}

TEST_F(WorkerCoreTest, LaunchWaitsForItsLoad) {
  Resident(1, 1, 100);
  EXPECT_THAT(Op(LoadOp(1, {{100}, {100}})), ElementsAre("Load x1"));
  EXPECT_THAT(Op(LaunchOp(2, 1, {1}, {2})), IsEmpty());
  EXPECT_EQ(Explain()["launches"][0]["waits_for"][0]["what"], "load");
  core_->OnLoadDone(ExecutableId(1), absl::OkStatus(), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t2 @1"));
  EXPECT_THAT(Reports(), ElementsAre("LoadDone x1 OK"));
}

TEST_F(WorkerCoreTest, FailedLoadPoisonsItsLaunches) {
  Resident(1, 1, 100);
  Op(LoadOp(1, {{100}, {100}}));
  Op(LaunchOp(2, 1, {1}, {2}));
  core_->OnLoadDone(ExecutableId(1), absl::UnimplementedError("no handler"), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(3, 1, {1}, {3})), IsEmpty());
  EXPECT_THAT(Reports(), ElementsAre("LoadDone x1 UNIMPLEMENTED", "Failed a2.0 UNIMPLEMENTED root=t2 uc=1002",
                                     "Failed a3.0 UNIMPLEMENTED root=t3 uc=1003", "Progress e1 @0 t2,t3"));
}

TEST_F(WorkerCoreTest, AnUnreadyLaunchDoesNotDelayAReadyOne) {
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  Op(UploadOp(2, 2, 100));
  EXPECT_THAT(Op(LaunchOp(3, 1, {2}, {3})), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(4, 1, {1}, {4})), ElementsAre("HandOver t4 @1"));
  EXPECT_THAT(UploadDone(2), ElementsAre("HandOver t3 @2"));
}

// (a) and (b) hold on every device of the gang.
TEST_F(WorkerCoreTest, GangNeedsEveryShard) {
  Load(1, {{100}, {100}, {0, 1}});
  Load(2, {{}, {100}, {}});
  Op(UploadOp(1, 1, 100, {0}));
  WorkerOp make = MakeOp(2);
  AddRemote(AddPart(&make, 2, 0, 0, 100), 50, 9);
  AddRemote(AddPart(&make, 2, 1, 1, 100), 51, 9);
  EXPECT_THAT(Op(make), ElementsAre("StartMake t2/0", "StartMake t2/1"));
  EXPECT_THAT(Op(LaunchOp(3, 1, {2}, {3}, {0, 1})), IsEmpty());
  EXPECT_THAT(MakeDone(2, 1), IsEmpty());
  EXPECT_THAT(MakeDone(2, 0), ElementsAre("HandOver t3 @1"));
  EXPECT_THAT(Reports(), ElementsAre("TransfersDone 51,50 OK", "Progress e1 @0 t2"));
}

// A launch on devices 0 and 1 whose one argument is put together from these shards.
WorkerOp GangOf(uint64_t ticket, uint64_t executable, std::vector<std::pair<uint64_t, uint32_t>> shards,
                uint64_t output) {
  WorkerOp op = LaunchOp(ticket, executable, {0}, {output}, {0, 1});
  for (const auto& [array, shard] : shards) {
    BufferRefProto* ref = op.mutable_launch()->mutable_args(0)->add_shards();
    ref->set_array(array);
    ref->set_shard(shard);
  }
  return op;
}

// A gang with one bad shard would hang. Alone, a consumer just fails too, so it need not wait; but what it makes is as
// uncertain as what it took.
TEST_F(WorkerCoreTest, GangsWaitForTheEndOfWhatCanFailOnOneShard) {
  Load(1, {{100}, {100}, {}, 0, true});
  Load(2, {{100}, {100}, {0, 1}});
  Load(3, {{100}, {100}});
  Resident(1, 1, 100);
  Resident(2, 2, 100, {0, 1});
  EXPECT_THAT(Op(LaunchOp(3, 1, {1}, {3})), ElementsAre("HandOver t3 @1"));
  EXPECT_THAT(Op(LaunchOp(4, 3, {3}, {4})), ElementsAre("HandOver t4 @2"));
  EXPECT_THAT(Op(GangOf(5, 2, {{4, 0}, {2, 1}}, 5)), IsEmpty());
  EXPECT_EQ(Explain()["launches"][2]["waits_for"][0]["made_by"], "t4");
  EXPECT_THAT(Done(3), IsEmpty());
  EXPECT_THAT(Done(4), ElementsAre("HandOver t5 @3"));
}

// The gang was there before anybody could know that its input would be uncertain.
TEST_F(WorkerCoreTest, GangThatCameBeforeItsUncertainInputWaits) {
  Load(1, {{100}, {100}, {}, 0, true});
  Load(2, {{100}, {100}, {0, 1}});
  Load(3, {{100}, {100}});
  Op(UploadOp(1, 1, 100));
  Resident(2, 2, 100, {0, 1});
  EXPECT_THAT(Op(LaunchOp(3, 1, {1}, {3})), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(4, 3, {3}, {4})), IsEmpty());
  EXPECT_THAT(Op(GangOf(5, 2, {{4, 0}, {2, 1}}, 5)), IsEmpty());
  EXPECT_THAT(UploadDone(1), ElementsAre("HandOver t3 @1", "HandOver t4 @2"));
  EXPECT_THAT(Done(3), IsEmpty());
  EXPECT_THAT(Done(4, absl::InvalidArgumentError("bad")), ElementsAre("Free a4.0"));  // t5 never runs
  EXPECT_THAT(Reports(), ElementsAre("Failed a4.0 INVALID_ARGUMENT root=t4 uc=1004",
                                     "Failed a5.0,a5.1 INVALID_ARGUMENT root=t4 uc=1004", "UploadsDone 1",
                                     "Progress e1 @2 t1,t3,t4,t5"));
}

// [6] The program with effects would have run them on data that is withdrawn afterwards. Custom calls without any run on.
TEST_F(WorkerCoreTest, ProgramWithSideEffectsWaitsUntilItsProducersHaveCompleted) {
  Load(1, {{100}, {100}, {0}, 0, true});
  Load(2, {{100}, {100}, {0}, 0, true, true});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(LaunchOp(2, 1, {1}, {2})), ElementsAre("HandOver t2 @1"));
  EXPECT_THAT(Op(LaunchOp(3, 2, {2}, {3})), IsEmpty());
  EXPECT_THAT(Op(LaunchOp(4, 1, {2}, {4})), ElementsAre("HandOver t4 @2"));  // one without does not
  EXPECT_EQ(Explain()["launches"][1]["waits_for"][0]["made_by"], "t2");
  EXPECT_THAT(Done(2, absl::InvalidArgumentError("bad")), IsEmpty());  // t3 never runs
  EXPECT_THAT(Reports(), ElementsAre("Failed a2.0 INVALID_ARGUMENT root=t2 uc=1002",
                                     "Failed a3.0 INVALID_ARGUMENT root=t2 uc=1002", "Progress e1 @1 t2,t3"));
  EXPECT_THAT(Done(4), ElementsAre("Free a2.0", "Free a4.0"));
}

// ---------------------------------------------------------------- policies

WorkerOp SchedulingOp(SchedulingPolicyProto policy, uint32_t budget = 0) {
  WorkerOp op;
  op.mutable_scheduling()->set_policy(policy);
  op.mutable_scheduling()->set_activation_budget(budget);
  return op;
}

WorkerOp WithPhase(WorkerOp op, PipelinePhase phase) {
  op.mutable_launch()->set_phase(phase);
  return op;
}

TEST_F(WorkerCoreTest, ForwardLaunchesWaitForTheActivationBudget) {
  Op(SchedulingOp(POLICY_BACKWARD_FIRST, 1));
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(WithPhase(LaunchOp(2, 1, {1}, {2}), PHASE_FORWARD)), ElementsAre("HandOver t2 @1"));
  EXPECT_THAT(Op(WithPhase(LaunchOp(3, 1, {1}, {3}), PHASE_FORWARD)), IsEmpty());
  EXPECT_THAT(Done(2), IsEmpty());
  EXPECT_EQ(Explain()["launches"][0]["waits_for"][0]["what"], "activation budget");
  EXPECT_EQ(Explain()["devices"][0]["activations_peak"], 1);
  EXPECT_THAT(Op(WithPhase(LaunchOp(4, 1, {2}, {4}), PHASE_BACKWARD)), ElementsAre("HandOver t4 @2", "HandOver t3 @3"));
  Done(4);
  Done(3);
  // A backward launch whose input is an error never runs; its forward one counts no longer.
  EXPECT_THAT(Op(WithPhase(LaunchOp(5, 1, {1}, {5}), PHASE_FORWARD)), IsEmpty());
  WorkerOp poison;
  poison.mutable_poison()->set_ticket(6);
  SetTarget(poison.mutable_poison()->add_targets(), 6, 0, 0);
  *poison.mutable_poison()->mutable_why() = Why(absl::StatusCode::kDataLoss, "lost");
  Op(poison);
  EXPECT_THAT(Op(WithPhase(LaunchOp(7, 1, {6}, {7}), PHASE_BACKWARD)), ElementsAre("HandOver t5 @4"));
  Done(5);
  // A device without work goes past the budget in the end.
  EXPECT_THAT(Op(WithPhase(LaunchOp(8, 1, {1}, {8}), PHASE_FORWARD)), IsEmpty());
  now_ += limits::kActivationStallMax;
  core_->OnTime(now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t8 @5"));
}

TEST_F(WorkerCoreTest, PriorityDecidesAmongReadyLaunches) {
  Op(SchedulingOp(POLICY_PRIORITY));
  Load(1, {{100}, {100}});
  Resident(1, 1, 100);
  EXPECT_THAT(Op(LaunchOp(2, 1, {1}, {2})), ElementsAre("HandOver t2 @1"));
  EXPECT_THAT(Op(LaunchOp(3, 1, {1}, {3})), ElementsAre("HandOver t3 @2"));
  EXPECT_THAT(Op(LaunchOp(4, 1, {1}, {4})), IsEmpty());
  WorkerOp urgent = LaunchOp(5, 1, {1}, {5});
  urgent.mutable_launch()->set_priority(1);
  EXPECT_THAT(Op(urgent), IsEmpty());
  EXPECT_THAT(Done(2, absl::OkStatus(), 0), ElementsAre("HandOver t5 @3"));
}

// ---------------------------------------------------------------- the graph

TEST_F(WorkerCoreTest, TheGraphNamesWhatIsNotThereYet) {
  Load(1, {{100, 100}, {100}});
  Resident(1, 1, 100);
  Op(LaunchOp(2, 1, {1, 1}, {2}));  // runs
  WorkerOp make = MakeOp(3);
  AddRemote(AddPart(&make, 3, 0, 0, 100), 77, 9);
  Op(make);  // comes from a peer
  Op(LaunchOp(4, 1, {2, 3}, {4}));
  Op(PublishOp(5, 78, 4, 0, 9));
  WorkerOp op;
  op.mutable_explain()->set_request(12);
  op.mutable_explain()->set_graph(true);
  sink_.reports.clear();
  Op(op);
  ASSERT_EQ(sink_.reports.size(), 1u);
  const nlohmann::json graph = nlohmann::json::parse(sink_.reports[0].explained().json());
  ASSERT_EQ(graph["launches"].size(), 2u);
  EXPECT_EQ(graph["launches"][0]["ticket"], "t2");
  EXPECT_EQ(graph["launches"][0]["state"], "running");
  EXPECT_TRUE(graph["launches"][0]["inputs"].empty());
  const nlohmann::json& waiting = graph["launches"][1];
  EXPECT_EQ(waiting["state"], "waiting");
  EXPECT_EQ(waiting["name"], "program1");
  ASSERT_EQ(waiting["inputs"].size(), 2u);
  EXPECT_EQ(waiting["inputs"][0]["array"], "a2");
  EXPECT_EQ(waiting["inputs"][0]["bytes"], 100);
  EXPECT_EQ(waiting["inputs"][1]["array"], "a3");
  EXPECT_EQ(waiting["outputs"], nlohmann::json::parse(R"(["a4"])"));
  EXPECT_EQ(graph["makes"][0]["array"], "a3");
  EXPECT_EQ(graph["makes"][0]["transfers"], nlohmann::json::parse(R"(["tr77"])"));
  EXPECT_EQ(graph["publishes"], nlohmann::json::parse(R"([{"transfer": "tr78", "array": "a4"}])"));
}

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

// ---------------------------------------------------------------- memory

class SmallMemoryTest : public WorkerCoreTest {
 protected:
  SmallMemoryTest() : WorkerCoreTest({1000, 1000}) {}
};

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
  EXPECT_THAT(Reports(), ElementsAre("Progress e1 @0 t10"));
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
