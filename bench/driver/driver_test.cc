// The driver over resource manager and workers on a loop of another thread: how much it did, and the values it got.
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "compiler/compile_service.h"
#include "driver/control_client.h"
#include "driver/cpu_time.h"
#include "driver/modes.h"
#include "driver/programs.h"
#include "driver/scale.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pjrt/test_support.h"
#include "resource_manager/server.h"
#include "worker/shell/worker_process.h"
#include "worker/simulated/simulated_host.h"

namespace landbridge {
namespace {

using pjrt::Value;
using ::testing::HasSubstr;

// A resource manager for slices of one worker, and what serves them.
class DriverTest : public ::testing::Test {
 protected:
  void StartManager(const std::string& type, int slices) {
    ResourceManagerServerOptions rm;
    rm.listen_address = "127.0.0.1:0";
    rm.type = Value(ParseInstanceType(type), "instance type");
    rm.slice_count = slices;
    rm_ = Value(ResourceManagerServer::Start(&loop_, rm), "resource manager");
  }
  void StartSimulated(int workers, int devices) {
    StartManager("cpu:" + std::to_string(devices), workers);
    SimulatedHostOptions options;
    options.workers = workers;
    options.worker.devices = devices;
    options.worker.resource_manager_address = rm_->address();
    simulated_ = Value(SimulatedHost::Start(&loop_, options), "simulated workers");
    Connect();
  }
  void StartReal(int devices) {
    pjrt::PreparePluginEnvironment(devices);
    StartManager("cpu:" + std::to_string(devices), 1);
    WorkerOptions options;
    options.resource_manager_address = rm_->address();
    options.plugin_path = pjrt::TestPluginPath();
    options.devices = devices;
    worker_ = Value(WorkerProcess::Start(&loop_, options, [](const absl::Status&) {}), "worker");
    Connect();
  }
  void Connect() {
    thread_ = std::thread([this] { loop_.Run(); });
    ControlClient::Options options;
    options.host.resource_manager_address = rm_->address();
    client_ = Value(ControlClient::Connect(options), "client");
    for (int w = 0; w < client_->workers(); ++w) programs_.gangs.push_back(client_->DevicesOf(w));
  }
  void TearDown() override {
    client_.reset();
    loop_.Stop();
    thread_.join();
    if (worker_ != nullptr) {
      EXPECT_TRUE(worker_->Shutdown(10 * kSecond));
    }
    worker_.reset();
    simulated_.reset();
    rm_.reset();
    loop_.RunOnce(0);
  }
  GangProgram Add(const std::shared_ptr<const ProgramImage>& image) {
    return Value(client_->AddProgram(image, programs_.gangs), "program");
  }
  // What the simulated workers say that they have run.
  int64_t LaunchesDone() {
    int64_t done = -1;
    absl::Notification answered;
    loop_.Post([&] {
      done = simulated_->Status()["counts"]["launches_done"];
      answered.Notify();
    });
    answered.WaitForNotification();
    return done;
  }

  Loop loop_;
  std::thread thread_;
  std::unique_ptr<ResourceManagerServer> rm_;
  std::unique_ptr<SimulatedHost> simulated_;
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<ControlClient> client_;
  ModePrograms programs_;
};

TEST_F(DriverTest, EveryOperationReachesEveryWorker) {
  StartSimulated(2, 4);
  const auto image = NullProgram({.devices = 4});
  programs_.one = Add(image);
  programs_.fused = Add(image);
  ModeOptions options;
  options.time = 60 * kSecond;
  options.operations_max = 300;

  const ModeResult single = Value(RunOpByOp(*client_, programs_, options), "OpByOp");
  EXPECT_EQ(single.operations, 300);
  EXPECT_EQ(single.launches, 600);
  EXPECT_EQ(LaunchesDone(), 600);

  options.chain = 32;
  const ModeResult chained = Value(RunChained(*client_, programs_, options), "Chained");
  EXPECT_EQ(chained.operations, 320) << "whole calls";
  EXPECT_EQ(chained.launches, 640);
  EXPECT_EQ(LaunchesDone(), 1240);

  const ModeResult fused = Value(RunFused(*client_, programs_, options), "Fused");
  EXPECT_EQ(fused.operations, 320);
  EXPECT_EQ(fused.launches, 20);
  EXPECT_EQ(LaunchesDone(), 1260);

  const ModeResult sync = Value(RunSync(*client_, programs_, options, /*on_loop=*/false), "Sync");
  EXPECT_EQ(sync.operations, 300);
  EXPECT_EQ(sync.latencies_ns.size(), 300u);
  EXPECT_EQ(LaunchesDone(), 1860);
  EXPECT_EQ(client_->Status()["counts"]["arrays"], 0) << "all that was made is released";
}

// So many that the controller asks for a pause, again and again.
TEST_F(DriverTest, GoesOnAfterPauses) {
  StartSimulated(1, 1);
  programs_.one = Add(NullProgram({}));
  ModeOptions options;
  options.time = 60 * kSecond;
  options.chain = 2000;
  options.operations_max = 300'000;
  EXPECT_EQ(Value(RunChained(*client_, programs_, options), "Chained").launches, 300'000);
  EXPECT_EQ(LaunchesDone(), 300'000);
}

TEST_F(DriverTest, ScaleDispatchesAndDeletes) {
  StartSimulated(3, 2);
  const ScaleResult one = Value(RunScaleDispatches(*client_, 200, /*everywhere=*/false), "one host each");
  EXPECT_EQ(one.launches, 200);
  EXPECT_EQ(LaunchesDone(), 200);
  const ScaleResult all = Value(RunScaleDispatches(*client_, 100, /*everywhere=*/true), "all hosts");
  EXPECT_EQ(all.launches, 300);
  EXPECT_EQ(LaunchesDone(), 500);
  EXPECT_GE(all.done_us_per_dispatch, all.us_per_dispatch);
  EXPECT_EQ(client_->Status()["counts"]["arrays"], 0);
}

TEST_F(DriverTest, SaysWhatWentWrong) {
  StartSimulated(1, 1);
  programs_.one = Add(NullProgram({}));
  const ControlClient::Handle x = Value(client_->Put(programs_.gangs, {}, 3), "put");
  EXPECT_EQ(Value(client_->Read(x, 0), "read"), std::vector<float>{3});
  client_->Release(x);
  const ControlClient::Handle y = client_->Call(programs_.one, {x});  // of what is gone
  const absl::Status status = client_->Wait(y);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("names nothing"));
}

class PluginDriverTest : public DriverTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Devices, PluginDriverTest, ::testing::Values(1, 2));

TEST_P(PluginDriverTest, ValuesOfEveryMode) {
  StartReal(GetParam());
  CompileServiceOptions compile;
  compile.plugin_path = pjrt::TestPluginPath();
  compile.compiler_binary = LB_COMPILER_BINARY;
  compile.child_count = 1;
  const auto compiler = Value(CompileService::Start(compile), "compiler");
  ProgramShape shape;
  shape.devices = GetParam();
  programs_.one = Add(Value(CompileProgram(*compiler, shape), "x + 1"));
  shape.adds = 16;
  programs_.fused = Add(Value(CompileProgram(*compiler, shape), "x + 16"));

  ModeOptions options;
  options.time = 60 * kSecond;
  options.operations_max = 320;
  options.chain = 16;
  options.check_values = true;  // the modes fail when the sum is another one
  EXPECT_EQ(Value(RunOpByOp(*client_, programs_, options), "OpByOp").operations, 320);
  EXPECT_EQ(Value(RunSync(*client_, programs_, options, /*on_loop=*/false), "Sync").operations, 320);
  EXPECT_EQ(Value(RunSync(*client_, programs_, options, /*on_loop=*/true), "SyncLoop").operations, 320);
  EXPECT_EQ(Value(RunChained(*client_, programs_, options), "Chained").operations, 320);
  EXPECT_EQ(Value(RunFused(*client_, programs_, options), "Fused").operations, 320);

  // And they do fail then.
  programs_.one = programs_.fused;
  const absl::Status wrong = RunOpByOp(*client_, programs_, options).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(wrong.message()), HasSubstr("gave 5120 instead of 320"));

  // Virtual compute takes its time.
  shape.adds = 1;
  shape.step_us = 20'000;
  programs_.one = Add(Value(CompileProgram(*compiler, shape), "x + 1 in 20 ms"));
  options.operations_max = 5;
  const ModeResult slow = Value(RunOpByOp(*client_, programs_, options), "OpByOp");
  EXPECT_EQ(slow.operations, 5);
  EXPECT_GE(slow.elapsed, 5 * 20 * kMillisecond);
}

TEST(CpuMeterTest, CountsWhatThisProcessUses) {
  CpuMeter meter({{"self", ::getpid()}});
  meter.Start();
  const int64_t before = CpuTimeOf(::getpid());
  while (CpuTimeOf(::getpid()) - before < 2 * kMillisecond) {
  }
  const nlohmann::json used = meter.PerOperation(2);
  EXPECT_GE(used["self"].get<double>(), 1000) << "microseconds of each of the two";
  EXPECT_EQ(used["all"], used["self"]);
  EXPECT_EQ(CpuTimeOf(-1), 0);
}

}  // namespace
}  // namespace landbridge
