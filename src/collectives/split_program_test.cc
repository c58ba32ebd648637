// A real SPMD program: compiled for eight devices, its collectives rewritten, run as eight programs of one device each
// on one, two, four and eight "workers", and compared with the plugin's own run of the whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "absl/synchronization/blocking_counter.h"
#include "collectives/collective_handler.h"
#include "collectives/engine_test_util.h"
#include "hlo/rewrite_collectives.h"
#include "pjrt/client.h"
#include "pjrt/plugin.h"
#include "pjrt/test_support.h"

namespace landbridge {
namespace {

constexpr int kAllDevices = 8;
constexpr int64_t kElements = 4 * 8;  // of one device's input

// Everything in one: sums over one axis and over both, maxima, gathers, scatters, exchanges, permutes, ids, and a loop
// that sums in each round. One result of 8 rows a device for each.
constexpr char kProgram[] = R"(
module @jit_all attributes {mhlo.num_partitions = 8 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["a"=2, "b"=4]>
  func.func public @main(%arg0: tensor<32x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a", "b"}, {}]>}) -> (tensor<256x8xf32>) {
    %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"a", "b"}, {}]>] out_shardings=[<@mesh, [{"a", "b"}, {}]>] manual_axes={"a", "b"} (%x: tensor<4x8xf32>) {
      %id = stablehlo.partition_id : tensor<ui32>
      %idf = stablehlo.convert %id : (tensor<ui32>) -> tensor<f32>
      %ids = stablehlo.broadcast_in_dim %idf, dims = [] : (tensor<f32>) -> tensor<4x8xf32>
      %sum = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, use_global_device_ids}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %r = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %r : tensor<f32>
      }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %max = "stablehlo.all_reduce"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %r = stablehlo.maximum %p, %q : tensor<f32>
        stablehlo.return %r : tensor<f32>
      }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %gather = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 3, type = 1>, replica_groups = dense<[[0, 4], [1, 5], [2, 6], [3, 7]]> : tensor<4x2xi64>, use_global_device_ids}> : (tensor<4x8xf32>) -> tensor<8x8xf32>
      %part = stablehlo.slice %gather [2:6, 0:8] : (tensor<8x8xf32>) -> tensor<4x8xf32>
      %wide = stablehlo.concatenate %x, %ids, %x, %x, dim = 0 : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<16x8xf32>
      %scatter = "stablehlo.reduce_scatter"(%wide) <{channel_handle = #stablehlo.channel_handle<handle = 4, type = 1>, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, scatter_dimension = 0 : i64, use_global_device_ids}> ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %r = stablehlo.add %p, %q : tensor<f32>
        stablehlo.return %r : tensor<f32>
      }) : (tensor<16x8xf32>) -> tensor<4x8xf32>
      %exchange = "stablehlo.all_to_all"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 5, type = 1>, concat_dimension = 0 : i64, replica_groups = dense<[[0, 1, 2, 3], [4, 5, 6, 7]]> : tensor<2x4xi64>, split_count = 4 : i64, split_dimension = 0 : i64}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %permute = "stablehlo.collective_permute"(%x) <{channel_handle = #stablehlo.channel_handle<handle = 6, type = 1>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [4, 5], [7, 6]]> : tensor<5x2xi64>}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
      %zero = stablehlo.constant dense<0> : tensor<i32>
      %loop:2 = stablehlo.while(%i = %zero, %c = %x) : tensor<i32>, tensor<4x8xf32>
      cond {
        %three = stablehlo.constant dense<3> : tensor<i32>
        %more = stablehlo.compare LT, %i, %three, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %more : tensor<i1>
      } do {
        %all = "stablehlo.all_reduce"(%c) <{channel_handle = #stablehlo.channel_handle<handle = 7, type = 1>, replica_groups = dense<[[0, 1, 2, 3, 4, 5, 6, 7]]> : tensor<1x8xi64>, use_global_device_ids}> ({
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          %r = stablehlo.add %p, %q : tensor<f32>
          stablehlo.return %r : tensor<f32>
        }) : (tensor<4x8xf32>) -> tensor<4x8xf32>
        %eighth = stablehlo.constant dense<1.250000e-01> : tensor<4x8xf32>
        %mean = stablehlo.multiply %all, %eighth : tensor<4x8xf32>
        %next = stablehlo.add %mean, %ids : tensor<4x8xf32>
        %one = stablehlo.constant dense<1> : tensor<i32>
        %j = stablehlo.add %i, %one : tensor<i32>
        stablehlo.return %j, %next : tensor<i32>, tensor<4x8xf32>
      }
      %out = stablehlo.concatenate %sum, %max, %part, %scatter, %exchange, %permute, %loop#1, %ids, dim = 0 : (tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<32x8xf32>
      sdy.return %out : tensor<32x8xf32>
    } : (tensor<32x8xf32>) -> tensor<256x8xf32>
    return %0 : tensor<256x8xf32>
  }
})";

using pjrt::Value;
using Floats = std::vector<float>;

class SplitProgramTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    pjrt::PreparePluginEnvironment(kAllDevices);
    auto plugin = Value(pjrt::Plugin::Load(pjrt::TestPluginPath()));
    client_ = Value(plugin->CreateClient(pjrt::Plugin::CpuOptions(kAllDevices))).release();
    const absl::Status registered = RegisterCollectives(*client_);
    ASSERT_TRUE(registered.ok()) << registered;
  }

  static pjrt::Buffer Upload(const Floats& values, int device) {
    const pjrt::Device& place = client_->devices()[static_cast<size_t>(device)];
    return std::move(Value(client_->BufferFromHost(values.data(), DType::kF32, {4, 8}, {}, *place.default_memory,
                                                   pjrt::HostSemantics::kOnlyDuringCall))
                         .buffer);
  }

  static Floats Download(pjrt::Buffer& buffer) {
    Floats values(kElements * 8);
    pjrt::Event event = Value(buffer.CopyToHost(values.data(), values.size() * sizeof(float)));
    const absl::Status status = event.Await();
    EXPECT_TRUE(status.ok()) << status;
    return values;
  }

  static std::vector<Floats> Inputs() {
    std::vector<Floats> inputs(kAllDevices, Floats(kElements));
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0, 10);
    for (Floats& input : inputs) {
      for (float& x : input) x = normal(random);
    }
    return inputs;
  }

  static inline pjrt::Client* client_ = nullptr;
};

// kProgram for all devices, and as every device runs it.
struct Compiled {
  explicit Compiled(pjrt::Client& client)
      : whole(Value(client.Compile(kProgram, "mlir", pjrt::TestCompileOptions(kAllDevices).SerializeAsString()))) {
    hlo::SplitModule split =
        Value(hlo::RewriteCollectives(Value(whole->OptimizedProgram()), {.replicas = 1, .partitions = kAllDevices}));
    xla::CompileOptionsProto options = pjrt::TestCompileOptions(1);
    auto* build = options.mutable_executable_build_options();
    build->set_use_spmd_partitioning(false);
    build->set_use_shardy_partitioner(false);
    build->set_run_backend_only(true);
    single = Value(client.Compile(split.program, "hlo", options.SerializeAsString()));
    program = Value(CollectiveProgram::Make(split.table));
  }
  std::unique_ptr<pjrt::LoadedExecutable> whole, single;
  std::shared_ptr<const CollectiveProgram> program;
};

TEST_F(SplitProgramTest, EqualsTheWholeProgramOnAnyNumberOfWorkers) {
  const Compiled compiled(*client_);
  const auto& program = compiled.program;
  EXPECT_GE(program->steps().size(), 8u);

  const std::vector<Floats> inputs = Inputs();
  std::vector<pjrt::Buffer> buffers;
  for (int d = 0; d < kAllDevices; ++d) buffers.push_back(Upload(inputs[static_cast<size_t>(d)], d));
  std::vector<pjrt::Buffer*> pointers;
  for (pjrt::Buffer& buffer : buffers) pointers.push_back(&buffer);
  std::vector<absl::Span<pjrt::Buffer* const>> arguments;
  for (size_t d = 0; d < kAllDevices; ++d) arguments.push_back(absl::MakeConstSpan(&pointers[d], 1));
  auto oracle = Value(compiled.whole->ExecuteAll(arguments, {.launch_id = 1}));
  std::vector<Floats> expected;
  for (auto& result : oracle) expected.push_back(Download(result.outputs[0]));

  std::vector<std::vector<Floats>> ours;
  int32_t launch_id = 1000;
  for (int workers : {1, 2, 4, 8}) {
    std::vector<int> worker_of_device;
    for (int d = 0; d < kAllDevices; ++d) worker_of_device.push_back(d / (kAllDevices / workers));
    TestWorkers cluster(program, worker_of_device, static_cast<uint64_t>(workers));
    std::vector<CollectiveRegistration> launches;
    for (int w = 0; w < workers; ++w) {
      absl::flat_hash_map<int32_t, int32_t> devices;
      for (int d = 0; d < kAllDevices; ++d) {
        if (worker_of_device[static_cast<size_t>(d)] == w) devices[client_->devices()[static_cast<size_t>(d)].id] = d;
      }
      launches.emplace_back(launch_id + w, program, cluster.run(w), devices);
    }
    // A program this small runs inside Execute, so each device has a thread, as it has in a worker.
    std::vector<Floats> results(kAllDevices);
    std::vector<std::thread> threads;
    for (int d = 0; d < kAllDevices; ++d) {
      threads.emplace_back([&, d] {
        const auto i = static_cast<size_t>(d);
        auto result = Value(compiled.single->ExecuteOnDevice(client_->devices()[i].handle, arguments[i],
                                                             {.launch_id = launch_id + worker_of_device[i]}));
        const absl::Status done = result.done.Await();
        EXPECT_TRUE(done.ok()) << done;
        if (done.ok()) results[i] = Download(result.outputs[0]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    launch_id += workers;
    for (size_t d = 0; d < kAllDevices; ++d) {
      ASSERT_EQ(results[d].size(), expected[d].size());
      for (size_t i = 0; i < expected[d].size(); ++i) {
        EXPECT_NEAR(results[d][i], expected[d][i], 1e-4) << workers << " " << d << " " << i;
      }
    }
    ours.push_back(std::move(results));
  }
  for (const auto& results : ours) EXPECT_TRUE(results == ours[0]);  // bit for bit
}

// One device of the launch cannot go on: the others end with its reason, and the program runs again.
TEST_F(SplitProgramTest, AnAbortedLaunchEndsOnAllDevices) {
  const Compiled compiled(*client_);
  const auto& program = compiled.program;
  TestWorkers cluster(program, {0, 0, 0, 0, 1, 1, 1, 1}, 50);
  absl::flat_hash_map<int32_t, int32_t> devices;
  for (int d = 0; d < 4; ++d) devices[client_->devices()[static_cast<size_t>(d)].id] = d;
  CollectiveRegistration launch(2000, program, cluster.run(0), devices);
  const std::vector<Floats> inputs = Inputs();
  std::vector<std::thread> threads;
  absl::BlockingCounter failed(4);
  for (int d = 0; d < 4; ++d) {
    threads.emplace_back([&, d] {
      pjrt::Buffer input = Upload(inputs[static_cast<size_t>(d)], d);
      pjrt::Buffer* argument = &input;
      auto result = compiled.single->ExecuteOnDevice(client_->devices()[static_cast<size_t>(d)].handle,
                                                     absl::MakeConstSpan(&argument, 1), {.launch_id = 2000});
      const absl::Status status = result.ok() ? result->done.Await() : result.status();
      EXPECT_THAT(std::string(status.message()), testing::HasSubstr("worker 1 was lost"));
      failed.DecrementCount();
    });
  }
  cluster.run(1)->Abort(absl::DataLossError("worker 1 was lost"));
  failed.Wait();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace landbridge
