#include "compiler/options.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace landbridge {

std::string SerializeDeterministic(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializeToCodedStream(&coded);
  }
  return bytes;
}

void SetDeviceAssignment(xla::CompileOptionsProto& options, int num_replicas, int num_partitions,
                         absl::Span<const int> device_ids) {
  auto* assignment = options.mutable_executable_build_options()->mutable_device_assignment();
  assignment->Clear();
  assignment->set_replica_count(num_replicas);
  assignment->set_computation_count(num_partitions);
  for (int p = 0; p < num_partitions; ++p) {
    auto* partition = assignment->add_computation_devices();
    for (int r = 0; r < num_replicas; ++r) {
      partition->add_replica_device_ids(device_ids[static_cast<size_t>(r * num_partitions + p)]);
    }
  }
}

void MakeQuick(xla::CompileOptionsProto& options) {
  auto& overrides = *options.mutable_env_option_overrides();
  overrides["xla_backend_optimization_level"].set_int_field(0);
  overrides["xla_llvm_disable_expensive_passes"].set_bool_field(true);
}

void MakeSingleDevice(xla::CompileOptionsProto& options, const xla::ProgramShapeProto& shapes) {
  xla::ExecutableBuildOptionsProto& build = *options.mutable_executable_build_options();
  build.set_num_replicas(1);
  build.set_num_partitions(1);
  build.clear_device_assignment();
  build.set_use_spmd_partitioning(false);
  build.set_use_auto_spmd_partitioning(false);
  build.set_use_shardy_partitioner(false);
  build.clear_allow_spmd_sharding_propagation_to_parameters();
  build.clear_allow_spmd_sharding_propagation_to_output();
  *build.mutable_result_layout() = shapes.result();
  build.set_run_backend_only(true);
  *options.mutable_argument_layouts() = shapes.parameters();
  options.set_compile_portable_executable(true);
}

absl::StatusOr<NormalizedOptions> NormalizeOptions(absl::string_view client_options) {
  NormalizedOptions result;
  xla::CompileOptionsProto& options = result.proto;
  if (!options.ParseFromArray(client_options.data(), static_cast<int>(client_options.size()))) {
    return absl::InvalidArgumentError("the compile options are not a CompileOptionsProto");
  }
  if (options.parameter_is_tupled_arguments()) {
    return absl::InvalidArgumentError("programs with tupled arguments are not supported: pass arguments one by one");
  }
  xla::ExecutableBuildOptionsProto& build = *options.mutable_executable_build_options();
  int64_t replicas = build.num_replicas() == 0 ? 1 : build.num_replicas();
  int64_t partitions = build.num_partitions() == 0 ? 1 : build.num_partitions();
  if (replicas < 0 || partitions < 0 || replicas > limits::kCompileDevicesMax ||
      partitions > limits::kCompileDevicesMax || replicas * partitions > limits::kCompileDevicesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a program for ", replicas, " replicas x ", partitions,
                                                   " partitions cannot be compiled: at most ",
                                                   limits::kCompileDevicesMax, " devices"));
  }
  result.num_replicas = static_cast<int>(replicas);
  result.num_partitions = static_cast<int>(partitions);
  build.set_num_replicas(replicas);
  build.set_num_partitions(partitions);
  build.set_device_ordinal(-1);  // 0 would be a real ordinal, other negative values abort the plugin
  build.clear_device_assignment();
  build.clear_process_index();
  build.clear_process_count();
  options.clear_serialized_multi_slice_config();
  if (result.num_devices() == 1) {
    options.set_compile_portable_executable(true);
  } else {
    options.set_compile_portable_executable(false);
    std::vector<int> ids(static_cast<size_t>(result.num_devices()));
    std::iota(ids.begin(), ids.end(), 0);
    SetDeviceAssignment(options, result.num_replicas, result.num_partitions, ids);
  }
  if (!build.debug_options().empty()) {
    // The client's own flags stay, except that nobody may make another machine write files. Its maps come in a random
    // order: equal flags must be equal bytes, or no program is ever found in the cache.
    xla::DebugOptionsProto debug;
    if (debug.ParseFromString(build.debug_options())) {
      debug.clear_xla_dump_to();
      build.set_debug_options(SerializeDeterministic(debug));
    } else {
      build.clear_debug_options();
    }
  }
  for (const char* name : {"xla_dump_to"}) options.mutable_env_option_overrides()->erase(name);
  return result;
}

}  // namespace landbridge
