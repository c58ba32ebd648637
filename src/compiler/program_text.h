// Compiled programs as text, for clients that cannot make it themselves.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

// What XLA itself writes for `module`, a serialized xla.HloModuleProto: a plugin writes no text, so a jaxlib of this host is
// asked, in a process of its own (a third of a second). UNIMPLEMENTED if there is none, with the cure. Blocks.
absl::StatusOr<std::string> ProgramText(absl::string_view module, const std::string& plugin_path);

}  // namespace landbridge
