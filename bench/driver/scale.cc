#include "driver/scale.h"

#include <vector>

#include "base/status.h"
#include "driver/programs.h"
#include "env/clock.h"

namespace landbridge {
namespace {

using Handle = ControlClient::Handle;

// A program on some gangs, and its arguments there.
struct ScaleTarget {
  GangProgram program;
  std::vector<Handle> arguments;
};

absl::StatusOr<ScaleTarget> MakeScaleTarget(ControlClient& client, const std::shared_ptr<const ProgramImage>& image,
                                            const std::vector<std::vector<DeviceId>>& gangs) {
  ScaleTarget target;
  LB_ASSIGN_OR_RETURN(target.program, client.AddProgram(image, gangs));
  for (int i = 0; i < image->info.parameters_size(); ++i) {
    LB_ASSIGN_OR_RETURN(const Handle argument, client.Put(gangs, {}, 1));
    target.arguments.push_back(argument);
  }
  return target;
}

}  // namespace

absl::StatusOr<ScaleResult> RunScaleDispatches(ControlClient& client, int64_t dispatches, bool everywhere) {
  ProgramShape shape;
  shape.devices = client.fleet().devices_per_worker;
  shape.parameters = 4;
  shape.outputs = 2;
  const std::shared_ptr<const ProgramImage> image = NullProgram(shape);
  std::vector<std::vector<DeviceId>> gangs;
  for (int w = 0; w < client.workers(); ++w) gangs.push_back(client.DevicesOf(w));
  std::vector<ScaleTarget> targets;
  if (everywhere) {
    LB_ASSIGN_OR_RETURN(ScaleTarget all, MakeScaleTarget(client, image, gangs));
    targets.push_back(std::move(all));
  } else {
    for (const std::vector<DeviceId>& gang : gangs) {
      LB_ASSIGN_OR_RETURN(ScaleTarget one, MakeScaleTarget(client, image, {gang}));
      targets.push_back(std::move(one));
    }
  }
  for (const ScaleTarget& target : targets) LB_RETURN_IF_ERROR(client.Wait(target.arguments.back()));

  auto per_dispatch = [&](DurationNs time) {
    return static_cast<double>(time) / 1e3 / static_cast<double>(dispatches);
  };
  ScaleResult result;
  result.dispatches = dispatches;
  result.launches = dispatches * static_cast<int64_t>(everywhere ? gangs.size() : 1);
  std::vector<Handle> made;
  made.reserve(static_cast<size_t>(dispatches));
  const TimeNs start = MonotonicClock().Now();
  for (int64_t i = 0; i < dispatches; ++i) {
    const ScaleTarget& target = targets[static_cast<size_t>(i) % targets.size()];
    made.push_back(client.Call(target.program, target.arguments));
  }
  client.Settle();
  const TimeNs dispatched = MonotonicClock().Now();
  result.us_per_dispatch = per_dispatch(dispatched - start);
  const size_t last = std::min(made.size(), targets.size());
  for (size_t i = made.size() - last; i < made.size(); ++i) LB_RETURN_IF_ERROR(client.Wait(made[i]));
  result.done_us_per_dispatch = per_dispatch(MonotonicClock().Now() - start);
  const TimeNs deleting = MonotonicClock().Now();
  for (Handle handle : made) {
    for (Handle output = handle; output < handle + 2; ++output) client.Release(output);
  }
  client.Settle();
  result.delete_us_per_dispatch = per_dispatch(MonotonicClock().Now() - deleting);
  for (const ScaleTarget& target : targets) {
    for (Handle argument : target.arguments) client.Release(argument);
  }
  client.Settle();
  return result;
}

}  // namespace landbridge
