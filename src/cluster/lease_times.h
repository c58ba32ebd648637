// The lease protocol's times and the formulas between them (leases.md "Times"). Clock rates differ by at most 10 %.
//
// Thread-safety: plain values and pure functions.
#pragma once

#include "absl/status/status.h"
#include "base/limits.h"
#include "base/time.h"

namespace landbridge {

struct LeaseTimes {
  DurationNs heartbeat = limits::kHeartbeatDefault;      // H: holder -> worker, and both -> RM
  DurationNs lease = limits::kLeaseDefault;              // L: a worker fences itself after this silence
  DurationNs worst_delay = limits::kWorstDelayDefault;   // D: of one message, with a stall of a process
  DurationNs reconnect = limits::kReconnectBackoffMax;   // B: longest pause between attempts to connect
  DurationNs old_work = limits::kOldWorkDefault;         // a worker waits so long for fenced work before it restarts
  DurationNs remainder = limits::kBrokenSliceRemainder;  // a slice without one live member stays leased so long

  // INVALID_ARGUMENT when some formula is broken; says which flag to change.
  absl::Status Validate() const;
};

// L >= 1.1 (k H / 0.9 + D): no false death when up to k heartbeats in a row are lost.
DurationNs MinLease(int lost_heartbeats, DurationNs heartbeat, DurationNs worst_delay);
// The largest k for which MinLease(k, ...) <= lease.
int LostHeartbeatsTolerated(const LeaseTimes& times);
// >= 1.223 (B + H) + 1.1 D: everybody who is alive has reported to a restarted RM.
DurationNs StartWindow(const LeaseTimes& times);
// 1.223 L from when the renewal was sent: then the other's lease has ended on every clock.
DurationNs WaitForOthersLease(const LeaseTimes& times);
// >= 1.223 (longest launch + move) + 1.1 (H + D).
DurationNs DrainGrace(const LeaseTimes& times, DurationNs longest_launch, DurationNs move);
// With the proxy stopped, what is already dispatched must end within L / 1.1.
DurationNs DispatchedMustEndWithin(const LeaseTimes& times);
// A worker whose grant is never renewed fences itself after this: long enough for the slowest other member to end old
// work, so that the RM tells the holder.
DurationNs FirstRenewalLimit(const LeaseTimes& times);
// A gap between two events of a process above this is a pause (it ticks every heartbeat / 2).
inline DurationNs PauseThreshold(const LeaseTimes& times) { return 2 * times.heartbeat; }
inline DurationNs TickPeriod(const LeaseTimes& times) { return times.heartbeat / 2; }

}  // namespace landbridge
