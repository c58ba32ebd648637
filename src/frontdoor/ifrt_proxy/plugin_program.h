// The JSON programs of pathwaysutils (ifrt-proxy.md 13). Only reshardRequest is served.
//
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "sharding/sharding.h"

namespace landbridge {

struct ReshardProgram {
  bool donate = false;
  std::vector<Sharding::Ptr> in, out;  // equally many, at least one
};

// `data` is the serialized program. Anything else than a well-formed reshardRequest is an error whose text contains
// "Bad PluginProgram": clients look for it.
absl::StatusOr<ReshardProgram> ParsePluginProgram(absl::string_view data);

}  // namespace landbridge
