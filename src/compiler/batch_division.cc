#include "compiler/batch_division.h"

#include <utility>

#include "absl/strings/match.h"
#include "base/status.h"
#include "hlo/divide_batch_calls.h"
#include "hlo/module_facts.h"
#include "pjrt/host_calls.h"

namespace landbridge {
namespace {

// XLA's names of the passes that leave every instruction with its sharding, Shardy's and the older one's, and the end of
// the name of the file that it writes between them and the next.
constexpr char kPropagationPasses[] = "shardy-xla|sharding-propagation";
constexpr absl::string_view kModuleFile = ".before_spmd-partitioning.hlo.pb";

}  // namespace

bool MayDivideBatches(absl::string_view program, const NormalizedOptions& options) {
  return options.num_partitions > 1 && options.num_replicas == 1 &&
         (absl::StrContains(program, hlo::kBatchDimsAttribute) ||
          absl::StrContains(program, pjrt::kPartitionedHostCallTarget));
}

void WriteModulesTo(const DumpFolder& folder, xla::CompileOptionsProto& options) {
  auto& overrides = *options.mutable_env_option_overrides();
  overrides["xla_dump_to"].set_string_field(folder.path());
  overrides["xla_dump_hlo_as_proto"].set_bool_field(true);
  overrides["xla_dump_hlo_pass_re"].set_string_field(kPropagationPasses);
}

absl::StatusOr<xla::HloModuleProto> ReadPropagated(const DumpFolder& folder) {
  LB_ASSIGN_OR_RETURN(const std::string written, folder.ReadLast(kModuleFile));
  return hlo::ParseModule(written);
}

absl::StatusOr<std::optional<DividedProgram>> DivideBatches(const DumpFolder& folder,
                                                            const NormalizedOptions& options) {
  LB_ASSIGN_OR_RETURN(xla::HloModuleProto module, ReadPropagated(folder));
  const int divided_calls = hlo::DivideBatchCalls(module, options.num_partitions) +
                            hlo::DivideCallsByParts(module, options.num_partitions, pjrt::kPartitionedHostCallTarget);
  if (divided_calls == 0) return std::nullopt;
  module.clear_schedule();
  module.clear_device_assignment();
  DividedProgram divided{"", options.proto};
  auto& build = *divided.options.mutable_executable_build_options();
  // Shardings are decided. Without Shardy, XLA's older propagation runs, and leaves alone what has a sharding.
  build.set_use_shardy_partitioner(false);
  build.clear_allow_spmd_sharding_propagation_to_parameters();
  build.clear_allow_spmd_sharding_propagation_to_output();
  if (divided.options.argument_layouts_size() == 0) {
    *divided.options.mutable_argument_layouts() = module.host_program_shape().parameters();
  }
  if (!build.has_result_layout()) *build.mutable_result_layout() = module.host_program_shape().result();
  divided.module = module.SerializeAsString();
  return divided;
}

}  // namespace landbridge
