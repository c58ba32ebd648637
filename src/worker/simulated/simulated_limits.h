// Limits of processes that simulate workers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/limits.h"

namespace landbridge::limits {

constexpr int kSimulatedWorkersMax = 4096;  // of one process
constexpr int kSimulatedDevicesPerWorkerMax = 1024;
// Buffers up to this size hold real bytes: what rides on the control stream anyway.
constexpr int64_t kSimulatedBufferBytesMax = static_cast<int64_t>(kInlineBytesMax);
constexpr int64_t kSimulatedBytesMax = int64_t{256}
                                       << 20;           // real bytes of one process; above it buffers have sizes only
constexpr size_t kSimulatedEndedTransfersMax = 65'536;  // remembered, so that a late pull is answered
constexpr int kSimulatedDescriptorsPerWorker = 4;       // port, holder, resource manager, one that is being replaced
constexpr int kSimulatedDescriptorsSpare = 64;

}  // namespace landbridge::limits
