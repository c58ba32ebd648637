#include "pjrt/host_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "pjrt/client.h"
#include "pjrt/plugin.h"
#include "pjrt/test_support.h"

namespace landbridge::pjrt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class HostCallsTest : public testing::Test {
 protected:
  static constexpr int kDeviceCount = 4;

  static void SetUpTestSuite() {
    PreparePluginEnvironment(kDeviceCount);
    plugin_ = Value(Plugin::Load(TestPluginPath())).get();  // plugins are never unloaded
    client_ = Value(plugin_->CreateClient(Plugin::CpuOptions(kDeviceCount))).release();
    const absl::Status registered = RegisterAndCheckHostCalls(*client_);
    ASSERT_TRUE(registered.ok()) << registered;
  }

  // A program of one call of function 7 of the client.
  static std::unique_ptr<LoadedExecutable> CompileCall(const char* target, bool with_result) {
    const std::string call =
        absl::StrCat("stablehlo.custom_call @", target,
                     "(%x) {api_version = 4 : i32, has_side_effect = true, backend_config = {index = 7 : ui64}} : ");
    const std::string body = with_result ? absl::StrCat("%y = ", call, "(tensor<2x2xf32>) -> tensor<2x2xf32> return %y")
                                         : absl::StrCat(call, "(tensor<2x2xf32>) -> () return %x");
    return Value(client_->Compile(
        absl::StrCat("module @calls { func.func public @main(%x: tensor<2x2xf32>) -> tensor<2x2xf32> { ", body,
                     " : tensor<2x2xf32> } }"),
        "mlir", TestCompileOptions(1).SerializeAsString()));
  }

  // Runs it on 1, 2, 3, 4 as launch `launch`.
  static absl::StatusOr<std::vector<float>> Execute(LoadedExecutable& executable, int32_t launch) {
    const std::vector<float> values = {1, 2, 3, 4};
    Buffer input =
        std::move(Value(client_->BufferFromHost(values.data(), DType::kF32, {2, 2}, {},
                                                *client_->devices()[0].default_memory, HostSemantics::kOnlyDuringCall))
                      .buffer);
    Buffer* arguments[] = {&input};
    auto run = executable.ExecuteOnDevice(client_->devices()[0].handle, arguments, {.launch_id = launch});
    if (!run.ok()) return run.status();
    if (absl::Status done = run->done.Await(); !done.ok()) return done;
    std::vector<float> got(4);
    if (absl::Status copied = Value(run->outputs[0].CopyToHost(got.data(), 16)).Await(); !copied.ok()) return copied;
    return got;
  }

  static int32_t NewLaunch() {
    static std::atomic<int32_t> next{1000};
    return next++;
  }

  static Plugin* plugin_;
  static Client* client_;
};

Plugin* HostCallsTest::plugin_ = nullptr;
Client* HostCallsTest::client_ = nullptr;

TEST_F(HostCallsTest, GoToTheirLaunchAndAreAnsweredLater) {
  auto executable = CompileCall(kHostCallTarget, true);
  const int32_t launch = NewLaunch();
  std::thread client;
  HostCallRegistration registration(launch, [&](HostCall call) {
    EXPECT_EQ(call.function, 7u);
    EXPECT_EQ(call.device, client_->devices()[0].id);
    EXPECT_EQ(call.operand_bytes(), 16);
    EXPECT_EQ(call.result_bytes(), 16);
    client = std::thread([call = std::move(call)]() mutable {
      auto* from = reinterpret_cast<const float*>(call.operands[0].data());
      auto* to = reinterpret_cast<float*>(call.results[0].data());
      for (size_t i = 0; i < 4; ++i) to[i] = 10 * from[i];
      call.completion.Complete();
    });
  });
  // So small that it runs, and waits for the client, inside this call.
  const absl::StatusOr<std::vector<float>> got = Execute(*executable, launch);
  client.join();
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(*got, ElementsAre(10, 20, 30, 40));
}

TEST_F(HostCallsTest, FailWithoutALaunchAndWhenTheirEndSaysSo) {
  auto executable = CompileCall(kHostCallTarget, true);
  EXPECT_THAT(std::string(Execute(*executable, NewLaunch()).status().message()), HasSubstr("has no client"));
  const int32_t launch = NewLaunch();
  HostCallRegistration registration(
      launch, [](HostCall call) { call.completion.Complete(absl::InvalidArgumentError("it raised")); });
  EXPECT_THAT(std::string(Execute(*executable, launch).status().message()), HasSubstr("it raised"));
}

TEST_F(HostCallsTest, ByPartsTellTheDimensionsFirst) {
  auto executable = CompileCall(kPartitionedHostCallTarget, false);
  const int32_t launch = NewLaunch();
  std::vector<int64_t> dims;
  std::vector<float> values;
  HostCallRegistration registration(launch, [&](HostCall moved) {
    HostCall call = std::move(moved);  // what its operands point to goes with it
    ASSERT_EQ(call.operands.size(), 2u);
    EXPECT_EQ(call.operand_bytes(), 32);
    dims.resize(call.operands[0].size() / sizeof(int64_t));
    std::memcpy(dims.data(), call.operands[0].data(), call.operands[0].size());
    values.resize(call.operands[1].size() / sizeof(float));
    std::memcpy(values.data(), call.operands[1].data(), call.operands[1].size());
    call.completion.Complete();
  });
  const absl::StatusOr<std::vector<float>> got = Execute(*executable, launch);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_THAT(dims, ElementsAre(2, 2));
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4));
}

TEST_F(HostCallsTest, AMovedRegistrationStaysKnown) {
  auto executable = CompileCall(kHostCallTarget, true);
  const int32_t launch = NewLaunch();
  int calls = 0;
  {
    HostCallRegistration first(launch, [&](HostCall call) {
      ++calls;
      std::memset(call.results[0].data(), 0, call.results[0].size());
      call.completion.Complete();
    });
    HostCallRegistration second = std::move(first);
    const absl::StatusOr<std::vector<float>> got = Execute(*executable, launch);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_THAT(*got, ElementsAre(0, 0, 0, 0));
  }
  EXPECT_FALSE(Execute(*executable, launch).ok());
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace landbridge::pjrt
