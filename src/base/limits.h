// Every limit of the system, in one place. A test hits each one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace landbridge::limits {

// --- Frames between daemons (env/framed_connection.h).
constexpr uint32_t kFrameBytesMax = 64u << 20;          // announced lengths above it close the connection
constexpr size_t kConnectionUnsentBytesMax = 256u << 20;  // a peer that does not read loses its connection

// --- Control streams (cluster/stream.h).
constexpr size_t kStreamReplayBytesMax = 64u << 20;     // at this many unacknowledged bytes the sender parks

// --- Leases (leases.md "Times"): L >= 1.223 k H + 1.1 D with H = 250 ms, k = 6, D = 300 ms.
constexpr DurationNs kHeartbeatDefault = 250 * kMillisecond;
constexpr DurationNs kLeaseDefault = 2500 * kMillisecond;

// --- Clients.
constexpr size_t kSessionParkedRequestsMax = 65'536;
constexpr size_t kSessionParkedBytesMax = 64u << 20;
constexpr size_t kHandleIdsPerRequestMax = 1'000'000;
constexpr int64_t kArrayBytesMax = int64_t{1} << 46;    // larger is a mistake, not an array
constexpr int kRankMax = 64;
constexpr int kDevicesMax = 65'536;

// --- Host buffers.
constexpr size_t kInlineBytesMax = 64u << 10;           // smaller uploads and reads ride on the control stream
constexpr size_t kStoreWithoutDestinationBytesMax = 4u << 20;   // per Store, before its request is here
constexpr size_t kSessionStorePoolBytesMax = 32u << 20;         // per session, over all such Stores
constexpr size_t kTransferChunkBytes = 2u << 20;

// --- Worker.
constexpr int kPlacedLaunchesPerDeviceMax = 16;         // K of scheduler.md; the plugin blocks at 32
constexpr DurationNs kPlacedRunTime = 5 * kMillisecond; // K launches are worth this much run time
constexpr size_t kLaunchesPerWorkerUnfinishedMax = 4096;  // above, the controller parks them per slice

}  // namespace landbridge::limits
