// Between our element types and the plugin's, which number them differently.
#pragma once

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "pjrt/c_api.h"

namespace landbridge::pjrt {

// UNIMPLEMENTED, naming the type, for those that no plugin buffer can hold.
absl::StatusOr<PJRT_Buffer_Type> ToPjrtType(DType dtype);
absl::StatusOr<DType> FromPjrtType(PJRT_Buffer_Type type);

}  // namespace landbridge::pjrt
