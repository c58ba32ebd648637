// Times between attempts to connect, beyond base/limits.h.
#pragma once

#include "base/time.h"

namespace landbridge::limits {

// After a control stream broke, until the second attempt to connect anew; doubled from there. A dying process's sockets close
// one after the other, and its listener after its connections: for some milliseconds the machine still takes connections for it.
constexpr DurationNs kReconnectAfterBreak = 1 * kMillisecond;

}  // namespace landbridge::limits
