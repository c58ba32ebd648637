// The custom-call targets of JAX's CPU lowering whose handlers jaxlib brings.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace landbridge {

// Sorted: LAPACK in four element types, tridiagonal_solve with perturbation, the sparse matrix product.
const std::vector<std::string>& JaxlibTargets();
bool IsJaxlibTarget(absl::string_view target);

}  // namespace landbridge
