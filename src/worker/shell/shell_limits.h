// Limits of a worker's shell.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace landbridge::limits {

// Buffers that are being sent while a donor waits for them: after a moment (most sends are over by then) the rest is sent
// from copies, of which a worker holds so many bytes.
constexpr DurationNs kSendSnapshotDelay = 5 * kMillisecond;
constexpr int64_t kSendSnapshotBytesMax = int64_t{256} << 20;

// Device memory that the host cannot read or write in place: host memory for what the plugin copies out and in, of a worker.
// Larger images go alone. What is one run of memory and sent goes in chunks instead (kTransferStagedBytesMax).
constexpr int64_t kStagedSendBytesMax = int64_t{256} << 20;
constexpr int64_t kStagedReceiveBytesMax = int64_t{512} << 20;
constexpr int64_t kStagedProbeBytes = 64;  // asked of a source first: tells that it is there

// The store of a formation (formation_store.h).
constexpr size_t kFormationKeyBytesMax = 1024;
constexpr size_t kFormationValueBytesMax = size_t{8} << 20;  // the topology of all devices of a large slice
constexpr size_t kFormationAskedValueBytesMax = size_t{24} << 10;  // put by others than the first member: what they have
constexpr size_t kFormationKeysMax = 16'384;                 // a few per member and per group of devices that ever met
constexpr size_t kFormationBytesMax = size_t{64} << 20;
constexpr size_t kFormationWaitingMax = 16'384;
constexpr DurationNs kFormationPutTimeout = 30 * kSecond;      // until the first member is that far
constexpr DurationNs kFormationGetTimeoutMax = 600 * kSecond;  // whatever a plugin wants
constexpr DurationNs kFormationTurn = 2 * kSecond;             // one question waits so long there
constexpr DurationNs kFormationAnswerGrace = 3 * kSecond;
constexpr DurationNs kFormationAskPause = 200 * kMillisecond;

// A launch with a plugin's own collectives over workers cannot be ended from outside. One that is to end, and has not so long
// after, ends its worker's process.
constexpr DurationNs kNativeAbortGrace = 5 * kSecond;

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
