// What a client is told about the devices: ids, places, kinds, memories. Plain data that the proxy makes once all
// its slices have a declared topology.
//
// Thread-safety: plain values.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "sharding/sharding.h"

namespace landbridge {

struct CatalogDevice {
  DeviceId id;
  int slice_index = 0;              // attribute slice_index: workers of one slice share it
  int worker_index = 0;             // of all workers, dense from 0: attributes task_id and virtual_task_index
  int local_ordinal = 0;            // in the worker
  std::string device_kind = "cpu";  // must be "cpu" for CPU devices
  std::vector<int64_t> coords;      // at most 4; empty: (local_ordinal, 0, 0, 0)
  int core_on_chip = 0;
  std::vector<MemoryKind> memories = {MemoryKind::kDevice};  // the first is the default one
};

struct DeviceCatalog {
  std::string platform_name = "cpu";                      // picks JAX's lowering rules
  std::string platform_version;                           // free text, shown to users
  std::vector<CatalogDevice> devices;                     // in the order of jax.devices()
  std::array<int64_t, 3> stablehlo_version = {1, 20, 0};  // the plugin's current one
  int pjrt_api_major = 0, pjrt_api_minor = 0;             // the plugin's; 0.0 = unknown, not told
};

}  // namespace landbridge
