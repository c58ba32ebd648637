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
  EXPECT_EQ(first.workers(1).data_address(), "address-" + world.At(1).incarnation.ToString());
  EXPECT_EQ(first.workers(0).data_address(), "");
  EXPECT_EQ(first.place().previous(), 0u);

  // The next one names the one before it on each worker, and no address again.
  const ExecuteResult again = Run(f, result.outputs[0]);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, again.outputs[0]), After(After({1, 2, 3, 4})));
  EXPECT_EQ(world.At(1).spans[1].place().previous(), first.place().number());
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
  // The worker that comes back counts from the beginning.
  world.Start(1);
  const ExecuteResult next = Run(f, Up(spec, {5, 6, 7, 8}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, next.outputs[0]), After({5, 6, 7, 8}));
  EXPECT_EQ(world.At(1).spans.back().place().previous(), 0u);
  EXPECT_NE(world.At(0).spans.back().place().previous(), 0u);
  Close();
}

// Another session's launch has a place that will never be used: those who come after it are told.
TEST_F(SpansTest, PlacesOfLaunchesThatAreNeverSentAreVoid) {
  world.Start(0);
  const ArraySpec spec = Over({0, 1});
  Run(Add(spec, kOther), Up(spec, {1, 2, 3, 4}, kOther), kOther);
  const ExecuteResult mine = Run(Add(spec), Up(spec, {5, 6, 7, 8}));
  world.controller.CloseSession(kOther, absl::CancelledError("gone"));
  world.Start(1);
  world.RunAll();
  for (int slot : {0, 1}) {
    ASSERT_EQ(world.At(slot).void_spans.size(), 1u) << slot;
    ASSERT_EQ(world.At(slot).spans.size(), 1u) << slot;
    EXPECT_EQ(world.At(slot).spans[0].place().previous(), world.At(slot).void_spans[0].number()) << slot;
  }
  EXPECT_EQ(*world.ReadWhole(kSession, mine.outputs[0]), After({5, 6, 7, 8}));
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
