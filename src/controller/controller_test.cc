#include "controller/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "base/limits.h"
#include "controller/fake_world_test_util.h"
#include "controller/plan_table.h"
#include "nlohmann/json.hpp"
#include "sharding/reshard_limits.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr SessionId kSession(1);
constexpr SessionId kOther(2);

Values Range(int64_t count, int64_t first = 1) {
  Values values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = first + i;
  return values;
}
Values Apply(const std::vector<Values>& args, int output) {
  Values out(args[0].size());
  for (size_t i = 0; i < out.size(); ++i) {
    std::vector<int64_t> in;
    for (const Values& arg : args) in.push_back(arg[i]);
    out[i] = Compute(in, output);
  }
  return out;
}

class ControllerTest : public ::testing::Test {
 protected:
  ControllerTest() { Open(world); }
  static void Open(FakeWorld& world) {
    world.Declare(2, 2);
    world.controller.OpenSession(kSession);
    world.controller.OpenSession(kOther);
  }
  ArrayId Up(const ArraySpec& spec, const Values& values) { return world.Put(kSession, spec, values).value(); }
  ExecuteResult Run(ExecutableId executable, std::vector<ArrayId> args, uint64_t context = 0) {
    ExecuteArgs call;
    call.executable = executable;
    call.args = std::move(args);
    auto result = world.controller.Execute(kSession, call, context, world.now);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.value_or(ExecuteResult());
  }
  absl::Status RunStatus(SessionId session, ExecutableId executable, std::vector<ArrayId> args) {
    ExecuteArgs call;
    call.executable = executable;
    call.args = std::move(args);
    return world.controller.Execute(session, call, 0, world.now).status();
  }
  void Close() {
    world.controller.CloseSession(kSession, absl::FailedPreconditionError("closed"));
    world.controller.CloseSession(kOther, absl::FailedPreconditionError("closed"));
    world.RunAll();
    world.ExpectEmpty();
  }
  Controller& controller() { return world.controller; }

  FakeWorld world;
};

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
  EXPECT_TRUE(*controller().IsDeleted(kSession, a));
  EXPECT_TRUE(*controller().IsDeleted(kSession, again));
  EXPECT_FALSE(*controller().IsDeleted(kSession, parts[0]));
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

TEST_F(ControllerTest, CopiesBetweenWorkers) {
  world.Start(0);
  world.Start(1);
  const ArraySpec spec = world.Rows(world.Devices(0), {4});
  ArrayId a = Up(spec, Range(4));
  const std::vector<DeviceId> there = world.Devices(1);
  ArrayId b = controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).value()[0];
  controller().Release(kSession, a);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(4));
  EXPECT_TRUE(world.At(0).buffers.empty());
  EXPECT_TRUE(world.At(0).publications.empty());
  EXPECT_EQ(controller().counts().transfers, 0u);
  // Donated, the source goes; on the same device nothing moves.
  ArrayId c = controller().Copy(kSession, {b}, nullptr, nullptr, CopySemantics::kDonate, 0, 0).value()[0];
  EXPECT_TRUE(*controller().IsDeleted(kSession, b));
  const std::vector<DeviceId> here = world.Devices(0);
  ArrayId d = controller().Copy(kSession, {c}, &here, nullptr, CopySemantics::kDonate, 0, 0).value()[0];
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, d), Range(4));
  EXPECT_TRUE(world.At(1).buffers.empty());
  // Always copy: deleting one leaves the other.
  ArrayId e = controller().Copy(kSession, {d}, nullptr, nullptr, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
  ASSERT_TRUE(controller().Delete(kSession, d).ok());
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, e), Range(4));
  const MemoryKind pinned = MemoryKind::kPinnedHost;
  ArrayId f = controller().Copy(kSession, {e}, nullptr, &pinned, CopySemantics::kReuse, 0, 0).value()[0];
  EXPECT_EQ(controller().Spec(kSession, f)->sharding->memory(), pinned);
  EXPECT_EQ(*world.ReadWhole(kSession, f), Range(4));
  Close();
}

TEST_F(ControllerTest, AddressesTravelOncePerPair) {
  world.Start(0);
  world.Start(1);
  ArrayId a = Up(world.Single(0, {2}), {1, 2});
  const std::vector<DeviceId> there = {DeviceId(2)};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).ok());
  }
  int addresses = 0, makes = 0;
  for (const WorkerOp& op : world.At(1).inbox) {
    if (!op.has_reshard_receive()) continue;
    ++makes;
    addresses += !op.reshard_receive().edges(0).data_address().empty();
  }
  EXPECT_EQ(makes, 3);
  EXPECT_EQ(addresses, 1);
  Close();
}

TEST_F(ControllerTest, Reshards) {
  world.Start(0);
  world.Start(1);
  const ArraySpec rows = world.Rows(world.Devices(0), {4, 2});
  ArrayId a = Up(rows, Range(8));
  ArraySpec everywhere = world.Replicated(world.Devices(1), {4, 2});
  ArrayId b = controller().Reshard(kSession, {a}, {everywhere}, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(8));
  std::vector<DeviceId> mixed = {DeviceId(3), DeviceId(0), DeviceId(1), DeviceId(2)};
  ArrayId c = controller().Reshard(kSession, {b}, {world.Rows(mixed, {4, 2})}, CopySemantics::kDonate, 0, 0).value()[0];
  EXPECT_TRUE(*controller().IsDeleted(kSession, b));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, c), Range(8));
  controller().Release(kSession, a);
  controller().Release(kSession, c);
  world.RunAll();
  EXPECT_TRUE(world.At(0).buffers.empty());
  EXPECT_TRUE(world.At(1).buffers.empty());
  EXPECT_FALSE(controller().Reshard(kSession, {a}, {}, CopySemantics::kAlwaysCopy, 0, 0).ok());
  Close();
}

TEST_F(ControllerTest, OneHostBufferForSeveralWorkers) {
  world.Start(0);
  world.Start(1);
  const auto put = [&](uint64_t key) {
    const Values values = Range(10'000);  // too large to ride along
    world.host[key] = ToBytes(values);
    HostShard shard;
    shard.shards = {0, 1};
    shard.key = key;
    shard.image_bytes = static_cast<int64_t>(world.host[key].size());
    const ArraySpec spec = world.Replicated({DeviceId(0), DeviceId(2)}, {10'000});
    ArrayId a = controller().MakeFromHost(kSession, spec, {std::move(shard)}, 0, 0).value();
    return std::make_pair(a, values);
  };
  // The door hears at once how many will pull it, and then who.
  const auto [a, values] = put(900);
  const Incarnation none;
  using Calls = std::vector<std::vector<Incarnation>>;
  EXPECT_EQ(world.serve_calls[900], (Calls{{world.slots.at(0), none}, {world.slots.at(1)}}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, a), values);
  EXPECT_TRUE(world.dropped.contains(900));
  // One of them comes later.
  world.Kill(1);
  const auto [b, more] = put(901);
  EXPECT_EQ(world.serve_calls[901], (Calls{{world.slots.at(0), none}}));
  world.RunAll();
  EXPECT_FALSE(world.dropped.contains(901));
  world.Start(1);
  EXPECT_EQ(world.serve_calls[901], (Calls{{world.slots.at(0), none}, {world.slots.at(1)}}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), more);
  EXPECT_TRUE(world.dropped.contains(901));
  Close();
}

TEST_F(ControllerTest, PlansAreToldOncePerWorker) {
  world.Start(0);
  world.Start(1);
  const ArraySpec rows = world.Rows(world.Devices(0), {4, 2});
  const ArraySpec there = world.Replicated(world.Devices(1), {4, 2});
  for (int round = 0; round < 3; ++round) {
    ArrayId a = Up(rows, Range(8));
    world.RunAll();
    ArrayId b = controller().Reshard(kSession, {a}, {there}, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
    ASSERT_EQ(world.At(0).inbox.size(), 1u);
    ASSERT_EQ(world.At(1).inbox.size(), 1u);
    EXPECT_EQ(world.At(0).inbox[0].reshard_send().plan().has_definition(), round == 0);
    EXPECT_EQ(world.At(1).inbox[0].reshard_receive().plan().has_definition(), round == 0);
    EXPECT_EQ(world.At(1).inbox[0].reshard_receive().edges_size(), 1);
    world.RunAll();
    EXPECT_EQ(*world.ReadWhole(kSession, b), Range(8));
  }
  // A new life of the worker knows nothing.
  world.Kill(1);
  world.Start(1);
  ArrayId a = Up(rows, Range(8));
  world.RunAll();
  ArrayId b = controller().Reshard(kSession, {a}, {there}, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
  EXPECT_FALSE(world.At(0).inbox[0].reshard_send().plan().has_definition());
  EXPECT_TRUE(world.At(1).inbox[0].reshard_receive().plan().has_definition());
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(8));
  Close();
}

TEST_F(ControllerTest, PlansAreKeptWithinABound) {
  world.Start(0);
  world.Start(1);
  ctl::PlansTold told;
  ctl::Plan plan;
  plan.workers.emplace_back();
  std::set<uint64_t> known;
  for (uint64_t id = 1; id <= 3 * limits::kReshardPlansMax; ++id) {
    plan.id = id;
    plan.plan.pieces = id % 7;
    ReshardPlanRef ref;
    told.Name(plan, 0, &ref);
    EXPECT_TRUE(ref.has_definition());
    for (uint64_t old : ref.forget()) EXPECT_EQ(known.erase(old), 1u);
    known.insert(id);
    EXPECT_LE(known.size(), limits::kReshardPlansMax);
    ReshardPlanRef again;
    told.Name(plan, 0, &again);
    EXPECT_FALSE(again.has_definition());
  }
  EXPECT_EQ(known.size(), limits::kReshardPlansMax);
  plan.id = 1u << 20;
  plan.plan.pieces = limits::kReshardPlanPiecesMax + 1;  // too large beside others: all of those go
  ReshardPlanRef ref;
  told.Name(plan, 0, &ref);
  EXPECT_EQ(static_cast<size_t>(ref.forget_size()), known.size());

  // The controller's own: what was not asked for lately is worked out anew.
  auto made = [&] { return nlohmann::json::parse(controller().StatusJson(0))["reshard_plans"]; };
  const std::vector<DeviceId> there = {DeviceId(2)};
  auto copy = [&](int64_t elements) {
    ArrayId a = Up(world.Single(0, {elements}), Range(elements));
    ArrayId b = controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).value()[0];
    controller().Release(kSession, a);
    controller().Release(kSession, b);
    world.RunAll();
  };
  const auto count = static_cast<int64_t>(limits::kReshardPlansMax);
  for (int64_t n = 1; n <= count + 1; ++n) copy(n);
  EXPECT_EQ(made()["made"], count + 1);
  EXPECT_EQ(made()["kept"], count);
  copy(count + 1);
  EXPECT_EQ(made()["made"], count + 1);
  copy(1);
  EXPECT_EQ(made()["made"], count + 2);
  Close();
}

TEST_F(ControllerTest, AReplicaServesForOneThatIsLost) {
  world.Start(0);
  world.Start(1);
  // Devices 0 and 2 are of two workers.
  ArrayId a = Up(world.Replicated({DeviceId(0), DeviceId(2)}, {4}), Range(4));
  world.Kill(0);
  world.Start(0);
  ArrayId b =
      controller()
          .Reshard(kSession, {a}, {world.Rows({DeviceId(1), DeviceId(3)}, {4})}, CopySemantics::kAlwaysCopy, 0, 0)
          .value()[0];
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(4));
  Close();
}

TEST_F(ControllerTest, DonationKeepsWhatIsInPlace) {
  world.Start(0);
  world.Start(1);
  ArrayId a = Up(world.Rows({DeviceId(0), DeviceId(1)}, {4}), Range(4));
  world.RunAll();
  // Shard 0 stays where it is, shard 1 moves.
  ArrayId b = controller()
                  .Reshard(kSession, {a}, {world.Rows({DeviceId(0), DeviceId(2)}, {4})}, CopySemantics::kDonate, 0, 0)
                  .value()[0];
  EXPECT_TRUE(*controller().IsDeleted(kSession, a));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(4));
  EXPECT_EQ(world.At(0).buffers.size(), 1u);
  EXPECT_EQ(world.At(1).buffers.size(), 1u);
  controller().Release(kSession, b);
  controller().Release(kSession, a);
  world.RunAll();
  EXPECT_TRUE(world.At(0).buffers.empty());
  EXPECT_TRUE(world.At(1).buffers.empty());
  Close();
}

TEST_F(ControllerTest, Remaps) {
  world.Start(0);
  const ArraySpec rows = world.Rows(world.Devices(0), {4});
  ArrayId a = Up(rows, Range(4));
  // The same shards in the other order of devices.
  ArraySpec swapped = rows;
  swapped.sharding = Sharding::ConcreteEven({DeviceId(1), DeviceId(0)}, MemoryKind::kDevice, {4}, {2}, false).value();
  Controller::RemapStep step{0, 0, {{0, 1}, {1, 0}}};
  ArrayId b = controller().Remap(kSession, {a}, {swapped}, {step}, CopySemantics::kReuse).value()[0];
  std::vector<ArrayId> parts = controller().Disassemble(kSession, b, CopySemantics::kReuse).value();
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, parts[0]), (Values{3, 4}));
  Controller::RemapStep wrong{0, 0, {{0, 0}, {1, 1}}};
  EXPECT_FALSE(controller().Remap(kSession, {a}, {swapped}, {wrong}, CopySemantics::kReuse).ok());
  Controller::RemapStep half{0, 0, {{0, 1}}};
  EXPECT_FALSE(controller().Remap(kSession, {a}, {swapped}, {half}, CopySemantics::kReuse).ok());
  Controller::RemapStep twice{0, 0, {{0, 1}, {0, 1}}};
  EXPECT_FALSE(controller().Remap(kSession, {a}, {swapped}, {twice}, CopySemantics::kReuse).ok());
  // Several arrays at once, as a tree that is split by a mesh axis.
  ArrayId c = Up(rows, Range(4, 9));
  Controller::RemapStep second{1, 1, {{0, 1}, {1, 0}}};
  std::vector<ArrayId> both =
      controller().Remap(kSession, {a, c}, {swapped, swapped}, {step, second}, CopySemantics::kReuse).value();
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, c), Range(4, 9));
  parts = controller().Disassemble(kSession, both[1], CopySemantics::kReuse).value();
  EXPECT_EQ(*world.ReadWhole(kSession, parts[0]), (Values{11, 12}));
  EXPECT_FALSE(controller().Remap(kSession, {a, a}, {swapped}, {step}, CopySemantics::kDonate).ok());
  Close();
}

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
