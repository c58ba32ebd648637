// Elementwise reductions of all types that arrays may have.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "proto/landbridge/collectives.pb.h"

namespace landbridge {

// Bytes of `elements` in device memory: packed types end at a byte.
inline int64_t BytesOfElements(DType dtype, int64_t elements) {
  return PackedBytes(elements, DeviceElementBits(dtype));
}

// UNIMPLEMENTED naming both where there is no such reduction (and, or, xor of floats; an order of complex numbers).
absl::Status CheckReduction(DType dtype, CollectiveOp::Reduction reduction);

// out[i] = a[i] op b[i]. `out` may be `a` or `b`. The three are dense and hold `elements`; packed types (two or more
// elements a byte) begin at a byte, and what the unused bits of the last byte become means nothing. Floats narrower
// than f32 are added as f32 and rounded to nearest each time. A NaN on either side gives NaN, also for minimum and
// maximum; pred: sum and maximum are "or", product and minimum "and". Integers wrap around. Needs CheckReduction.
void Reduce(DType dtype, CollectiveOp::Reduction reduction, void* out, const void* a, const void* b, int64_t elements);

}  // namespace landbridge
