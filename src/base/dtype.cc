#include "base/dtype.h"

#include <array>

namespace landbridge {
namespace {

struct Row {
  DType dtype;
  int32_t xla;
  absl::string_view name;
  int host_bytes;
  int device_bits;
};

constexpr Row kRows[] = {
    {DType::kPred, 1, "pred", 1, 8},
    {DType::kS8, 2, "s8", 1, 8},
    {DType::kS16, 3, "s16", 2, 16},
    {DType::kS32, 4, "s32", 4, 32},
    {DType::kS64, 5, "s64", 8, 64},
    {DType::kU8, 6, "u8", 1, 8},
    {DType::kU16, 7, "u16", 2, 16},
    {DType::kU32, 8, "u32", 4, 32},
    {DType::kU64, 9, "u64", 8, 64},
    {DType::kF16, 10, "f16", 2, 16},
    {DType::kF32, 11, "f32", 4, 32},
    {DType::kF64, 12, "f64", 8, 64},
    {DType::kOpaque, 14, "opaque", 0, 0},
    {DType::kC64, 15, "c64", 8, 64},
    {DType::kBF16, 16, "bf16", 2, 16},
    {DType::kToken, 17, "token", 0, 0},
    {DType::kC128, 18, "c128", 16, 128},
    {DType::kF8E5M2, 19, "f8e5m2", 1, 8},
    {DType::kF8E4M3FN, 20, "f8e4m3fn", 1, 8},
    {DType::kS4, 21, "s4", 1, 4},
    {DType::kU4, 22, "u4", 1, 4},
    {DType::kF8E4M3B11FNUZ, 23, "f8e4m3b11fnuz", 1, 8},
    {DType::kF8E5M2FNUZ, 24, "f8e5m2fnuz", 1, 8},
    {DType::kF8E4M3FNUZ, 25, "f8e4m3fnuz", 1, 8},
    {DType::kS2, 26, "s2", 1, 2},
    {DType::kU2, 27, "u2", 1, 2},
    {DType::kF8E4M3, 28, "f8e4m3", 1, 8},
    {DType::kF8E3M4, 29, "f8e3m4", 1, 8},
    {DType::kF4E2M1FN, 32, "f4e2m1fn", 1, 4},
    {DType::kF8E8M0FNU, 33, "f8e8m0fnu", 1, 8},
    {DType::kS1, 30, "s1", 1, 1},
    {DType::kU1, 31, "u1", 1, 1},
    {DType::kString, 0, "string", 0, 0},
};

const Row* Find(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

}  // namespace

std::optional<DType> DTypeFromIfrtKind(int32_t kind) {
  const Row* row = Find(static_cast<DType>(kind));
  if (row == nullptr) return std::nullopt;
  return row->dtype;
}

std::optional<DType> DTypeFromXla(int32_t primitive_type) {
  if (primitive_type == 0) return std::nullopt;
  for (const Row& row : kRows) {
    if (row.xla == primitive_type) return row.dtype;
  }
  return std::nullopt;
}

int32_t DTypeToXla(DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? 0 : row->xla;
}

absl::string_view DTypeName(DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "invalid" : row->name;
}

int HostElementBytes(DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? 0 : row->host_bytes;
}

int DeviceElementBits(DType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? 0 : row->device_bits;
}

}  // namespace landbridge
