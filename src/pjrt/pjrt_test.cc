#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <numeric>
#include <thread>

#include "base/sha256.h"
#include "base/status.h"
#include "pjrt/client.h"
#include "pjrt/ffi_handler.h"
#include "pjrt/plugin.h"
#include "pjrt/test_support.h"
#include "pjrt/types.h"
#include "pjrt/virtual_compute.h"

namespace landbridge::pjrt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

#define ASSERT_OK(expr)                                 \
  do {                                                  \
    absl::Status lb_test_status = (expr);               \
    ASSERT_TRUE(lb_test_status.ok()) << lb_test_status; \
  } while (false)

constexpr int kDevices = 4;

class PjrtTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    PreparePluginEnvironment(kDevices);
    plugin_ = Value(Plugin::Load(TestPluginPath())).get();  // plugins are never unloaded
    client_ = Value(plugin_->CreateClient(Plugin::CpuOptions(kDevices))).release();
  }

  static const Device& device(size_t i) { return client_->devices()[i]; }

  static Buffer Upload(const std::vector<float>& values, size_t d = 0) {
    auto result = Value(client_->BufferFromHost(values.data(), DType::kF32, {static_cast<int64_t>(values.size())}, {},
                                                *device(d).default_memory, HostSemantics::kOnlyDuringCall));
    return std::move(result.buffer);
  }

  static std::vector<float> Download(const Buffer& buffer) {
    size_t bytes = Value(buffer.HostImageBytes());
    std::vector<float> values(bytes / sizeof(float));
    absl::Status status = Value(buffer.CopyToHost(values.data(), bytes)).Await();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  static std::unique_ptr<LoadedExecutable> Compile(absl::string_view program, int partitions = 1) {
    return Value(client_->Compile(program, "mlir", TestCompileOptions(partitions).SerializeAsString()));
  }

  static int32_t NextLaunch() {
    static std::atomic<int32_t> next{1};
    return next++;
  }

  static Plugin* plugin_;
  static Client* client_;
};

Plugin* PjrtTest::plugin_ = nullptr;
Client* PjrtTest::client_ = nullptr;

TEST_F(PjrtTest, PluginFacts) {
  EXPECT_EQ(plugin_->api_major(), 0);
  EXPECT_GE(plugin_->api_minor(), kApiMinorMin);
  EXPECT_EQ(plugin_->sha256(), Value(Sha256FileHex(TestPluginPath())));
  EXPECT_EQ(Value(Plugin::Load(TestPluginPath())).get(), plugin_);
  EXPECT_TRUE(plugin_->HasExtension(PJRT_Extension_Type_FFI));
  EXPECT_TRUE(plugin_->HasExtension(PJRT_Extension_Type_Shardings));
  EXPECT_TRUE(plugin_->HasExtension(PJRT_Extension_Type_Layouts));
  ASSERT_TRUE(plugin_->attributes().contains("stablehlo_current_version"));
  EXPECT_EQ(std::get<std::vector<int64_t>>(plugin_->attributes().at("stablehlo_current_version")).size(), 3u);
}

TEST_F(PjrtTest, LoadErrorsNameThePath) {
  auto missing = Plugin::Load("/nonexistent/plugin.so");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nonexistent/plugin.so"));

  std::string text = testing::TempDir() + "/not_a_library.so";
  std::ofstream(text) << "hello";
  auto no_library = Plugin::Load(text);
  EXPECT_EQ(no_library.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(no_library.status().message()), HasSubstr("not_a_library.so"));

  auto no_plugin = Plugin::Load("/lib/x86_64-linux-gnu/libm.so.6");
  EXPECT_EQ(no_plugin.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(no_plugin.status().message()), HasSubstr("GetPjrtApi"));
}

TEST_F(PjrtTest, DefaultPath) {
  const char* old = ::getenv("LANDBRIDGE_PJRT_PLUGIN");
  std::string kept = old == nullptr ? "" : old;
  ::setenv("LANDBRIDGE_PJRT_PLUGIN", "/nonexistent/p.so", 1);
  EXPECT_THAT(std::string(DefaultCpuPluginPath().status().message()), HasSubstr("/nonexistent/p.so"));
  ::setenv("LANDBRIDGE_PJRT_PLUGIN", TestPluginPath().c_str(), 1);
  EXPECT_EQ(Value(DefaultCpuPluginPath()), TestPluginPath());
  ::unsetenv("LANDBRIDGE_PJRT_PLUGIN");
  std::vector<std::string> folders = {testing::TempDir()};
  EXPECT_THAT(std::string(DefaultCpuPluginPath(folders).status().message()), HasSubstr("lammps_jax_pjrt_cpu"));
  if (!kept.empty()) ::setenv("LANDBRIDGE_PJRT_PLUGIN", kept.c_str(), 1);
}

TEST_F(PjrtTest, DevicesAndMemories) {
  EXPECT_EQ(client_->platform_name(), "cpu");
  ASSERT_EQ(client_->devices().size(), static_cast<size_t>(kDevices));
  for (int i = 0; i < kDevices; ++i) {
    const Device& d = device(static_cast<size_t>(i));
    EXPECT_EQ(d.id, i);
    EXPECT_EQ(client_->FindDevice(i), &d);
    ASSERT_NE(d.FindMemory("device"), nullptr);
    ASSERT_NE(d.FindMemory("pinned_host"), nullptr);
    EXPECT_EQ(d.FindMemory("nonsense"), nullptr);
    EXPECT_EQ(d.default_memory, d.FindMemory("device"));
  }
  EXPECT_EQ(client_->FindDevice(77), nullptr);
}

TEST_F(PjrtTest, ClientOptionErrors) {
  Plugin::ClientOptions options;
  options.options["no_such_option"] = true;
  auto client = plugin_->CreateClient(options);
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(std::string(client.status().message()), HasSubstr(plugin_->path()));
}

TEST_F(PjrtTest, BufferRoundTripWithStrides) {
  // A 2 x 3 array read from a 3 x 2 one by strides: a transpose.
  const std::vector<float> host = {1, 2, 3, 4, 5, 6};
  auto result = Value(client_->BufferFromHost(host.data(), DType::kF32, {2, 3}, {4, 8}, *device(1).default_memory,
                                              HostSemantics::kOnlyDuringCall));
  ASSERT_OK(result.done_with_host.Await());
  const Buffer& buffer = result.buffer;
  EXPECT_THAT(Download(buffer), ElementsAre(1, 3, 5, 2, 4, 6));
  EXPECT_EQ(Value(buffer.dtype()), DType::kF32);
  EXPECT_THAT(Value(buffer.dims()), ElementsAre(2, 3));
  EXPECT_EQ(Value(buffer.on_device_bytes()), 24u);
  EXPECT_EQ(Value(buffer.memory()), device(1).default_memory->handle);
  EXPECT_EQ(Value(buffer.device()), device(1).handle);
  EXPECT_TRUE(buffer.IsRowMajor());
  float middle[2];
  ASSERT_OK(Value(buffer.CopyRawToHost(middle, 8, 8)).Await());
  EXPECT_THAT(middle, ElementsAre(5, 2));
  // Strides of 0 (a broadcast) and below 0 (a reversal).
  auto zero = Value(client_->BufferFromHost(host.data(), DType::kF32, {2, 2}, {0, 4}, *device(0).default_memory,
                                            HostSemantics::kOnlyDuringCall));
  EXPECT_THAT(Download(zero.buffer), ElementsAre(1, 2, 1, 2));
  auto reversed = Value(client_->BufferFromHost(&host[5], DType::kF32, {3}, {-4}, *device(0).default_memory,
                                                HostSemantics::kOnlyDuringCall));
  EXPECT_THAT(Download(reversed.buffer), ElementsAre(6, 5, 4));
}

TEST_F(PjrtTest, EveryDeviceType) {
  for (int32_t kind = 1; kind < 40; ++kind) {
    auto dtype = DTypeFromIfrtKind(kind);
    if (!dtype.has_value() || HostElementBytes(*dtype) == 0) continue;
    const size_t bytes = 4 * static_cast<size_t>(HostElementBytes(*dtype));
    std::vector<char> host(bytes);
    for (size_t i = 0; i < bytes; ++i) host[i] = static_cast<char>(i & 1);
    auto result = client_->BufferFromHost(host.data(), *dtype, {4}, {}, *device(0).default_memory,
                                          HostSemantics::kOnlyDuringCall);
    if (!result.ok()) {
      // Types that this plugin is too old for; the common ones must work.
      EXPECT_TRUE(IsSubByte(*dtype) || *dtype > DType::kF8E4M3FN) << DTypeName(*dtype) << ": " << result.status();
      continue;
    }
    EXPECT_EQ(Value(result->buffer.dtype()), *dtype) << DTypeName(*dtype);
    EXPECT_EQ(Value(result->buffer.HostImageBytes()), bytes) << DTypeName(*dtype);
    EXPECT_EQ(Value(result->buffer.on_device_bytes()), static_cast<size_t>(4 * DeviceElementBits(*dtype) + 7) / 8)
        << DTypeName(*dtype);
    std::vector<char> back(bytes, 9);
    ASSERT_OK(Value(result->buffer.CopyToHost(back.data(), bytes)).Await());
    EXPECT_EQ(std::memcmp(back.data(), host.data(), bytes), 0) << DTypeName(*dtype);
  }
  EXPECT_FALSE(
      client_->BufferFromHost("", DType::kString, {1}, {}, *device(0).default_memory, HostSemantics::kOnlyDuringCall)
          .ok());
}

TEST_F(PjrtTest, ZeroCopySharesMemory) {
  alignas(64) static float host[1024];
  std::iota(std::begin(host), std::end(host), 0.0f);
  auto result = Value(client_->BufferFromHost(host, DType::kF32, {1024}, {}, *device(0).default_memory,
                                              HostSemantics::kImmutableZeroCopy));
  EXPECT_EQ(Value(result.buffer.AcquireExternalReference()).data(), host);
  std::promise<void> done;
  result.done_with_host.OnReady([&](absl::Status) { done.set_value(); });
  EXPECT_FALSE(result.done_with_host.IsReady());
  result.buffer = Buffer();
  EXPECT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST_F(PjrtTest, UninitializedIsWritableInPlace) {
  Buffer buffer = Value(client_->CreateUninitialized(DType::kF32, {4}, *device(0).default_memory));
  {
    ExternalReference reference = Value(buffer.AcquireExternalReference());
    const float values[4] = {1, 2, 3, 4};
    std::memcpy(reference.data(), values, sizeof(values));
  }
  EXPECT_THAT(Download(buffer), ElementsAre(1, 2, 3, 4));
}

TEST_F(PjrtTest, DeleteAndCopies) {
  Buffer buffer = Upload({1, 2});
  Buffer pinned = Value(buffer.CopyToMemory(device(0).FindMemory("pinned_host")->handle));
  Buffer other = Value(buffer.CopyToDevice(device(3).handle));
  EXPECT_FALSE(buffer.IsDeleted());
  ASSERT_OK(buffer.Delete());
  EXPECT_TRUE(buffer.IsDeleted());
  EXPECT_FALSE(buffer.ReadyEvent().ok() && buffer.CopyToMemory(device(0).default_memory->handle).ok());
  EXPECT_THAT(Download(pinned), ElementsAre(1, 2));
  EXPECT_EQ(client_->FindMemory(Value(pinned.memory()))->kind, "pinned_host");
  EXPECT_THAT(Download(other), ElementsAre(1, 2));
  EXPECT_EQ(Value(other.device()), device(3).handle);
}

TEST_F(PjrtTest, ErrorBufferCarriesItsStatus) {
  Buffer buffer =
      Value(client_->CreateError(absl::DataLossError("slice gone"), DType::kF32, {4}, *device(0).default_memory));
  absl::Status status = Value(buffer.ReadyEvent()).Await();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("slice gone"));
}

TEST_F(PjrtTest, ExecuteOneDevice) {
  auto executable = Compile(kAddProgram);
  EXPECT_EQ(executable->num_outputs(), 1u);
  Buffer a = Upload({1, 2, 3, 4}, 2);
  Buffer b = Upload({10, 20, 30, 40}, 2);
  Buffer* arguments[] = {&a, &b};
  DeviceResult result = Value(executable->ExecuteOnDevice(device(2).handle, arguments, {.launch_id = NextLaunch()}));
  ASSERT_EQ(result.outputs.size(), 1u);
  EXPECT_THAT(Download(result.outputs[0]), ElementsAre(11, 22, 33, 44));
  ASSERT_OK(result.done.Await());
  EXPECT_EQ(Value(result.outputs[0].device()), device(2).handle);
  EXPECT_EQ(executable->ExecuteOnDevice(device(2).handle, arguments, {}).status().code(), absl::StatusCode::kInternal);
}

TEST_F(PjrtTest, ExecuteAllDevices) {
  auto executable = Compile(kPsumProgram, 4);
  EXPECT_THAT(executable->device_ids(), ElementsAre(0, 1, 2, 3));
  std::vector<Buffer> shards;
  for (size_t d = 0; d < 4; ++d)
    shards.push_back(Upload({static_cast<float>(2 * d), static_cast<float>(2 * d + 1)}, d));
  std::vector<Buffer*> pointers;
  for (Buffer& shard : shards) pointers.push_back(&shard);
  std::vector<absl::Span<Buffer* const>> lists;
  for (size_t d = 0; d < 4; ++d) lists.push_back(absl::MakeConstSpan(&pointers[d], 1));
  std::vector<DeviceResult> results = Value(executable->ExecuteAll(lists, {.launch_id = NextLaunch()}));
  ASSERT_EQ(results.size(), 4u);
  for (DeviceResult& result : results) {
    EXPECT_THAT(Download(result.outputs[0]), ElementsAre(12, 16));
    ASSERT_OK(result.done.Await());
  }
  // The same launch device by device, from one thread per device.
  const int32_t launch = NextLaunch();
  std::vector<std::thread> threads;
  for (size_t d = 0; d < 4; ++d) {
    threads.emplace_back([&, d] {
      DeviceResult result = Value(executable->ExecuteOnDevice(device(d).handle, lists[d], {.launch_id = launch}));
      EXPECT_THAT(Download(result.outputs[0]), ElementsAre(12, 16));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(executable->ExecuteAll(absl::MakeConstSpan(lists).first(3), {.launch_id = NextLaunch()}).ok());
}

TEST_F(PjrtTest, Donation) {
  auto executable = Compile(kDonateProgram);
  Buffer input = Upload(std::vector<float>(4096, 3.0f));
  ASSERT_OK(Value(input.ReadyEvent()).Await());
  void* memory = Value(input.AcquireExternalReference()).data();
  Buffer* arguments[] = {&input};
  const int64_t keep[] = {0};
  {
    DeviceResult kept = Value(executable->ExecuteOnDevice(device(0).handle, arguments,
                                                          {.launch_id = NextLaunch(), .non_donatable_inputs = keep}));
    EXPECT_EQ(Download(kept.outputs[0])[4095], 6.0f);
    EXPECT_FALSE(input.IsDeleted());
  }
  DeviceResult taken = Value(executable->ExecuteOnDevice(device(0).handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_EQ(Download(taken.outputs[0])[0], 6.0f);
  EXPECT_TRUE(input.IsDeleted());
  EXPECT_EQ(Value(taken.outputs[0].AcquireExternalReference()).data(), memory);  // really in place
}

TEST_F(PjrtTest, PromiseFulfilledAndFailed) {
  auto executable = Compile(kAddProgram);
  auto alias = Value(client_->CreateAlias(DType::kF32, {4}, *device(0).default_memory));
  Buffer ones = Upload({1, 1, 1, 1});
  Buffer* arguments[] = {&alias.buffer, &ones};
  DeviceResult result = Value(executable->ExecuteOnDevice(device(0).handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_FALSE(result.done.IsReady());
  std::promise<absl::Status> ready;
  Value(result.outputs[0].ReadyEvent()).OnReady([&](absl::Status status) { ready.set_value(status); });
  ASSERT_OK(alias.promise.Fulfill(Upload({1, 2, 3, 4})));
  EXPECT_FALSE(static_cast<bool>(alias.promise));
  ASSERT_OK(ready.get_future().get());
  EXPECT_THAT(Download(result.outputs[0]), ElementsAre(2, 3, 4, 5));

  auto failed = Value(client_->CreateAlias(DType::kF32, {4}, *device(0).default_memory));
  ASSERT_OK(failed.promise.Fail(absl::DataLossError("its worker is gone")));
  EXPECT_EQ(Value(failed.buffer.ReadyEvent()).Await().code(), absl::StatusCode::kDataLoss);

  // Destroyed unfulfilled: nobody waits for ever.
  auto dropped = Value(client_->CreateAlias(DType::kF32, {4}, *device(0).default_memory));
  dropped.promise = Promise();
  { Promise gone = std::move(dropped.promise); }
  EXPECT_EQ(failed.promise.Fail(absl::AbortedError("")).code(), absl::StatusCode::kInternal);

  auto deleted = Value(client_->CreateAlias(DType::kF32, {4}, *device(0).default_memory));
  Buffer dead = Upload({1, 2, 3, 4});
  ASSERT_OK(dead.Delete());
  EXPECT_EQ(deleted.promise.Fulfill(std::move(dead)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Value(deleted.buffer.ReadyEvent()).Await().ok());
}

TEST_F(PjrtTest, Metadata) {
  auto executable = Compile(kShardedProgram, 4);
  EXPECT_EQ(Value(executable->Name()), "jit_sharded");
  EXPECT_EQ(Value(executable->NumPartitions()), 4);
  EXPECT_EQ(Value(executable->NumReplicas()), 1);
  EXPECT_THAT(Value(executable->OutputTypes()), ElementsAre(DType::kF32, DType::kF32));
  EXPECT_THAT(Value(executable->OutputDims()), ElementsAre(ElementsAre(2), ElementsAre()));
  auto parameters = Value(executable->ParameterShardings());
  ASSERT_TRUE(parameters.has_value());
  ASSERT_EQ(parameters->size(), 1u);
  xla::OpSharding sharding;
  ASSERT_TRUE(sharding.ParseFromString((*parameters)[0]));
  EXPECT_EQ(sharding.type(), xla::OpSharding::OTHER);
  EXPECT_THAT(sharding.tile_assignment_dimensions(), ElementsAre(4));
  ASSERT_EQ(Value(executable->OutputShardings())->size(), 2u);
  EXPECT_THAT(Value(executable->ParameterLayouts()), ElementsAre("{0}"));
  EXPECT_EQ(Value(executable->OutputLayouts()).size(), 2u);
  MemoryStats stats = Value(executable->GetMemoryStats());
  EXPECT_EQ(stats.argument, 8);
  EXPECT_GE(stats.output, 8 + 4);
  EXPECT_GT(Value(executable->OptimizedProgram()).size(), 100u);
  xla::CompileOptionsProto options;
  ASSERT_TRUE(options.ParseFromString(Value(executable->CompileOptions())));
  EXPECT_EQ(options.executable_build_options().num_partitions(), 4);
  EXPECT_FALSE(Value(executable->Fingerprint()).empty());
  // One device: no shardings.
  EXPECT_FALSE(Value(Compile(kAddProgram)->ParameterShardings()).has_value());
}

TEST_F(PjrtTest, SerializeAndLoadOnOtherDevices) {
  std::string bytes = Value(Compile(kPsumProgram, 4)->Serialize());
  xla::CompileOptionsProto options = TestCompileOptions(4);
  for (int i = 0; i < 4; ++i) {
    options.mutable_executable_build_options()
        ->mutable_device_assignment()
        ->mutable_computation_devices(i)
        ->set_replica_device_ids(0, 3 - i);
  }
  auto loaded = Value(client_->DeserializeAndLoad(bytes, options.SerializeAsString()));
  EXPECT_THAT(loaded->device_ids(), ElementsAre(3, 2, 1, 0));
  std::vector<Buffer> shards;
  std::vector<Buffer*> pointers;
  std::vector<absl::Span<Buffer* const>> lists;
  for (size_t i = 0; i < 4; ++i) shards.push_back(Upload({1, static_cast<float>(i)}, 3 - i));
  for (Buffer& shard : shards) pointers.push_back(&shard);
  for (size_t i = 0; i < 4; ++i) lists.push_back(absl::MakeConstSpan(&pointers[i], 1));
  for (DeviceResult& result : Value(loaded->ExecuteAll(lists, {.launch_id = NextLaunch()}))) {
    EXPECT_THAT(Download(result.outputs[0]), ElementsAre(4, 6));
  }
}

TEST_F(PjrtTest, CompileErrorsKeepTheText) {
  auto bad = client_->Compile("not mlir at all", "mlir", TestCompileOptions(1).SerializeAsString());
  ASSERT_FALSE(bad.ok());
  EXPECT_FALSE(bad.status().message().empty());
  auto unknown = client_->CheckCustomCall("no_such_target");
  EXPECT_EQ(unknown.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("no_such_target"));
}

// --- Custom calls.

std::atomic<int64_t> seen_run_id{-1};
std::atomic<int32_t> seen_ordinal{-1};

XLA_FFI_Error* Probe(XLA_FFI_CallFrame* frame) {
  if (FfiCall::AnswerMetadata(frame)) return nullptr;
  FfiCall call(frame);
  auto duration = call.IntAttribute("duration_us");
  if (!duration.ok()) return call.Fail(duration.status());
  if (*duration == 13) return call.Fail(absl::InvalidArgumentError("thirteen is refused"));
  auto operand = call.Operand(0);
  auto result = call.Result(0);
  if (!operand.ok() || !result.ok() || call.Operand(1).ok() || call.StringAttribute("duration_us").ok()) {
    return call.Fail(absl::InternalError("operands"));
  }
  seen_run_id = call.RunId().value_or(-2);
  seen_ordinal = call.DeviceOrdinal().value_or(-2);
  auto completion = call.Defer();
  if (!completion.ok()) return call.Fail(completion.status());
  // `dims` dies with the frame; data lives until completion.
  std::thread([to = result->data, from = operand->data, bytes = static_cast<size_t>(operand->bytes),
               fail = *duration == 14, later = *std::move(completion)]() mutable {
    if (fail) {
      later.Complete(absl::AbortedError("fourteen fails later"));
      return;
    }
    std::memcpy(to, from, bytes);
    later.Complete();
  }).detach();
  return nullptr;
}

TEST_F(PjrtTest, OwnHandler) {
  ASSERT_OK(plugin_->RegisterFfiHandler("landbridge_test_probe", reinterpret_cast<void*>(&Probe)));
  ASSERT_OK(plugin_->RegisterFfiHandler("landbridge_test_probe", reinterpret_cast<void*>(&Probe)));
  ASSERT_OK(client_->CheckCustomCall("landbridge_test_probe"));
  std::vector<float> values(2048, 1.5f);
  Buffer input = Upload(values, 3);
  Buffer* arguments[] = {&input};
  const int32_t launch = NextLaunch() + 1000;
  auto executable = Compile(CustomCallProgram("landbridge_test_probe", 5));
  DeviceResult result = Value(executable->ExecuteOnDevice(device(3).handle, arguments, {.launch_id = launch}));
  EXPECT_EQ(Download(result.outputs[0])[2047], 3.0f);
  EXPECT_EQ(seen_run_id, launch);
  EXPECT_EQ(seen_ordinal, 3);
  for (int64_t bad : {13, 14}) {
    auto failing = Compile(CustomCallProgram("landbridge_test_probe", bad));
    auto run = failing->ExecuteOnDevice(device(3).handle, arguments, {.launch_id = NextLaunch()});
    absl::Status status = run.ok() ? run->done.Await() : run.status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad == 13 ? "thirteen is refused" : "fourteen fails later"));
  }
}

TEST_F(PjrtTest, VirtualComputeTakesItsTimeAndOverlaps) {
  ASSERT_OK(RegisterAndCheckVirtualCompute(*client_));
  constexpr int64_t kMicros = 2'000'000;
  auto executable = Compile(CustomCallProgram(kVirtualComputeTarget, kMicros));
  std::vector<Buffer> inputs;
  for (size_t d = 0; d < 2; ++d) inputs.push_back(Upload(std::vector<float>(2048, 1.0f + static_cast<float>(d)), d));
  auto start = std::chrono::steady_clock::now();
  std::vector<DeviceResult> results;
  for (size_t d = 0; d < 2; ++d) {
    Buffer* arguments[] = {&inputs[d]};
    results.push_back(Value(executable->ExecuteOnDevice(device(d).handle, arguments, {.launch_id = NextLaunch()})));
  }
  // Both wait at one time: that is the overlap, however loaded the machine is.
  auto both_wait = [] { return VirtualComputePending() == 2; };
  while (!both_wait() && std::chrono::steady_clock::now() - start < std::chrono::microseconds(kMicros)) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(both_wait());
  for (size_t d = 0; d < 2; ++d) {
    ASSERT_OK(results[d].done.Await());
    EXPECT_EQ(Download(results[d].outputs[0])[7], 2.0f * (1.0f + static_cast<float>(d)));
  }
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::microseconds(kMicros));
  EXPECT_EQ(VirtualComputePending(), 0);
}

TEST_F(PjrtTest, VirtualComputeAsJaxWritesIt) {
  ASSERT_OK(RegisterVirtualCompute(*plugin_));
  auto executable = Compile(kVirtualComputeFromJax);
  Buffer input = Upload(std::vector<float>(2048, 2.5f));
  Buffer* arguments[] = {&input};
  DeviceResult result = Value(executable->ExecuteOnDevice(device(0).handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_EQ(Download(result.outputs[0]), std::vector<float>(2048, 2.5f));
}

// The hand-over that keeps the timer free: four continuations that wait for each other in a collective.
TEST_F(PjrtTest, VirtualComputeBeforeACollective) {
  ASSERT_OK(RegisterVirtualCompute(*plugin_));
  std::string program = absl::StrReplaceAll(
      kPsumProgram,
      {{"%1 = \"stablehlo.all_reduce\"(%arg1)",
        "%w = stablehlo.custom_call @landbridge_virtual_compute(%arg1) {api_version = 4 : i32, backend_config = "
        "{duration_us = 20000 : i64}} : (tensor<2xf32>) -> tensor<2xf32> %1 = \"stablehlo.all_reduce\"(%w)"}});
  auto executable = Compile(program, 4);
  std::vector<Buffer> shards;
  std::vector<Buffer*> pointers;
  std::vector<absl::Span<Buffer* const>> lists;
  for (size_t d = 0; d < 4; ++d) shards.push_back(Upload({1, static_cast<float>(d)}, d));
  for (Buffer& shard : shards) pointers.push_back(&shard);
  for (size_t d = 0; d < 4; ++d) lists.push_back(absl::MakeConstSpan(&pointers[d], 1));
  for (int round = 0; round < 5; ++round) {
    for (DeviceResult& result : Value(executable->ExecuteAll(lists, {.launch_id = NextLaunch()}))) {
      EXPECT_THAT(Download(result.outputs[0]), ElementsAre(4, 6));
    }
  }
}

TEST_F(PjrtTest, VirtualComputeRefusesNonsense) {
  ASSERT_OK(RegisterVirtualCompute(*plugin_));
  auto executable = Compile(CustomCallProgram(kVirtualComputeTarget, -1));
  Buffer input = Upload(std::vector<float>(2048, 1.0f));
  Buffer* arguments[] = {&input};
  auto run = executable->ExecuteOnDevice(device(0).handle, arguments, {.launch_id = NextLaunch()});
  absl::Status status = run.ok() ? run->done.Await() : run.status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("duration_us must lie between"));
}

TEST_F(PjrtTest, SecondPlugin) {
  std::string path = TestSecondPluginPath();
  if (path.empty()) GTEST_SKIP() << "only one CPU plugin is installed";
  std::shared_ptr<Plugin> plugin = Value(Plugin::Load(path));
  EXPECT_NE(plugin->sha256(), plugin_->sha256());
  std::unique_ptr<Client> client = Value(plugin->CreateClient(Plugin::CpuOptions(2)));
  ASSERT_OK(RegisterAndCheckVirtualCompute(*client));
  auto executable = Value(client->Compile(kMatmulProgram, "mlir", TestCompileOptions(1).SerializeAsString()));
  const float a[6] = {1, 2, 3, 4, 5, 6};
  const float b[6] = {1, 0, 0, 1, 1, 1};
  const Memory& memory = *client->devices()[1].default_memory;
  auto left = Value(client->BufferFromHost(a, DType::kF32, {2, 3}, {}, memory, HostSemantics::kOnlyDuringCall));
  auto right = Value(client->BufferFromHost(b, DType::kF32, {3, 2}, {}, memory, HostSemantics::kOnlyDuringCall));
  Buffer* arguments[] = {&left.buffer, &right.buffer};
  DeviceResult result =
      Value(executable->ExecuteOnDevice(client->devices()[1].handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_THAT(Download(result.outputs[0]), ElementsAre(4, 5, 10, 11));
  EXPECT_GT(Value(executable->GetMemoryStats()).argument, 0);
}

TEST(PjrtTypes, RoundTrip) {
  for (unsigned type = 1; type <= 31; ++type) {
    auto dtype = FromPjrtType(static_cast<PJRT_Buffer_Type>(type));
    ASSERT_TRUE(dtype.ok()) << type;
    EXPECT_EQ(*ToPjrtType(*dtype), static_cast<PJRT_Buffer_Type>(type));
  }
  EXPECT_FALSE(FromPjrtType(PJRT_Buffer_Type_F6E2M3FN).ok());
  EXPECT_EQ(*ToPjrtType(DType::kBF16), PJRT_Buffer_Type_BF16);
  EXPECT_EQ(ToPjrtType(DType::kString).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace landbridge::pjrt
