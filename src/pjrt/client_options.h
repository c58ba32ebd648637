// Options that a client of a plugin is made with, by platform, and those that users add.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "pjrt/plugin.h"
#include "pjrt/traits.h"

namespace landbridge::pjrt {

// --plugin_option=NAME=VALUE. The types of CUDA's and TPU's options are known; others are taken for what they look like
// (true and false, whole numbers, numbers with a point, else text), or are told: NAME:TYPE=VALUE with TYPE string, int, ints
// (numbers with commas between them), float or bool. INVALID_ARGUMENT names the option and what it takes.
absl::StatusOr<AttributeMap> ParsePluginOptions(absl::Span<const std::string> options);

// Which process of a group that makes its client together.
struct GroupPlace {
  int node_id = 0;
  int num_nodes = 1;
};

// Options for a client with `device_count` devices, where the plugin makes devices; else for those that are there. What users
// say wins, except over the group's place: INVALID_ARGUMENT for that.
absl::StatusOr<AttributeMap> MakeClientOptions(const Traits& traits, int device_count, const AttributeMap& of_user,
                                               std::optional<GroupPlace> group = std::nullopt);

// The same for a process that only compiles, for `device_count` devices on `nodes` processes. It leaves the devices' memory
// to those that run programs.
AttributeMap MakeCompileClientOptions(const Traits& traits, int device_count, int nodes, const AttributeMap& of_user);

}  // namespace landbridge::pjrt
