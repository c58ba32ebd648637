// A worker's part of reshard plans: what the two ops become, and how their ends are reported.
#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sharding/reshard_limits.h"
#include "worker/core_test_util.h"
#include "sharding/reshard_plans.h"
#include "worker/worker_core.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

// Devices 0, 1 are worker 0 (slice 0), 2, 3 worker 1 (slice 1), 4, 5 worker 2 (slice 1).
PlacedDevice Place(DeviceId device) {
  const int worker = device.value() / 2;
  return {{worker == 0 ? 0 : 1, worker}, static_cast<uint32_t>(device.value() % 2)};
}

Sharding::Ptr Rows(std::vector<int> devices) {
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  op.add_tile_assignment_dimensions(static_cast<int64_t>(devices.size()));
  op.add_iota_reshape_dims(static_cast<int64_t>(devices.size()));
  op.add_iota_transpose_perm(0);
  std::vector<DeviceId> ids(devices.begin(), devices.end());
  return Sharding::FromOpSharding(ids, MemoryKind::kDevice, op).value();
}
Sharding::Ptr Everywhere(std::vector<int> devices) {
  return Sharding::FullyReplicated({devices.begin(), devices.end()}, MemoryKind::kDevice).value();
}

ReshardPlanRef PlanFor(uint64_t id, const Sharding::Ptr& source, const Sharding::Ptr& target, int64_t worker) {
  ReshardPlanRef ref;
  ref.set_id(id);
  std::vector<int64_t> workers;
  *ref.mutable_definition() = DefineReshard({8}, *source, *target, Place, {}, &workers);
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i] == worker) ref.mutable_definition()->set_self(static_cast<uint32_t>(i));
  }
  return ref;
}

class ReshardOpsTest : public ::testing::Test {
 protected:
  ReshardOpsTest() {
    WorkerLimits limits;
    limits.device_bytes = {1 << 20, 1 << 20};
    core_ = std::make_unique<WorkerCore>(Incarnation(7), limits, &sink_);
  }
  Strings Op(WorkerOp op) {
    core_->OnOp(std::move(op), ++now_);
    return sink_.TakeCalls();
  }
  Strings Reports() {
    core_->Flush();
    return sink_.TakeReports();
  }
  Strings MakeDone(uint64_t ticket, int index, const absl::Status& status = absl::OkStatus()) {
    core_->OnMakeDone(Ticket(ticket), index, status, ++now_);
    return sink_.TakeCalls();
  }
  void Resident(uint64_t ticket, uint64_t array, int64_t bytes, std::vector<uint32_t> devices) {
    Op(UploadOp(ticket, array, bytes, std::move(devices)));
    core_->OnUploadDone(ticket, absl::OkStatus(), ++now_);
    Reports();
  }
  static WorkerOp Send(uint64_t ticket, const ReshardPlanRef& plan, uint32_t edge, uint64_t transfer) {
    WorkerOp op;
    ReshardSend* send = op.mutable_reshard_send();
    send->set_ticket(ticket);
    *send->mutable_plan() = plan;
    send->set_dtype(static_cast<int>(DType::kU8));
    send->set_edge(edge);
    send->set_transfer(transfer);
    send->mutable_source()->set_array(1);
    send->set_target(2);
    send->set_peer(9);
    return op;
  }
  static WorkerOp Receive(uint64_t ticket, const ReshardPlanRef& plan, std::vector<uint64_t> edges) {
    WorkerOp op;
    ReshardReceive* receive = op.mutable_reshard_receive();
    receive->set_ticket(ticket);
    receive->set_session(1);
    *receive->mutable_plan() = plan;
    receive->set_dtype(static_cast<int>(DType::kU8));
    receive->mutable_source()->set_array(1);
    receive->set_target(2);
    for (uint64_t edge : edges) {
      receive->add_edges()->set_transfer(edge);
      receive->mutable_edges()->rbegin()->set_incarnation(9);
    }
    return op;
  }
  static WorkerOp Unpublish(uint64_t transfer, uint32_t count) {
    WorkerOp op = UnpublishOp(transfer);
    op.mutable_unpublish()->add_counts(count);
    return op;
  }

  RecordingSink sink_;
  std::unique_ptr<WorkerCore> core_;
  TimeNs now_ = kSecond;
};

TEST_F(ReshardOpsTest, SendsEveryPieceOfAnEdgeAndEndsThemTogether) {
  Resident(1, 1, 4, {0, 1});
  const ReshardPlanRef plan = PlanFor(5, Rows({0, 1}), Rows({2, 3, 4, 5}), 0);
  EXPECT_THAT(Op(Send(2, plan, 0, 60)), ElementsAre("StartPublish tr60", "StartPublish tr61"));
  ReshardPlanRef known;
  known.set_id(5);
  EXPECT_THAT(Op(Send(3, known, 1, 62)), ElementsAre("StartPublish tr62", "StartPublish tr63"));
  EXPECT_THAT(Op(DeleteOp({1})), IsEmpty());  // pinned
  EXPECT_THAT(Op(Unpublish(62, 2)), ElementsAre("StopPublish tr62", "StopPublish tr63"));
  EXPECT_THAT(Op(Unpublish(60, 2)), ElementsAre("StopPublish tr60", "StopPublish tr61"));
  for (uint64_t transfer : {60, 61, 62, 63}) core_->OnPublishQuiet(TransferId(transfer), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("Free a1.0", "Free a1.1"));
  EXPECT_EQ(core_->counts().anomalies, 0u);
}

TEST_F(ReshardOpsTest, AnEdgeIsOverWithItsLastPiece) {
  // Worker 1 makes two shards, each from both shards of the source, all over one edge.
  const ReshardPlanRef plan = PlanFor(5, Rows({0, 1}), Rows({2, 3}), 1);
  EXPECT_THAT(Op(Receive(2, plan, {60})), ElementsAre("StartMake t2/0", "StartMake t2/1"));
  MakeDone(2, 0);
  EXPECT_THAT(Reports(), IsEmpty());
  MakeDone(2, 1);
  EXPECT_THAT(Reports(), ElementsAre("TransfersDone 60 OK", "Progress e1 @0 t2"));
}

TEST_F(ReshardOpsTest, CopiesWaitForTheShardThatComesFromElsewhere) {
  const ReshardPlanRef plan = PlanFor(5, Rows({0, 1}), Everywhere({2, 3, 4}), 1);
  EXPECT_THAT(Op(Receive(2, plan, {60})), ElementsAre("StartMake t2/0"));
  // And what is passed on to the other worker of the slice: of the shard that is being made.
  ReshardPlanRef known;
  known.set_id(5);
  uint32_t passed_on = 0;
  const ReshardPlan all =
      *PlanReshard({8}, *Rows({0, 1}), *Everywhere({2, 3, 4}), [](DeviceId d) { return Place(d).at; });
  while (!all.edges[passed_on].passed_on) ++passed_on;
  EXPECT_THAT(Op(Send(3, known, passed_on, 70)), IsEmpty());
  EXPECT_THAT(MakeDone(2, 0), ElementsAre("StartMake t2/1", "StartPublish tr70"));
  EXPECT_THAT(Reports(), ElementsAre("TransfersDone 60 OK"));
}

TEST_F(ReshardOpsTest, AFailedPieceEndsItsShardsAndItsEdge) {
  const ReshardPlanRef plan = PlanFor(5, Rows({0, 1}), Rows({2, 3}), 1);
  Op(Receive(2, plan, {60}));
  MakeDone(2, 0, absl::DataLossError("lost"));
  EXPECT_THAT(Reports(), ElementsAre("Failed a2.0 DATA_LOSS root=t2"));
  MakeDone(2, 1);
  EXPECT_THAT(Reports(), ElementsAre("TransfersDone 60 OK", "Progress e1 @0 t2"));
}

TEST_F(ReshardOpsTest, ShardsThatAreDoomedAreNotMade) {
  const ReshardPlanRef plan = PlanFor(5, Rows({0, 1}), Rows({2, 3}), 1);
  WorkerOp op = Receive(2, plan, {60});
  op.mutable_reshard_receive()->add_without(0);
  EXPECT_THAT(Op(op), ElementsAre("StartMake t2/0"));
  MakeDone(2, 0);
  EXPECT_THAT(Reports(), ElementsAre("TransfersDone 60 OK", "Progress e1 @0 t2"));
  EXPECT_THAT(Op(DeleteOp({2})), ElementsAre("Free a2.1"));
}

TEST_F(ReshardOpsTest, PlansAreForgottenWhenToldSo) {
  ReshardPlans plans;
  ReshardPlanRef ref = PlanFor(1, Rows({0, 1}), Rows({2, 3}), 1);
  const auto part = plans.Use(ref).value();
  ReshardPlanRef known;
  known.set_id(1);
  EXPECT_EQ(plans.Use(known).value(), part);
  ReshardPlanRef other = ref;
  other.set_id(2);
  other.add_forget(1);
  EXPECT_TRUE(plans.Use(other).ok());
  EXPECT_EQ(plans.Use(known).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plans.size(), 1u);
  for (uint64_t id = 3; plans.size() < limits::kReshardPlansMax; ++id) {
    ref.set_id(id);
    ASSERT_TRUE(plans.Use(ref).ok());
  }
  ref.set_id(1u << 20);
  EXPECT_EQ(plans.Use(ref).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(plans.size(), limits::kReshardPlansMax);
}

TEST_F(ReshardOpsTest, NonsenseIsCountedAndEnds) {
  ReshardPlanRef unknown;
  unknown.set_id(77);
  EXPECT_THAT(Op(Receive(2, unknown, {60})), IsEmpty());
  EXPECT_THAT(Reports(), ElementsAre("TransfersDone 60 INVALID_ARGUMENT root=t2", "Progress e1 @0 t2"));
  EXPECT_THAT(Op(Send(3, unknown, 0, 61)), IsEmpty());
  const ReshardPlanRef plan = PlanFor(5, Rows({0, 1}), Rows({2, 3}), 1);
  EXPECT_THAT(Op(Receive(4, plan, {})), IsEmpty());  // an edge is missing
  EXPECT_THAT(Op(Send(5, plan, 0, 62)), IsEmpty());  // does not begin here
  EXPECT_EQ(core_->counts().anomalies, 4u);
  Reports();
  EXPECT_THAT(Op(Receive(6, plan, {63})), ElementsAre("StartMake t6/0", "StartMake t6/1"));
}

}  // namespace
}  // namespace landbridge
