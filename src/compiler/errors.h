// What a plugin's error in compiling or loading becomes for the user.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace landbridge {

// UNIMPLEMENTED for a program (text or bytes) that calls what only the client's own process has: partitioners in Python.
// Their calls carry pointers of that process, so the plugin must never see them.
absl::Status CheckCallsOfTheClient(absl::string_view program);

// UNIMPLEMENTED for a program that calls what runs on the host's memory only (callbacks, virtual compute), on a platform whose
// devices have their own (pjrt::Traits::host_handlers).
absl::Status CheckHostHandlers(absl::string_view program, absl::string_view platform);

// The custom-call target for want of whose handler a plugin refused a program; empty for other refusals.
std::string MissingHandlerOf(const absl::Status& status);

// UNIMPLEMENTED naming the target where a custom call has no handler here (XLA says NOT_FOUND, which pathwaysutils
// takes for a lost slice); else FromPluginError of base/status.h. Texts are cut at kCompileErrorBytesMax.
absl::Status FromCompileError(const absl::Status& status, absl::string_view context);

}  // namespace landbridge
