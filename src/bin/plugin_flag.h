// Finds the PJRT plugin of a program whose --pjrt_plugin was not given.
//
// Thread-safety: one thread, at start.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace landbridge {

// `flag`, else $LANDBRIDGE_PJRT_PLUGIN, else the CPU plugin's package of the python3 on PATH.
absl::StatusOr<std::string> FindPlugin(const std::string& flag);

// Help of the flags --plugin_option=NAME=VALUE, which Flags::AddPrefix collects whole.
inline constexpr char kPluginOptionPrefix[] = "plugin_option=";
inline constexpr char kPluginOptionHelp[] =
    "An option that the plugin's client is made with, NAME=VALUE or NAME:TYPE=VALUE (string, int, ints, float, bool), "
    "e.g. "
    "--plugin_option=memory_fraction=0.5; may be repeated. See docs/accelerators.md.";

// "--plugin_option=NAME=VALUE" -> "NAME=VALUE".
std::vector<std::string> PluginOptions(const std::vector<std::string>& whole);

}  // namespace landbridge
