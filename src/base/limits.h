// Every limit of the system, in one place. A test hits each one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace landbridge::limits {

// --- Frames between daemons (env/framed_connection.h).
constexpr uint32_t kFrameBytesMax = 64u << 20;            // announced lengths above it close the connection
constexpr size_t kConnectionUnsentBytesMax = 256u << 20;  // a peer that does not read loses its connection

constexpr DurationNs kConnectTimeout = 5 * kSecond;
constexpr DurationNs kHandshakeTimeout = 5 * kSecond;  // a connection that does not say what it is for is closed
constexpr size_t kRmConnectionsMax = 24'576;           // workers, proxies and questions
constexpr size_t kControlConnectionsMax = 1024;        // at one worker
constexpr size_t kAdminConnectionsMax = 64;
constexpr size_t kAdminRequestBytesMax = 64u << 10;
constexpr size_t kAddressBytesMax = 512;  // "host:port"

// --- Control streams (cluster/stream.h).
constexpr size_t kControlFrameBytesMax = 1u << 20;   // messages joined in one frame (a larger one travels alone)
constexpr size_t kStreamReplayBytesMax = 64u << 20;  // at this many unacknowledged bytes the sender parks
constexpr size_t kStreamAckBytes = 1u << 20;         // received so much: acknowledged at once, else with the next frame

// --- Leases (leases.md "Times"): L >= 1.223 k H + 1.1 D with H = 250 ms, k = 6, D = 300 ms.
constexpr DurationNs kHeartbeatDefault = 250 * kMillisecond;
constexpr DurationNs kLeaseDefault = 2400 * kMillisecond;  // and L + H <= 2.7 s: a hang is seen within 3 s
constexpr DurationNs kWorstDelayDefault = 300 * kMillisecond;
constexpr DurationNs kReconnectBackoffMin = 20 * kMillisecond;
constexpr DurationNs kReconnectBackoffMax = 500 * kMillisecond;
constexpr DurationNs kOldWorkDefault = 10 * kSecond;  // fenced work that runs longer restarts its worker
constexpr DurationNs kBrokenSliceRemainder = 3600 * kSecond;
constexpr size_t kSecretBytes = 16;
constexpr size_t kSliceRequestsPerProxyMax = 1024;
constexpr size_t kVirtualSlicesPerRequestMax = 4096;
constexpr size_t kProxiesMax = 4096;
constexpr size_t kWorkersMax = 16'384;  // registered at one resource manager, spares included
constexpr size_t kLeasesPerWorkerMax = 64;
constexpr size_t kRmStringBytesMax = 64u << 10;  // any text or blob that a worker or proxy announces

// --- Clients.
constexpr size_t kSessionParkedRequestsMax = 65'536;
constexpr size_t kSessionParkedBytesMax = 64u << 20;
constexpr size_t kHandleIdsPerRequestMax = 1'000'000;
constexpr int64_t kArrayBytesMax = int64_t{1} << 46;  // larger is a mistake, not an array
constexpr int kRankMax = 64;
constexpr int kDevicesMax = 65'536;
constexpr size_t kReshardPiecesMax = 1'000'000;  // of one plan (sharding/reshard.h)

constexpr DurationNs kInitPatience = 3 * kSecond;  // a client without devices hears why; it tries again by itself

// --- Programs. A protobuf message ends at 2 GiB, and one that carries a program has more in it.
constexpr int kProgramBytesMax = 1984 << 20;                      // with its constants, to compile or compiled
constexpr int kEnvelopeBytesMax = kProgramBytesMax + (32 << 20);  // compiled, with what is to be known of it
constexpr int kClientMessageBytesMax = kEnvelopeBytesMax;         // one request of a client

// --- Host buffers.
constexpr size_t kInlineBytesMax = 64u << 10;                  // smaller uploads and reads ride on the control stream
constexpr size_t kStoreWithoutDestinationBytesMax = 4u << 20;  // per Store, before its request is here
constexpr size_t kSessionStorePoolBytesMax = 32u << 20;        // per session, over all such Stores
constexpr size_t kTransferChunkBytes = 2u << 20;
constexpr size_t kStorePoolBytesDefault = 24u << 20;     // uploads with a destination that nobody pulls yet
constexpr size_t kStoreAheadBytesMax = 8u << 20;         // per Store: received and not pulled by all
constexpr size_t kLookupChunksInFlightMax = 4;           // per Lookup, of kTransferChunkBytes
constexpr size_t kStringArrayBytesMax = 256u << 20;      // one shard of a string array, kept in the proxy
constexpr size_t kHostBuffersPerSessionMax = 1'000'000;  // stores and results that are not consumed
constexpr size_t kSessionQueuedRequestsMax = 16'384;     // read and not looked at; above, the stream is not read
constexpr DurationNs kLazyDelay = 1 * kMillisecond;      // what no client waits for is collected so long, both ways ...
constexpr size_t kLazyAnswersMax = 64;                   // ... or until there are so many answers
constexpr int kDoorThreadsMax = 4;                       // that serve all calls of clients
constexpr size_t kSessionsMax = 4096;                    // open at one time, per proxy
constexpr size_t kCitedContextsMax = 4096;               // failed requests whose traceback a client keeps, per session
constexpr DurationNs kClientKeepAlive = 20 * kSecond;    // pings of the server; a dead client host is seen within two

// --- Data plane (dataplane/).
constexpr uint64_t kTransferSmallBytesMax = 64u << 10;     // such pulls pass bulk: they take no part of the window
constexpr uint64_t kTransferInlineBytesMax = 8u << 10;     // inside the message on one host (between hosts: small ones)
constexpr uint64_t kTransferBytesMax = uint64_t{1} << 46;  // a larger pull is a mistake
constexpr size_t kTransferChunksPerPullMax = 4;            // asked for and not landed, per pull
constexpr uint64_t kTransferWindowBytesPerPeer = 8u << 20;  // being fetched from one peer
constexpr uint64_t kTransferWindowBytesTotal = 32u << 20;   // being fetched by one process
constexpr size_t kTransferPullsPerPeerMax = 65'536;         // open pulls; more are refused at the receiver
constexpr size_t kTransferRequestsPerPeerMax = 131'072;     // of one peer, held at the source; more are refused
constexpr size_t kTransferReadsPerPeerMax = 1024;           // Source::Read calls open for one peer
constexpr size_t kTransferSendsPerPeerMax = 256;            // chunks sent and not fetched, per peer and lane
constexpr uint64_t kTransferStagedBytesMax = 64u << 20;     // copies that sources made for peers, together ...
constexpr uint64_t kTransferStagedBytesPerPeer = 16u
                                                 << 20;   // ... and for one, so that a stuck one leaves some to others
constexpr size_t kTransferUnknownPeerRequestsMax = 4096;  // held until AddPeer, over all unknown peers
constexpr size_t kTransferErrorTextBytesMax = 4096;       // longer refusals are cut
constexpr size_t kTransferAddressBytesMax = 4096;
constexpr size_t kTransferTombstonesMax = 65'536;  // unpublished keys (and, separately, spaces) remembered
constexpr size_t kTransferClosedPeersMax = 4096;   // closed lives remembered
constexpr size_t kTransferPeersMax = 16'384;
constexpr DurationNs kReadBrokenGrace = 3 * kSecond;             // the same in a proxy, whose reads are not tried again
constexpr size_t kTransferSliceBytes = 512u << 10;               // of bulk moved between two looks at the messages
constexpr size_t kTransferScratchBytes = 256u << 10;             // messages are read in such pieces, per process
constexpr size_t kTransferHandshakesMax = 1024;                  // accepted and not up; the oldest makes room
constexpr DurationNs kTransferHandshakeTimeout = 10 * kSecond;   // a stopped process accepts and says nothing
constexpr DurationNs kTransferAcceptPause = 100 * kMillisecond;  // when there are no descriptors left
constexpr DurationNs kTransferKeepAlive = 5 * kSecond;           // between probes of an idle connection to another host

// --- Worker.
constexpr int kPlacedLaunchesPerDeviceMax = 16;           // K of scheduler.md; the plugin blocks at 32
constexpr DurationNs kPlacedRunTime = 5 * kMillisecond;   // K launches are worth this much run time
constexpr size_t kLaunchesPerWorkerUnfinishedMax = 4096;  // above, the controller parks them per slice
constexpr int kPlacedWhileUnknown = 2;                    // K while a program's run time is unknown
constexpr DurationNs kLaunchAgeMax = 1 * kSecond;         // passed over for so long: goes first
constexpr size_t kWorkerNodesMax = 65'536;                // unfinished nodes; a controller that sends more is mistaken
constexpr DurationNs kProgressDelay =
    1 * kMillisecond;                          // ends of launches that nobody waits for are collected so long ...
constexpr size_t kProgressTicketsMax = 64;     // ... or until there are so many
constexpr int kLaunchPriorityMax = 1'000'000;  // and its negative; clients' wishes beyond are refused
constexpr double kSessionWeightMin = 1e-3;     // shares of sessions, proportional
constexpr double kSessionWeightMax = 1e3;
constexpr DurationNs kShareCreditMax = 100 * kMillisecond;  // what a session that was idle is owed at most, at weight 1
constexpr uint32_t kActivationBudgetMax = 65'536;           // of the backward-first policy, per device
constexpr DurationNs kActivationStallMax =
    5 * kSecond;                                    // a device idle for so long lets a forward launch past the budget
constexpr int kLaunchDifferenceArgsMin = 16;        // shorter argument lists travel in full
constexpr int kLaunchOutputsRangeMax = 1'000'000;   // announced as a range; more travel one by one
constexpr size_t kGraphNodesPerWorkerMax = 16'384;  // in the answer to a question for the dataflow graph
constexpr size_t kGraphEdgesPerNodeMax = 64;
constexpr size_t kExplainedNodesMax = 256;   // of each kind, in the answer to Explain
constexpr size_t kExplainedReasonsMax = 16;  // per node
constexpr DurationNs kExplainPatience =
    1 * kSecond;                         // the proxy answers without the workers that are silent for so long
constexpr size_t kExplainsOpenMax = 64;  // at one proxy

constexpr int64_t kImagesStagedBytesMax = int64_t{256} << 20;  // host copies of uploads on their way; one more at least
constexpr DurationNs kPullRetryTime = 10 * kSecond;  // a pull whose connection broke is tried again for so long
constexpr DurationNs kPullRetryPause = 50 * kMillisecond;

// --- Compiling (compiler/).
constexpr size_t kCompileFrameBytesMax = size_t{2047}
                                         << 20;             // a program in, an executable out, between proxy and child
constexpr DurationNs kCompileTimeDefault = 600 * kSecond;   // then the compile ends with ABORTED
constexpr DurationNs kCompilerStartTimeMax = 60 * kSecond;  // child: from spawn to its greeting
constexpr DurationNs kCompileNegativeCacheTime =
    60 * kSecond;  // a program that killed its compiler is not tried again before
constexpr size_t kCompileNegativeCacheEntriesMax = 1024;
constexpr size_t kCompileCacheBytesDefault = 512u << 20;  // sealed executables kept in memory, least recently used go
constexpr size_t kCompileQueueMax = 4096;                 // requests that wait for a child
constexpr size_t kCompileErrorBytesMax = 16u << 10;       // a plugin's text in an error
constexpr int kCompileChildrenMax = 64;
constexpr int kCompileDevicesMax = 1024;              // a client of 512 takes 120 ms and as many threads
constexpr size_t kVirtualComputePendingMax = 65'536;  // timers of one process
constexpr size_t kVirtualComputeThreadsMax = 256;     // continuations that run at one time

}  // namespace landbridge::limits
