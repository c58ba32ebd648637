#include "compiler/metadata.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/limits.h"
#include "base/status.h"
#include "hlo/module_facts.h"
#include "pjrt/host_calls.h"
#include "pjrt/plugin.h"

namespace landbridge {
namespace {

using Sharding = std::optional<xla::OpSharding>;

constexpr int64_t kHostMemorySpace = 5;  // of layouts in optimised HLO

// Custom calls that XLA itself makes and answers: they cannot fail on one device alone.
bool IsXlaInternal(absl::string_view target) {
  return target == "TopK" || target == "SliceToDynamic" || target == "PadToStatic" || target == "GetRngSeed" ||
         absl::StartsWith(target, "__onednn$") || absl::StartsWith(target, "__cublas$") ||
         absl::StartsWith(target, "__cudnn$");
}

absl::Status DescribeTensor(const xla::ShapeProto& shape, const Sharding& sharding, int num_devices, TensorInfo& info) {
  std::optional<DType> dtype = DTypeFromXla(static_cast<int32_t>(shape.element_type()));
  if (!dtype.has_value()) {
    return absl::UnimplementedError(absl::StrCat("the program uses element type number ",
                                                 static_cast<int>(shape.element_type()), ", which is not supported"));
  }
  for (bool dynamic : shape.is_dynamic_dimension()) {
    if (dynamic) return absl::UnimplementedError("programs with dynamic shapes are not supported: use static shapes");
  }
  info.set_dtype(static_cast<int32_t>(*dtype));
  int64_t elements = 1, bits = 0;
  bool fits = true;
  for (int64_t dim : shape.dimensions()) {
    info.add_device_dims(dim);
    fits = fits && dim >= 0 && !__builtin_mul_overflow(elements, dim, &elements);
  }
  if (!fits || __builtin_mul_overflow(elements, DeviceElementBits(*dtype), &bits) ||
      bits / 8 > limits::kArrayBytesMax) {
    return absl::InvalidArgumentError("the program has a parameter or result that is larger than any array may be");
  }
  info.set_device_bytes(bits / 8 + (bits % 8 != 0));
  LB_ASSIGN_OR_RETURN(const std::vector<int64_t> global_dims,
                      hlo::GlobalDims(shape.dimensions(), num_devices > 1 ? sharding : std::nullopt));
  for (int64_t dim : global_dims) info.add_global_dims(dim);
  if (sharding.has_value() && num_devices > 1) *info.mutable_sharding() = *sharding;
  *info.mutable_layout() = shape.layout();
  info.set_memory_kind(shape.layout().memory_space() == kHostMemorySpace ? "pinned_host" : "device");
  return absl::OkStatus();
}

// The plugin's own list wins where it has one of the right length.
void PreferPluginShardings(const absl::StatusOr<std::optional<std::vector<std::string>>>& of_plugin,
                           std::vector<Sharding>& shardings) {
  if (!of_plugin.ok() || !of_plugin->has_value() || (*of_plugin)->size() != shardings.size()) return;
  for (size_t i = 0; i < shardings.size(); ++i) {
    xla::OpSharding sharding;
    if (sharding.ParseFromString((**of_plugin)[i])) shardings[i] = std::move(sharding);
  }
}

void DescribeMemory(const pjrt::MemoryStats& stats, xla::CompiledMemoryStatsProto& proto) {
  auto known = [](int64_t value) { return value < 0 ? 0 : value; };
  proto.set_generated_code_size_in_bytes(known(stats.generated_code));
  proto.set_argument_size_in_bytes(known(stats.argument));
  proto.set_output_size_in_bytes(known(stats.output));
  proto.set_alias_size_in_bytes(known(stats.alias));
  proto.set_temp_size_in_bytes(known(stats.temp));
  proto.set_host_generated_code_size_in_bytes(known(stats.host_generated_code));
  proto.set_host_argument_size_in_bytes(known(stats.host_argument));
  proto.set_host_output_size_in_bytes(known(stats.host_output));
  proto.set_host_alias_size_in_bytes(known(stats.host_alias));
  proto.set_host_temp_size_in_bytes(known(stats.host_temp));
  proto.set_peak_memory_in_bytes(known(stats.peak));
  proto.set_total_size_in_bytes(known(stats.total));
  proto.set_total_allocation_bytes(known(stats.total_allocation));
  proto.set_indefinite_allocations(known(stats.indefinite));
  proto.set_peak_unpadded_heap_bytes(known(stats.peak_unpadded_heap));
}

}  // namespace

absl::StatusOr<ExecutableInfo> DescribeExecutable(pjrt::Executable& executable, const NormalizedOptions& options) {
  LB_ASSIGN_OR_RETURN(std::string program, executable.OptimizedProgram());
  LB_ASSIGN_OR_RETURN(hlo::ModuleFacts facts, hlo::ReadModule(absl::string_view(program)));
  program.clear();
  if (facts.results.size() != executable.num_outputs()) {
    return absl::InternalError(absl::StrCat("program ", facts.name, " has ", facts.results.size(),
                                            " results by its HLO but ", executable.num_outputs(), " by the plugin"));
  }
  const int devices = options.num_devices();
  ExecutableInfo info;
  info.set_name(facts.name);
  if (auto name = executable.Name(); name.ok() && !name->empty()) info.set_name(*name);
  info.set_num_devices(devices);
  info.set_num_replicas(options.num_replicas);
  info.set_num_partitions(options.num_partitions);
  info.set_portable(options.proto.compile_portable_executable());
  if (devices > 1) {
    PreferPluginShardings(executable.ParameterShardings(), facts.parameter_shardings);
    PreferPluginShardings(executable.OutputShardings(), facts.result_shardings);
  }
  for (size_t i = 0; i < facts.parameters.size(); ++i) {
    LB_RETURN_IF_ERROR(
        DescribeTensor(facts.parameters[i], facts.parameter_shardings[i], devices, *info.add_parameters()));
  }
  for (size_t i = 0; i < facts.results.size(); ++i) {
    LB_RETURN_IF_ERROR(DescribeTensor(facts.results[i], facts.result_shardings[i], devices, *info.add_outputs()));
  }
  auto take_kinds = [](const absl::StatusOr<std::vector<std::string>>& kinds, auto* tensors) {
    if (!kinds.ok() || kinds->size() != static_cast<size_t>(tensors->size())) return;
    for (int i = 0; i < tensors->size(); ++i) {
      if (const std::string& kind = (*kinds)[static_cast<size_t>(i)]; !kind.empty())
        tensors->at(i).set_memory_kind(kind);
    }
  };
  take_kinds(executable.ParameterMemoryKinds(), info.mutable_parameters());
  take_kinds(executable.OutputMemoryKinds(), info.mutable_outputs());
  for (int32_t parameter : facts.donated_parameters) info.add_donated_parameters(parameter);
  LB_RETURN_IF_ERROR(DescribeMemoryAndCode(executable, info));
  if (auto cost = executable.CostAnalysis(); cost.ok()) {
    for (const auto& [name, value] : *cost) (*info.mutable_cost()->mutable_properties())[name] = value;
  } else {
    absl::Status status = FromPluginError(cost.status(), "cost analysis");
    info.mutable_cost()->mutable_status()->set_code(static_cast<int32_t>(status.code()));
    info.mutable_cost()->mutable_status()->set_message(std::string(status.message()));
  }
  for (const std::string& target : facts.custom_call_targets) {
    info.add_custom_call_targets(target);
    if (pjrt::IsHostCall(target)) info.set_calls_host(true);
    if (!IsXlaInternal(target)) info.set_can_fail_on_one_shard(true);
  }
  info.set_has_side_effects(facts.has_side_effects);
  info.set_has_loops(facts.has_loops);
  info.set_flops_at_least(facts.flops_at_least);
  for (const std::string& opcode : facts.collectives) info.add_collectives(opcode);
  info.set_has_collectives(!facts.collectives.empty());
  info.set_flops_per_device(facts.dot_flops);
  return info;
}

absl::Status DescribeMemoryAndCode(pjrt::Executable& executable, ExecutableInfo& info) {
  if (auto stats = executable.GetMemoryStats(); stats.ok()) {
    DescribeMemory(*stats, *info.mutable_memory_stats());
    info.set_temp_bytes_per_device(info.memory_stats().temp_size_in_bytes());
  }
  if (auto bytes = executable.CodeBytes(); bytes.ok() && *bytes > 0) info.set_code_bytes(*bytes);
  return absl::OkStatus();
}

}  // namespace landbridge
