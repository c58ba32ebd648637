// Bounds of this room.
#pragma once

#include <cstddef>

#include "base/time.h"

namespace landbridge::limits {

constexpr int kOfferedTargetsMax = 64;                 // found by their symbols in one compile: each costs a try
constexpr DurationNs kPythonQueryTime = 20 * kSecond;  // for an interpreter to say where its library lies
constexpr size_t kPythonQueryBytesMax = size_t{1} << 20;

}  // namespace landbridge::limits
