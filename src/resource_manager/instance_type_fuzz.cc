#include "resource_manager/instance_type.h"

#include "base/limits.h"
#include "base/log.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {

std::vector<std::string> FuzzSeeds() {
  return {"cpu:4",       "cpu:2x4",   "cuda:8", "gpu:2x8", "tpuv6e:4x4",   "tpuv4:2x2x2",
          "tpu7x:2x2x1", "cpu:65536", "cpu:+4", "cpu:4x",  "tpuv5e1t:1x1", "cpu:99999999999999999999x2"};
}

void FuzzOne(absl::string_view input) {
  const absl::StatusOr<InstanceType> type = ParseInstanceType(input);
  if (!type.ok()) {
    LB_CHECK(absl::IsInvalidArgument(type.status()));
    return;
  }
  LB_CHECK(type->text == input);
  LB_CHECK(type->workers_per_slice > 0 && type->devices_per_worker > 0);
  LB_CHECK(static_cast<int64_t>(type->workers_per_slice) * type->devices_per_worker <= 2 * limits::kDevicesMax);
  LB_CHECK(type->devices() > 0 && !type->ToString().empty());
}

}  // namespace landbridge::fuzz
