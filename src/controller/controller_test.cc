// Launches, references, donation, errors.
#include "controller/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "controller/controller_fixture_test_util.h"
#include "sharding/reshard_limits.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(ControllerTest, UploadExecuteRead) {
  world.Start(0);
  const ArraySpec spec = world.Rows(world.Devices(0), {4, 2});
  ArrayId a = Up(spec, Range(8));
  ArrayId b = Up(spec, Range(8, 50));
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 2, 2), world.Devices(0)).value();
  ExecuteResult result = Run(f, {a, b});
  ASSERT_EQ(result.outputs.size(), 2u);
  EXPECT_EQ(*controller().Spec(kSession, result.outputs[0])->sharding, *spec.sharding);
  const RequestId done(900);
  controller().WhenDone(kSession, done, result.ticket);
  const RequestId ready = world.Wait(kSession, result.outputs);
  EXPECT_TRUE(world.resolved.empty());
  world.RunAll();
  EXPECT_TRUE(world.resolved.at(done).ok());
  EXPECT_TRUE(world.resolved.at(ready).ok());
  EXPECT_EQ(*world.ReadWhole(kSession, result.outputs[1]), Apply({Range(8), Range(8, 50)}, 1));
  // Known answers come at once.
  const RequestId again = world.Wait(kSession, result.outputs);
  EXPECT_TRUE(world.resolved.at(again).ok());
  Close();
}

TEST_F(ControllerTest, LaunchesCarryWhatTheSessionAndTheProgramWant) {
  world.Start(0);
  EXPECT_TRUE(world.At(0).inbox.empty());  // client order needs no word
  const SessionId weighty(77);
  controller().OpenSession(weighty, {2.5, -4});
  const ArraySpec spec = world.Single(0, {2});
  ArrayId a = world.Put(weighty, spec, {1, 2}).value();
  ExecutableId f = controller().AddExecutable(weighty, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  ExecuteArgs call;
  call.executable = f;
  call.args = {a};
  ASSERT_TRUE(controller().Execute(weighty, call, 0, world.now).ok());
  call.priority = 9;
  call.phase = PHASE_BACKWARD;
  ASSERT_TRUE(controller().Execute(weighty, call, 0, world.now).ok());
  std::vector<std::string> wishes;
  for (const WorkerOp& op : world.At(0).inbox) {
    if (!op.has_launch()) continue;
    wishes.push_back(absl::StrCat(op.launch().priority(), " ", op.launch().weight(), " ", op.launch().phase()));
  }
  EXPECT_EQ(wishes, (std::vector<std::string>{"-4 2.5 0", "9 2.5 2"}));
  controller().CloseSession(weighty, absl::FailedPreconditionError("closed"));
  Close();
}

TEST(SchedulingTest, EveryLifeOfAWorkerHearsThePolicyFirst) {
  Controller::Options options;
  options.space = 9;
  options.scheduling.set_policy(POLICY_BACKWARD_FIRST);
  options.scheduling.set_activation_budget(6);
  FakeWorld world(1, options);
  world.Declare(1, 1);
  for (int life = 0; life < 2; ++life) {
    world.Start(0);
    ASSERT_EQ(world.At(0).inbox.size(), 1u);
    EXPECT_EQ(world.At(0).inbox[0].scheduling().policy(), POLICY_BACKWARD_FIRST);
    EXPECT_EQ(world.At(0).inbox[0].scheduling().activation_budget(), 6u);
    world.Kill(0);
  }
}

// A on one slice, B on the other, C back on the first: each goes out when what it needs has been reported as made.
TEST(SchedulingTest, SequentialDispatchTakesARoundTripForEveryEdge) {
  for (const bool sequential : {false, true}) {
    Controller::Options options;
    options.space = 9;
    options.sequential_dispatch = sequential;
    FakeWorld world(1, options);
    world.Declare(2, 1);
    world.controller.OpenSession(kSession);
    world.Start(0);
    world.Start(1);
    const ArraySpec here = world.Single(0, {2}), there = world.Single(1, {2});
    ArrayId x = world.Put(kSession, here, {1, 2}).value();
    ExecutableId f[2];
    for (int slot = 0; slot < 2; ++slot) {
      f[slot] =
          world.controller.AddExecutable(kSession, world.Program(slot == 0 ? here : there, 1, 1), {DeviceId(slot)})
              .value();
    }
    world.RunAll();
    auto run = [&](int slot, ArrayId in) {
      ExecuteArgs call;
      call.executable = f[slot];
      call.args = {in};
      return world.controller.Execute(kSession, call, 0, world.now)->outputs[0];
    };
    auto move = [&](ArrayId in, int device) {
      const std::vector<DeviceId> to = {DeviceId(device)};
      return world.controller.Copy(kSession, {&in, 1}, &to, nullptr, CopySemantics::kAlwaysCopy, 0, world.now)->at(0);
    };
    const ArrayId a = run(0, x);
    const ArrayId b = run(1, move(a, 1));
    const ArrayId c = run(0, move(b, 0));
    size_t sent = 0;
    for (int slot = 0; slot < 2; ++slot) {
      for (const WorkerOp& op : world.At(slot).inbox)
        sent += op.has_launch() || op.has_reshard_receive() || op.has_reshard_send();
    }
    EXPECT_EQ(sent, sequential ? 1u : 7u);  // three launches, two receives, two sends
    world.RunAll();
    Values want = {1, 2};
    for (int i = 0; i < 3; ++i) want = Apply({want}, 0);
    EXPECT_EQ(*world.ReadWhole(kSession, c), want);
    world.controller.CloseSession(kSession, absl::FailedPreconditionError("closed"));
    world.RunAll();
    world.ExpectEmpty();
  }
}

TEST_F(ControllerTest, TicketsFollowTheClientOverAllSessions) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {2});
  ArrayId a = Up(spec, {1, 2});
  ArrayId b = world.Put(kOther, spec, {3, 4}).value();
  EXPECT_NE(a, b);
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  const ExecuteResult one = Run(f, {a});
  const ExecuteResult two = Run(f, {one.outputs[0]});
  EXPECT_LT(one.ticket, two.ticket);
  uint64_t last = 0;
  for (const WorkerOp& op : world.At(0).inbox) {
    uint64_t ticket = op.has_upload() ? op.upload().ticket() : op.has_launch() ? op.launch().ticket() : 0;
    if (ticket == 0) continue;
    EXPECT_GT(ticket, last);
    last = ticket;
  }
  EXPECT_EQ(last, two.ticket.value());
  Close();
}

TEST_F(ControllerTest, ReleaseFreesAfterTheLastUser) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {3});
  ArrayId a = Up(spec, Range(3));
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  ArrayId out = Run(f, {a}).outputs[0];
  controller().Release(kSession, a);
  EXPECT_EQ(controller().Spec(kSession, a), nullptr);
  world.RunAll();
  EXPECT_EQ(world.At(0).buffers.size(), 1u);
  EXPECT_EQ(*world.ReadWhole(kSession, out), Apply({Range(3)}, 0));
  controller().Release(kSession, out);
  world.RunAll();
  EXPECT_EQ(world.At(0).buffers.size(), 0u);
  EXPECT_EQ(controller().counts().buffers, 0u);
  Close();
}

TEST_F(ControllerTest, DeletesAreBatchedAndFollowUses) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {1});
  std::vector<ArrayId> arrays;
  for (int i = 0; i < 10; ++i) arrays.push_back(Up(spec, {i}));
  world.RunAll();
  for (ArrayId a : arrays) controller().Release(kSession, a);
  EXPECT_TRUE(world.At(0).inbox.empty());
  controller().OnTime(world.now);
  ASSERT_EQ(world.At(0).inbox.size(), 1u);
  EXPECT_EQ(world.At(0).inbox[0].delete_().arrays_size(), 10);
  Close();
}

TEST_F(ControllerTest, AliasesShareTheirFate) {
  world.Start(0);
  const ArraySpec spec = world.Rows(world.Devices(0), {4});
  ArrayId a = Up(spec, Range(4));
  std::vector<ArrayId> parts = controller().Disassemble(kSession, a, CopySemantics::kReuse).value();
  ArrayId again = controller().Assemble(kSession, spec, parts, CopySemantics::kReuse).value();
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, again), Range(4));
  ASSERT_TRUE(controller().Delete(kSession, parts[1]).ok());
  EXPECT_TRUE(*controller().IsDeleted(kSession, parts[1]));
  EXPECT_FALSE(*controller().IsDeleted(kSession, parts[0]));
  // As plain JAX has it, an array is deleted with its first shard; without another one it cannot be used either.
  EXPECT_FALSE(*controller().IsDeleted(kSession, a));
  EXPECT_FALSE(*controller().IsDeleted(kSession, again));
  world.RunAll();
  EXPECT_EQ(world.At(0).buffers.size(), 1u);
  absl::Status status = controller().Copy(kSession, {a}, nullptr, nullptr, CopySemantics::kAlwaysCopy, 0, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Array has been deleted"));
  for (const char* word : {"DATA_LOSS", "INTERNAL", "NOT_FOUND", "DEADLINE_EXCEEDED"}) {
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(word)));
  }
  EXPECT_TRUE(controller().Delete(kSession, a).ok());  // the rest
  EXPECT_TRUE(controller().Delete(kSession, a).ok());  // twice is fine
  world.RunAll();
  EXPECT_EQ(world.At(0).buffers.size(), 0u);
  Close();
}

TEST_F(ControllerTest, AliasesKeepWhatTheyHold) {
  world.Start(0);
  const ArraySpec spec = world.Rows(world.Devices(0), {4});
  ArrayId a = Up(spec, Range(4));
  std::vector<ArrayId> parts = controller().Disassemble(kSession, a, CopySemantics::kReuse).value();
  controller().Release(kSession, a);
  controller().Release(kSession, parts[0]);
  world.RunAll();
  EXPECT_EQ(world.At(0).buffers.size(), 1u);
  EXPECT_EQ(*world.ReadWhole(kSession, parts[1]), (Values{3, 4}));
  controller().Release(kSession, parts[1]);
  world.RunAll();
  EXPECT_EQ(world.At(0).buffers.size(), 0u);
  Close();
}

TEST_F(ControllerTest, Donation) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {3});
  ArrayId a = Up(spec, Range(3)), b = Up(spec, Range(3, 9));
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 2, 1, {0}), {DeviceId(0)}).value();
  // A refused call leaves everything as it was.
  EXPECT_THAT(std::string(RunStatus(kSession, f, {a, a}).message()), HasSubstr("same buffer as a donated one"));
  EXPECT_FALSE(*controller().IsDeleted(kSession, a));
  ArrayId out = Run(f, {a, b}).outputs[0];
  EXPECT_TRUE(*controller().IsDeleted(kSession, a));
  EXPECT_THAT(std::string(RunStatus(kSession, f, {a, b}).message()), HasSubstr("Array has been deleted"));
  ExecuteArgs keep{f, {out, b}, {0}, {}, 0, ""};
  ASSERT_TRUE(controller().Execute(kSession, keep, 0, 0).ok());
  EXPECT_FALSE(*controller().IsDeleted(kSession, out));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, out), Apply({Range(3), Range(3, 9)}, 0));
  controller().Release(kSession, a);
  world.RunAll();  // no delete of what the launch consumed: the worker would complain
  Close();
}

TEST_F(ControllerTest, ArgumentsAreChecked) {
  world.Start(0);
  world.Start(1);
  const ArraySpec spec = world.Single(0, {3});
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  ArrayId elsewhere = Up(world.Single(1, {3}), Range(3));
  ArrayId wide = Up(world.Single(0, {4}), Range(4));
  ArraySpec other = spec;
  other.dtype = DType::kU64;
  ArrayId wrong = Up(other, Range(3));
  EXPECT_THAT(std::string(RunStatus(kSession, f, {elsewhere}).message()), HasSubstr("device_put"));
  EXPECT_THAT(std::string(RunStatus(kSession, f, {wide}).message()), HasSubstr("[3] is needed"));
  EXPECT_THAT(std::string(RunStatus(kSession, f, {wrong}).message()), HasSubstr("u64"));
  EXPECT_THAT(std::string(RunStatus(kSession, f, {}).message()), HasSubstr("takes 1 arguments, but 0"));
  ArrayId fine = Up(spec, Range(3));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(RunStatus(kSession, f, {fine}).ok());
  EXPECT_FALSE(RunStatus(kSession, f, {wide}).ok());
  Close();
}

TEST_F(ControllerTest, SessionsAreApart) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {3});
  ArrayId a = Up(spec, Range(3));
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  const ArrayId unknown(123456);
  auto text = [](const absl::Status& status, ArrayId id) {
    std::string s(status.message());
    const size_t at = s.find(id.ToString());
    return at == std::string::npos ? s : s.replace(at, id.ToString().size(), "X");
  };
  auto copy = [&](ArrayId id) {
    return controller().Copy(kOther, {id}, nullptr, nullptr, CopySemantics::kReuse, 0, 0).status();
  };
  EXPECT_EQ(text(copy(a), a), text(copy(unknown), unknown));
  EXPECT_EQ(copy(a).code(), copy(unknown).code());
  EXPECT_EQ(text(controller().Delete(kOther, a), a), text(controller().Delete(kOther, unknown), unknown));
  EXPECT_EQ(controller().Spec(kOther, a), nullptr);
  EXPECT_FALSE(RunStatus(kOther, f, {a}).ok());
  controller().Release(kOther, a);
  controller().ReleaseExecutable(kOther, f);
  EXPECT_TRUE(RunStatus(kSession, f, {a}).ok());
  const RequestId wait = world.Wait(kOther, {a});
  EXPECT_EQ(world.resolved.at(wait).code(), absl::StatusCode::kInvalidArgument);
  Close();
}

TEST_F(ControllerTest, ErrorsTravelWithTheirOrigin) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {3});
  ArrayId a = Up(spec, Range(3));
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  StatusProto error;
  error.set_code(3);
  error.set_message("division by zero");
  world.fail_next_launch = error;
  ExecuteResult first = Run(f, {a}, 77);
  ExecuteResult second = Run(f, first.outputs, 78);
  const RequestId done(901), late(902);
  controller().WhenDone(kSession, done, second.ticket);
  const RequestId wait = world.Wait(kSession, second.outputs);
  world.RunAll();
  const absl::Status status = world.resolved.at(wait);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(status.message()), "division by zero");
  EXPECT_EQ(std::string(*status.GetPayload(ctl::kUserContextPayload)), "77");
  EXPECT_EQ(std::string(*status.GetPayload(ctl::kRootTicketPayload)), std::to_string(first.ticket.value()));
  EXPECT_EQ(std::string(world.resolved.at(done).message()), "division by zero");
  controller().WhenDone(kSession, late, first.ticket);
  EXPECT_EQ(std::string(world.resolved.at(late).message()), "division by zero");
  // What is known to be in error is launched nowhere, and keeps its origin.
  const size_t sent = world.sent;
  ExecuteResult third = Run(f, second.outputs, 79);
  EXPECT_EQ(world.sent, sent);
  EXPECT_EQ(controller().Spec(kSession, third.outputs[0])->dims, spec.dims);
  const RequestId known = world.Wait(kSession, third.outputs);
  EXPECT_EQ(std::string(*world.resolved.at(known).GetPayload(ctl::kUserContextPayload)), "77");
  Close();
}

TEST_F(ControllerTest, ErrorArraysDoomLaunchesAndTheirDonations) {
  world.Start(0);
  const ArraySpec spec = world.Single(0, {3});
  ArrayId bad = controller().MakeError(kSession, spec, absl::ResourceExhaustedError("store drained")).value();
  ArrayId good = Up(spec, Range(3));
  world.RunAll();
  ExecutableId f = controller().AddExecutable(kSession, world.Program(spec, 2, 1, {1}), {DeviceId(0)}).value();
  ExecuteResult result = Run(f, {bad, good}, 5);
  EXPECT_TRUE(*controller().IsDeleted(kSession, good));
  const RequestId done(5);
  controller().WhenDone(kSession, done, result.ticket);
  EXPECT_EQ(world.resolved.at(done).code(), absl::StatusCode::kResourceExhausted);
  world.RunAll();
  EXPECT_TRUE(world.At(0).buffers.empty());  // what it would have consumed is freed
  // Views of errors are errors, copies too; the good part of an assembled array stays good.
  ArrayId left = Up(world.Single(0, {2}), Range(2));
  ArrayId right = controller().MakeError(kSession, world.Single(1, {2}), absl::AbortedError("stalled")).value();
  ArrayId both =
      controller().Assemble(kSession, world.Rows(world.Devices(0), {4}), {left, right}, CopySemantics::kReuse).value();
  std::vector<ArrayId> parts = controller().Disassemble(kSession, both, CopySemantics::kReuse).value();
  EXPECT_EQ(*world.ReadWhole(kSession, parts[0]), Range(2));
  EXPECT_EQ(world.ReadWhole(kSession, parts[1]).status().code(), absl::StatusCode::kAborted);
  const RequestId wait = world.Wait(kSession, {both});
  EXPECT_EQ(world.resolved.at(wait).code(), absl::StatusCode::kAborted);
  Close();
}

}  // namespace
}  // namespace landbridge
