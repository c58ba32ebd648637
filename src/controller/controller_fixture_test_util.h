// What the controller's tests share: a world of two workers of two devices, two sessions, and values that can be computed.
#pragma once

#include <utility>
#include <vector>

#include "controller/controller.h"
#include "controller/fake_world_test_util.h"
#include "gtest/gtest.h"

namespace landbridge {

inline constexpr SessionId kSession(1);
inline constexpr SessionId kOther(2);

inline Values Range(int64_t count, int64_t first = 1) {
  Values values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = first + i;
  return values;
}
inline Values Apply(const std::vector<Values>& args, int output) {
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

}  // namespace landbridge
