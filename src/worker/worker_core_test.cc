// The rules of the core, one by one: what runs when, what is told when, policies, the graph.
// [n] are the marked sentences of the ordering algorithm: each test is the counterexample that found the sentence, cut
// down to one worker.
#include "worker/worker_core.h"

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/worker_core_fixture_test_util.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::IsEmpty;

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

}  // namespace
}  // namespace landbridge
