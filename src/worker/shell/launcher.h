// Issues launches to the plugin.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/time.h"
#include "collectives/collective_handler.h"
#include "compiler/load.h"
#include "env/clock.h"
#include "pjrt/client.h"
#include "worker/shell/device_store.h"

namespace landbridge {

// One launch, resolved: everything that the issuing thread needs.
struct LaunchWork {
  int32_t launch_id = 0;  // unique among those not done, never 0
  std::shared_ptr<LoadedProgram> program;
  std::vector<int> devices;  // local ordinal of each logical device (that is here)
  std::vector<std::vector<std::shared_ptr<BufferSlot>>> arguments;  // [logical device][parameter]
  std::vector<std::vector<std::shared_ptr<BufferSlot>>> outputs;    // [logical device][output]
  std::vector<int64_t> kept;      // parameters that the program would donate but this launch must not
  std::vector<uint32_t> donated;  // parameters whose buffers end here
  bool issues_at_once = false;
  bool native = false;  // this worker's part of a launch that the plugin runs over several
  // Of split programs. The registration lives until all devices are done.
  std::shared_ptr<CollectiveRun> collectives;
  CollectiveRegistration registration;
};

// Runs exactly once: in IssueLaunch, or later on a thread of the plugin; it must only post. `start` and `end` bound
// the launch on its slowest device.
using LaunchDone = std::function<void(absl::Status status, TimeNs start, TimeNs end)>;

// Whether handing a launch of the program to the plugin takes microseconds and never blocks, so that a loop's thread may do
// it. The CPU plugin (pjrt::Traits::runs_in_caller) hands programs to threads of its own, except that it runs those of few
// operations in the caller: then sizes must bound the time. Others may wait for the device.
bool IssuesAtOnce(const ExecutableInfo& info, const pjrt::Traits& traits);

// Hands the launch to the plugin and fills the output slots; on the dispatch thread whose turn it is. Input slots
// must be filled, or have failed: then nothing is launched (peers of a half-launched program would hang), the outputs
// fail with the same status, and so does the launch. Errors have the plugin's text filtered (base/status.h).
void IssueLaunch(pjrt::Client& client, LaunchWork work, Clock& clock, LaunchDone done);

// The same for a split program: a piece of work for each device, in the order of work.devices. Each is to run on its device's
// dispatch thread, whose turn it is; a small program may wait for its peers in there. When one device cannot begin, or fails,
// the launch's collectives are aborted, so that the others end.
std::vector<absl::AnyInvocable<void()>> SplitLaunch(pjrt::Client& client, LaunchWork work, Clock& clock,
                                                    LaunchDone done);

}  // namespace landbridge
