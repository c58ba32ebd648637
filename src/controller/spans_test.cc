// Launches that span workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/fake_world_test_util.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SpansTest : public ::testing::Test {
 protected:
  static constexpr SessionId kSession{1}, kOther{2};

  SpansTest() {
    world.Declare(3, 2);
    world.controller.OpenSession(kSession);
    world.controller.OpenSession(kOther);
  }
  // Rows over both devices of each of the slots.
  ArraySpec Over(const std::vector<int>& slots) {
    std::vector<DeviceId> devices;
    for (int slot : slots) {
      for (DeviceId device : world.Devices(slot)) devices.push_back(device);
    }
    const auto rows = static_cast<int64_t>(devices.size());
    return world.Rows(std::move(devices), {rows});
  }
  ExecutableId Add(const ArraySpec& spec, SessionId session = kSession, std::vector<int> donated = {}) {
    auto program = world.Program(spec, 1, 1, std::move(donated));
    program->info.set_split(true);
    return world.controller.AddExecutable(session, program, spec.sharding->devices()).value();
  }
  ExecuteResult Run(ExecutableId executable, ArrayId array, SessionId session = kSession) {
    return world.controller.Execute(session, {executable, {array}, {}, {}, 0, ""}, 5, world.now).value();
  }
  ArrayId Up(const ArraySpec& spec, const Values& values, SessionId session = kSession) {
    return world.Put(session, spec, values).value();
  }
  void Close() {
    for (SessionId session : {kSession, kOther}) {
      world.controller.CloseSession(session, absl::FailedPreconditionError("closed"));
    }
    world.RunAll();
    world.ExpectEmpty();
  }
  static Values After(const Values& in) {
    Values out;
    for (int64_t value : in) out.push_back(Compute({value}, 0));
    return out;
  }
  FakeWorld world;
};

TEST_F(SpansTest, EachWorkerGetsItsPart) {
  for (int slot : {0, 1}) world.Start(slot);
  const ArraySpec spec = Over({0, 1});
  const ArrayId a = Up(spec, {1, 2, 3, 4});
  const ExecutableId f = Add(spec, kSession, {0});
  const ExecuteResult result = Run(f, a);
  const RequestId done(991);
  world.controller.WhenDone(kSession, done, result.ticket);
  EXPECT_FALSE(world.resolved.contains(done));
  world.RunAll();
  EXPECT_TRUE(world.resolved.at(done).ok());
  EXPECT_EQ(*world.ReadWhole(kSession, result.outputs[0]), After({1, 2, 3, 4}));
  ASSERT_EQ(world.At(0).spans.size(), 1u);
  ASSERT_EQ(world.At(1).spans.size(), 1u);
  const LaunchSpan first = world.At(0).spans[0];
  const LaunchSpan second = world.At(1).spans[0];
  EXPECT_THAT(first.shards(), ElementsAre(0, 1));
  EXPECT_THAT(second.shards(), ElementsAre(2, 3));
  EXPECT_THAT(first.worker_of_device(), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(first.space(), second.space());
  EXPECT_NE(first.space(), 0u);
  ASSERT_EQ(first.workers_size(), 2);
  EXPECT_EQ(first.workers(1).incarnation(), world.At(1).incarnation.value());
  EXPECT_EQ(first.workers(1).data_address(),
            "");  // it was told with the order (WorkersHearWhoNumbersLaunchesBeforeTheFirst)
  EXPECT_EQ(first.workers(0).data_address(), "");
  EXPECT_EQ(first.workers(0).slice(), 0u);
  EXPECT_EQ(first.workers(1).slice(), 1u);
  EXPECT_EQ(first.number(), 1u);
  EXPECT_EQ(second.number(), 1u);

  // No address again.
  const ExecuteResult again = Run(f, result.outputs[0]);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, again.outputs[0]), After(After({1, 2, 3, 4})));
  EXPECT_EQ(world.At(1).spans[1].number(), 2u);
  EXPECT_EQ(world.At(1).spans[1].horizon(), 2u);  // the first is over
  EXPECT_EQ(world.At(0).spans[1].workers(1).data_address(), "");
  EXPECT_NE(world.At(0).spans[1].space(), first.space());
  Close();
}

TEST_F(SpansTest, DevicesOfTwoWorkersMayAlternate) {
  for (int slot : {0, 1}) world.Start(slot);
  const ArraySpec spec = world.Rows({DeviceId(2), DeviceId(0), DeviceId(3), DeviceId(1)}, {4});
  const ExecuteResult result = Run(Add(spec), Up(spec, {1, 2, 3, 4}));
  world.RunAll();
  EXPECT_THAT(world.At(0).spans[0].shards(), ElementsAre(1, 3));
  EXPECT_THAT(world.At(1).spans[0].shards(), ElementsAre(0, 2));
  EXPECT_EQ(*world.ReadWhole(kSession, result.outputs[0]), After({1, 2, 3, 4}));
  Close();
}

TEST_F(SpansTest, NothingIsSentBeforeAllItsWorkersAreThere) {
  world.Start(0);
  const ArraySpec spec = Over({0, 1});
  const ExecuteResult result = Run(Add(spec), Up(spec, {1, 2, 3, 4}));
  world.RunAll();
  EXPECT_THAT(world.At(0).spans, IsEmpty());
  world.Start(1);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, result.outputs[0]), After({1, 2, 3, 4}));
  Close();
}

TEST_F(SpansTest, WhenOnePartFailsTheOthersAreAborted) {
  for (int slot : {0, 1, 2}) world.Start(slot);
  const ArraySpec spec = Over({0, 1, 2});
  const ExecuteResult result = Run(Add(spec), Up(spec, {1, 2, 3, 4, 5, 6}));
  const RequestId done(991);
  world.controller.WhenDone(kSession, done, result.ticket);
  world.fail_next_launch = StatusProto();
  world.fail_next_launch->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  world.fail_next_launch->set_message("no such luck");
  world.RunAll();
  EXPECT_EQ(world.resolved.at(done).code(), absl::StatusCode::kInvalidArgument);
  int aborted = 0;
  for (int slot : {0, 1, 2}) aborted += static_cast<int>(world.At(slot).aborted.size());
  EXPECT_EQ(aborted, 2);
  for (int slot : {0, 1, 2}) {
    for (const auto& [ticket, why] : world.At(slot).aborted) EXPECT_THAT(why.message(), HasSubstr("no such luck"));
  }
  Close();
}

// Its outputs were deleted: no array says that it failed.
TEST_F(SpansTest, WhenOnePartFailsOfALaunchWhoseOutputsNobodyHoldsTheOthersAreAbortedAsWell) {
  for (int slot : {0, 1, 2}) world.Start(slot);
  const ArraySpec spec = Over({0, 1, 2});
  const ExecuteResult result = Run(Add(spec), Up(spec, {1, 2, 3, 4, 5, 6}));
  world.controller.Release(kSession, result.outputs[0]);
  world.fail_next_launch = StatusProto();
  world.fail_next_launch->set_code(static_cast<int>(absl::StatusCode::kInvalidArgument));
  world.fail_next_launch->set_message("no such luck");
  world.RunAll();
  int aborted = 0;
  for (int slot : {0, 1, 2}) aborted += static_cast<int>(world.At(slot).aborted.size());
  EXPECT_EQ(aborted, 2);
  Close();
}

TEST_F(SpansTest, ALostWorkerEndsTheLaunchOnTheOthers) {
  for (int slot : {0, 1}) world.Start(slot);
  const ArraySpec spec = Over({0, 1});
  const ArrayId a = Up(spec, {1, 2, 3, 4});
  world.RunAll();
  const ExecutableId f = Add(spec);
  const ExecuteResult result = Run(f, a);
  world.Kill(1);
  world.RunAll();
  ASSERT_EQ(world.At(0).aborted.size(), 1u);
  EXPECT_EQ(world.At(0).aborted.begin()->second.code(), static_cast<int>(absl::StatusCode::kDataLoss));
  EXPECT_EQ(world.ReadWhole(kSession, result.outputs[0]).status().code(), absl::StatusCode::kDataLoss);
  // The worker that comes back has a log of its own.
  world.Start(1);
  const ExecuteResult next = Run(f, Up(spec, {5, 6, 7, 8}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, next.outputs[0]), After({5, 6, 7, 8}));
  ASSERT_EQ(world.At(1).span_orders.size(), 1u);
  EXPECT_EQ(world.At(1).span_orders[0].log(), 3u);
  Close();
}

TEST_F(SpansTest, WorkersHearWhoNumbersLaunchesBeforeTheFirst) {
  for (int slot : {0, 1, 2}) world.Start(slot);
  world.RunAll();
  for (int slot : {0, 1, 2}) EXPECT_THAT(world.At(slot).span_orders, IsEmpty());
  const auto run = [&](const std::vector<int>& slots) {
    const ArraySpec spec = Over(slots);
    Run(Add(spec), Up(spec, Values(static_cast<size_t>(2 * slots.size()), 1)));
    world.RunAll();
  };
  run({0, 1});
  // The spanner is at one of them, which hears of each that joins; the other hears where it is.
  ASSERT_EQ(world.At(1).span_orders.size(), 1u);
  const uint64_t first = world.At(0).incarnation.value(), second = world.At(1).incarnation.value();
  EXPECT_EQ(world.At(1).span_orders[0].spanner(), first);
  EXPECT_EQ(world.At(1).span_orders[0].spanner_address(), "address-" + world.At(0).incarnation.ToString());
  EXPECT_EQ(world.At(1).span_orders[0].epoch(), 1u);
  EXPECT_EQ(world.At(0).span_orders.back().members(0).data_address(), "address-" + world.At(1).incarnation.ToString());
  std::vector<uint64_t> members;
  for (const SpanOrder& order : world.At(0).span_orders) {
    for (const SpanWorker& member : order.members()) members.push_back(member.incarnation());
  }
  EXPECT_THAT(members, ElementsAre(first, second));
  EXPECT_THAT(world.At(2).span_orders, IsEmpty());
  EXPECT_EQ(world.At(0).spans[0].workers(0).log(), 1u);
  EXPECT_EQ(world.At(0).spans[0].workers(1).log(), 2u);

  run({1, 2});
  ASSERT_EQ(world.At(2).span_orders.size(), 1u);
  EXPECT_EQ(world.At(2).span_orders[0].log(), 3u);
  EXPECT_EQ(world.At(0).span_orders.back().members(0).incarnation(), world.At(2).incarnation.value());
  Close();
}

TEST_F(SpansTest, WhenTheSpannersWorkerIsLostAnotherOneTakesOver) {
  for (int slot : {0, 1, 2}) world.Start(slot);
  const ArraySpec spec = Over({0, 1, 2});
  const ExecutableId f = Add(spec);
  Run(f, Up(spec, {1, 2, 3, 4, 5, 6}));
  world.RunAll();
  world.Kill(0);
  world.RunAll();
  EXPECT_EQ(world.At(1).span_orders.back().epoch(), 2u);
  EXPECT_EQ(world.At(1).span_orders.back().spanner(), world.At(1).incarnation.value());
  ASSERT_EQ(world.At(1).span_orders.back().members_size(), 2);
  EXPECT_EQ(world.At(1).span_orders.back().members(1).incarnation(), world.At(2).incarnation.value());
  EXPECT_EQ(world.At(2).span_orders.back().spanner(), world.At(1).incarnation.value());
  world.Start(0);
  const ExecuteResult next = Run(f, Up(spec, {1, 2, 3, 4, 5, 6}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, next.outputs[0]), After({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(world.At(0).span_orders.back().spanner(), world.At(1).incarnation.value());
  EXPECT_EQ(world.At(0).span_orders.back().log(), 4u);
  Close();
}

// A launch that waits for a worker holds up nobody, and what is never sent has no number.
TEST_F(SpansTest, OthersGoPastOneThatWaitsForItsWorker) {
  for (int slot : {0, 1}) world.Start(slot);
  const ArraySpec far = Over({0, 2}), near = Over({0, 1});
  Run(Add(far, kOther), Up(far, {1, 2, 3, 4}, kOther), kOther);
  const ExecuteResult mine = Run(Add(near), Up(near, {5, 6, 7, 8}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, mine.outputs[0]), After({5, 6, 7, 8}));
  EXPECT_EQ(world.At(0).spans.at(0).number(), 1u);
  EXPECT_EQ(world.At(0).spans.at(0).horizon(), 1u);
  world.controller.CloseSession(kOther, absl::CancelledError("gone"));
  world.Start(2);
  world.RunAll();
  EXPECT_EQ(world.At(0).spans.size(), 1u);
  EXPECT_THAT(world.At(2).spans, IsEmpty());
  Close();
}

TEST_F(SpansTest, ProgramsMustBeCompiledForIt) {
  const ArraySpec spec = Over({0, 1});
  auto program = world.Program(spec, 1, 1);
  EXPECT_EQ(world.controller.AddExecutable(kSession, program, spec.sharding->devices()).status().code(),
            absl::StatusCode::kInternal);
  Close();
}

}  // namespace
}  // namespace landbridge
