#include "collectives/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <limits>

#include "collectives/small_float.h"

namespace landbridge {
namespace {

template <typename T>
std::vector<T> Reduced(DType dtype, CollectiveOp::Reduction reduction, std::vector<T> a, const std::vector<T>& b) {
  Reduce(dtype, reduction, a.data(), a.data(), b.data(), static_cast<int64_t>(a.size()));
  return a;
}

TEST(Reduce, IntegersWrapAround) {
  EXPECT_EQ(Reduced<int8_t>(DType::kS8, CollectiveOp::SUM, {127, -128}, {1, -1}), (std::vector<int8_t>{-128, 127}));
  EXPECT_EQ(Reduced<uint16_t>(DType::kU16, CollectiveOp::PRODUCT, {65535, 2}, {65535, 3}),
            (std::vector<uint16_t>{1, 6}));
  EXPECT_EQ(Reduced<int32_t>(DType::kS32, CollectiveOp::SUM, {INT32_MAX}, {1}), (std::vector<int32_t>{INT32_MIN}));
  EXPECT_EQ(Reduced<int64_t>(DType::kS64, CollectiveOp::PRODUCT, {INT64_MIN}, {-1}), (std::vector<int64_t>{INT64_MIN}));
  EXPECT_EQ(Reduced<int32_t>(DType::kS32, CollectiveOp::MINIMUM, {-1, 5}, {3, -7}), (std::vector<int32_t>{-1, -7}));
  EXPECT_EQ(Reduced<uint32_t>(DType::kU32, CollectiveOp::MAXIMUM, {4000000000u}, {1}),
            (std::vector<uint32_t>{4000000000u}));
  EXPECT_EQ(Reduced<uint8_t>(DType::kU8, CollectiveOp::XOR, {0b1100}, {0b1010}), (std::vector<uint8_t>{0b0110}));
}

TEST(Reduce, FloatsKeepNans) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (auto reduction : {CollectiveOp::SUM, CollectiveOp::PRODUCT, CollectiveOp::MINIMUM, CollectiveOp::MAXIMUM}) {
    const auto out = Reduced<float>(DType::kF32, reduction, {nan, 1}, {1, nan});
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1])) << reduction;
  }
  EXPECT_EQ(Reduced<double>(DType::kF64, CollectiveOp::MAXIMUM, {-1.5, 2}, {-2.5, 3}), (std::vector<double>{-1.5, 3}));
}

TEST(Reduce, ComplexNumbers) {
  using C = std::complex<float>;
  EXPECT_EQ(Reduced<C>(DType::kC64, CollectiveOp::PRODUCT, {C(1, 2)}, {C(3, 4)}), (std::vector<C>{C(-5, 10)}));
  EXPECT_EQ(CheckReduction(DType::kC64, CollectiveOp::MAXIMUM).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CheckReduction(DType::kF32, CollectiveOp::XOR).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(CheckReduction(DType::kToken, CollectiveOp::SUM).code(), absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(CheckReduction(DType::kF8E4M3FN, CollectiveOp::SUM).ok());
}

TEST(Reduce, TruthValues) {
  const std::vector<uint8_t> a{0, 0, 1, 1}, b{0, 1, 0, 1};
  EXPECT_EQ(Reduced(DType::kPred, CollectiveOp::SUM, a, b), (std::vector<uint8_t>{0, 1, 1, 1}));
  EXPECT_EQ(Reduced(DType::kPred, CollectiveOp::MINIMUM, a, b), (std::vector<uint8_t>{0, 0, 0, 1}));
}

TEST(Reduce, PackedIntegers) {
  // Two elements a byte: 7 + 1 = -8 and -1 + -1 = -2.
  EXPECT_EQ(Reduced<uint8_t>(DType::kS4, CollectiveOp::SUM, {0x7f}, {0x1f}), (std::vector<uint8_t>{0x8e}));
  EXPECT_EQ(Reduced<uint8_t>(DType::kS4, CollectiveOp::MAXIMUM, {0x7f}, {0x91}), (std::vector<uint8_t>{0x71}));
  EXPECT_EQ(Reduced<uint8_t>(DType::kU4, CollectiveOp::MAXIMUM, {0x7f}, {0x91}), (std::vector<uint8_t>{0x9f}));
  EXPECT_EQ(BytesOfElements(DType::kS4, 3), 2);
  EXPECT_EQ(BytesOfElements(DType::kF32, 3), 12);
}

TEST(Reduce, HalfPrecisionRoundsToNearestEven) {
  auto bf16 = [](float value) { return BFloat16::Encode(value); };
  // 256 + 1 lies between 256 and 258: the even one wins.
  EXPECT_EQ(Reduced<uint16_t>(DType::kBF16, CollectiveOp::SUM, {bf16(256), bf16(258)}, {bf16(1), bf16(1)}),
            (std::vector<uint16_t>{bf16(256), bf16(260)}));
  auto f16 = [](float value) { return Half::Encode(value); };
  EXPECT_EQ(Reduced<uint16_t>(DType::kF16, CollectiveOp::SUM, {f16(2048), f16(60000)}, {f16(1), f16(60000)}),
            (std::vector<uint16_t>{f16(2048), 0x7c00}));
}

TEST(SmallFloat, KnownCodes) {
  EXPECT_EQ(Half::Encode(1.0f), 0x3c00);
  EXPECT_EQ(Half::Encode(-2.0f), 0xc000);
  EXPECT_EQ(Half::Encode(65504.0f), 0x7bff);
  EXPECT_EQ(Half::Encode(65520.0f), 0x7c00);
  EXPECT_EQ(Half::Encode(5.9604645e-8f), 0x0001);
  EXPECT_EQ(Half::Encode(2.9802322e-8f), 0x0000);  // half of the smallest: to even
  EXPECT_EQ(BFloat16::Encode(3.140625f), 0x4049);
  EXPECT_EQ(F8E4M3Fn::Encode(448.0f), 0x7e);
  EXPECT_EQ(F8E4M3Fn::Encode(1000.0f), 0x7f);
  EXPECT_EQ(F8E5M2::Encode(57344.0f), 0x7b);
  EXPECT_EQ(F8E5M2::Encode(1e9f), 0x7c);
  EXPECT_EQ(F8E4M3Fnuz::Encode(240.0f), 0x7f);
  EXPECT_EQ(F8E4M3Fnuz::Encode(-0.0f), 0x00);
  EXPECT_EQ(F8E4M3Fnuz::Encode(1000.0f), 0x80);
  EXPECT_EQ(F8E4M3B11Fnuz::Decode(0x7f), 30.0f);
  EXPECT_EQ(F8E3M4::Encode(15.5f), 0x6f);
}

// Each code stands for a number that has this code again.
template <typename Format>
void RoundTrips() {
  const int codes = 1 << (Format::kSignShift + 1);
  for (int code = 0; code < codes; ++code) {
    const float value = Format::Decode(static_cast<typename Format::Code>(code));
    const auto again = Format::Encode(value);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(Format::Decode(again)));
    } else {
      EXPECT_EQ(again, code) << value;
    }
  }
}

TEST(SmallFloat, EveryCodeComesBack) {
  RoundTrips<Half>();
  RoundTrips<BFloat16>();
  RoundTrips<F8E5M2>();
  RoundTrips<F8E4M3>();
  RoundTrips<F8E3M4>();
  RoundTrips<F8E4M3Fn>();
  RoundTrips<F8E4M3Fnuz>();
  RoundTrips<F8E4M3B11Fnuz>();
  RoundTrips<F8E5M2Fnuz>();
}

}  // namespace
}  // namespace landbridge
