#ifndef LANDBRIDGE_CLUSTER_LEASE_TEST_UTIL_H_
#define LANDBRIDGE_CLUSTER_LEASE_TEST_UTIL_H_

// What the tests of both ends of a lease share.

#include <cstdint>

#include "cluster/grant.h"

namespace landbridge {

inline constexpr uint64_t kTerm1 = uint64_t{1} << kTermLifeBits;
inline constexpr uint64_t kTerm2 = uint64_t{2} << kTermLifeBits;

}  // namespace landbridge

#endif  // LANDBRIDGE_CLUSTER_LEASE_TEST_UTIL_H_
