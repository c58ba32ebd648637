// The ways in which the driver dispatches. Each runs for a while, checks the values that came of it where workers have
// values, and says how much it did.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/time.h"
#include "driver/control_client.h"

namespace landbridge {

struct ModeResult {
  int64_t operations = 0;  // see each mode
  int64_t launches = 0;    // as the workers see them
  DurationNs elapsed = 0;
  std::vector<int64_t> latencies_ns;  // of each operation, where each is waited for
};

struct ModeOptions {
  DurationNs time = kSecond;
  int64_t operations_max = INT64_MAX;  // then it ends before
  bool check_values = false;
  int chain = 128;
};

// The programs are x + 1 on each gang, and x + chain in one executable.
struct ModePrograms {
  std::vector<std::vector<DeviceId>> gangs;
  GangProgram one, fused;
};

// A call per operation; its result is the next one's argument. One wait, at the end.
absl::StatusOr<ModeResult> RunOpByOp(ControlClient& client, const ModePrograms& programs, const ModeOptions& options);
// Every call is waited for. `on_loop`: by the loop itself, so no client thread is woken.
absl::StatusOr<ModeResult> RunSync(ControlClient& client, const ModePrograms& programs, const ModeOptions& options,
                                   bool on_loop);
// A call brings `chain` launches, one after the other, in one batch. (The controller has no capture: each is a launch of its
// own.) Operations are launches on all gangs.
absl::StatusOr<ModeResult> RunChained(ControlClient& client, const ModePrograms& programs, const ModeOptions& options);
// A call brings one launch of one executable that adds `chain` times. Operations are the additions.
absl::StatusOr<ModeResult> RunFused(ControlClient& client, const ModePrograms& programs, const ModeOptions& options);

}  // namespace landbridge
