// Reads and host buffers, absent workers, programs, what is refused or waits.
#include "controller/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "base/data_keys.h"
#include "controller/controller_fixture_test_util.h"
#include "nlohmann/json.hpp"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

TEST_F(ControllerTest, ReadsCheckWhatIsAskedFor) {
  world.Start(0);
  ArrayId rows = Up(world.Rows(world.Devices(0), {4}), Range(4));
  ArrayId all = Up(world.Replicated(world.Devices(0), {4}), Range(4));
  RequestId sharded = world.ReadBack(kSession, rows);
  EXPECT_EQ(world.reads.at(sharded).status().code(), absl::StatusCode::kInvalidArgument);
  controller().ReadArray(kSession, RequestId(800), all, {}, 31);
  EXPECT_FALSE(world.reads.at(RequestId(800)).ok());
  controller().ReadArray(kSession, RequestId(801), all, {-8}, 32);
  EXPECT_FALSE(world.reads.at(RequestId(801)).ok());
  ArrayId one = controller().FullyReplicatedShard(kSession, all, CopySemantics::kReuse).value();
  EXPECT_FALSE(controller().FullyReplicatedShard(kSession, rows, CopySemantics::kReuse).ok());
  RequestId good = world.ReadBack(kSession, one);
  world.RunAll();
  EXPECT_EQ(FromBytes(world.reads.at(good)->data), Range(4));
  // A large one stays published until it is released.
  controller().ReadArray(kSession, RequestId(802), all, {}, 32);
  const WorkerOp op = world.At(0).inbox.back();
  ASSERT_TRUE(op.has_read());
  world.At(0).inbox.clear();
  WorkerReport report;
  report.mutable_read_ready()->set_read(802);
  report.mutable_read_ready()->set_published(true);
  controller().OnReport(world.At(0).incarnation, report, 0);
  const ReadResult& result = *world.reads.at(RequestId(802));
  EXPECT_TRUE(result.remote);
  EXPECT_EQ(result.space, 9u);
  EXPECT_EQ(result.id, DataKeyId(DataKeyKind::kRead, 802));
  EXPECT_EQ(result.worker, world.At(0).incarnation);
  EXPECT_EQ(controller().counts().requests, 1u);
  controller().ReleaseRead(RequestId(802));
  EXPECT_TRUE(world.At(0).inbox.back().has_release_read());
  controller().ReleaseRead(RequestId(802));  // twice is fine
  EXPECT_EQ(controller().counts().requests, 0u);
  Close();
}

TEST_F(ControllerTest, HostBuffersLeaveExactlyOnce) {
  world.Start(0);
  world.bytes_at_once = false;
  ArrayId small = Up(world.Single(0, {2}), {1, 2});
  EXPECT_EQ(world.wanted.size(), 1u);
  EXPECT_EQ(controller().counts().host_buffers, 1u);
  // Large ones are pulled.
  const int64_t n = static_cast<int64_t>(limits::kInlineBytesMax) / 8 + 1;
  ArrayId large = Up(world.Replicated(world.Devices(0), {n}), Range(n));
  EXPECT_EQ(world.served.size(), 2u);
  world.RunAll();
  EXPECT_EQ(world.dropped.size(), 3u);
  EXPECT_EQ(*world.ReadWhole(kSession, small), (Values{1, 2}));
  EXPECT_EQ(*world.ReadWhole(kSession, large), Range(n));
  // Refused ones too.
  HostShard bad;
  bad.shards = {0};
  bad.key = 777;
  bad.image_bytes = 5;
  EXPECT_FALSE(controller().MakeFromHost(kSession, world.Single(0, {2}), {bad}, 0, 0).ok());
  EXPECT_TRUE(world.dropped.contains(777));
  Close();
}

TEST_F(ControllerTest, BytesThatNeverComePoison) {
  world.Start(0);
  HostShard shard;
  shard.shards = {0};
  shard.key = 500;
  shard.image_bytes = 16;
  ArrayId here = controller().MakeFromHost(kSession, world.Single(0, {2}), {shard}, 0, 0).value();
  shard.key = 501;
  ArrayId later = controller().MakeFromHost(kSession, world.Single(2, {2}), {shard}, 0, 0).value();  // no worker
  RequestId wait = world.Wait(kSession, {here}), far = world.Wait(kSession, {later});
  controller().OnHostBytes(500, absl::ResourceExhaustedError("no memory for the upload"));
  controller().OnHostBytes(501, absl::ResourceExhaustedError("no memory for the upload"));
  EXPECT_EQ(world.resolved.at(far).code(), absl::StatusCode::kResourceExhausted);  // without any worker
  world.RunAll();
  EXPECT_EQ(world.resolved.at(wait).code(), absl::StatusCode::kResourceExhausted);
  world.Start(1);
  world.RunAll();
  EXPECT_EQ(world.ReadWhole(kSession, later).status().code(), absl::StatusCode::kResourceExhausted);
  Close();
}

TEST_F(ControllerTest, WorkForAnAbsentWorkerWaitsInOrder) {
  const ArraySpec spec = world.Single(0, {3});
  ExecutableId f =
      controller()
          .AddExecutable(kSession, world.Program(spec, 1, 1, {}, limits::kInlineBytesMax + 1), {DeviceId(0)})
          .value();
  ArrayId a = Up(spec, Range(3));
  ArrayId b = Run(f, {a}).outputs[0];
  controller().Release(kSession, a);
  ArrayId c = Run(f, {b}).outputs[0];
  RequestId read = world.ReadBack(kSession, c);
  world.RunAll();
  EXPECT_GT(controller().counts().ops_parked, 4u);
  auto status = nlohmann::json::parse(controller().StatusJson(world.now));
  EXPECT_EQ(status["slots"][0]["up"], false);
  EXPECT_GE(status["slots"][0]["waiting"].size(), 4u);
  EXPECT_THAT(status["slots"][0]["waiting"][1]["waits_for"].get<std::string>(), HasSubstr("slice0/0"));
  world.Start(0);
  EXPECT_EQ(world.serving.size(), 1u);
  world.RunAll();
  EXPECT_EQ(world.serving.size(), 0u);
  EXPECT_EQ(FromBytes(world.reads.at(read)->data), Apply({Apply({Range(3)}, 0)}, 0));
  EXPECT_EQ(controller().counts().ops_parked, 0u);
  Close();
}

TEST_F(ControllerTest, ADeadSliceHoldsUpNobodyElse) {
  world.Start(1);
  ArrayId a = Up(world.Single(0, {2}), {1, 2});  // slot 0 has no worker
  const std::vector<DeviceId> there = {DeviceId(2)};
  ArrayId b = controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).value()[0];
  const ArraySpec spec = world.Single(2, {2});
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(2)}).value();
  ArrayId waits = Run(f, {b}).outputs[0];
  ArrayId own = Up(spec, {5, 6});
  ArrayId runs = Run(f, {own}).outputs[0];
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, runs), Apply({{5, 6}}, 0));
  controller().Release(kSession, runs);
  controller().Release(kSession, own);
  controller().Release(kSession, b);
  world.RunAll();
  EXPECT_TRUE(world.At(1).buffers.empty());
  world.Start(0);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, waits), Apply({{1, 2}}, 0));
  Close();
}

TEST_F(ControllerTest, CloseWhileEverythingWaits) {
  world.Start(1);
  ArrayId a = Up(world.Single(0, {2}), {1, 2});
  const std::vector<DeviceId> there = {DeviceId(2)};
  ArrayId b = controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).value()[0];
  const ArraySpec spec = world.Single(0, {2});
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  Run(f, {a});
  world.Wait(kSession, {a, b});
  world.ReadBack(kSession, b);
  Close();
  EXPECT_TRUE(world.resolved.empty());
}

TEST_F(ControllerTest, ProgramsAreSharedAndUnloadedAfterTheLastUser) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {2});
  auto program = world.Program(spec, 1, 1);
  ExecutableId mine = controller().AddExecutable(kSession, program, {DeviceId(0)}).value();
  ExecutableId theirs = controller().AddExecutable(kOther, program, {DeviceId(0)}).value();
  EXPECT_NE(mine, theirs);
  world.RunAll();
  EXPECT_EQ(world.At(0).programs.size(), 1u);
  controller().ReleaseExecutable(kSession, mine);
  world.RunAll();
  EXPECT_EQ(world.At(0).programs.size(), 1u);
  controller().ReleaseExecutable(kOther, theirs);
  world.RunAll();
  EXPECT_EQ(world.At(0).programs.size(), 0u);
  Close();
}

TEST_F(ControllerTest, LoadFailuresBelongToTheResults) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {2});
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  ArrayId a = Up(spec, {1, 2});
  world.RunAll();
  ASSERT_FALSE(world.At(0).programs.empty());
  WorkerReport report;
  report.mutable_load_done()->set_executable(world.At(0).programs.begin()->first);
  report.mutable_load_done()->mutable_status()->set_code(3);
  report.mutable_load_done()->mutable_status()->set_message("a handler is missing");
  controller().OnReport(world.At(0).incarnation, report, 0);
  ExecuteResult result = Run(f, {a});
  RequestId wait = world.Wait(kSession, result.outputs);
  EXPECT_EQ(std::string(world.resolved.at(wait).message()), "a handler is missing");
  Close();
}

TEST_F(ControllerTest, PortablePrograms) {
  world.Start(0);
  world.Start(1);
  const ArraySpec spec = world.Single(0, {2});
  auto program = world.Program(spec, 1, 1);
  program->info.set_portable(true);
  ExecutableId f = controller().AddExecutable(kSession, program, {DeviceId(0)}).value();
  ArrayId there = Up(world.Single(3, {2}), {7, 8});
  ExecuteArgs call{f, {there}, {}, {DeviceId(3)}, 0, ""};
  ExecuteResult result = controller().Execute(kSession, call, 0, 0).value();
  EXPECT_EQ(controller().Spec(kSession, result.outputs[0])->sharding->devices()[0], DeviceId(3));
  EXPECT_EQ(*world.ReadWhole(kSession, result.outputs[0]), Apply({{7, 8}}, 0));
  call.devices = {DeviceId(99)};
  EXPECT_FALSE(controller().Execute(kSession, call, 0, 0).ok());
  Close();
}

TEST_F(ControllerTest, ProgramsOverSeveralWorkersNeedToBeCompiledForThat) {
  EXPECT_TRUE(controller().SpansWorkers({DeviceId(0), DeviceId(2)}).value());
  EXPECT_FALSE(controller().SpansWorkers(world.Devices(1)).value());
  EXPECT_EQ(controller().SpansWorkers({DeviceId(44)}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(controller().SpansWorkers({}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ControllerTest, StaleReportsAreCountedAndIgnored) {
  world.Start(0);
  WorkerReport report;
  report.mutable_progress()->add_tickets(12345);
  controller().OnReport(Incarnation(4711), report, 0);
  controller().OnReport(world.At(0).incarnation, report, 0);
  report.mutable_watched()->set_watch(99);
  controller().OnReport(world.At(0).incarnation, report, 0);
  EXPECT_EQ(nlohmann::json::parse(controller().StatusJson(0))["counts"]["reports_ignored"], 3);
}

TEST_F(ControllerTest, Explains) {
  world.Start(0);
  controller().Explain(RequestId(1), 0);
  EXPECT_TRUE(world.explained.empty());
  world.RunAll();
  auto json = nlohmann::json::parse(world.explained.at(RequestId(1)));
  EXPECT_EQ(json["workers"]["slice0/0"]["queue"], 0);
  EXPECT_TRUE(json["controller"].contains("slots"));
}

TEST_F(ControllerTest, ExplainsWithoutTheWorkersThatAreSilent) {
  world.Start(0);
  world.Start(1);
  ArrayId a = world.Put(kSession, world.Single(0, {2}), {1, 2}).value();
  controller().Explain(RequestId(1), 0);
  controller().EndExplain(RequestId(1));
  controller().EndExplain(RequestId(1));  // once is enough
  const auto json = nlohmann::json::parse(world.explained.at(RequestId(1)));
  EXPECT_TRUE(json["workers"]["slice0/0"].is_null());
  EXPECT_TRUE(json["workers"]["slice1/0"].is_null());
  // What a silent worker has been sent.
  const auto& sent = json["controller"]["slots"][0]["sent"];
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0]["ticket"], "t1");
  EXPECT_EQ(sent[0]["session"], kSession.ToString());
  EXPECT_TRUE(json["controller"]["slots"][1]["sent"].empty());
  world.RunAll();  // late answers are ignored
  controller().Release(kSession, a);
  EXPECT_TRUE(nlohmann::json::parse(controller().StatusJson(0))["slots"][0]["sent"].empty());
}

TEST(ControllerLimits, LaunchesAboveTheCreditWaitAndReadsPassThem) {
  FakeWorld world(1, 4);
  world.Declare(1, 1);
  world.controller.OpenSession(kSession);
  world.Start(0);
  const ArraySpec spec = world.Single(0, {2});
  ExecutableId f = world.controller.AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  ArrayId a = world.Put(kSession, spec, {1, 2}).value();
  world.RunAll();
  Values expected = {1, 2};
  std::vector<ArrayId> chain = {a};
  for (int i = 0; i < 10; ++i) {
    ExecuteArgs call{f, {chain.back()}, {}, {}, 0, ""};
    chain.push_back(world.controller.Execute(kSession, call, 0, 0).value().outputs[0]);
    expected = Apply({expected}, 0);
  }
  EXPECT_EQ(world.controller.counts().ops_parked, 6u);
  // A read of what was sent does not wait for credit; nor does a delete of what nothing parked uses.
  world.ReadBack(kSession, a);
  EXPECT_EQ(world.controller.counts().ops_parked, 6u);
  world.controller.Release(kSession, a);
  world.controller.OnTime(0);
  EXPECT_EQ(world.controller.counts().ops_parked, 6u);
  world.controller.Release(kSession, chain[9]);  // used by the last parked one
  world.controller.OnTime(0);
  EXPECT_EQ(world.controller.counts().ops_parked, 7u);
  EXPECT_EQ(*world.ReadWhole(kSession, chain[10]), expected);
  world.controller.CloseSession(kSession, absl::FailedPreconditionError("closed"));
  world.RunAll();
  world.ExpectEmpty();
}

TEST(ControllerLimits, TooMuchParkedPausesTheSession) {
  FakeWorld world;
  world.Declare(1, 1);
  world.controller.OpenSession(kSession);
  const ArraySpec spec = world.Single(0, {1});
  for (size_t i = 0; i + 1 < limits::kSessionParkedRequestsMax; ++i) ASSERT_TRUE(world.Put(kSession, spec, {1}).ok());
  EXPECT_TRUE(world.paused.empty());
  ASSERT_TRUE(world.Put(kSession, spec, {1}).ok());
  EXPECT_TRUE(world.paused.at(kSession));
  world.Start(0);
  // Everything within the credit goes; the rest as nodes end.
  WorkerReport report;
  for (const WorkerOp& op : world.At(0).inbox) {
    if (op.has_upload()) report.mutable_progress()->add_tickets(op.upload().ticket());
  }
  while (world.paused.at(kSession) && report.progress().tickets_size() != 0) {
    world.At(0).inbox.clear();
    WorkerReport next;
    std::swap(next, report);
    world.controller.OnReport(world.At(0).incarnation, next, 0);
    for (const WorkerOp& op : world.At(0).inbox) {
      if (op.has_upload()) report.mutable_progress()->add_tickets(op.upload().ticket());
    }
  }
  EXPECT_FALSE(world.paused.at(kSession));
  EXPECT_GT(world.controller.counts().ops_parked, limits::kSessionParkedRequestsMax / 4);
}

TEST(ControllerLimits, ParkedBytesPauseToo) {
  FakeWorld world;
  world.Declare(1, 1);
  world.controller.OpenSession(kSession);
  const auto n = static_cast<int64_t>(limits::kInlineBytesMax) / 8;
  const ArraySpec spec = world.Single(0, {n});
  size_t uploads = 0;
  while (!world.paused[kSession]) {
    ASSERT_TRUE(world.Put(kSession, spec, Values(static_cast<size_t>(n), 1)).ok());
    ASSERT_LE(++uploads, limits::kSessionParkedBytesMax / limits::kInlineBytesMax);
  }
  EXPECT_GT(uploads, limits::kSessionParkedBytesMax / limits::kInlineBytesMax * 9 / 10);
}

}  // namespace
}  // namespace landbridge
