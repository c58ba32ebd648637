// What the runtime wants to know about an optimised HLO module.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/xla/hlo.pb.h"
#include "proto/xla/xla_data.pb.h"

namespace landbridge::hlo {

struct ModuleFacts {
  std::string name;
  // Per device. Tuples at the top of the result are flattened into `results`.
  std::vector<xla::ShapeProto> parameters;
  std::vector<xla::ShapeProto> results;
  // Of the whole values, one per parameter and result; absent where the module names none.
  std::vector<std::optional<xla::OpSharding>> parameter_shardings;
  std::vector<std::optional<xla::OpSharding>> result_shardings;
  std::vector<int32_t> donated_parameters;       // those that alias an output; ascending, distinct
  std::vector<std::string> custom_call_targets;  // sorted, distinct
  bool has_side_effects = false;                 // custom calls that say so, infeed, outfeed, send, recv
  bool has_loops = false;
  std::vector<std::string> collectives;  // opcodes, sorted, distinct; partition-id and replica-id are none
  double flops_at_least = 0;             // XLA's own count of the program is not less
  double dot_flops = 0;                  // multiply and add count as 2; bodies of loops count once
};

// INVALID_ARGUMENT for bytes that are neither a HloModuleProtoWithConfig nor a HloModuleProto.
absl::StatusOr<xla::HloModuleProto> ParseModule(absl::string_view program);

// `program`: a serialized HloModuleProtoWithConfig or HloModuleProto, as a plugin gives it out. INVALID_ARGUMENT for
// what does not parse, or has no entry computation, parameter numbers out of range, or tuples among its parameters.
absl::StatusOr<ModuleFacts> ReadModule(absl::string_view program);
absl::StatusOr<ModuleFacts> ReadModule(const xla::HloModuleProto& module);

// "all-reduce", "all-gather-start", ... : those that exchange data between devices.
bool IsCollective(absl::string_view opcode);

// What the whole value's shape is when every device holds `device_dims` of it: times the tiles of an OTHER sharding.
// INVALID_ARGUMENT if a dimension is negative or does not fit.
absl::StatusOr<std::vector<int64_t>> GlobalDims(absl::Span<const int64_t> device_dims,
                                                const std::optional<xla::OpSharding>& sharding);

}  // namespace landbridge::hlo
