// Element types. The numbers are those of the client's wire (ifrt DTypeProto.kind), so decoding is a check.
#pragma once

#include <cstdint>
#include <optional>
#include "absl/strings/string_view.h"

namespace landbridge {

enum class DType : int32_t {
  kInvalid = 0,
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kOpaque = 14,
  kC64 = 15,
  kBF16 = 16,
  kToken = 17,
  kC128 = 18,
  kF8E5M2 = 19,
  kF8E4M3FN = 20,
  kS4 = 21,
  kU4 = 22,
  kF8E4M3B11FNUZ = 23,
  kF8E5M2FNUZ = 24,
  kF8E4M3FNUZ = 25,
  kS2 = 26,
  kU2 = 27,
  kF8E4M3 = 28,
  kF8E3M4 = 29,
  kF4E2M1FN = 30,
  kF8E8M0FNU = 31,
  kS1 = 32,
  kU1 = 33,
  kString = 99,
};

// Nothing for kinds that we do not know.
std::optional<DType> DTypeFromIfrtKind(int32_t kind);
// xla.PrimitiveType numbering (differs for S1, U1, F4E2M1FN, F8E8M0FNU).
std::optional<DType> DTypeFromXla(int32_t primitive_type);
int32_t DTypeToXla(DType dtype);

absl::string_view DTypeName(DType dtype);  // "f32", "bf16", "s4", ...

// Bytes of one element in a dense host image on the client's wire: sub-byte types take one byte each,
// tokens none. 0 for kToken, kOpaque, kString, kInvalid.
int HostElementBytes(DType dtype);
// Bits of one element in device memory (sub-byte types may be packed there: 1, 2 or 4). 0 as above.
int DeviceElementBits(DType dtype);
// Bytes of so many elements of `bits` each, one after the other: the last byte is filled up. For counts that are known to fit.
constexpr int64_t PackedBytes(int64_t elements, int bits) {
  if (bits >= 8) return elements * (bits / 8);
  const int64_t per_byte = 8 / bits;
  return elements / per_byte + (elements % per_byte != 0);
}
inline bool IsSubByte(DType dtype) {
  int bits = DeviceElementBits(dtype);
  return bits > 0 && bits < 8;
}

}  // namespace landbridge
