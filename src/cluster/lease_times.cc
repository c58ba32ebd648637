#include "cluster/lease_times.h"

#include "absl/strings/str_cat.h"

namespace landbridge {
namespace {

// Two clocks, one 10 % slow and one 10 % fast: a span of d on one is at most 1.1 d / 0.9 (1.223 d) on the other.
constexpr double kFast = 1.1;
constexpr double kSlow = 0.9;

DurationNs Scaled(DurationNs time, double by) { return static_cast<DurationNs>(static_cast<double>(time) * by); }

}  // namespace

DurationNs MinLease(int lost_heartbeats, DurationNs heartbeat, DurationNs worst_delay) {
  return Scaled(Scaled(heartbeat, lost_heartbeats / kSlow) + worst_delay, kFast);
}

int LostHeartbeatsTolerated(const LeaseTimes& times) {
  int tolerated = 0;
  while (tolerated < 1000 && MinLease(tolerated + 1, times.heartbeat, times.worst_delay) <= times.lease) ++tolerated;
  return tolerated;
}

DurationNs StartWindow(const LeaseTimes& times) {
  return Scaled(times.reconnect + times.heartbeat, kFast / kSlow) + Scaled(times.worst_delay, kFast);
}

DurationNs WaitForOthersLease(const LeaseTimes& times) { return Scaled(times.lease, kFast / kSlow); }

DurationNs DrainGrace(const LeaseTimes& times, DurationNs longest_launch, DurationNs move) {
  return Scaled(longest_launch + move, kFast / kSlow) + Scaled(times.heartbeat + times.worst_delay, kFast);
}

DurationNs DispatchedMustEndWithin(const LeaseTimes& times) { return Scaled(times.lease, 1 / kFast); }

DurationNs FirstRenewalLimit(const LeaseTimes& times) { return times.old_work + 2 * WaitForOthersLease(times); }

absl::Status LeaseTimes::Validate() const {
  if (heartbeat < 10 * kMillisecond || worst_delay <= 0 || reconnect <= 0 || old_work <= 0 || remainder <= 0) {
    return absl::InvalidArgumentError("lease times must be positive, and the heartbeat at least 10 ms");
  }
  const DurationNs least = MinLease(2, heartbeat, worst_delay);
  if (lease < least) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a lease of ", lease / kMillisecond, " ms is too short for a heartbeat of ", heartbeat / kMillisecond,
        " ms: two lost heartbeats would end it; use at least ", least / kMillisecond + 1, " ms"));
  }
  return absl::OkStatus();
}

}  // namespace landbridge
