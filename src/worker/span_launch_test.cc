// A worker's part of launches that span workers.
#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/core_test_util.h"
#include "worker/worker_core.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Strings = std::vector<std::string>;

// Program 1 has four devices, two of them here. Program 2 has one.
class SpanLaunchTest : public ::testing::Test {
 protected:
  SpanLaunchTest() {
    WorkerLimits limits;
    limits.device_bytes = {1 << 20, 1 << 20};
    core_ = std::make_unique<WorkerCore>(Incarnation(7), limits, &sink_);
    WorkerOp load = LoadOp(1, {.params = {10}, .outputs = {10}, .devices = {}});
    load.mutable_load()->mutable_info()->set_portable(false);
    load.mutable_load()->mutable_info()->set_split(true);
    load.mutable_load()->mutable_info()->set_num_devices(4);
    Op(std::move(load));
    Op(LoadOp(2, {.params = {10}, .outputs = {10}, .devices = {0}}));
    for (uint64_t id : {1, 2}) core_->OnLoadDone(ExecutableId(id), absl::OkStatus(), ++now_);
    sink_.TakeCalls();
    sink_.TakeReports();
  }
  Strings Op(WorkerOp op) {
    core_->OnOp(std::move(op), ++now_);
    return sink_.TakeCalls();
  }
  Strings Done(uint64_t ticket, const absl::Status& status = absl::OkStatus()) {
    core_->OnLaunchDone(Ticket(ticket), status, kMicrosecond, ++now_);
    return sink_.TakeCalls();
  }
  Strings Reports() {
    core_->Flush();
    return sink_.TakeReports();
  }
  // Shards 1 and 2 of an array, on the devices here.
  void Upload(uint64_t ticket, uint64_t array) {
    WorkerOp op = UploadOp(ticket, array, 10, {0, 1});
    op.mutable_upload()->mutable_targets(0)->mutable_ref()->set_shard(1);
    op.mutable_upload()->mutable_targets(1)->mutable_ref()->set_shard(2);
    Op(std::move(op));
  }
  void Resident(uint64_t ticket, uint64_t array) {
    Upload(ticket, array);
    core_->OnUploadDone(ticket, absl::OkStatus(), ++now_);
    sink_.TakeCalls();
    Reports();
  }
  static WorkerOp Span(uint64_t ticket, uint64_t arg, uint64_t output, uint64_t number, uint64_t previous) {
    WorkerOp op = LaunchOp(ticket, 1, {arg}, {output}, {0, 1});
    LaunchSpan* span = op.mutable_launch()->mutable_span();
    span->set_space(number + 100);
    for (uint32_t shard : {1, 2}) span->add_shards(shard);
    for (uint64_t worker : {7, 8}) span->add_workers()->set_incarnation(worker);
    for (uint32_t worker : {1, 0, 0, 1}) span->add_worker_of_device(worker);
    span->mutable_place()->set_number(number);
    span->mutable_place()->set_previous(previous);
    return op;
  }
  static WorkerOp Abort(uint64_t ticket) {
    WorkerOp op;
    op.mutable_abort_launch()->set_ticket(ticket);
    *op.mutable_abort_launch()->mutable_why() = Why(absl::StatusCode::kDataLoss, "worker i8 was lost");
    return op;
  }

  RecordingSink sink_;
  std::unique_ptr<WorkerCore> core_;
  TimeNs now_ = kSecond;
};

TEST_F(SpanLaunchTest, ItsShardsAreThoseOfItsDevices) {
  Resident(1, 10);
  EXPECT_THAT(Op(Span(2, 10, 11, 1, 0)), ElementsAre("HandOver t2 @1"));
  Done(2);
  EXPECT_THAT(Reports(), ElementsAre(HasSubstr("t2")));
  EXPECT_THAT(Op(ReadOp(5, 11, 2)), ElementsAre("StartRead 5"));
}

TEST_F(SpanLaunchTest, AddressesAreTakenFromLaunchesThatAreDroppedToo) {
  Upload(1, 10);
  WorkerOp op = Span(2, 10, 11, 1, 0);
  op.mutable_launch()->mutable_span()->mutable_workers(1)->set_data_address("there");
  EXPECT_THAT(Op(std::move(op)), ElementsAre("MeetPeer i8 there"));
}

TEST_F(SpanLaunchTest, InTheControllersOrderAndAfterEarlierLaunchesOfItsDevices) {
  Upload(1, 10);
  Op(UploadOp(2, 20, 10, {0}));
  EXPECT_THAT(Op(LaunchOp(3, 2, {20}, {21})), IsEmpty());  // waits for its input
  Resident(4, 40);
  EXPECT_THAT(Op(Span(5, 10, 11, 1, 0)), IsEmpty());  // waits for its input, and for launch 3
  EXPECT_THAT(Op(Span(6, 40, 41, 2, 1)), IsEmpty());  // has all it needs, but 5 comes first
  core_->OnUploadDone(1, absl::OkStatus(), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), IsEmpty());
  core_->OnUploadDone(2, absl::OkStatus(), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("HandOver t3 @1", "HandOver t5 @2"));
  EXPECT_THAT(Done(3), ElementsAre("HandOver t6 @3"));  // there was no room for more on its device
}

TEST_F(SpanLaunchTest, LaunchesOfOneWorkerGoPast) {
  Upload(1, 10);
  Resident(2, 20);
  Op(Span(3, 10, 11, 1, 0));
  WorkerOp small = LaunchOp(4, 2, {20}, {21});
  small.mutable_launch()->mutable_args(0)->add_shards()->set_array(20);
  small.mutable_launch()->mutable_args(0)->mutable_shards(0)->set_shard(1);
  EXPECT_THAT(Op(std::move(small)), ElementsAre("HandOver t4 @1"));
}

TEST_F(SpanLaunchTest, OneThatIsDroppedKeepsNobodyWaiting) {
  Upload(1, 10);
  Resident(2, 20);
  Op(Span(3, 10, 11, 1, 0));
  EXPECT_THAT(Op(Span(4, 20, 21, 2, 1)), IsEmpty());
  core_->OnUploadDone(1, absl::InvalidArgumentError("bad bytes"), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ::testing::Contains("HandOver t4 @1"));
}

TEST_F(SpanLaunchTest, VoidPlacesArePassed) {
  Resident(1, 10);
  EXPECT_THAT(Op(Span(2, 10, 11, 9, 4)), IsEmpty());
  WorkerOp op;
  op.mutable_void_span()->mutable_place()->set_number(4);
  EXPECT_THAT(Op(std::move(op)), ElementsAre("HandOver t2 @1"));
}

TEST_F(SpanLaunchTest, AnAbortDropsWhatWaitsAndIsPassedOnOtherwise) {
  Upload(1, 10);
  Op(Span(2, 10, 11, 1, 0));
  Op(Abort(2));
  EXPECT_THAT(Reports(), ::testing::Contains(HasSubstr("Failed a11.1,a11.2 DATA_LOSS")));
  Resident(3, 30);
  EXPECT_THAT(Op(Span(4, 30, 31, 2, 1)), ElementsAre("HandOver t4 @1"));
  EXPECT_THAT(Op(Abort(4)), ElementsAre("AbortLaunch t4 DATA_LOSS"));
  Done(4, absl::DataLossError("worker i8 was lost"));
  EXPECT_THAT(Reports(), ::testing::Contains(HasSubstr("Failed a31.1,a31.2 DATA_LOSS")));
  EXPECT_THAT(Op(Abort(4)), ElementsAre("AbortLaunch t4 DATA_LOSS"));  // peers may still take from it
}

TEST_F(SpanLaunchTest, OneThatHasFailedElsewhereStartsNowhere) {
  Resident(1, 10);
  WorkerOp op = Span(2, 10, 11, 1, 0);
  *op.mutable_launch()->mutable_span()->mutable_failed() = Why(absl::StatusCode::kDataLoss, "worker i8 was lost");
  EXPECT_THAT(Op(std::move(op)), IsEmpty());
  EXPECT_THAT(Reports(), ::testing::Contains(HasSubstr("Failed a11.1,a11.2 DATA_LOSS")));
  EXPECT_THAT(Op(Span(3, 10, 12, 2, 1)), ElementsAre("HandOver t3 @1"));
}

TEST_F(SpanLaunchTest, NonsenseIsRefusedAndDisturbsNobody) {
  Resident(1, 10);
  uint64_t ticket = 2, number = 1;
  auto refused = [&](auto change, bool shards_known = true) {
    WorkerOp op = Span(ticket, 10, 100 + ticket, number, number - 1);
    ++ticket;
    ++number;
    change(op.mutable_launch());
    EXPECT_THAT(Op(std::move(op)), IsEmpty());
    const Strings reports = Reports();
    if (shards_known) {
      EXPECT_THAT(reports, ::testing::Contains(HasSubstr("INVALID_ARGUMENT")));
    }
    EXPECT_THAT(reports, ::testing::Contains(HasSubstr("Progress")));
  };
  refused([](Launch* launch) { launch->mutable_span()->set_shards(1, 1); });
  refused([](Launch* launch) { launch->mutable_span()->set_shards(1, 4); });
  refused([](Launch* launch) { launch->mutable_span()->mutable_shards()->RemoveLast(); }, false);
  refused([](Launch* launch) { launch->mutable_span()->set_worker_of_device(0, 2); });
  refused([](Launch* launch) { launch->mutable_span()->mutable_worker_of_device()->RemoveLast(); });
  EXPECT_THAT(Op(Span(50, 10, 200, number, number - 1)), ElementsAre("HandOver t50 @1"));
}

}  // namespace
}  // namespace landbridge
