// A whole worker, driven over real sockets by a resource manager and a proxy's side in the same process and loop.
#include "worker/shell/worker_process.h"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

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
#include "env/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pjrt/test_support.h"
#include "pjrt/virtual_compute.h"
#include "resource_manager/server.h"

namespace landbridge {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kDevices = 4;
constexpr DurationNs kPatience = 60 * kSecond;

template <typename T>
T Value(absl::StatusOr<T> result, absl::string_view what) {
  if (!result.ok()) {
    ADD_FAILURE() << what << ": " << result.status();
    std::abort();
  }
  return *std::move(result);
}

// Adds two arrays of `rows` by 16 floats, sharded by rows over four devices.
std::string AddProgram(int rows) {
  return absl::StrCat(R"(
module @jit_add attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @main(%arg0: tensor<)",
                      rows, R"(x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>},
                         %arg1: tensor<)",
                      rows, R"(x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>})
      -> (tensor<)",
                      rows, R"(x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<)",
                      rows, R"(x16xf32>
    return %0 : tensor<)",
                      rows, R"(x16xf32>
  }
})");
}

// x + 1, and gives x away.
constexpr char kIncrementProgram[] = R"(
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
  static void SetUpTestSuite() { pjrt::PreparePluginEnvironment(kDevices); }

  void StartAll(int64_t device_memory_limit = 0) {
    ResourceManagerServerOptions rm;
    rm.listen_address = "127.0.0.1:0";
    rm.type = Value(ParseInstanceType("cpu:4"), "instance type");
    rm_ = Value(ResourceManagerServer::Start(&loop_, rm), "resource manager");
    StartWorker(device_memory_limit);

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
    ASSERT_TRUE(RunUntil([&] { return flowing_; })) << "no control stream";
  }

  // The proxy's.
  std::unique_ptr<dataplane::DataPlane> OpenPlane() {
    dataplane::DataPlaneOptions plane;
    plane.self = Incarnation(life_.value());
    plane.token = dataplane::TokenFromSecret("the cluster's");
    return Value(dataplane::MakeSocketDataPlane(plane), "the proxy's data plane");
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
    worker_ =
        Value(WorkerProcess::Start(&loop_, options, [this](const absl::Status& why) { stopped_ = why; }), "worker");
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
    auto plugin = Value(pjrt::Plugin::Load(pjrt::TestPluginPath()), "plugin");
    auto client = Value(plugin->CreateClient(pjrt::Plugin::CpuOptions(kDevices)), "client");
    EXPECT_TRUE(pjrt::RegisterVirtualCompute(*plugin).ok());
    NormalizedOptions options =
        Value(NormalizeOptions(pjrt::TestCompileOptions(partitions).SerializeAsString()), "options");
    auto loaded = Value(client->Compile(mlir, "mlir", options.proto.SerializeAsString()), "compile");
    ExecutableBody body;
    *body.mutable_info() = Value(DescribeExecutable(*loaded, options), "describe");
    body.set_compile_options(SerializeDeterministic(options.proto));
    body.set_serialized(Value(loaded->Serialize(), "serialize"));
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

std::vector<float> Ramp(size_t count, float from) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = from + static_cast<float>(i % 1000);
  return values;
}

TEST_F(WorkerProcessTest, AddsOnFourDevicesAndGivesEverythingBack) {
  StartAll();
  EXPECT_EQ(info_.device_count(), kDevices);
  EXPECT_EQ(*ReadFile(port_file_), worker_->control_address() + "\n");
  for (const bool large : {false, true}) {
    const int rows = large ? 8192 : 64;  // a shard of 128 KiB is pulled, one of 1 KiB rides along
    const std::vector<int64_t> dims = {rows / kDevices, 16};
    const size_t count = static_cast<size_t>(dims[0] * dims[1]);
    const uint64_t base = large ? 100 : 10;
    const uint64_t executable = Load(AddProgram(rows), kDevices, /*by_pull=*/large);
    for (uint32_t shard = 0; shard < kDevices; ++shard) {
      UploadShard(base, shard, shard, Ramp(count, static_cast<float>(shard)), dims);
      UploadShard(base + 1, shard, shard, Ramp(count, 10.0f * static_cast<float>(shard)), dims);
    }
    const uint64_t ticket = LaunchOp(executable, kDevices, {base, base + 1}, base + 2);
    Send();
    for (uint32_t shard = 0; shard < kDevices; ++shard) {
      auto values = ReadShard(base + 2, shard, dims);
      ASSERT_TRUE(values.ok()) << values.status();
      std::vector<float> want = Ramp(count, static_cast<float>(shard));
      const std::vector<float> other = Ramp(count, 10.0f * static_cast<float>(shard));
      for (size_t i = 0; i < count; ++i) want[i] += other[i];
      EXPECT_EQ(*values, want) << "shard " << shard << (large ? ", large" : ", small");
    }
    EXPECT_TRUE(loads_.at(executable).ok());
    EXPECT_TRUE(RunUntil([&] { return done_.contains(ticket); }));
    for (uint64_t array : {base, base + 1, base + 2}) Delete(array);
    WorkerOp unload;
    unload.mutable_unload()->set_executable(executable);
    Push(unload);
    Send();
  }
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse() << " bytes in use";
  EXPECT_TRUE(failed_.empty());
}

TEST_F(WorkerProcessTest, ADonatedLoopOfAThousandSteps) {
  StartAll();
  const uint64_t executable = Load(kIncrementProgram, 1);
  UploadShard(1, 0, 0, std::vector<float>(64, 5.0f), {64});
  const int kSteps = 1000;
  const TimeNs start = loop_.Now();
  for (int i = 0; i < kSteps; ++i) {
    LaunchOp(executable, 1, {static_cast<uint64_t>(1 + i)}, static_cast<uint64_t>(2 + i), /*donate=*/true);
  }
  const uint64_t last = last_ticket_;
  Send();
  auto values = ReadShard(1 + kSteps, 0, {64});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(*values, Each(5.0f + kSteps));
  EXPECT_TRUE(RunUntil([&] { return done_.contains(last); }));
  std::printf("1000 donated steps: %.1f us each\n", static_cast<double>(loop_.Now() - start) / kSteps / 1000);
  // The donated ones are gone with their launches; one buffer of 64 floats is left.
  heartbeat_.Clear();
  EXPECT_TRUE(RunUntil([&] { return heartbeat_.devices_size() > 0 && BytesInUse() < 1024; }));
  Delete(1 + kSteps);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

TEST_F(WorkerProcessTest, APoisonedUploadPoisonsWhatDependsOnIt) {
  StartAll();
  const uint64_t executable = Load(pjrt::kAddProgram, 1);
  UploadShard(1, 0, 0, {1, 2, 3, 4}, {4});
  WorkerOp op;  // array 2: its bytes never come
  Upload& upload = *op.mutable_upload();
  upload.set_ticket(++last_ticket_);
  Target& target = *upload.add_targets();
  target.mutable_ref()->set_array(2);
  upload.set_dtype(static_cast<int>(DType::kF32));
  upload.add_dims(4);
  upload.set_image_bytes(16);
  upload.set_key(77);
  Push(op);
  LaunchOp(executable, 1, {1, 2}, 3);
  LaunchOp(executable, 1, {3, 1}, 4);
  WorkerOp data;
  data.mutable_upload_data()->set_key(77);
  data.mutable_upload_data()->mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  data.mutable_upload_data()->mutable_error()->set_message("no room for the client's bytes");
  Push(data);
  Send();
  for (uint64_t array : {2, 3, 4}) {
    auto values = ReadShard(array, 0, {4});
    EXPECT_EQ(values.status().code(), absl::StatusCode::kResourceExhausted) << array;
    EXPECT_THAT(std::string(values.status().message()), HasSubstr("no room for the client's bytes")) << array;
  }
  auto values = ReadShard(1, 0, {4});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(WorkerProcessTest, TheLimitOfADeviceIsResourceExhaustedAndTheWorkerLives) {
  StartAll(/*device_memory_limit=*/1 << 20);
  const std::vector<int64_t> big = {1 << 19};  // 2 MiB
  UploadShard(1, 0, 0, Ramp(1 << 19, 0), big);
  Send();
  auto values = ReadShard(1, 0, big);
  EXPECT_EQ(values.status().code(), absl::StatusCode::kResourceExhausted) << values.status();
  // It goes on.
  UploadShard(2, 0, 1, {1, 2, 3}, {3});
  Send();
  values = ReadShard(2, 0, {3});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{1, 2, 3}));
}

TEST_F(WorkerProcessTest, ADamagedProgramIsRefusedAndItsOutputsPoisoned) {
  StartAll();
  WorkerOp op;
  op.mutable_load()->set_executable(5);
  op.mutable_load()->set_size(100);
  op.mutable_load()->set_inline_envelope(std::string(100, 'x'));
  op.mutable_load()->set_sha256(Sha256Raw("something else"));
  op.mutable_load()->mutable_info()->set_num_devices(1);
  op.mutable_load()->mutable_info()->set_portable(true);
  Push(op);
  Send();
  ASSERT_TRUE(RunUntil([&] { return loads_.contains(5); }));
  EXPECT_EQ(loads_[5].code(), absl::StatusCode::kInvalidArgument) << loads_[5];
  EXPECT_THAT(std::string(loads_[5].message()), HasSubstr("checksum"));
}

TEST_F(WorkerProcessTest, PutsABufferTogetherFromBoxes) {
  StartAll();
  UploadShard(1, 0, 0, {0, 1, 2, 3, 4, 5, 6, 7}, {2, 4});
  UploadShard(1, 1, 1, {10, 11, 12, 13, 14, 15, 16, 17}, {2, 4});
  // Two columns of each, side by side, on device 2.
  WorkerOp op;
  MakeBuffers& make = *op.mutable_make();
  make.set_ticket(++last_ticket_);
  MakeBuffer& buffer = *make.add_buffers();
  buffer.mutable_target()->mutable_ref()->set_array(2);
  buffer.mutable_target()->set_device(2);
  buffer.set_dtype(static_cast<int>(DType::kF32));
  for (int64_t dim : {2, 4}) buffer.add_dims(dim);
  for (uint32_t shard = 0; shard < 2; ++shard) {
    Piece& piece = *buffer.add_pieces();
    piece.mutable_local()->set_array(1);
    piece.mutable_local()->set_shard(shard);
    for (int64_t dim : {2, 4}) piece.add_source_dims(dim);
    const int64_t from = shard == 0 ? 1 : 0;
    for (int64_t x : {int64_t{0}, from}) piece.mutable_source_box()->add_start(x);
    for (int64_t x : {int64_t{2}, from + 2}) piece.mutable_source_box()->add_limit(x);
    for (int64_t x : {int64_t{0}, int64_t{2 * shard}}) piece.mutable_target_box()->add_start(x);
    for (int64_t x : {int64_t{2}, int64_t{2 * shard + 2}}) piece.mutable_target_box()->add_limit(x);
  }
  Push(op);
  // And a whole copy of that into another memory.
  WorkerOp copy;
  copy.mutable_make()->set_ticket(++last_ticket_);
  MakeBuffer& whole = *copy.mutable_make()->add_buffers();
  whole.mutable_target()->mutable_ref()->set_array(3);
  whole.mutable_target()->set_device(3);
  whole.mutable_target()->set_memory(MEMORY_PINNED_HOST);
  whole.set_dtype(static_cast<int>(DType::kF32));
  for (int64_t dim : {2, 4}) whole.add_dims(dim);
  Piece& piece = *whole.add_pieces();
  piece.mutable_local()->set_array(2);
  for (int64_t dim : {2, 4}) piece.add_source_dims(dim);
  Push(copy);
  Send();
  for (uint64_t array : {2, 3}) {
    auto values = ReadShard(array, 0, {2, 4});
    ASSERT_TRUE(values.ok()) << values.status();
    EXPECT_EQ(*values, (std::vector<float>{1, 2, 10, 11, 5, 6, 14, 15})) << array;
  }
}

TEST_F(WorkerProcessTest, ABrokenStreamIsResumedAndNothingIsAppliedTwice) {
  StartAll();
  const uint64_t executable = Load(pjrt::kDonateProgram, 1);
  const std::vector<float> x = Ramp(4096, 1);
  UploadShard(1, 0, 0, x, {4096});
  Send();
  ASSERT_TRUE(ReadShard(1, 0, {4096}).ok());
  for (int i = 0; i < 20; ++i) {
    LaunchOp(executable, 1, {static_cast<uint64_t>(1 + i)}, static_cast<uint64_t>(2 + i), true);
    if (i % 10 == 5) {
      Send();
      // A gap in the numbers: the worker closes the connection, and the proxy comes back on a new one.
      const int resumed = resumed_;
      agent_->SendControl(member_, JoinControlFrame(1'000'000, stream_.applied_reports(), kControlFrameOps,
                                                    {WorkerOp().SerializeAsString()}, ""));
      ASSERT_TRUE(RunUntil([&] { return resumed_ > resumed; }));
    }
  }
  Send();
  EXPECT_EQ(resumed_, 3);
  auto values = ReadShard(21, 0, {4096});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ((*values)[3], x[3] * std::pow(2.0f, 20.0f));
}

TEST_F(WorkerProcessTest, DrainsWhenAskedAndEndsWhenTheHolderLeaves) {
  StartAll();
  worker_->Drain("a test");
  ASSERT_TRUE(RunUntil([&] { return !draining_.empty(); }));
  EXPECT_EQ(draining_, "a test");
  EXPECT_FALSE(stopped_.has_value()) << "a holder is still here";
  agent_->Leave();
  ASSERT_TRUE(RunUntil([&] { return stopped_.has_value(); }));
  EXPECT_TRUE(stopped_->ok()) << *stopped_;
}

TEST_F(WorkerProcessTest, ALostHolderIsFencedAndTheNextOneServed) {
  StartAll();
  const uint64_t executable = Load(pjrt::kAddProgram, 1);
  UploadShard(1, 0, 0, {1, 2, 3, 4}, {4});
  LaunchOp(executable, 1, {1, 1}, 2);
  Send();
  ASSERT_TRUE(ReadShard(2, 0, {4}).ok());
  // An upload whose bytes never come must not keep the slice.
  WorkerOp endless;
  Upload& upload = *endless.mutable_upload();
  upload.set_ticket(++last_ticket_);
  upload.add_targets()->mutable_ref()->set_array(50);
  upload.set_dtype(static_cast<int>(DType::kF32));
  upload.add_dims(1 << 20);
  upload.set_image_bytes(4 << 20);
  upload.set_key(4711);
  upload.set_pulled(true);
  Push(endless);
  Send();
  ASSERT_TRUE(RunUntil([&] { return BytesInUse() >= 4 << 20; }));
  // The proxy falls silent; another one asks for the slice.
  agent_.reset();
  std::unique_ptr<dataplane::DataPlane> old_plane = std::move(plane_);
  flowing_ = false;
  stream_ = WorkerStream();
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
  ASSERT_TRUE(RunUntil([&] { return flowing_; }));
  // Nothing of the old holder is left, and array ids start anew.
  heartbeat_.Clear();
  ASSERT_TRUE(RunUntil([&] { return heartbeat_.devices_size() > 0; }));
  EXPECT_EQ(BytesInUse(), 0);
  UploadShard(1, 0, 0, {7, 8}, {2});
  Send();
  auto values = ReadShard(1, 0, {2});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{7, 8}));
  old_plane->Shutdown();
}

TEST_F(WorkerProcessTest, MovesBoxesToAndFromAPeer) {
  StartAll();
  // The proxy plays the other worker. Row 0 arrives as one run, the last two columns of rows 1 and 2 as a box; the
  // rest is here.
  UploadShard(1, 0, 0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4});
  const std::vector<float> row = {100, 101, 102, 103}, columns = {110, 111, 120, 121};
  auto publish = [&](uint64_t transfer, const std::vector<float>& values) {
    auto kept = std::make_shared<const std::vector<float>>(values);
    plane_->PublishSpan({life_.value(), DataKeyId(DataKeyKind::kTransfer, transfer)},
                        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(kept->data()), 16), kept);
  };
  WorkerOp op;
  MakeBuffers& make = *op.mutable_make();
  make.set_ticket(++last_ticket_);
  MakeBuffer& buffer = *make.add_buffers();
  buffer.mutable_target()->mutable_ref()->set_array(2);
  buffer.mutable_target()->set_device(1);
  buffer.set_dtype(static_cast<int>(DType::kF32));
  for (int64_t dim : {3, 4}) buffer.add_dims(dim);
  auto box = [](Box* proto, std::vector<int64_t> start, std::vector<int64_t> limit) {
    for (int64_t x : start) proto->add_start(x);
    for (int64_t x : limit) proto->add_limit(x);
  };
  for (uint64_t transfer : {901, 902}) {
    Piece& piece = *buffer.add_pieces();
    piece.mutable_remote()->set_transfer(transfer);
    piece.mutable_remote()->set_incarnation(life_.value());
    piece.mutable_remote()->set_space(life_.value());
    piece.mutable_remote()->set_data_address(plane_->address());
    if (transfer == 901) {
      box(piece.mutable_target_box(), {0, 0}, {1, 4});
    } else {
      box(piece.mutable_target_box(), {1, 2}, {3, 4});
    }
  }
  Piece& local = *buffer.add_pieces();
  local.mutable_local()->set_array(1);
  for (int64_t dim : {3, 4}) local.add_source_dims(dim);
  box(local.mutable_source_box(), {1, 0}, {3, 2});
  box(local.mutable_target_box(), {1, 0}, {3, 2});
  Push(op);
  // A column of the result goes back, although it is not there yet.
  WorkerOp out;
  Publish& offered = *out.mutable_publish();
  offered.set_ticket(++last_ticket_);
  offered.set_transfer(903);
  offered.mutable_ref()->set_array(2);
  offered.set_dtype(static_cast<int>(DType::kF32));
  for (int64_t dim : {3, 4}) offered.add_dims(dim);
  box(offered.mutable_box(), {0, 2}, {3, 4});
  offered.set_peer(life_.value());
  Push(out);
  Send();
  std::vector<float> pulled(6);
  std::optional<absl::Status> done;
  plane_->Pull(WorkerLife(), {life_.value(), DataKeyId(DataKeyKind::kTransfer, 903)}, 0, pulled.data(), 24,
               [&](absl::Status status) { loop_.Post([&, status] { done = status; }); });
  publish(902, columns);
  publish(901, row);
  ASSERT_TRUE(RunUntil([&] { return done.has_value(); }));
  EXPECT_TRUE(done->ok()) << *done;
  EXPECT_EQ(pulled, (std::vector<float>{102, 103, 110, 111, 120, 121}));
  auto values = ReadShard(2, 0, {3, 4});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{100, 101, 102, 103, 4, 5, 110, 111, 8, 9, 120, 121}));
  WorkerOp stop;
  stop.mutable_unpublish()->add_transfers(903);
  Push(stop);
  for (uint64_t array : {1, 2}) Delete(array);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

// Elements of four bits: two to a byte between workers, in both directions, also where a piece ends in a byte's middle.
TEST_F(WorkerProcessTest, SubByteElementsTravelPacked) {
  StartAll();
  auto box = [](Box* proto, std::vector<int64_t> start, std::vector<int64_t> limit) {
    for (int64_t x : start) proto->add_start(x);
    for (int64_t x : limit) proto->add_limit(x);
  };
  // 0 1 2 3 4 / 5 6 7 8 9 / a b c d e, in two pieces: the first row, and the rest.
  const std::vector<std::vector<uint8_t>> pieces = {{0x10, 0x32, 0x04}, {0x65, 0x87, 0xa9, 0xcb, 0xed}};
  WorkerOp op;
  MakeBuffers& make = *op.mutable_make();
  make.set_ticket(++last_ticket_);
  MakeBuffer& buffer = *make.add_buffers();
  buffer.mutable_target()->mutable_ref()->set_array(2);
  buffer.set_dtype(static_cast<int>(DType::kU4));
  for (int64_t dim : {3, 5}) buffer.add_dims(dim);
  for (uint64_t i : {0, 1}) {
    auto kept = std::make_shared<const std::vector<uint8_t>>(pieces[i]);
    plane_->PublishSpan({life_.value(), DataKeyId(DataKeyKind::kTransfer, 901 + i)},
                        absl::MakeConstSpan(reinterpret_cast<const std::byte*>(kept->data()), kept->size()), kept);
    Piece& piece = *buffer.add_pieces();
    piece.mutable_remote()->set_transfer(901 + i);
    piece.mutable_remote()->set_incarnation(life_.value());
    piece.mutable_remote()->set_space(life_.value());
    piece.mutable_remote()->set_data_address(plane_->address());
    box(piece.mutable_target_box(), {i == 0 ? 0 : 1, 0}, {i == 0 ? 1 : 3, 5});
  }
  Push(op);
  WorkerOp out;
  Publish& offered = *out.mutable_publish();
  offered.set_ticket(++last_ticket_);
  offered.set_transfer(903);
  offered.mutable_ref()->set_array(2);
  offered.set_dtype(static_cast<int>(DType::kU4));
  for (int64_t dim : {3, 5}) offered.add_dims(dim);
  box(offered.mutable_box(), {0, 1}, {3, 4});
  offered.set_peer(life_.value());
  Push(out);
  Send();
  std::vector<uint8_t> pulled(5);
  std::optional<absl::Status> done;
  plane_->Pull(WorkerLife(), {life_.value(), DataKeyId(DataKeyKind::kTransfer, 903)}, 0, pulled.data(), 5,
               [&](absl::Status status) { loop_.Post([&, status] { done = status; }); });
  ASSERT_TRUE(RunUntil([&] { return done.has_value(); }));
  EXPECT_TRUE(done->ok()) << *done;
  EXPECT_EQ(pulled, (std::vector<uint8_t>{0x21, 0x63, 0x87, 0xcb, 0x0d}));
  WorkerOp stop;
  stop.mutable_unpublish()->add_transfers(903);
  Push(stop);
  Delete(2);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

// The peer does not pull (yet); a step that donates what is offered to it runs nevertheless, and the peer gets the old
// bytes, whenever it comes.
TEST_F(WorkerProcessTest, ADonorDoesNotWaitForAPeer) {
  StartAll();
  const uint64_t executable = Load(kIncrementProgram, 1);
  UploadShard(1, 0, 0, Ramp(64, 100), {64});
  const std::vector<std::pair<int64_t, int64_t>> spans = {{0, 64}, {8, 40}};
  for (size_t i = 0; i < spans.size(); ++i) {
    WorkerOp out;
    Publish& offered = *out.mutable_publish();
    offered.set_ticket(++last_ticket_);
    offered.set_transfer(903 + i);
    offered.mutable_ref()->set_array(1);
    offered.set_dtype(static_cast<int>(DType::kF32));
    offered.add_dims(64);
    offered.mutable_box()->add_start(spans[i].first);
    offered.mutable_box()->add_limit(spans[i].second);
    offered.set_peer(life_.value());
    Push(out);
  }
  const uint64_t donor = LaunchOp(executable, 1, {1}, 2, /*donate=*/true);
  Send();
  ASSERT_TRUE(RunUntil([&] { return done_.contains(donor); }));
  auto values = ReadShard(2, 0, {64});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, Ramp(64, 101));
  for (size_t i = 0; i < spans.size(); ++i) {
    std::vector<float> pulled(static_cast<size_t>(spans[i].second - spans[i].first));
    std::optional<absl::Status> done;
    plane_->Pull(WorkerLife(), {life_.value(), DataKeyId(DataKeyKind::kTransfer, 903 + i)}, 0, pulled.data(),
                 pulled.size() * 4, [&](absl::Status status) { loop_.Post([&, status] { done = status; }); });
    ASSERT_TRUE(RunUntil([&] { return done.has_value(); }));
    EXPECT_TRUE(done->ok()) << *done;
    EXPECT_EQ(pulled, Ramp(pulled.size(), 100 + static_cast<float>(spans[i].first)));
  }
  WorkerOp stop;
  for (uint64_t transfer : {903, 904}) stop.mutable_unpublish()->add_transfers(transfer);
  Push(stop);
  Delete(2);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

TEST_F(WorkerProcessTest, StridedUploadsToSeveralTargets) {
  StartAll();
  const std::vector<float> image = {0, 1, 2, 3, 4, 5};  // column-major 3 x 2
  for (const bool pulled : {false, true}) {
    WorkerOp op;
    Upload& upload = *op.mutable_upload();
    upload.set_ticket(++last_ticket_);
    for (uint32_t device : {0u, 2u}) {
      Target& target = *upload.add_targets();
      target.mutable_ref()->set_array(pulled ? 2 : 1);
      target.mutable_ref()->set_shard(device);
      target.set_device(device);
    }
    upload.set_dtype(static_cast<int>(DType::kF32));
    for (int64_t dim : {3, 2}) upload.add_dims(dim);
    for (int64_t stride : {4, 12}) upload.add_byte_strides(stride);
    upload.set_image_bytes(24);
    upload.set_key(++last_id_);
    upload.set_pulled(pulled);
    Push(op);
    if (pulled) {
      plane_->PublishSpan({life_.value(), DataKeyId(DataKeyKind::kUpload, upload.key())},
                          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(image.data()), 24), nullptr);
    } else {
      WorkerOp data;
      data.mutable_upload_data()->set_key(upload.key());
      data.mutable_upload_data()->set_data(image.data(), 24);
      Push(data);
    }
    Send();
    for (uint32_t shard : {0u, 2u}) {
      auto values = ReadShard(pulled ? 2 : 1, shard, {3, 2});
      ASSERT_TRUE(values.ok()) << values.status();
      EXPECT_EQ(*values, (std::vector<float>{0, 3, 1, 4, 2, 5})) << shard;
    }
  }
}

TEST_F(WorkerProcessTest, ShutdownWaitsForWhatRuns) {
  StartAll();
  const uint64_t executable = Load(pjrt::CustomCallProgram(pjrt::kVirtualComputeTarget, 400'000), 1);
  UploadShard(1, 0, 0, Ramp(2048, 0), {2048});
  LaunchOp(executable, 1, {1}, 2);
  Send();
  ASSERT_TRUE(RunUntil([] { return pjrt::VirtualComputePending() > 0; }));
  EXPECT_TRUE(worker_->Shutdown(30 * kSecond));
  EXPECT_EQ(pjrt::VirtualComputePending(), 0);
}

TEST(WorkerProcessStart, AMissingPluginIsSaid) {
  Loop loop;
  WorkerOptions options;
  options.resource_manager_address = "127.0.0.1:1";
  options.plugin_path = "/nowhere/plugin.so";
  auto worker = WorkerProcess::Start(&loop, options, [](const absl::Status&) {});
  EXPECT_EQ(worker.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(worker.status().message()), HasSubstr("/nowhere/plugin.so"));
}

}  // namespace
}  // namespace landbridge
