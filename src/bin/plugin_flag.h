// Finds the PJRT plugin of a program whose --pjrt_plugin was not given.
//
// Thread-safety: one thread, at start.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace landbridge {

// `flag`, else $LANDBRIDGE_PJRT_PLUGIN, else the CPU plugin's package of the python3 on PATH.
absl::StatusOr<std::string> FindPlugin(const std::string& flag);

}  // namespace landbridge
