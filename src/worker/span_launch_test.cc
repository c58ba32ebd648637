// A worker's part of launches that span workers.
#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/landbridge/order.pb.h"
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
    WorkerOp order;
    order.mutable_span_order()->set_epoch(1);
    order.mutable_span_order()->set_spanner(8);
    order.mutable_span_order()->set_log(1);
    EXPECT_THAT(Op(std::move(order)), ElementsAre("ListenTo i8", "SendMail i8 report"));
    for (uint64_t id : {1, 2}) core_->OnLoadDone(ExecutableId(id), absl::OkStatus(), ++now_);
    sink_.TakeCalls();
    sink_.TakeReports();
  }
  Strings Op(WorkerOp op) {
    core_->OnOp(std::move(op), ++now_);
    return sink_.TakeCalls();
  }
  // The spanner is on worker 8, which says so.
  Strings Commit(uint64_t number, uint64_t g) {
    OrderMail mail;
    mail.mutable_commit()->set_spanner_epoch(1);
    mail.mutable_commit()->set_number(number);
    mail.mutable_commit()->set_g(g);
    mail.mutable_commit()->set_previous_g(g - 1);
    core_->OnMail(Incarnation(8), mail.SerializeAsString(), ++now_);
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
  static WorkerOp Span(uint64_t ticket, uint64_t arg, uint64_t output, uint64_t number) {
    WorkerOp op = LaunchOp(ticket, 1, {arg}, {output}, {0, 1});
    LaunchSpan* span = op.mutable_launch()->mutable_span();
    span->set_space(number + 100);
    for (uint32_t shard : {1, 2}) span->add_shards(shard);
    for (uint64_t worker : {7, 8}) {
      span->add_workers()->set_incarnation(worker);
      span->mutable_workers(span->workers_size() - 1)->set_log(static_cast<uint32_t>(worker) - 6);
    }
    for (uint32_t worker : {1, 0, 0, 1}) span->add_worker_of_device(worker);
    span->set_number(number);
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
  EXPECT_THAT(Op(Span(2, 10, 11, 1)), ElementsAre("SendMail i8 ready 1"));
  EXPECT_THAT(Commit(1, 1), ElementsAre("HandOver t2 @1"));
  Done(2);
  EXPECT_THAT(Reports(), ElementsAre(HasSubstr("t2")));
  EXPECT_THAT(Op(ReadOp(5, 11, 2)), ElementsAre("StartRead 5"));
}

TEST_F(SpanLaunchTest, AddressesAreTakenFromLaunchesThatAreDroppedToo) {
  Upload(1, 10);
  WorkerOp op = Span(2, 10, 11, 1);
  op.mutable_launch()->mutable_span()->mutable_workers(1)->set_data_address("there");
  EXPECT_THAT(Op(std::move(op)), ElementsAre("MeetPeer i8 there"));
}

TEST_F(SpanLaunchTest, ALateOneHoldsUpNobody) {
  Upload(1, 10);
  Resident(2, 20);
  EXPECT_THAT(Op(Span(3, 10, 11, 1)), IsEmpty());  // waits for its input
  EXPECT_THAT(Op(Span(4, 20, 21, 2)), ElementsAre("SendMail i8 ready 2"));
  EXPECT_THAT(Commit(2, 1), ElementsAre("HandOver t4 @1"));
  core_->OnUploadDone(1, absl::OkStatus(), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("SendMail i8 ready 1"));
  EXPECT_THAT(Commit(1, 2), ElementsAre("HandOver t3 @2"));
}

TEST_F(SpanLaunchTest, LaunchesOfOneWorkerGoPast) {
  Resident(1, 10);
  Resident(2, 20);
  Op(Span(3, 10, 11, 1));  // not numbered yet
  WorkerOp small = LaunchOp(4, 2, {20}, {21});
  small.mutable_launch()->mutable_args(0)->add_shards()->set_array(20);
  small.mutable_launch()->mutable_args(0)->mutable_shards(0)->set_shard(1);
  EXPECT_THAT(Op(std::move(small)), ElementsAre("HandOver t4 @1"));
}

// A chain is agreed on at once: the workers need not hear of the first's start to have the second's turn.
TEST_F(SpanLaunchTest, WhatTakesTheOutputsOfOneThatIsReportedIsReportedBehindIt) {
  Upload(1, 10);
  EXPECT_THAT(Op(Span(2, 10, 11, 1)), IsEmpty());
  EXPECT_THAT(Op(Span(3, 11, 12, 2)), IsEmpty());
  EXPECT_THAT(Op(Span(4, 12, 13, 3)), IsEmpty());
  core_->OnUploadDone(1, absl::OkStatus(), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("SendMail i8 ready 1", "SendMail i8 ready 2 after 1 data",
                                             "SendMail i8 ready 3 after 2 data"));
  EXPECT_THAT(Op(Span(5, 13, 14, 4)), ElementsAre("SendMail i8 ready 4 after 3 data"));
  EXPECT_THAT(Commit(1, 1), ElementsAre("HandOver t2 @1"));
  EXPECT_THAT(Commit(2, 2), ElementsAre("HandOver t3 @2"));
  EXPECT_THAT(Op(Span(6, 12, 15, 5)), ElementsAre("SendMail i8 ready 5"));  // its producer has started
}

// It has its turn when its input may still fail on one shard alone; then it waits for its producer's end.
TEST_F(SpanLaunchTest, ATurnIsNotAStart) {
  WorkerOp load = LoadOp(3, {.params = {10}, .outputs = {10}, .devices = {}, .can_fail_on_one_shard = true});
  load.mutable_load()->mutable_info()->set_portable(false);
  load.mutable_load()->mutable_info()->set_split(true);
  load.mutable_load()->mutable_info()->set_num_devices(4);
  Op(std::move(load));
  core_->OnLoadDone(ExecutableId(3), absl::OkStatus(), ++now_);
  Resident(1, 10);
  WorkerOp first = Span(2, 10, 11, 1);
  first.mutable_launch()->set_executable(3);
  Op(std::move(first));
  Commit(1, 1);
  EXPECT_THAT(Op(Span(3, 11, 12, 2)), ElementsAre("SendMail i8 ready 2"));
  EXPECT_THAT(Commit(2, 2), IsEmpty());
  EXPECT_THAT(Done(2), ElementsAre("HandOver t3 @2"));
}

TEST_F(SpanLaunchTest, DevicesFollowTheOrderOfNumbersOnTheirOwn) {
  Upload(1, 10);
  Resident(2, 20);
  Op(Span(3, 10, 11, 1));
  Op(Span(4, 20, 21, 2));
  // As if it had been ready: its input is made here, by a launch that has a turn.
  core_->OnUploadDone(1, absl::OkStatus(), ++now_);
  sink_.TakeCalls();
  EXPECT_THAT(Commit(2, 2), IsEmpty());  // the one before it is not here yet
  EXPECT_THAT(Commit(1, 1), ElementsAre("HandOver t3 @1", "HandOver t4 @2"));
}

TEST_F(SpanLaunchTest, OneThatIsDroppedGivesUpItsTurn) {
  Resident(1, 10);
  Resident(2, 20);
  Op(Span(3, 10, 11, 1));
  Op(Span(4, 20, 21, 2));
  EXPECT_THAT(Op(Abort(3)), ElementsAre("SendMail i8 withdrawn 1"));
  EXPECT_THAT(Commit(1, 1), IsEmpty());
  EXPECT_THAT(Commit(2, 2), ElementsAre("HandOver t4 @1"));
}

TEST_F(SpanLaunchTest, AnAbortDropsWhatWaitsAndIsPassedOnOtherwise) {
  Upload(1, 10);
  Op(Span(2, 10, 11, 1));
  Op(Abort(2));
  EXPECT_THAT(Reports(), ::testing::Contains(HasSubstr("Failed a11.1,a11.2 DATA_LOSS")));
  Resident(3, 30);
  Op(Span(4, 30, 31, 2));
  EXPECT_THAT(Commit(2, 1), ElementsAre("HandOver t4 @1"));
  EXPECT_THAT(Op(Abort(4)), ElementsAre("AbortLaunch t4 DATA_LOSS"));
  Done(4, absl::DataLossError("worker i8 was lost"));
  EXPECT_THAT(Reports(), ::testing::Contains(HasSubstr("Failed a31.1,a31.2 DATA_LOSS")));
  EXPECT_THAT(Op(Abort(4)), ElementsAre("AbortLaunch t4 DATA_LOSS"));  // peers may still take from it
}

TEST_F(SpanLaunchTest, OneThatHasFailedElsewhereStartsNowhere) {
  Resident(1, 10);
  WorkerOp op = Span(2, 10, 11, 1);
  *op.mutable_launch()->mutable_span()->mutable_failed() = Why(absl::StatusCode::kDataLoss, "worker i8 was lost");
  EXPECT_THAT(Op(std::move(op)), ElementsAre("SendMail i8 withdrawn 1"));
  EXPECT_THAT(Reports(), ::testing::Contains(HasSubstr("Failed a11.1,a11.2 DATA_LOSS")));
  EXPECT_THAT(Op(Span(3, 10, 12, 2)), ElementsAre("SendMail i8 ready 2"));
}

// Worker 8 is lost; the spanner comes here.
TEST_F(SpanLaunchTest, ANewSpannerTakesOverWhatItIsTold) {
  Resident(1, 10);
  Op(Span(2, 10, 11, 1));
  Op(Span(3, 10, 12, 2));
  Commit(1, 1);
  WorkerOp order;
  order.mutable_span_order()->set_epoch(2);
  order.mutable_span_order()->set_spanner(7);
  order.mutable_span_order()->set_log(1);
  for (uint64_t worker : {7, 9}) {
    SpanWorker* member = order.mutable_span_order()->add_members();
    member->set_incarnation(worker);
    member->set_log(static_cast<uint32_t>(worker) - 6);
  }
  EXPECT_THAT(Op(std::move(order)), ElementsAre("ListenTo i9"));
  WorkerOp span = Span(4, 10, 13, 3);
  span.mutable_launch()->mutable_span()->mutable_workers(1)->set_incarnation(9);
  span.mutable_launch()->mutable_span()->mutable_workers(1)->set_log(3);
  EXPECT_THAT(Op(std::move(span)), IsEmpty());
  const auto mail = [&](auto fill) {
    OrderMail message;
    fill(message);
    core_->OnMail(Incarnation(9), message.SerializeAsString(), ++now_);
    return sink_.TakeCalls();
  };
  EXPECT_THAT(mail([](OrderMail& message) {
                message.mutable_report()->set_log(3);
                message.mutable_report()->set_spanner_epoch(2);
                message.mutable_report()->set_g_tail(4);
                message.mutable_report()->set_g_seen(4);
              }),
              IsEmpty());
  // Launch 2 has a part on the worker that was lost, and none of the others: it never comes.
  EXPECT_THAT(mail([](OrderMail& message) {
                message.mutable_ready()->set_log(3);
                message.mutable_ready()->set_spanner_epoch(2);
                message.mutable_ready()->set_number(3);
                for (uint32_t log : {1, 3}) message.mutable_ready()->add_logs(log);
              }),
              ElementsAre("SendMail i9 commit 3 5 after 4", "HandOver t4 @2"));
}

TEST_F(SpanLaunchTest, WhatWaitsForASpannerThatCannotBeReachedFails) {
  Resident(1, 10);
  Resident(2, 20);
  Upload(3, 30);
  Op(Span(4, 10, 11, 1));
  Commit(1, 1);
  Op(Span(5, 20, 21, 2));
  Op(Span(6, 30, 31, 3));
  core_->OnMailBroken(Incarnation(9), absl::AbortedError("a stranger"), ++now_);
  EXPECT_THAT(Reports(), IsEmpty());
  core_->OnMailBroken(Incarnation(8), absl::AbortedError("cannot be reached"), ++now_);
  EXPECT_THAT(sink_.TakeCalls(), ElementsAre("SendMail i8 withdrawn 2", "SendMail i8 withdrawn 3"));
  EXPECT_THAT(Reports(), ElementsAre(HasSubstr("Failed a21.1,a21.2 ABORTED"), HasSubstr("Failed a31.1,a31.2 ABORTED"),
                                     HasSubstr("Progress")));
  Done(4);
  EXPECT_THAT(Reports(), ElementsAre(HasSubstr("t4")));
}

TEST_F(SpanLaunchTest, MailOfStrangersIsNotRead) {
  const size_t before = core_->counts().anomalies;
  Resident(1, 10);
  Op(Span(2, 10, 11, 1));
  OrderMail mail;
  mail.mutable_commit()->set_spanner_epoch(1);
  mail.mutable_commit()->set_number(1);
  mail.mutable_commit()->set_g(1);
  core_->OnMail(Incarnation(9), mail.SerializeAsString(), ++now_);
  mail.mutable_ready()->set_log(2);
  core_->OnMail(Incarnation(8), mail.SerializeAsString(), ++now_);  // the spanner is not here
  core_->OnMail(Incarnation(8), "\xff", ++now_);
  core_->OnMail(Incarnation(8), "", ++now_);
  EXPECT_THAT(sink_.TakeCalls(), IsEmpty());
  EXPECT_EQ(core_->counts().anomalies, before + 4);
}

TEST_F(SpanLaunchTest, NonsenseIsRefusedAndDisturbsNobody) {
  Resident(1, 10);
  uint64_t ticket = 2, number = 1;
  auto refused = [&](auto change, bool shards_known = true) {
    WorkerOp op = Span(ticket, 10, 100 + ticket, number);
    ++ticket;
    ++number;
    change(op.mutable_launch());
    for (const std::string& call : Op(std::move(op))) EXPECT_THAT(call, HasSubstr("withdrawn"));
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
  refused([](Launch* launch) { launch->mutable_span()->mutable_workers(0)->set_log(5); });
  refused([](Launch* launch) { launch->mutable_span()->mutable_workers(1)->set_log(1); });
  refused([](Launch* launch) { launch->mutable_span()->set_number(0); });
  EXPECT_THAT(Op(Span(50, 10, 200, 50)), ElementsAre("SendMail i8 ready 50"));
  refused([](Launch* launch) { launch->mutable_span()->set_number(50); });
  EXPECT_THAT(Commit(50, 1), ElementsAre("HandOver t50 @1"));
}

TEST_F(SpanLaunchTest, OrdersThatMakeNoSenseAreIgnored) {
  const size_t before = core_->counts().anomalies;
  auto ignored = [&](auto change) {
    WorkerOp op;
    op.mutable_span_order()->set_epoch(2);
    op.mutable_span_order()->set_spanner(9);
    op.mutable_span_order()->set_log(1);
    change(op.mutable_span_order());
    EXPECT_THAT(Op(std::move(op)), IsEmpty());
  };
  ignored([](SpanOrder* order) { order->set_epoch(0); });
  ignored([](SpanOrder* order) { order->set_epoch(1); });
  ignored([](SpanOrder* order) { order->set_spanner(0); });
  ignored([](SpanOrder* order) { order->set_log(2); });
  ignored([](SpanOrder* order) { order->add_members()->set_incarnation(9); });
  EXPECT_EQ(core_->counts().anomalies, before + 5);
}

// What it remembers of launches goes when the controller says that they are over everywhere.
TEST_F(SpanLaunchTest, TheHorizonForgets) {
  Resident(1, 10);
  for (uint64_t n = 1; n <= 100; ++n) {
    WorkerOp op = Span(1 + n, 10, 100 + n, n);
    op.mutable_launch()->mutable_span()->set_horizon(n);
    const Strings calls = Op(std::move(op));
    if (n == 64 || n == 65) {
      EXPECT_THAT(calls, ::testing::Contains(HasSubstr(n == 64 ? "SendMail i8 horizon 64" : "ready 65")));
    }
    Commit(n, n);
    Done(1 + n);
    EXPECT_LE(core_->counts().spans, 2u);
  }
}

}  // namespace
}  // namespace landbridge
