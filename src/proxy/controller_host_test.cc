// A host without a front door, over real sockets: resource manager and simulated workers on the same loop.
#include "proxy/controller_host.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "controller/benchmark_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "pjrt/test_support.h"
#include "resource_manager/server.h"
#include "worker/simulated/simulated_host.h"

namespace landbridge {
namespace {

using pjrt::Value;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DurationNs kPatience = 30 * kSecond;
constexpr SessionId kSession(1);

// Notes in order what a door is told.
class NotingDoor : public ControllerDoor {
 public:
  void OnDevices(const Fleet& fleet, const std::vector<VirtualDevice>& devices) override {
    notes.push_back("devices " + fleet.slice_type + " " + std::to_string(devices.size()));
  }
  void OnWorkerLost(Incarnation, const absl::Status& why) override {
    notes.push_back("lost " + std::string(absl::StatusCodeToString(why.code())));
  }
  void OnHostCall(Incarnation, HostCall) override { notes.push_back("host call"); }
  void OnHostCallTaken(Incarnation, uint64_t) override { notes.push_back("host call taken"); }
  void OnResolve(RequestId request, const absl::Status& status) override {
    notes.push_back("resolved " + std::string(absl::StatusCodeToString(status.code())));
    resolved[request] = status;
  }
  void OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override { reads[request] = result; }
  void ServeHostBuffer(uint64_t, std::vector<Incarnation>) override { notes.push_back("serve"); }
  void WantHostBytes(uint64_t) override { notes.push_back("want bytes"); }
  void DropHostBuffer(uint64_t key) override { dropped.push_back(key); }
  void PauseSession(SessionId, bool) override { notes.push_back("pause"); }

  std::vector<std::string> notes;
  std::map<RequestId, absl::Status> resolved;
  std::map<RequestId, absl::StatusOr<ReadResult>> reads;
  std::vector<uint64_t> dropped;
};

class ControllerHostTest : public ::testing::Test {
 protected:
  // Slices of one worker with two devices.
  void Start(int workers) {
    ResourceManagerServerOptions rm;
    rm.listen_address = "127.0.0.1:0";
    rm.type = Value(ParseInstanceType("cpu:2"), "instance type");
    rm.slice_count = workers;
    rm_ = Value(ResourceManagerServer::Start(&loop_, rm), "resource manager");
    SimulatedHostOptions simulated;
    simulated.workers = workers;
    simulated.worker.devices = 2;
    simulated.worker.resource_manager_address = rm_->address();
    workers_ = Value(SimulatedHost::Start(&loop_, simulated), "workers");
    ControllerHostOptions options;
    options.resource_manager_address = rm_->address();
    host_ = Value(ControllerHost::Open(&loop_, options), "host");
    host_->Join(&door_, "nowhere");
    ASSERT_TRUE(RunUntil([&] {
      return host_->WorkerCounts() == nlohmann::json{{"expected", workers}, {"up", workers}};
    })) << host_->WorkerCounts();
    controller().OpenSession(kSession);
  }
  void TearDown() override {
    if (host_ != nullptr) host_->Leave();
    loop_.RunOnce(0);
    host_.reset();
    workers_.reset();
    rm_.reset();
    loop_.RunOnce(0);
  }
  bool RunUntil(const std::function<bool()>& done) {
    const TimeNs until = loop_.Now() + kPatience;
    while (!done() && loop_.Now() < until) loop_.RunOnce(50 * kMillisecond);
    return done();
  }
  Controller& controller() { return host_->controller(); }

  static std::vector<DeviceId> DevicesOf(int slice) { return {DeviceId(2 * slice), DeviceId(2 * slice + 1)}; }
  ArrayId Upload(int slice, uint64_t key) {
    ArraySpec spec{DType::kF32, {8}, Sharding::FullyReplicated(DevicesOf(slice), MemoryKind::kDevice).value()};
    return Value(controller().MakeFromHost(kSession, spec, {SmallUpload(2, key)}, 0, loop_.Now()), "upload");
  }
  ExecuteResult Launch(int slice, ArrayId arg) {
    const ExecutableId program =
        Value(controller().AddExecutable(kSession, SmallProgram(2, 1, 1), DevicesOf(slice)), "program");
    ExecuteArgs args;
    args.executable = program;
    args.args = {arg};
    return Value(controller().Execute(kSession, args, 0, loop_.Now()), "launch");
  }

  Loop loop_;
  NotingDoor door_;
  std::unique_ptr<ResourceManagerServer> rm_;
  std::unique_ptr<SimulatedHost> workers_;
  std::unique_ptr<ControllerHost> host_;
};

TEST_F(ControllerHostTest, JoinsAClusterAndRunsLaunches) {
  Start(3);
  EXPECT_TRUE(host_->has_devices());
  EXPECT_EQ(host_->waits_for(), "");
  EXPECT_THAT(door_.notes, ElementsAre("devices cpu:2 6"));

  const ArrayId uploaded = Upload(2, 7);
  const ExecuteResult launched = Launch(2, uploaded);
  controller().WhenDone(kSession, RequestId(1), launched.ticket);
  controller().ReadArray(kSession, RequestId(2), uploaded, {}, 32);
  ASSERT_TRUE(RunUntil([&] { return door_.resolved.size() == 1 && door_.reads.size() == 1; }));
  EXPECT_EQ(door_.resolved.at(RequestId(1)), absl::OkStatus());
  EXPECT_EQ(Value(door_.reads.at(RequestId(2)), "read").data, std::string(32, 'x'));
  EXPECT_THAT(door_.dropped, ElementsAre(7));

  nlohmann::json status;
  host_->AddStatus(&status);
  EXPECT_EQ(status["counts"]["arrays"], 2);
  EXPECT_EQ(status["slices"].size(), 3u);
  const nlohmann::json& control = status["slices"][2]["workers"][0]["control"];
  EXPECT_EQ(control["ops"], 5) << "load, upload, its bytes, launch, read";
  EXPECT_EQ(control["frames"], 1) << "said in one turn of the loop: one frame";
}

TEST_F(ControllerHostTest, TellsOfALostWorkerBeforeWhatItMeans) {
  Start(2);
  // Its bytes never come, so somebody waits for it when its worker is lost.
  ArraySpec spec{DType::kF32, {8}, Sharding::FullyReplicated(DevicesOf(0), MemoryKind::kDevice).value()};
  HostShard unsent = SmallUpload(2, 1);
  unsent.bytes = nullptr;
  const ArrayId lost = Value(controller().MakeFromHost(kSession, spec, {unsent}, 0, loop_.Now()), "array");
  const ArrayId kept = Upload(1, 2);
  controller().WhenReady(kSession, RequestId(1), {lost});
  ASSERT_TRUE(workers_->Kill("simulated-0", /*restart=*/false).ok());
  ASSERT_TRUE(RunUntil([&] { return door_.resolved.contains(RequestId(1)); }));
  EXPECT_EQ(door_.resolved.at(RequestId(1)).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(door_.resolved.at(RequestId(1)).message()), HasSubstr("simulated-0"));
  EXPECT_THAT(door_.notes, ElementsAre("devices cpu:2 4", "want bytes", "lost DATA_LOSS", "resolved DATA_LOSS"));
  controller().WhenDone(kSession, RequestId(2), Launch(1, kept).ticket);
  ASSERT_TRUE(RunUntil([&] { return door_.resolved.contains(RequestId(2)); }));
  EXPECT_EQ(door_.resolved.at(RequestId(2)), absl::OkStatus());
}

TEST_F(ControllerHostTest, ExplainsWithItsSlices) {
  Start(1);
  nlohmann::json answer;
  host_->Explain(/*graph=*/false, [&](absl::StatusOr<nlohmann::json> given) { answer = Value(given, "explanation"); });
  ASSERT_TRUE(RunUntil([&] { return !answer.is_null(); }));
  ASSERT_EQ(answer["slices"].size(), 1u);
  EXPECT_EQ(answer["slices"][0]["workers"][0]["name"], "simulated-0");
}

TEST_F(ControllerHostTest, SaysNothingAfterShutdown) {
  Start(1);
  const ArrayId array = Upload(0, 1);  // its messages are to leave at the end of this turn
  host_->Leave();
  host_->Shutdown();
  door_.notes.clear();
  controller().WhenDone(kSession, RequestId(1), Launch(0, array).ticket);
  loop_.RunOnce(0);
  EXPECT_THAT(door_.notes, IsEmpty());
  host_.reset();
  loop_.RunOnce(0);
}

// A data plane's address that is not of this machine.
TEST(ControllerHostOpenTest, SaysWhyItCannotListen) {
  Loop loop;
  ControllerHostOptions options;
  options.listen_host = "192.0.2.1";
  EXPECT_FALSE(ControllerHost::Open(&loop, options).ok());
}

}  // namespace
}  // namespace landbridge
