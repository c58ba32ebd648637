// Time as the state machines see it: nanoseconds of one monotonic clock, passed in with events.
#pragma once

#include <cstdint>

namespace landbridge {

using TimeNs = int64_t;  // a point on this process's monotonic clock
using DurationNs = int64_t;

constexpr DurationNs kMicrosecond = 1'000;
constexpr DurationNs kMillisecond = 1'000'000;
constexpr DurationNs kSecond = 1'000'000'000;

}  // namespace landbridge
