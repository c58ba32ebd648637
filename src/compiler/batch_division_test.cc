// With a real plugin: a custom call of a batch runs on each device's part of it.
#include "compiler/batch_division.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "compiler/metadata.h"
#include "pjrt/client.h"
#include "pjrt/ffi_handler.h"
#include "pjrt/test_support.h"

namespace landbridge {
namespace {

using pjrt::Value;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kDevices = 4;

// Rows doubled, and the first of each row; the batch is the rows. Divided over "x".
constexpr char kProgram[] = R"(
module @jit_rows attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["x"=2, "y"=2]>
  func.func public @main(%arg0: tensor<4x2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}) -> (tensor<4x2xf32>, tensor<4xf32>) {
    %0:2 = stablehlo.custom_call @landbridge_test.rows(%arg0) {api_version = 4 : i32, mhlo.frontend_attributes = {num_batch_dims = "1"}, sdy.sharding_rule = #sdy.op_sharding_rule<([i, j])->([i, k], [i]) {i=4, j=2, k=2}, custom>} : (tensor<4x2xf32>) -> (tensor<4x2xf32>, tensor<4xf32>)
    return %0#0, %0#1 : tensor<4x2xf32>, tensor<4xf32>
  }
})";

std::mutex calls_lock;
std::vector<int64_t> rows_of_calls;

pjrt::XLA_FFI_Error* Rows(pjrt::XLA_FFI_CallFrame* frame) {
  if (pjrt::FfiCall::AnswerMetadata(frame)) return nullptr;
  const pjrt::FfiCall call(frame);
  const auto in = Value(call.Operand(0)), doubled = Value(call.Result(0)), first = Value(call.Result(1));
  const float* x = static_cast<const float*>(in.data);
  for (int64_t row = 0; row < in.dims[0]; ++row) {
    for (int64_t i = 0; i < 2; ++i) static_cast<float*>(doubled.data)[2 * row + i] = 2 * x[2 * row + i];
    static_cast<float*>(first.data)[row] = x[2 * row];
  }
  const std::lock_guard<std::mutex> lock(calls_lock);
  rows_of_calls.push_back(in.dims[0]);
  return nullptr;
}

class BatchDivisionTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    pjrt::PreparePluginEnvironment(kDevices);
    auto plugin = Value(pjrt::Plugin::Load(pjrt::TestPluginPath()));
    client_ = Value(plugin->CreateClient(pjrt::Plugin::CpuOptions(kDevices))).release();
    const absl::Status registered = plugin->RegisterFfiHandler("landbridge_test.rows", reinterpret_cast<void*>(&Rows));
    ASSERT_TRUE(registered.ok()) << registered;
  }

  static inline pjrt::Client* client_ = nullptr;
};

TEST_F(BatchDivisionTest, EachDeviceCallsWithItsRows) {
  NormalizedOptions options = Value(NormalizeOptions(pjrt::TestCompileOptions(kDevices).SerializeAsString()));
  ASSERT_TRUE(MayDivideBatches(kProgram, options));
  std::optional<DividedProgram> divided;
  {
    const DumpFolder folder = Value(DumpFolder::Create());
    xla::CompileOptionsProto proto = options.proto;
    WriteModulesTo(folder, proto);
    auto whole = Value(client_->Compile(kProgram, "mlir", proto.SerializeAsString()));
    EXPECT_THAT(Value(DescribeExecutable(*whole, options)).collectives(), ElementsAre("all-gather"));
    divided = Value(DivideBatches(folder, options));
  }
  ASSERT_TRUE(divided.has_value());
  options.proto = divided->options;
  auto executable = Value(client_->Compile(divided->module, "hlo", options.proto.SerializeAsString()));
  const ExecutableInfo info = Value(DescribeExecutable(*executable, options));
  EXPECT_THAT(info.collectives(), IsEmpty());
  EXPECT_THAT(info.parameters(0).device_dims(), ElementsAre(2, 2));
  ASSERT_EQ(info.outputs_size(), 2);
  EXPECT_THAT(info.outputs(0).device_dims(), ElementsAre(2, 2));
  EXPECT_THAT(info.outputs(1).global_dims(), ElementsAre(4));

  std::vector<pjrt::Buffer> inputs;
  for (size_t d = 0; d < kDevices; ++d) {
    const float base = d < 2 ? 0.0f : 10.0f;  // devices 0 and 1 have rows 0 and 1
    const std::vector<float> values = {base, base + 1, base + 2, base + 3};
    inputs.push_back(std::move(
        Value(client_->BufferFromHost(values.data(), DType::kF32, {2, 2}, {}, *client_->devices()[d].default_memory,
                                      pjrt::HostSemantics::kOnlyDuringCall))
            .buffer));
  }
  std::vector<pjrt::Buffer*> pointers;
  for (pjrt::Buffer& input : inputs) pointers.push_back(&input);
  std::vector<absl::Span<pjrt::Buffer* const>> arguments;
  for (size_t d = 0; d < kDevices; ++d) arguments.push_back(absl::MakeConstSpan(&pointers[d], 1));
  rows_of_calls.clear();
  auto results = Value(executable->ExecuteAll(arguments, {.launch_id = 1}));
  ASSERT_THAT(results, SizeIs(kDevices));
  for (size_t d = 0; d < kDevices; ++d) {
    ASSERT_TRUE(results[d].done.Await().ok());
    std::vector<float> doubled(4), first(2);
    ASSERT_TRUE(Value(results[d].outputs[0].CopyToHost(doubled.data(), 16)).Await().ok());
    ASSERT_TRUE(Value(results[d].outputs[1].CopyToHost(first.data(), 8)).Await().ok());
    const float base = d < 2 ? 0.0f : 10.0f;
    EXPECT_THAT(doubled, ElementsAre(2 * base, 2 * base + 2, 2 * base + 4, 2 * base + 6));
    EXPECT_THAT(first, ElementsAre(base, base + 2));
  }
  EXPECT_THAT(rows_of_calls, SizeIs(kDevices));
  EXPECT_THAT(rows_of_calls, Each(2));
}

TEST_F(BatchDivisionTest, OtherProgramsAreNotTouched) {
  const NormalizedOptions four = Value(NormalizeOptions(pjrt::TestCompileOptions(kDevices).SerializeAsString()));
  const NormalizedOptions one = Value(NormalizeOptions(pjrt::TestCompileOptions(1).SerializeAsString()));
  EXPECT_FALSE(MayDivideBatches(kProgram, one));
  EXPECT_FALSE(MayDivideBatches(pjrt::kShardedProgram, four));
  const DumpFolder folder = Value(DumpFolder::Create());
  EXPECT_EQ(DivideBatches(folder, four).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(DumpFolder, ReadsTheLastAndGoes) {
  std::string path;
  {
    const DumpFolder folder = Value(DumpFolder::Create());
    path = folder.path();
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700u);
    EXPECT_FALSE(folder.ReadLast(".pb").ok());
    std::ofstream(path + "/module_0001.pb") << "second";
    std::ofstream(path + "/module_0000.pb") << "first";
    std::ofstream(path + "/module_0002.txt") << "text";
    EXPECT_EQ(Value(folder.ReadLast(".pb")), "second");
    // Another process's clean-up leaves it alone.
    RemoveAbandonedDumpFolders(std::filesystem::path(path).parent_path());
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(DumpFolder, AbandonedOnesAreRemoved) {
  const std::string parent = testing::TempDir() + "/dump_folders";
  std::filesystem::remove_all(parent);
  std::filesystem::create_directories(parent + "/landbridge-compile-abcdef");
  std::filesystem::create_directories(parent + "/another");
  std::ofstream(parent + "/landbridge-compile-abcdef/module_0000.pb") << "left";
  RemoveAbandonedDumpFolders(parent);
  EXPECT_FALSE(std::filesystem::exists(parent + "/landbridge-compile-abcdef"));
  EXPECT_TRUE(std::filesystem::exists(parent + "/another"));
  RemoveAbandonedDumpFolders(parent + "/not_there");
}

}  // namespace
}  // namespace landbridge
