#include "collectives/reduce.h"

#include <complex>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "collectives/small_float.h"

namespace landbridge {
namespace {

using Op = CollectiveOp::Reduction;

template <typename T>
constexpr bool kIsComplex = false;
template <typename T>
constexpr bool kIsComplex<std::complex<T>> = true;

// Integer overflow wraps, so sums and products go by way of unsigned numbers (of at least int's width).
template <typename T>
T Wrapping(T a, T b, bool product) {
  using Wide = std::conditional_t<(sizeof(T) < sizeof(unsigned)), unsigned, std::make_unsigned_t<T>>;
  const Wide x = static_cast<Wide>(a), y = static_cast<Wide>(b);
  return static_cast<T>(product ? x * y : x + y);
}

struct Sum {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return Wrapping(a, b, false);
    else
      return a + b;
  }
};
struct Product {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_integral_v<T>)
      return Wrapping(a, b, true);
    else
      return a * b;
  }
};
// A comparison with a NaN is false: each form picks the NaN wherever it stands.
struct Minimum {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return (a < b || a != a) ? a : b;
    else
      return a < b ? a : b;
  }
};
struct Maximum {
  template <typename T>
  T operator()(T a, T b) const {
    if constexpr (std::is_floating_point_v<T>)
      return (a > b || a != a) ? a : b;
    else
      return a > b ? a : b;
  }
};
struct And {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a & b);
  }
};
struct Or {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a | b);
  }
};
struct Xor {
  template <typename T>
  T operator()(T a, T b) const {
    return static_cast<T>(a ^ b);
  }
};

template <typename T, typename F>
void Loop(void* out, const void* a, const void* b, int64_t elements, F f) {
  auto* o = static_cast<T*>(out);
  const auto* x = static_cast<const T*>(a);
  const auto* y = static_cast<const T*>(b);
  for (int64_t i = 0; i < elements; ++i) o[i] = f(x[i], y[i]);
}

template <typename T>
void Plain(Op op, void* out, const void* a, const void* b, int64_t n) {
  switch (op) {
    case CollectiveOp::SUM: return Loop<T>(out, a, b, n, Sum());
    case CollectiveOp::PRODUCT: return Loop<T>(out, a, b, n, Product());
    default: break;
  }
  if constexpr (!kIsComplex<T>) {
    if (op == CollectiveOp::MINIMUM) return Loop<T>(out, a, b, n, Minimum());
    if (op == CollectiveOp::MAXIMUM) return Loop<T>(out, a, b, n, Maximum());
  }
  if constexpr (std::is_integral_v<T>) {
    if (op == CollectiveOp::AND) return Loop<T>(out, a, b, n, And());
    if (op == CollectiveOp::OR) return Loop<T>(out, a, b, n, Or());
    if (op == CollectiveOp::XOR) return Loop<T>(out, a, b, n, Xor());
  }
  LB_CHECK(false);  // CheckReduction says so before
}

// By way of f32.
template <typename Format>
void Narrow(Op op, void* out, const void* a, const void* b, int64_t n) {
  using Code = typename Format::Code;
  auto by = [&](auto f) {
    Loop<Code>(out, a, b, n, [f](Code x, Code y) { return Format::Encode(f(Format::Decode(x), Format::Decode(y))); });
  };
  switch (op) {
    case CollectiveOp::SUM: return by(Sum());
    case CollectiveOp::PRODUCT: return by(Product());
    case CollectiveOp::MINIMUM: return by(Minimum());
    case CollectiveOp::MAXIMUM: return by(Maximum());
    default: LB_CHECK(false);
  }
}

// bf16 is the upper half of an f32: quick enough for the vector unit.
struct QuickBFloat16 {
  using Code = uint16_t;
  static float Decode(Code code) { return std::bit_cast<float>(static_cast<uint32_t>(code) << 16); }
  static Code Encode(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;
    return static_cast<Code>(value != value ? nan : rounded);
  }
};

// Several elements a byte. Their order in it does not matter, since all of a byte are done.
template <int kBits, bool kSigned>
void Packed(Op op, void* out, const void* a, const void* b, int64_t n) {
  constexpr int kPerByte = 8 / kBits;
  constexpr uint8_t kMask = (1u << kBits) - 1;
  auto* o = static_cast<uint8_t*>(out);
  const auto* x = static_cast<const uint8_t*>(a);
  const auto* y = static_cast<const uint8_t*>(b);
  auto take = [](uint8_t byte, int slot) {
    const uint8_t code = static_cast<uint8_t>((byte >> (slot * kBits)) & kMask);
    if (!kSigned) return static_cast<int8_t>(code);
    return static_cast<int8_t>(static_cast<int8_t>(code << (8 - kBits)) >> (8 - kBits));
  };
  for (int64_t byte = 0; byte * kPerByte < n; ++byte) {
    uint8_t packed = 0;
    for (int slot = 0; slot < kPerByte; ++slot) {
      const int8_t p = take(x[byte], slot), q = take(y[byte], slot);
      int8_t r = 0;
      Plain<int8_t>(op, &r, &p, &q, 1);
      packed = static_cast<uint8_t>(packed | ((static_cast<uint8_t>(r) & kMask) << (slot * kBits)));
    }
    o[byte] = packed;
  }
}

// Bytes of 0 and 1.
void Pred(Op op, void* out, const void* a, const void* b, int64_t n) {
  switch (op) {
    case CollectiveOp::SUM:
    case CollectiveOp::MAXIMUM:
    case CollectiveOp::OR: return Loop<uint8_t>(out, a, b, n, Or());
    case CollectiveOp::PRODUCT:
    case CollectiveOp::MINIMUM:
    case CollectiveOp::AND: return Loop<uint8_t>(out, a, b, n, And());
    case CollectiveOp::XOR: return Loop<uint8_t>(out, a, b, n, Xor());
    default: LB_CHECK(false);
  }
}

enum class Class { kNone, kInteger, kFloat, kComplex };

Class ClassOf(DType dtype) {
  switch (dtype) {
    case DType::kPred:
    case DType::kS1:
    case DType::kU1:
    case DType::kS2:
    case DType::kU2:
    case DType::kS4:
    case DType::kU4:
    case DType::kS8:
    case DType::kU8:
    case DType::kS16:
    case DType::kU16:
    case DType::kS32:
    case DType::kU32:
    case DType::kS64:
    case DType::kU64: return Class::kInteger;
    case DType::kF16:
    case DType::kBF16:
    case DType::kF32:
    case DType::kF64:
    case DType::kF8E5M2:
    case DType::kF8E4M3FN:
    case DType::kF8E4M3B11FNUZ:
    case DType::kF8E5M2FNUZ:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E4M3:
    case DType::kF8E3M4: return Class::kFloat;
    case DType::kC64:
    case DType::kC128: return Class::kComplex;
    default: return Class::kNone;
  }
}

}  // namespace

absl::Status CheckReduction(DType dtype, CollectiveOp::Reduction reduction) {
  const Class kind = ClassOf(dtype);
  bool known = false;
  switch (reduction) {
    case CollectiveOp::SUM:
    case CollectiveOp::PRODUCT: known = kind != Class::kNone; break;
    case CollectiveOp::MINIMUM:
    case CollectiveOp::MAXIMUM: known = kind == Class::kInteger || kind == Class::kFloat; break;
    case CollectiveOp::AND:
    case CollectiveOp::OR:
    case CollectiveOp::XOR: known = kind == Class::kInteger; break;
    default: break;
  }
  if (known) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("arrays of ", DTypeName(dtype), " cannot be reduced by ",
                                               CollectiveOp::Reduction_Name(reduction), " over several workers"));
}

void Reduce(DType dtype, CollectiveOp::Reduction reduction, void* out, const void* a, const void* b, int64_t elements) {
  switch (dtype) {
    case DType::kPred: return Pred(reduction, out, a, b, elements);
    case DType::kS8: return Plain<int8_t>(reduction, out, a, b, elements);
    case DType::kU8: return Plain<uint8_t>(reduction, out, a, b, elements);
    case DType::kS16: return Plain<int16_t>(reduction, out, a, b, elements);
    case DType::kU16: return Plain<uint16_t>(reduction, out, a, b, elements);
    case DType::kS32: return Plain<int32_t>(reduction, out, a, b, elements);
    case DType::kU32: return Plain<uint32_t>(reduction, out, a, b, elements);
    case DType::kS64: return Plain<int64_t>(reduction, out, a, b, elements);
    case DType::kU64: return Plain<uint64_t>(reduction, out, a, b, elements);
    case DType::kF32: return Plain<float>(reduction, out, a, b, elements);
    case DType::kF64: return Plain<double>(reduction, out, a, b, elements);
    case DType::kC64: return Plain<std::complex<float>>(reduction, out, a, b, elements);
    case DType::kC128: return Plain<std::complex<double>>(reduction, out, a, b, elements);
    case DType::kF16: return Narrow<Half>(reduction, out, a, b, elements);
    case DType::kBF16: return Narrow<QuickBFloat16>(reduction, out, a, b, elements);
    case DType::kF8E5M2: return Narrow<F8E5M2>(reduction, out, a, b, elements);
    case DType::kF8E4M3: return Narrow<F8E4M3>(reduction, out, a, b, elements);
    case DType::kF8E3M4: return Narrow<F8E3M4>(reduction, out, a, b, elements);
    case DType::kF8E4M3FN: return Narrow<F8E4M3Fn>(reduction, out, a, b, elements);
    case DType::kF8E4M3FNUZ: return Narrow<F8E4M3Fnuz>(reduction, out, a, b, elements);
    case DType::kF8E4M3B11FNUZ: return Narrow<F8E4M3B11Fnuz>(reduction, out, a, b, elements);
    case DType::kF8E5M2FNUZ: return Narrow<F8E5M2Fnuz>(reduction, out, a, b, elements);
    case DType::kS4: return Packed<4, true>(reduction, out, a, b, elements);
    case DType::kU4: return Packed<4, false>(reduction, out, a, b, elements);
    case DType::kS2: return Packed<2, true>(reduction, out, a, b, elements);
    case DType::kU2: return Packed<2, false>(reduction, out, a, b, elements);
    case DType::kS1: return Packed<1, true>(reduction, out, a, b, elements);
    case DType::kU1: return Packed<1, false>(reduction, out, a, b, elements);
    default: LB_CHECK(false);
  }
}

}  // namespace landbridge
