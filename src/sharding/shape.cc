#include "sharding/shape.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge {
namespace {

// False if the product does not fit in 63 bits.
bool Multiply(int64_t a, int64_t b, int64_t* out) { return !__builtin_mul_overflow(a, b, out); }

absl::Status TooLarge(absl::Span<const int64_t> dims) {
  return absl::InvalidArgumentError(absl::StrCat("shape ", DimsToString(dims), " is too large: at most ",
                                                 limits::kArrayBytesMax, " bytes are possible"));
}

absl::Status NoFixedSize(DType dtype) {
  return absl::InvalidArgumentError(
      absl::StrCat("dtype ", DTypeName(dtype), " has no fixed element size; use a numeric dtype"));
}

}  // namespace

std::string DimsToString(absl::Span<const int64_t> dims) { return absl::StrCat("[", absl::StrJoin(dims, ","), "]"); }

absl::Status CheckDims(absl::Span<const int64_t> dims) {
  if (dims.size() > limits::kRankMax) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", dims.size(), " is above the limit of ", limits::kRankMax));
  }
  int64_t product = 1;
  for (int64_t dim : dims) {
    if (dim < 0) {
      return absl::InvalidArgumentError(absl::StrCat("shape ", DimsToString(dims), " has a negative size"));
    }
    if (!Multiply(product, std::max<int64_t>(dim, 1), &product)) return TooLarge(dims);
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ElementCount(absl::Span<const int64_t> dims) {
  LB_RETURN_IF_ERROR(CheckDims(dims));
  int64_t product = 1;
  for (int64_t dim : dims) product *= dim;
  return product;
}

absl::StatusOr<int64_t> HostImageBytes(DType dtype, absl::Span<const int64_t> dims) {
  LB_ASSIGN_OR_RETURN(int64_t elements, ElementCount(dims));
  if (dtype == DType::kToken) return 0;
  const int element = HostElementBytes(dtype);
  if (element == 0) return NoFixedSize(dtype);
  int64_t bytes = 0;
  if (!Multiply(elements, element, &bytes) || bytes > limits::kArrayBytesMax) return TooLarge(dims);
  return bytes;
}

absl::StatusOr<int64_t> DeviceBytes(DType dtype, absl::Span<const int64_t> dims) {
  LB_ASSIGN_OR_RETURN(int64_t elements, ElementCount(dims));
  if (dtype == DType::kToken) return 0;
  const int bits = DeviceElementBits(dtype);
  if (bits == 0) return NoFixedSize(dtype);
  int64_t total = 0;
  if (!Multiply(elements, bits, &total) || total / 8 > limits::kArrayBytesMax) return TooLarge(dims);
  return total / 8 + (total % 8 != 0);
}

absl::StatusOr<int64_t> StridedImageBytes(DType dtype, absl::Span<const int64_t> dims,
                                          absl::Span<const int64_t> byte_strides) {
  LB_ASSIGN_OR_RETURN(int64_t dense, HostImageBytes(dtype, dims));
  if (byte_strides.empty()) return dense;
  if (byte_strides.size() != dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(byte_strides.size(), " byte strides for shape ", DimsToString(dims)));
  }
  if (dense == 0) return 0;
  int64_t bytes = HostElementBytes(dtype);
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == 1) continue;
    int64_t span = 0;
    if (byte_strides[i] <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("byte strides ", DimsToString(byte_strides), " are not all positive; copy the array first"));
    }
    if (!Multiply(dims[i] - 1, byte_strides[i], &span) || __builtin_add_overflow(bytes, span, &bytes) ||
        bytes > limits::kArrayBytesMax) {
      return TooLarge(dims);
    }
  }
  return bytes;
}

IndexBox IndexBox::Whole(absl::Span<const int64_t> dims) {
  return IndexBox{Dims(dims.size(), 0), Dims(dims.begin(), dims.end())};
}

Dims IndexBox::dims() const {
  Dims result(start.size());
  for (size_t i = 0; i < start.size(); ++i) result[i] = limit[i] - start[i];
  return result;
}

int64_t IndexBox::Elements() const {
  int64_t product = 1;
  for (size_t i = 0; i < start.size(); ++i) {
    if (start[i] == limit[i]) return 0;  // before others are multiplied: beside a 0 they may have any size
  }
  for (size_t i = 0; i < start.size(); ++i) product *= limit[i] - start[i];
  return product;
}

bool IndexBox::Covers(absl::Span<const int64_t> dims) const {
  if (start.size() != dims.size()) return false;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (start[i] != 0 || limit[i] != dims[i]) return false;
  }
  return true;
}

IndexBox IndexBox::Intersect(const IndexBox& other) const {
  LB_CHECK(start.size() == other.start.size());
  IndexBox result{Dims(start.size()), Dims(start.size())};
  for (size_t i = 0; i < start.size(); ++i) {
    result.start[i] = std::max(start[i], other.start[i]);
    result.limit[i] = std::max(result.start[i], std::min(limit[i], other.limit[i]));
  }
  return result;
}

IndexBox IndexBox::RelativeTo(absl::Span<const int64_t> origin) const {
  LB_CHECK(start.size() == origin.size());
  IndexBox result = *this;
  for (size_t i = 0; i < start.size(); ++i) {
    result.start[i] -= origin[i];
    result.limit[i] -= origin[i];
  }
  return result;
}

std::string IndexBox::ToString() const {
  std::string text = "[";
  for (size_t i = 0; i < start.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ",", start[i], ":", limit[i]);
  }
  return text + "]";
}

}  // namespace landbridge
