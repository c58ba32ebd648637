#ifndef LANDBRIDGE_SHARDING_SHARDING_TEST_UTIL_H_
#define LANDBRIDGE_SHARDING_SHARDING_TEST_UTIL_H_

// What this room's tests share.

#include <vector>

#include "base/ids.h"

namespace landbridge {

inline std::vector<DeviceId> Devices(int count, int first = 0) {
  std::vector<DeviceId> devices;
  for (int i = 0; i < count; ++i) devices.push_back(DeviceId(first + i));
  return devices;
}

}  // namespace landbridge

#endif  // LANDBRIDGE_SHARDING_SHARDING_TEST_UTIL_H_
