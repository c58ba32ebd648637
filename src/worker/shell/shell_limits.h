// Limits of a worker's shell.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace landbridge::limits {

// Buffers that are being sent while a donor waits for them: after a moment (most sends are over by then) the rest is sent
// from copies, of which a worker holds so many bytes.
constexpr DurationNs kSendSnapshotDelay = 5 * kMillisecond;
constexpr int64_t kSendSnapshotBytesMax = int64_t{256} << 20;

}  // namespace landbridge::limits
