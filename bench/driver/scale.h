// What a dispatch costs a controller of many hosts: 4 arguments, 2 outputs; then everything is deleted.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "driver/control_client.h"

namespace landbridge {

struct ScaleResult {
  int64_t dispatches = 0, launches = 0;
  double us_per_dispatch = 0;       // until the controller has taken it and what it makes is on its way
  double done_us_per_dispatch = 0;  // until its workers have reported it
  double delete_us_per_dispatch = 0;
};

// Null programs. `everywhere`: a dispatch is a launch on every worker; else on one, in turns.
absl::StatusOr<ScaleResult> RunScaleDispatches(ControlClient& client, int64_t dispatches, bool everywhere);

}  // namespace landbridge
