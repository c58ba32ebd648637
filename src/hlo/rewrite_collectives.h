// Making a program of one device out of an SPMD program: what its collectives did becomes calls to a custom-call
// handler.
//
// A plugin's CPU client runs SPMD programs on devices of one process only. So a program that spans processes is
// compiled for all its devices once, and each collective of the optimised module is replaced: the result is a module
// for one device that every device runs, whose calls say by number which collective they stand for.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hlo/device_groups.h"
#include "proto/landbridge/collectives.pb.h"
#include "proto/xla/xla_data.pb.h"

namespace landbridge::hlo {

// The handler's name, and the integer attribute that indexes CollectiveTable.ops.
inline constexpr absl::string_view kCollectiveTarget = "landbridge.collective";
inline constexpr absl::string_view kCollectiveOpAttribute = "op";

struct SplitModule {
  std::string program;  // serialized HloModuleProto; compile it as "hlo" for one device with run_backend_only
  CollectiveTable table;
  xla::ProgramShapeProto shapes;  // of its parameters and result, with their layouts
};

// `program`: a serialized HloModuleProtoWithConfig or HloModuleProto, optimised for `devices`, layouts assigned. Custom
// calls of other names stay. INVALID_ARGUMENT for what does not parse or is inconsistent; UNIMPLEMENTED, naming the
// instruction, for exchanges between devices that have no replacement (asynchronous pairs, send and recv, collectives
// inside fusions, reductions by a function of the user's, gathers along a dimension that is not outermost in memory).
absl::StatusOr<SplitModule> RewriteCollectives(absl::string_view program, LogicalDevices devices);

}  // namespace landbridge::hlo
