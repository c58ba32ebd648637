// Floating-point types that processors do not know, as codes of up to 16 bits.
//
// Facts: the formats' exponent and mantissa widths, biases and special values are those of ml_dtypes.
// Thread-safety: pure functions.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace landbridge {

enum class SmallFloatSpecials {
  kIeee,  // infinities, many NaNs
  kFn,    // no infinity, NaN is all ones but the sign
  kFnuz,  // no infinity, no negative zero: its code is the only NaN
};

// `kExponentBits`, `kMantissaBits`: without the sign, which is the top bit.
template <int kExponentBits, int kMantissaBits, int kBias, SmallFloatSpecials kSpecials>
struct SmallFloat {
  using Code = std::conditional_t<(kExponentBits + kMantissaBits > 7), uint16_t, uint8_t>;
  static constexpr int kSignShift = kExponentBits + kMantissaBits;
  static constexpr uint32_t kMagnitudeMask = (1u << kSignShift) - 1;
  static constexpr uint32_t kExponentMax = (1u << kExponentBits) - 1;
  static constexpr uint32_t kMantissaMask = (1u << kMantissaBits) - 1;
  static constexpr uint32_t kLargest =  // finite magnitude
      kSpecials == SmallFloatSpecials::kIeee ? (kExponentMax << kMantissaBits) - 1
      : kSpecials == SmallFloatSpecials::kFn ? kMagnitudeMask - 1
                                             : kMagnitudeMask;

  static float Decode(Code code) {
    const uint32_t magnitude = code & kMagnitudeMask;
    const bool negative = (code >> kSignShift) & 1;
    if constexpr (kSpecials == SmallFloatSpecials::kFnuz) {
      if (negative && magnitude == 0) return std::numeric_limits<float>::quiet_NaN();
    }
    float value;
    if (magnitude > kLargest) {
      const bool infinite = kSpecials == SmallFloatSpecials::kIeee && magnitude == kLargest + 1;
      value = infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    } else {
      const uint32_t exponent = magnitude >> kMantissaBits;
      const uint32_t mantissa = magnitude & kMantissaMask;
      value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - kBias - kMantissaBits)
                            : std::ldexp(static_cast<float>(mantissa | (1u << kMantissaBits)),
                                         static_cast<int>(exponent) - kBias - kMantissaBits);
    }
    return negative ? -value : value;
  }

  // To nearest, ties to even. Beyond the largest: infinity where there is one, else NaN.
  static Code Encode(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t sign = (bits >> 31) << kSignShift;
    if (std::isnan(value)) return Nan(sign);
    const uint32_t magnitude = RoundMagnitude(bits & 0x7fffffffu);
    if (magnitude > kLargest) {
      return kSpecials == SmallFloatSpecials::kIeee ? static_cast<Code>(sign | (kLargest + 1)) : Nan(sign);
    }
    if (kSpecials == SmallFloatSpecials::kFnuz && magnitude == 0) return 0;
    return static_cast<Code>(sign | magnitude);
  }

 private:
  static Code Nan(uint32_t sign) {
    if constexpr (kSpecials == SmallFloatSpecials::kFnuz) return static_cast<Code>(1u << kSignShift);
    if constexpr (kSpecials == SmallFloatSpecials::kFn) return static_cast<Code>(sign | kMagnitudeMask);
    return static_cast<Code>(sign | (kExponentMax << kMantissaBits) | (1u << (kMantissaBits - 1)));
  }

  // `bits`: a float without its sign, not NaN. The result may be above kLargest.
  static uint32_t RoundMagnitude(uint32_t bits) {
    const bool subnormal = bits < (1u << 23);
    const int exponent = subnormal ? -126 : static_cast<int>(bits >> 23) - 127;
    const uint32_t mantissa = subnormal ? bits : (bits & 0x7fffffu) | (1u << 23);
    // How many of the 24 bits go; more where the result is subnormal.
    int drop = 23 - kMantissaBits;
    uint32_t base = 0;
    if (subnormal || exponent < 1 - kBias) {
      drop += 1 - kBias - exponent;
    } else {
      if (exponent + kBias > static_cast<int>(kExponentMax) + 1) return kLargest + 1;
      base = static_cast<uint32_t>(exponent + kBias - 1) << kMantissaBits;
    }
    if (drop > 25) return 0;
    const uint32_t kept = drop < 32 ? mantissa >> drop : 0;
    const uint32_t rest = mantissa - (kept << drop);
    const uint32_t half = 1u << (drop - 1);
    const uint32_t up = rest > half || (rest == half && (kept & 1) != 0) ? 1 : 0;
    return base + kept + up;  // a carry goes into the exponent, as it should
  }
};

using Half = SmallFloat<5, 10, 15, SmallFloatSpecials::kIeee>;
using BFloat16 = SmallFloat<8, 7, 127, SmallFloatSpecials::kIeee>;
using F8E5M2 = SmallFloat<5, 2, 15, SmallFloatSpecials::kIeee>;
using F8E4M3 = SmallFloat<4, 3, 7, SmallFloatSpecials::kIeee>;
using F8E3M4 = SmallFloat<3, 4, 3, SmallFloatSpecials::kIeee>;
using F8E4M3Fn = SmallFloat<4, 3, 7, SmallFloatSpecials::kFn>;
using F8E4M3Fnuz = SmallFloat<4, 3, 8, SmallFloatSpecials::kFnuz>;
using F8E4M3B11Fnuz = SmallFloat<4, 3, 11, SmallFloatSpecials::kFnuz>;
using F8E5M2Fnuz = SmallFloat<5, 2, 16, SmallFloatSpecials::kFnuz>;

}  // namespace landbridge
