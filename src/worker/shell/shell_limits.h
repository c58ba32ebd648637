// Limits of a worker's shell.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace landbridge::limits {

// Buffers that are being sent while a donor waits for them: after a moment (most sends are over by then) the rest is sent
// from copies, of which a worker holds so many bytes.
constexpr DurationNs kSendSnapshotDelay = 5 * kMillisecond;
constexpr int64_t kSendSnapshotBytesMax = int64_t{256} << 20;

// The CPU plugin runs programs below 1,000 floating point operations inside the call that launches them; twice that is
// surely beyond, also where its estimate before the last passes counts.
constexpr double kCpuPluginThreadsFlops = 2000;
constexpr int64_t kRunInPlaceBytesMax = 64
                                        << 10;  // arguments, results and scratch of what may run on the loop's thread
constexpr int kIssueInPlaceArgumentsMax = 64;   // more take longer than waking a thread

constexpr int64_t kOpsPerTurn = 2048;  // buffers that ops make or delete between two looks at heartbeats

// Threads for the collectives of programs over several workers: one per device and so many more.
constexpr int kCollectiveThreadsMore = 2;

// Threads for what programs do after a call of their client: one per device and so many more.
constexpr int kHostCallThreadsMore = 2;
constexpr int64_t kHostCallBytesMax = int64_t{512} << 20;  // of one call, each way

// Mail between the cores of two workers goes in pages. So many may wait for the reader, who has asked for so many ahead.
constexpr uint64_t kMailPageBytes = 1024;
constexpr uint64_t kMailPagesOut = 8;
constexpr uint64_t kMailPagesAhead = 4;
constexpr uint64_t kMailBytesMax = int64_t{16} << 20;  // of one message
// A worker whose mail could not be asked for so long cannot be reached. Failures further apart are not one failure: in between
// the connection stood (an attempt may take as long as a handshake).
constexpr DurationNs kMailBrokenAfter = 30 * kSecond;
constexpr DurationNs kMailFailuresApart = 2 * kTransferHandshakeTimeout;

// How long a launch's collectives wait for the control plane to say why a connection broke.
constexpr DurationNs kCollectiveBrokenGrace = 5 * kSecond;

}  // namespace landbridge::limits
