#ifndef LANDBRIDGE_DATAPLANE_CORE_TEST_UTIL_H_
#define LANDBRIDGE_DATAPLANE_CORE_TEST_UTIL_H_

// What the tests of the pulling and the serving half share.

#include "dataplane/data_plane.h"

namespace landbridge::dataplane {

inline constexpr PeerId kSelf(1), kPeer(2), kOther(3);

}  // namespace landbridge::dataplane

#endif  // LANDBRIDGE_DATAPLANE_CORE_TEST_UTIL_H_
