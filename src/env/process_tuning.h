// Settings of the C++ runtime and the system that every daemon wants.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace landbridge {

// First thing in main, before other threads exist. As many files may be open as the hard limit allows: a resource manager
// or a proxy has one for each worker, and shells give 1,024.
void TuneProcess();

// RESOURCE_EXHAUSTED if this process may not have so many files open; `what` needs them ("simulating 64 workers").
absl::Status NeedOpenFiles(int64_t count, absl::string_view what);

}  // namespace landbridge
