// --spin_us: latency for a core.
//
// Thread-safety: one thread, at start.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/time.h"
#include "bin/flags.h"

namespace landbridge {

void AddSpinFlag(Flags* flags, int64_t* spin_us);
// For Loop::SetSpin. INVALID_ARGUMENT names the flag.
absl::StatusOr<DurationNs> SpinOf(int64_t spin_us);

}  // namespace landbridge
