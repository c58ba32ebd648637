// Shapes and ranges of elements, with arithmetic that cannot overflow.
//
// Thread-safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"

namespace landbridge {

using Dims = absl::InlinedVector<int64_t, 4>;

// "[2,3]"; scalars "[]".
std::string DimsToString(absl::Span<const int64_t> dims);

// For a >= 0 and b > 0; cannot overflow.
constexpr int64_t CeilDivide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Rank at most limits::kRankMax, no negative size, and the element count (zero-sized dims counted as one) fits.
// INVALID_ARGUMENT otherwise.
absl::Status CheckDims(absl::Span<const int64_t> dims);

// 1 for scalars. INVALID_ARGUMENT if a size is negative or the product does not fit.
absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> dims);

// Bytes of the dense host image (base/dtype.h HostElementBytes) and of one dense device buffer (sub-byte types
// packed). At most limits::kArrayBytesMax, INVALID_ARGUMENT above. 0 for tokens; INVALID_ARGUMENT for dtypes
// without a fixed size (strings, opaque).
absl::StatusOr<int64_t> HostImageBytes(DType dtype, absl::Span<const int64_t> dims);
absl::StatusOr<int64_t> DeviceBytes(DType dtype, absl::Span<const int64_t> dims);
// Bytes that an image with these strides spans. Strides must be positive where the dim is above 1; empty: dense.
absl::StatusOr<int64_t> StridedImageBytes(DType dtype, absl::Span<const int64_t> dims,
                                          absl::Span<const int64_t> byte_strides);

// A range of elements, [start, limit) in each dimension. start <= limit; ranks agree.
struct IndexBox {
  Dims start;
  Dims limit;

  static IndexBox Whole(absl::Span<const int64_t> dims);

  Dims dims() const;
  int64_t Elements() const;                           // of a box inside a checked shape: cannot overflow
  bool Covers(absl::Span<const int64_t> dims) const;  // is the whole of that shape
  // Boxes without common elements give one of zero elements.
  IndexBox Intersect(const IndexBox& other) const;
  // The same elements, counted from `origin`.
  IndexBox RelativeTo(absl::Span<const int64_t> origin) const;
  std::string ToString() const;  // "[0:2,3:4]"

  friend bool operator==(const IndexBox& a, const IndexBox& b) = default;
  template <typename H>
  friend H AbslHashValue(H h, const IndexBox& box) {
    return H::combine(std::move(h), box.start, box.limit);
  }
};

}  // namespace landbridge
