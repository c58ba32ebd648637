// A whole worker, driven over real sockets by a resource manager and a proxy's side in the same process and loop.
#ifndef LANDBRIDGE_WORKER_SHELL_WORKER_PROCESS_TEST_UTIL_H_
#define LANDBRIDGE_WORKER_SHELL_WORKER_PROCESS_TEST_UTIL_H_

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "cluster/control_frames.h"
#include "cluster/holder_agent.h"
#include "cluster/worker_stream.h"
#include "compiler/envelope.h"
#include "compiler/metadata.h"
#include "compiler/options.h"
#include "dataplane/socket_data_plane.h"
#include "env/clock.h"
#include "gtest/gtest.h"
#include "pjrt/test_support.h"
#include "pjrt/virtual_compute.h"
#include "resource_manager/server.h"
#include "worker/shell/worker_process.h"

namespace landbridge {

// x + 1 of 64 floats, and gives x away.
inline constexpr char kIncrementProgram[] = R"(
module @jit_increment attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<64xf32> {tf.aliasing_output = 0 : i32}) -> (tensor<64xf32>) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<64xf32>
    %1 = stablehlo.add %arg0, %0 : tensor<64xf32>
    return %1 : tensor<64xf32>
  }
})";

class WorkerProcessTest : public ::testing::Test {
 protected:
  static constexpr int kDevices = 4;
  static constexpr DurationNs kPatience = 60 * kSecond;

  static std::vector<float> Ramp(size_t count, float from) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = from + static_cast<float>(i % 1000);
    return values;
  }
  static void SetUpTestSuite() { pjrt::PreparePluginEnvironment(kDevices); }

  void StartAll(int64_t device_memory_limit = 0) {
    ResourceManagerServerOptions rm;
    rm.listen_address = "127.0.0.1:0";
    rm.type = pjrt::Value(ParseInstanceType("cpu:4"), "instance type");
    rm_ = pjrt::Value(ResourceManagerServer::Start(&loop_, rm), "resource manager");
    StartWorker(device_memory_limit);

    StartHolder();
    ASSERT_TRUE(RunUntil([&] { return flowing_; })) << "no control stream";
  }

  // A new proxy's side, which asks for the slice.
  void StartHolder() {
    life_ = ProxyLife(SystemRandom().NextNonZero());
    plane_ = OpenPlane();
    HolderAgent::Options options;
    options.rm_address = rm_->address();
    options.life = life_;
    options.client_address = "none";
    options.data_address = plane_->address();
    agent_ = std::make_unique<HolderAgent>(&loop_, options, AgentCallbacks());
    agent_->Start();
    agent_->Request({"cpu:4"});
  }

  // The proxy's.
  std::unique_ptr<dataplane::DataPlane> OpenPlane() {
    dataplane::DataPlaneOptions plane;
    plane.self = Incarnation(life_.value());
    plane.token = dataplane::TokenFromSecret("the cluster's");
    return pjrt::Value(dataplane::MakeSocketDataPlane(plane), "the proxy's data plane");
  }
  // What the worker's data plane is called under the grant.
  Incarnation WorkerLife() const { return LifeUnder(member_.grant, member_.incarnation); }

  void StartWorker(int64_t device_memory_limit) {
    WorkerOptions options;
    options.resource_manager_address = rm_->address();
    options.plugin_path = pjrt::TestPluginPath();
    options.cluster_secret = "the cluster's";
    options.devices = kDevices;
    options.device_memory_limit = device_memory_limit;
    options.port_file = absl::StrCat(::testing::TempDir(), "/worker-port-", ::getpid());
    port_file_ = options.port_file;
    worker_ = pjrt::Value(WorkerProcess::Start(&loop_, options, [this](const absl::Status& why) { stopped_ = why; }),
                          "worker");
  }

  HolderAgent::Callbacks AgentCallbacks() {
    HolderAgent::Callbacks callbacks;
    callbacks.on_fleet = [](const Fleet&) {};
    callbacks.on_member_up = [this](const MemberRef& ref, const WorkerInfo& info) {
      member_ = ref;
      info_ = info;
      EXPECT_TRUE(plane_->AddPeer(WorkerLife(), info.data_address()).ok());
    };
    callbacks.on_member_lost = [this](const MemberRef&, const absl::Status& why) {
      lost_ = why;
      flowing_ = false;
    };
    callbacks.on_member_draining = [this](const MemberRef&, const std::string& reason) { draining_ = reason; };
    callbacks.applied_reports = [this](const MemberRef&) { return stream_.applied_reports(); };
    callbacks.on_stream_resumed = [this](const MemberRef&, uint64_t received) {
      EXPECT_TRUE(stream_.Resume(received).ok());
      flowing_ = true;
      ++resumed_;
      Send();
    };
    callbacks.on_stream_broken = [this](const MemberRef&) {
      flowing_ = false;
      stream_.OnDisconnect();
    };
    callbacks.on_control = [this](const MemberRef&, absl::string_view payload) {
      absl::Status status = stream_.OnFrame(
          payload,
          [this](const Heartbeat& heartbeat) {
            heartbeat_ = heartbeat;
            agent_->OnHeartbeat(member_, heartbeat.sent_ns());
          },
          [this](const WorkerReport& report) { OnReport(report); });
      Send();
      return status;
    };
    callbacks.send_heartbeat = [this](const MemberRef& ref, uint64_t number, int64_t sent_ns, int64_t echo_ns) {
      Heartbeat heartbeat;
      heartbeat.set_number(number);
      heartbeat.set_sent_ns(sent_ns);
      heartbeat.set_echo_ns(echo_ns);
      if (flowing_) agent_->SendControl(ref, stream_.HeartbeatFrame(heartbeat));
    };
    return callbacks;
  }

  void OnReport(const WorkerReport& report) {
    if (report.has_load_done()) {
      loads_[report.load_done().executable()] = StatusOf(report.load_done().status());
    }
    if (report.has_progress()) {
      for (uint64_t ticket : report.progress().tickets()) done_.insert(ticket);
    }
    if (report.has_failed()) {
      for (const BufferRefProto& ref : report.failed().refs()) failed_[RefOf(ref)] = StatusOf(report.failed().status());
    }
    if (report.has_read_ready()) reads_[report.read_ready().read()] = report.read_ready();
    if (report.has_watched()) watched_[report.watched().watch()] = StatusOf(report.watched().status());
    if (report.has_uploads_done()) {
      for (uint64_t key : report.uploads_done().keys()) uploaded_.insert(key);
    }
  }

  void TearDown() override {
    if (agent_ != nullptr) agent_->Leave();
    loop_.RunOnce(0);
    if (worker_ != nullptr) {
      EXPECT_TRUE(worker_->Shutdown(10 * kSecond));
    }
    worker_.reset();
    agent_.reset();
    if (plane_ != nullptr) plane_->Shutdown();
    plane_.reset();
    rm_.reset();
    loop_.RunOnce(0);
  }

  bool RunUntil(const std::function<bool()>& done) {
    const TimeNs until = loop_.Now() + kPatience;
    while (!done() && loop_.Now() < until && !HasFailure()) loop_.RunOnce(50 * kMillisecond);
    return done();
  }

  void Push(WorkerOp op) { stream_.Push(op); }
  void Send() {
    if (!flowing_) return;
    for (std::string frame = stream_.NextFrame(); !frame.empty(); frame = stream_.NextFrame()) {
      agent_->SendControl(member_, std::move(frame));
    }
  }

  // Compiles here, and tells the worker to load it: inline, or by the data plane.
  uint64_t Load(absl::string_view mlir, int partitions, bool by_pull = false) {
    auto plugin = pjrt::Value(pjrt::Plugin::Load(pjrt::TestPluginPath()), "plugin");
    auto client = pjrt::Value(plugin->CreateClient(pjrt::Plugin::CpuOptions(kDevices)), "client");
    EXPECT_TRUE(pjrt::RegisterVirtualCompute(*plugin).ok());
    NormalizedOptions options =
        pjrt::Value(NormalizeOptions(pjrt::TestCompileOptions(partitions).SerializeAsString()), "options");
    auto loaded = pjrt::Value(client->Compile(mlir, "mlir", options.proto.SerializeAsString()), "compile");
    ExecutableBody body;
    *body.mutable_info() = pjrt::Value(DescribeExecutable(*loaded, options), "describe");
    body.set_compile_options(SerializeDeterministic(options.proto));
    body.set_serialized(pjrt::Value(loaded->Serialize(), "serialize"));
    const ExecutableInfo info = body.info();
    auto envelope = std::make_shared<const std::string>(
        SealEnvelope(body, HostIdentity::Current(plugin->sha256(), client->platform_name())));
    loaded.reset();
    client.reset();

    const uint64_t id = ++last_id_;
    WorkerOp op;
    op.mutable_load()->set_executable(id);
    op.mutable_load()->set_size(static_cast<int64_t>(envelope->size()));
    op.mutable_load()->set_sha256(Sha256Raw(*envelope));
    *op.mutable_load()->mutable_info() = info;
    if (partitions > 1) {
      for (int i = 0; i < partitions; ++i) op.mutable_load()->add_devices(static_cast<uint32_t>(i));
    }
    if (by_pull) {
      plane_->PublishSpan({life_.value(), DataKeyId(DataKeyKind::kExecutable, id)},
                          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(envelope->data()), envelope->size()),
                          envelope);
    } else {
      op.mutable_load()->set_inline_envelope(*envelope);
    }
    Push(op);
    return id;
  }

  // One shard; inline if small, else pulled.
  uint64_t UploadShard(uint64_t array, uint32_t shard, uint32_t device, const std::vector<float>& values,
                       const std::vector<int64_t>& dims) {
    const uint64_t key = ++last_id_;
    const size_t bytes = values.size() * sizeof(float);
    WorkerOp op;
    Upload& upload = *op.mutable_upload();
    upload.set_ticket(++last_ticket_);
    upload.set_session(1);
    Target& target = *upload.add_targets();
    target.mutable_ref()->set_array(array);
    target.mutable_ref()->set_shard(shard);
    target.set_device(device);
    upload.set_dtype(static_cast<int>(DType::kF32));
    for (int64_t dim : dims) upload.add_dims(dim);
    upload.set_image_bytes(static_cast<int64_t>(bytes));
    upload.set_key(key);
    upload.set_pulled(bytes > limits::kInlineBytesMax);
    Push(op);
    if (upload.pulled()) {
      auto kept = std::make_shared<const std::vector<float>>(values);
      plane_->PublishSpan({life_.value(), DataKeyId(DataKeyKind::kUpload, key)},
                          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(kept->data()), bytes), kept);
    } else {
      WorkerOp data;
      data.mutable_upload_data()->set_key(key);
      data.mutable_upload_data()->set_data(values.data(), bytes);
      Push(data);
    }
    return key;
  }

  uint64_t LaunchOp(uint64_t executable, int devices, const std::vector<uint64_t>& args, uint64_t output,
                    bool donate = false) {
    WorkerOp op;
    Launch& launch = *op.mutable_launch();
    launch.set_ticket(++last_ticket_);
    launch.set_executable(executable);
    launch.set_session(1);
    for (int i = 0; i < devices; ++i) launch.add_devices(static_cast<uint32_t>(i));
    for (uint64_t arg : args) launch.add_args()->set_array(arg);
    launch.add_outputs(output);
    if (donate) launch.add_donated(0);
    Push(op);
    return last_ticket_;
  }

  void Delete(uint64_t array) {
    WorkerOp op;
    op.mutable_delete_()->add_arrays(array);
    Push(op);
  }

  // Asks, waits, fetches.
  absl::StatusOr<std::vector<float>> ReadShard(uint64_t array, uint32_t shard, const std::vector<int64_t>& dims) {
    const uint64_t read = ++last_id_;
    int64_t bytes = 4;
    for (int64_t dim : dims) bytes *= dim;
    WorkerOp op;
    Read& proto = *op.mutable_read();
    proto.set_read(read);
    proto.mutable_ref()->set_array(array);
    proto.mutable_ref()->set_shard(shard);
    for (int64_t dim : dims) proto.add_dims(dim);
    proto.set_dtype(static_cast<int>(DType::kF32));
    proto.set_image_bytes(bytes);
    proto.set_session(1);
    Push(op);
    Send();
    if (!RunUntil([&] { return reads_.contains(read); })) return absl::DeadlineExceededError("no answer to the read");
    const ReadReady& ready = reads_[read];
    if (ready.status().code() != 0) return StatusOf(ready.status());
    std::vector<float> values(static_cast<size_t>(bytes / 4));
    if (ready.published()) {
      absl::Status result = absl::UnknownError("");
      bool done = false;
      plane_->Pull(WorkerLife(), {life_.value(), DataKeyId(DataKeyKind::kRead, read)}, 0, values.data(),
                   static_cast<uint64_t>(bytes), [&](absl::Status status) {
                     loop_.Post([&, status] {
                       result = status;
                       done = true;
                     });
                   });
      if (!RunUntil([&] { return done; })) std::abort();  // the pull writes into our stack
      WorkerOp release;
      release.mutable_release_read()->set_read(read);
      Push(release);
      Send();
      if (!result.ok()) return result;
    } else {
      EXPECT_EQ(ready.data().size(), static_cast<size_t>(bytes));
      std::memcpy(values.data(), ready.data().data(), std::min(ready.data().size(), static_cast<size_t>(bytes)));
    }
    return values;
  }

  int64_t BytesInUse() {
    int64_t bytes = 0;
    for (const DeviceUse& use : heartbeat_.devices()) bytes += use.bytes_in_use();
    return bytes;
  }
  bool WaitForNoBytes() {
    heartbeat_.Clear();
    return RunUntil([&] { return heartbeat_.devices_size() > 0 && BytesInUse() == 0; });
  }

  Loop loop_;
  std::unique_ptr<ResourceManagerServer> rm_;
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<dataplane::DataPlane> plane_;
  std::unique_ptr<HolderAgent> agent_;
  ProxyLife life_;
  MemberRef member_;
  WorkerInfo info_;
  WorkerStream stream_;
  bool flowing_ = false;
  int resumed_ = 0;
  std::optional<absl::Status> stopped_, lost_;
  std::string draining_, port_file_;
  Heartbeat heartbeat_;
  std::map<uint64_t, absl::Status> loads_, watched_;
  std::map<BufferRef, absl::Status> failed_;
  std::map<uint64_t, ReadReady> reads_;
  std::set<uint64_t> done_, uploaded_;
  uint64_t last_id_ = 0, last_ticket_ = 0;
};

}  // namespace landbridge

#endif  // LANDBRIDGE_WORKER_SHELL_WORKER_PROCESS_TEST_UTIL_H_
