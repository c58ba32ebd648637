#include "driver/modes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "env/clock.h"

namespace landbridge {
namespace {

using Handle = ControlClient::Handle;

constexpr int64_t kLookEvery = 64;   // operations between two looks at the clock
constexpr int64_t kExact = 1 << 24;  // f32 counts no further by ones

// Waits for it; every gang's value must be `expected`. Released.
absl::Status Finish(ControlClient& client, const ModePrograms& programs, const ModeOptions& options, Handle array,
                    int64_t expected) {
  LB_RETURN_IF_ERROR(client.Wait(array));
  for (size_t gang = 0; options.check_values && gang < programs.gangs.size(); ++gang) {
    LB_ASSIGN_OR_RETURN(const std::vector<float> value, client.Read(array, gang));
    const bool exact = expected <= kExact;
    if (value.size() != 1 || (exact ? value[0] != static_cast<float>(expected) : value[0] < kExact)) {
      return absl::InternalError(
          absl::StrCat("gang ", gang, " gave ", value.empty() ? -1 : value[0], " instead of ", expected));
    }
  }
  client.Release(array);
  return absl::OkStatus();
}

// Calls `next` until the time is over, then waits for the result. `adds`: of one call.
template <typename Next>
absl::StatusOr<ModeResult> RunFor(ControlClient& client, const ModePrograms& programs, const ModeOptions& options,
                                  int64_t operations_each, int64_t launches_each, int64_t adds, Next next) {
  LB_ASSIGN_OR_RETURN(Handle x, client.Put(programs.gangs, {}, 0));
  LB_RETURN_IF_ERROR(client.Wait(x));
  ModeResult result;
  const TimeNs start = MonotonicClock().Now();
  int64_t calls = 0;
  while (result.operations < options.operations_max) {
    const Handle y = next(x);
    client.Release(x);
    x = y;
    ++calls;
    result.operations += operations_each;
    if (calls % kLookEvery == 0 && MonotonicClock().Now() - start >= options.time) break;
  }
  LB_RETURN_IF_ERROR(client.Wait(x));
  result.elapsed = MonotonicClock().Now() - start;
  result.launches = calls * launches_each * static_cast<int64_t>(programs.gangs.size());
  LB_RETURN_IF_ERROR(Finish(client, programs, options, x, calls * adds));
  return result;
}

}  // namespace

absl::StatusOr<ModeResult> RunOpByOp(ControlClient& client, const ModePrograms& programs, const ModeOptions& options) {
  return RunFor(client, programs, options, 1, 1, 1, [&](Handle x) { return client.Call(programs.one, {x}); });
}

absl::StatusOr<ModeResult> RunChained(ControlClient& client, const ModePrograms& programs, const ModeOptions& options) {
  return RunFor(client, programs, options, options.chain, options.chain, options.chain,
                [&](Handle x) { return client.CallChain(programs.one, x, options.chain); });
}

absl::StatusOr<ModeResult> RunFused(ControlClient& client, const ModePrograms& programs, const ModeOptions& options) {
  return RunFor(client, programs, options, options.chain, 1, options.chain,
                [&](Handle x) { return client.Call(programs.fused, {x}); });
}

absl::StatusOr<ModeResult> RunSync(ControlClient& client, const ModePrograms& programs, const ModeOptions& options,
                                   bool on_loop) {
  LB_ASSIGN_OR_RETURN(Handle x, client.Put(programs.gangs, {}, 0));
  LB_RETURN_IF_ERROR(client.Wait(x));
  ModeResult result;
  const TimeNs start = MonotonicClock().Now();
  TimeNs before = start;
  while (before - start < options.time && result.operations < options.operations_max) {
    if (on_loop) {
      LB_ASSIGN_OR_RETURN(const std::vector<int64_t> samples,
                          client.CallAndWaitOnLoop(programs.one, &x, static_cast<int>(kLookEvery)));
      result.latencies_ns.insert(result.latencies_ns.end(), samples.begin(), samples.end());
      result.operations += kLookEvery;
      before = MonotonicClock().Now();
      continue;
    }
    Handle y = 0;
    LB_RETURN_IF_ERROR(client.CallAndWait(programs.one, {x}, &y));
    const TimeNs now = MonotonicClock().Now();
    result.latencies_ns.push_back(now - before);
    before = now;
    client.Release(x);
    x = y;
    ++result.operations;
  }
  result.elapsed = MonotonicClock().Now() - start;
  result.launches = result.operations * static_cast<int64_t>(programs.gangs.size());
  LB_RETURN_IF_ERROR(Finish(client, programs, options, x, result.operations));
  return result;
}

}  // namespace landbridge
