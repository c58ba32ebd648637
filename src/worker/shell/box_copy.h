// Copies of N-dimensional boxes between strided images in host memory: pure functions.
//
// Thread-safety: no state; the caller owns the memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sharding/shape.h"

namespace landbridge {

// Bytes of a dense image. INVALID_ARGUMENT for negative dimensions, too many of them, or more than
// limits::kArrayBytesMax bytes: before anything is allocated.
absl::StatusOr<int64_t> DenseBytes(absl::Span<const int64_t> dims, int64_t element_bytes);

// Row-major strides in bytes; zeros for an empty image. `dims` must have passed DenseBytes.
std::vector<int64_t> DenseStrides(absl::Span<const int64_t> dims, int64_t element_bytes);

// True for empty strides, and for strides that address the same bytes as the dense row-major ones (strides of
// dimensions of size one do not matter, nor any of an empty image).
bool IsDense(absl::Span<const int64_t> dims, absl::Span<const int64_t> byte_strides, int64_t element_bytes);

// A wire image with strides must lie within `image_bytes`: INVALID_ARGUMENT if an element would not.
absl::Status CheckStrides(absl::Span<const int64_t> dims, absl::Span<const int64_t> byte_strides, int64_t element_bytes,
                          int64_t image_bytes);

// INVALID_ARGUMENT unless the box has one range per dimension, inside `dims`.
absl::Status CheckBox(absl::Span<const int64_t> dims, const IndexBox& box);

// Where the box's bytes lie in a dense row-major image, if they are one piece.
struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};
std::optional<ByteRange> ContiguousRange(absl::Span<const int64_t> dims, const IndexBox& box, int64_t element_bytes);

// Byte offset of an element in a strided image.
int64_t OffsetOf(absl::Span<const int64_t> index, absl::Span<const int64_t> byte_strides);

// Copies `extents` elements from `src` to `dst` (both at the first element of the box). Strides may be zero or
// negative in the source; the destination's elements must not overlap each other or the source.
void CopyStrided(std::byte* dst, absl::Span<const int64_t> dst_strides, const std::byte* src,
                 absl::Span<const int64_t> src_strides, absl::Span<const int64_t> extents, int64_t element_bytes);

// Bytes [offset, offset + bytes) of the box as it would be packed row-major, gathered from a strided image whose
// element (0, 0, ...) is at `image`. The range must lie inside; it need not begin or end at an element.
void GatherPackedRange(std::byte* dst, int64_t offset, int64_t bytes, const std::byte* image,
                       absl::Span<const int64_t> strides, const IndexBox& box, int64_t element_bytes);

// The other way round: `bytes` bytes of the packed box, from its byte `offset` on, to their places in the image.
void ScatterPackedRange(std::byte* image, absl::Span<const int64_t> strides, const IndexBox& box, int64_t element_bytes,
                        const std::byte* src, int64_t offset, int64_t bytes);

// The same for elements of 1, 2 or 4 bits, which the box packs as PackBits does, while the image has a byte for each:
// `offset` and `bytes` are of the packed box. Bits of the last byte that stand for no element are 0, and are not read.
void GatherPackedBits(std::byte* dst, int64_t offset, int64_t bytes, const std::byte* image,
                      absl::Span<const int64_t> strides, const IndexBox& box, int bits);
void ScatterPackedBits(std::byte* image, absl::Span<const int64_t> strides, const IndexBox& box, int bits,
                       const std::byte* src, int64_t offset, int64_t bytes);

// Sub-byte elements. The wire image has a byte per element (its low bits count); packed memory holds 8/bits
// elements a byte, the first in the lowest bits. Whole images only.
void PackBits(std::byte* packed, const std::byte* image, int64_t elements, int bits);
void UnpackBits(std::byte* image, const std::byte* packed, int64_t elements, int bits, bool sign_extend);

}  // namespace landbridge
