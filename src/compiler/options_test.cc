#include "compiler/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"

namespace landbridge {
namespace {

xla::CompileOptionsProto ClientOptions(int64_t replicas, int64_t partitions) {
  xla::CompileOptionsProto options;
  auto* build = options.mutable_executable_build_options();
  build->set_num_replicas(replicas);
  build->set_num_partitions(partitions);
  build->set_use_shardy_partitioner(true);
  build->set_process_index(3);
  return options;
}

TEST(NormalizeOptions, AssignmentBecomesDense) {
  xla::CompileOptionsProto options = ClientOptions(2, 3);
  std::vector<int> foreign = {70, 71, 72, 80, 81, 82};
  SetDeviceAssignment(options, 2, 3, foreign);
  EXPECT_EQ(options.executable_build_options().device_assignment().computation_devices(1).replica_device_ids(1), 81);
  auto normalized = NormalizeOptions(options.SerializeAsString());
  ASSERT_TRUE(normalized.ok()) << normalized.status();
  EXPECT_EQ(normalized->num_devices(), 6);
  const auto& build = normalized->proto.executable_build_options();
  EXPECT_EQ(build.device_ordinal(), -1);
  EXPECT_EQ(build.device_assignment().replica_count(), 2);
  EXPECT_EQ(build.device_assignment().computation_count(), 3);
  for (int p = 0; p < 3; ++p) {
    EXPECT_THAT(build.device_assignment().computation_devices(p).replica_device_ids(), testing::ElementsAre(p, 3 + p));
  }
  EXPECT_FALSE(normalized->proto.compile_portable_executable());
  EXPECT_TRUE(build.use_shardy_partitioner());
  EXPECT_EQ(build.process_index(), 0);
  // The devices do not count: the same key for others.
  xla::CompileOptionsProto other = ClientOptions(2, 3);
  EXPECT_EQ(SerializeDeterministic(NormalizeOptions(other.SerializeAsString())->proto),
            SerializeDeterministic(normalized->proto));
}

TEST(NormalizeOptions, OneDeviceBecomesPortable) {
  xla::CompileOptionsProto options = ClientOptions(0, 0);
  SetDeviceAssignment(options, 1, 1, {17});
  auto normalized = NormalizeOptions(options.SerializeAsString());
  ASSERT_TRUE(normalized.ok()) << normalized.status();
  EXPECT_TRUE(normalized->proto.compile_portable_executable());
  EXPECT_FALSE(normalized->proto.executable_build_options().has_device_assignment());
  EXPECT_EQ(normalized->proto.executable_build_options().num_partitions(), 1);
  EXPECT_TRUE(NormalizeOptions("").ok());
}

TEST(NormalizeOptions, Refusals) {
  EXPECT_EQ(NormalizeOptions("\xff\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(NormalizeOptions(ClientOptions(1, limits::kCompileDevicesMax + 1).SerializeAsString()).ok());
  EXPECT_FALSE(NormalizeOptions(ClientOptions(int64_t{1} << 62, 4).SerializeAsString()).ok());
  EXPECT_FALSE(NormalizeOptions(ClientOptions(-1, -4).SerializeAsString()).ok());
  EXPECT_TRUE(NormalizeOptions(ClientOptions(1, limits::kCompileDevicesMax).SerializeAsString()).ok());
  xla::CompileOptionsProto tupled = ClientOptions(1, 1);
  tupled.set_parameter_is_tupled_arguments(true);
  EXPECT_FALSE(NormalizeOptions(tupled.SerializeAsString()).ok());
}

// Clients write maps in a random order, each time another one.
TEST(NormalizeOptions, EqualDebugOptionsAreEqualBytes) {
  xla::DebugOptionsProto one, other;
  (*one.mutable_xla_gpu_analytical_latency_estimator_options())["chunk_prep_us"] = "-1";
  (*one.mutable_xla_backend_extra_options())["b"] = "2";
  (*other.mutable_xla_gpu_analytical_latency_estimator_options())["gpus_per_node"] = "-1";
  (*other.mutable_xla_backend_extra_options())["a"] = "";
  const std::string a = one.SerializeAsString(), b = other.SerializeAsString();
  std::vector<std::string> normalized;
  for (const std::string& bytes : {a + b, b + a}) {  // concatenated messages are their union
    xla::CompileOptionsProto options = ClientOptions(1, 1);
    options.mutable_executable_build_options()->set_debug_options(bytes);
    auto result = NormalizeOptions(options.SerializeAsString());
    ASSERT_TRUE(result.ok()) << result.status();
    normalized.push_back(SerializeDeterministic(result->proto));
    xla::DebugOptionsProto kept;
    ASSERT_TRUE(kept.ParseFromString(result->proto.executable_build_options().debug_options()));
    EXPECT_EQ(kept.xla_gpu_analytical_latency_estimator_options().size(), 2u);
    EXPECT_EQ(kept.xla_backend_extra_options().at("b"), "2");
  }
  EXPECT_EQ(normalized[0], normalized[1]);
}

TEST(NormalizeOptions, DebugOptionsPassExceptFolders) {
  xla::CompileOptionsProto options = ClientOptions(1, 2);
  xla::DebugOptionsProto debug;
  debug.set_xla_dump_to("/etc");
  debug.GetReflection()->MutableUnknownFields(&debug)->AddVarint(62, 1);
  options.mutable_executable_build_options()->set_debug_options(debug.SerializeAsString());
  (*options.mutable_env_option_overrides())["xla_dump_to"].set_string_field("/etc");
  (*options.mutable_env_option_overrides())["xla_cpu_enable_fast_math"].set_bool_field(true);
  auto normalized = NormalizeOptions(options.SerializeAsString());
  ASSERT_TRUE(normalized.ok()) << normalized.status();
  xla::DebugOptionsProto kept;
  ASSERT_TRUE(kept.ParseFromString(normalized->proto.executable_build_options().debug_options()));
  EXPECT_EQ(kept.xla_dump_to(), "");
  EXPECT_EQ(kept.GetReflection()->GetUnknownFields(kept).field_count(), 1);
  EXPECT_EQ(normalized->proto.env_option_overrides().size(), 1u);
  // Garbage is dropped.
  options.mutable_executable_build_options()->set_debug_options("\xff\xff");
  normalized = NormalizeOptions(options.SerializeAsString());
  ASSERT_TRUE(normalized.ok());
  EXPECT_TRUE(normalized->proto.executable_build_options().debug_options().empty());
}

}  // namespace
}  // namespace landbridge
