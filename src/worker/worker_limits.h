// What bounds the pure part of a worker, beyond base/limits.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace landbridge::limits {

// The spanner forgets launches when it hears that they are over everywhere; each worker tells it after so many.
constexpr uint64_t kSpanHorizonStep = 64;

// Workers that have a part of launches that one spanner numbers.
constexpr size_t kSpanMembersMax = 65'536;

}  // namespace landbridge::limits
