// Shardings that a client asks for: how values of its program are divided once that has been decided.
//
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/xla/hlo.pb.h"

namespace landbridge::hlo {

// A call of it marks the value that it takes. It gives nothing, and its backend_config is the client's name for the value.
inline constexpr absl::string_view kInspectTarget = "landbridge_inspect_sharding";

struct InspectedSharding {
  std::string name;
  xla::OpSharding sharding;
};

// `module`: of the moment between propagation and partitioner. In its order; a value in a computation that was copied is there
// more than once. What has no sharding then is replicated.
std::vector<InspectedSharding> InspectedShardings(const xla::HloModuleProto& module);

}  // namespace landbridge::hlo
