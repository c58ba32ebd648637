#include "worker/shell/box_copy.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"

namespace landbridge {
namespace {

struct Dim {
  int64_t extent;
  int64_t dst_stride;
  int64_t src_stride;
};

template <size_t kBytes>
void CopyRowOf(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(dst + i * dst_stride, src + i * src_stride, kBytes);
}

void CopyRow(std::byte* dst, int64_t dst_stride, const std::byte* src, int64_t src_stride, int64_t count,
             int64_t element_bytes) {
  if (dst_stride == element_bytes && src_stride == element_bytes) {
    std::memcpy(dst, src, static_cast<size_t>(count * element_bytes));
    return;
  }
  switch (element_bytes) {
    case 1: return CopyRowOf<1>(dst, dst_stride, src, src_stride, count);
    case 2: return CopyRowOf<2>(dst, dst_stride, src, src_stride, count);
    case 4: return CopyRowOf<4>(dst, dst_stride, src, src_stride, count);
    case 8: return CopyRowOf<8>(dst, dst_stride, src, src_stride, count);
    case 16: return CopyRowOf<16>(dst, dst_stride, src, src_stride, count);
    default:
      for (int64_t i = 0; i < count; ++i) {
        std::memcpy(dst + i * dst_stride, src + i * src_stride, static_cast<size_t>(element_bytes));
      }
  }
}

void CopyDims(std::byte* dst, const std::byte* src, absl::Span<const Dim> dims, int64_t element_bytes) {
  if (dims.size() == 1) {
    CopyRow(dst, dims[0].dst_stride, src, dims[0].src_stride, dims[0].extent, element_bytes);
    return;
  }
  for (int64_t i = 0; i < dims[0].extent; ++i) {
    CopyDims(dst + i * dims[0].dst_stride, src + i * dims[0].src_stride, dims.subspan(1), element_bytes);
  }
}

}  // namespace

absl::StatusOr<int64_t> DenseBytes(absl::Span<const int64_t> dims, int64_t element_bytes) {
  if (dims.size() > static_cast<size_t>(limits::kRankMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("An array of ", dims.size(), " dimensions; at most ", limits::kRankMax, " are possible"));
  }
  int64_t bytes = element_bytes;
  bool empty = false;
  for (int64_t dim : dims) {
    if (dim < 0) return absl::InvalidArgumentError(absl::StrCat("A dimension of size ", dim));
    if (dim == 0) empty = true;
  }
  if (empty) return 0;
  for (int64_t dim : dims) {
    if (bytes > limits::kArrayBytesMax / dim) {
      return absl::InvalidArgumentError(absl::StrCat("An array of dimensions [", absl::StrJoin(dims, ","),
                                                     "] is larger than ", limits::kArrayBytesMax, " bytes"));
    }
    bytes *= dim;
  }
  return bytes;
}

std::vector<int64_t> DenseStrides(absl::Span<const int64_t> dims, int64_t element_bytes) {
  std::vector<int64_t> strides(dims.size());
  // Beside a 0, the other dimensions of an empty image may have any size.
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return strides;
  int64_t stride = element_bytes;
  for (size_t i = dims.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= dims[i];
  }
  return strides;
}

bool IsDense(absl::Span<const int64_t> dims, absl::Span<const int64_t> byte_strides, int64_t element_bytes) {
  if (byte_strides.empty()) return true;
  if (byte_strides.size() != dims.size()) return false;
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return true;
  int64_t stride = element_bytes;
  for (size_t i = dims.size(); i-- > 0;) {
    if (dims[i] != 1 && byte_strides[i] != stride) return false;
    stride *= dims[i];
  }
  return true;
}

absl::Status CheckStrides(absl::Span<const int64_t> dims, absl::Span<const int64_t> byte_strides, int64_t element_bytes,
                          int64_t image_bytes) {
  if (byte_strides.size() != dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(byte_strides.size(), " strides for an array of ", dims.size(), " dimensions"));
  }
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return absl::OkStatus();
  int64_t last = 0;  // offset of the last element
  for (size_t i = 0; i < dims.size(); ++i) {
    if (byte_strides[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("A negative stride (", byte_strides[i], "); copy the array first"));
    }
    int64_t span = 0;
    if (__builtin_mul_overflow(dims[i] - 1, byte_strides[i], &span) || __builtin_add_overflow(last, span, &last)) {
      return absl::InvalidArgumentError("Strides reach beyond any memory");
    }
  }
  if (last > image_bytes - element_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("Strides [", absl::StrJoin(byte_strides, ","), "] of an array [",
                                                   absl::StrJoin(dims, ","), "] reach beyond its ", image_bytes,
                                                   " bytes"));
  }
  return absl::OkStatus();
}

absl::Status CheckBox(absl::Span<const int64_t> dims, const IndexBox& box) {
  if (box.start.size() != dims.size() || box.limit.size() != dims.size()) {
    return absl::InvalidArgumentError(absl::StrCat("A box of ", box.start.size(), " and ", box.limit.size(),
                                                   " bounds in an array of ", dims.size(), " dimensions"));
  }
  for (size_t i = 0; i < dims.size(); ++i) {
    if (box.start[i] < 0 || box.start[i] > box.limit[i] || box.limit[i] > dims[i]) {
      return absl::InvalidArgumentError(
          absl::StrCat("The box ", box.ToString(), " lies outside of an array [", absl::StrJoin(dims, ","), "]"));
    }
  }
  return absl::OkStatus();
}

std::optional<ByteRange> ContiguousRange(absl::Span<const int64_t> dims, const IndexBox& box, int64_t element_bytes) {
  int64_t elements = box.Elements();
  if (elements == 0) return ByteRange{0, 0};
  // Leading dimensions of extent one, then one partial dimension, then whole ones.
  size_t i = 0;
  while (i < dims.size() && box.limit[i] - box.start[i] == 1) ++i;
  for (size_t j = i + 1; j < dims.size(); ++j) {
    if (box.limit[j] - box.start[j] != dims[j]) return std::nullopt;
  }
  return ByteRange{OffsetOf(box.start, DenseStrides(dims, element_bytes)), elements * element_bytes};
}

int64_t OffsetOf(absl::Span<const int64_t> index, absl::Span<const int64_t> byte_strides) {
  int64_t offset = 0;
  for (size_t i = 0; i < index.size(); ++i) offset += index[i] * byte_strides[i];
  return offset;
}

void CopyStrided(std::byte* dst, absl::Span<const int64_t> dst_strides, const std::byte* src,
                 absl::Span<const int64_t> src_strides, absl::Span<const int64_t> extents, int64_t element_bytes) {
  LB_CHECK(dst_strides.size() == extents.size() && src_strides.size() == extents.size());
  std::vector<Dim> dims;  // neighbours that are one run in both images are merged, so that rows get long
  for (size_t i = 0; i < extents.size(); ++i) {
    if (extents[i] == 0) return;
    if (extents[i] == 1) continue;
    Dim dim{extents[i], dst_strides[i], src_strides[i]};
    if (!dims.empty() && dims.back().dst_stride == dim.dst_stride * dim.extent &&
        dims.back().src_stride == dim.src_stride * dim.extent) {
      dims.back() = {dims.back().extent * dim.extent, dim.dst_stride, dim.src_stride};
    } else {
      dims.push_back(dim);
    }
  }
  if (dims.empty()) dims.push_back({1, element_bytes, element_bytes});
  CopyDims(dst, src, dims, element_bytes);
}

namespace {

// The parts of bytes [offset, offset + bytes) of a packed box that are one piece in the image too, in order:
// fn(offset in the image, bytes).
template <typename Fn>
void ForEachRun(int64_t offset, int64_t bytes, absl::Span<const int64_t> strides, const IndexBox& box,
                int64_t element_bytes, Fn fn) {
  if (bytes == 0) return;
  // The longest run of the box that is one piece in the image.
  const Dims extents = box.dims();
  int64_t run = element_bytes;
  size_t outer = extents.size();
  while (outer > 0 && (extents[outer - 1] == 1 || strides[outer - 1] == run)) {
    run *= extents[outer - 1];
    --outer;
  }
  // Dimensions of size one inside the run do not move; those kept outside are counted by `index`.
  Dims index(outer);
  int64_t rest = offset / run;
  for (size_t i = outer; i-- > 0;) {
    index[i] = rest % extents[i];
    rest /= extents[i];
  }
  const int64_t base = OffsetOf(box.start, strides);
  int64_t skip = offset % run;
  while (bytes > 0) {
    const int64_t count = std::min(bytes, run - skip);
    fn(base + OffsetOf(index, strides.subspan(0, outer)) + skip, count);
    bytes -= count;
    skip = 0;
    for (size_t i = outer; i-- > 0;) {
      if (++index[i] < extents[i]) break;
      index[i] = 0;
    }
  }
}

}  // namespace

void GatherPackedRange(std::byte* dst, int64_t offset, int64_t bytes, const std::byte* image,
                       absl::Span<const int64_t> strides, const IndexBox& box, int64_t element_bytes) {
  ForEachRun(offset, bytes, strides, box, element_bytes, [&](int64_t at, int64_t count) {
    std::memcpy(dst, image + at, static_cast<size_t>(count));
    dst += count;
  });
}

void ScatterPackedRange(std::byte* image, absl::Span<const int64_t> strides, const IndexBox& box, int64_t element_bytes,
                        const std::byte* src, int64_t offset, int64_t bytes) {
  ForEachRun(offset, bytes, strides, box, element_bytes, [&](int64_t at, int64_t count) {
    std::memcpy(image + at, src, static_cast<size_t>(count));
    src += count;
  });
}

namespace {

// Elements are packed and unpacked so many at a time: no second image of a piece.
constexpr int64_t kTileElements = 4096;

// The tiles of the elements that bytes [offset, offset + bytes) of a packed box hold: fn(first element, count, byte).
template <typename Fn>
void ForEachTile(int64_t offset, int64_t bytes, const IndexBox& box, int bits, Fn fn) {
  const int64_t per_byte = 8 / bits;
  const int64_t end = std::min((offset + bytes) * per_byte, box.Elements());
  for (int64_t first = offset * per_byte; first < end; first += kTileElements) {
    fn(first, std::min(kTileElements, end - first), first / per_byte - offset);
  }
}

}  // namespace

void GatherPackedBits(std::byte* dst, int64_t offset, int64_t bytes, const std::byte* image,
                      absl::Span<const int64_t> strides, const IndexBox& box, int bits) {
  std::byte tile[kTileElements];
  ForEachTile(offset, bytes, box, bits, [&](int64_t first, int64_t count, int64_t at) {
    GatherPackedRange(tile, first, count, image, strides, box, 1);
    PackBits(dst + at, tile, count, bits);
  });
}

void ScatterPackedBits(std::byte* image, absl::Span<const int64_t> strides, const IndexBox& box, int bits,
                       const std::byte* src, int64_t offset, int64_t bytes) {
  std::byte tile[kTileElements];
  ForEachTile(offset, bytes, box, bits, [&](int64_t first, int64_t count, int64_t at) {
    UnpackBits(tile, src + at, count, bits, false);
    ScatterPackedRange(image, strides, box, 1, tile, first, count);
  });
}

void PackBits(std::byte* packed, const std::byte* image, int64_t elements, int bits) {
  const int per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1;
  for (int64_t i = 0; i < elements; i += per_byte) {
    unsigned value = 0;
    const int64_t count = std::min<int64_t>(per_byte, elements - i);
    for (int64_t j = 0; j < count; ++j) {
      value |= (static_cast<unsigned>(image[i + j]) & mask) << (j * bits);
    }
    packed[i / per_byte] = static_cast<std::byte>(value);
  }
}

void UnpackBits(std::byte* image, const std::byte* packed, int64_t elements, int bits, bool sign_extend) {
  const int per_byte = 8 / bits;
  const unsigned mask = (1u << bits) - 1;
  const unsigned sign = 1u << (bits - 1);
  for (int64_t i = 0; i < elements; ++i) {
    unsigned value = (static_cast<unsigned>(packed[i / per_byte]) >> ((i % per_byte) * bits)) & mask;
    if (sign_extend && (value & sign)) value |= ~mask;
    image[i] = static_cast<std::byte>(value & 0xffu);
  }
}

}  // namespace landbridge
