// What bounds the controller's tables, beyond base/limits.h.
#pragma once

#include <cstdint>

namespace landbridge::limits {

// Launches that span workers, from the oldest that is not over to the latest: workers remember so many. Later ones wait.
constexpr uint64_t kSpansRememberedMax = 262'144;

}  // namespace landbridge::limits
