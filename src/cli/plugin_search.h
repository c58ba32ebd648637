// Finds the PJRT plugin that the workers load.
//
// Thread-safety: as process.h.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace landbridge::cli {

// The first of: `flag` (--pjrt_plugin), $LANDBRIDGE_PJRT_PLUGIN, the CPU plugin's Python package in the active
// virtual environment, in `checkout`/.venv, or of python3 on PATH. The error lists what was looked at.
absl::StatusOr<std::string> FindPlugin(const std::string& flag, const std::string& checkout);

// Refuses what cannot be a plugin before any server is started: no such file, a folder, not a shared object.
absl::Status CheckPluginFile(const std::string& path);

}  // namespace landbridge::cli
