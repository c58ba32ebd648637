#include "worker/shell/box_copy.h"

#include <numeric>
#include <random>
#include <vector>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::byte> Numbered(int64_t bytes) {
  std::vector<std::byte> image(static_cast<size_t>(bytes));
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>((i * 7 + i / 256) & 0xff);
  return image;
}

// Calls fn(index) for each element of the extents, row-major.
template <typename Fn>
void ForEach(const std::vector<int64_t>& extents, Fn fn) {
  std::vector<int64_t> index(extents.size(), 0);
  for (int64_t extent : extents) {
    if (extent == 0) return;
  }
  while (true) {
    fn(index);
    size_t i = extents.size();
    while (i-- > 0) {
      if (++index[i] < extents[i]) break;
      index[i] = 0;
      if (i == 0) return;
    }
    if (extents.empty()) return;
  }
}

TEST(DenseBytes, ChecksBeforeAnythingIsAllocated) {
  EXPECT_EQ(*DenseBytes({2, 3}, 4), 24);
  EXPECT_EQ(*DenseBytes({}, 8), 8);
  EXPECT_EQ(*DenseBytes({int64_t{1} << 60, 0}, 8), 0);
  EXPECT_EQ(*DenseBytes({limits::kArrayBytesMax / 8}, 8), limits::kArrayBytesMax);
  EXPECT_EQ(DenseBytes({limits::kArrayBytesMax / 8 + 1}, 8).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(DenseBytes({int64_t{1} << 40, int64_t{1} << 40}, 8).ok());
  EXPECT_FALSE(DenseBytes({-1}, 8).ok());
  EXPECT_TRUE(DenseBytes(std::vector<int64_t>(limits::kRankMax, 1), 1).ok());
  EXPECT_FALSE(DenseBytes(std::vector<int64_t>(limits::kRankMax + 1, 1), 1).ok());
}

TEST(Strides, DenseOnes) {
  EXPECT_THAT(DenseStrides({2, 3, 4}, 4), ElementsAre(48, 16, 4));
  EXPECT_TRUE(IsDense({2, 3}, {}, 4));
  EXPECT_THAT(DenseStrides({}, 4), ElementsAre());
  const std::vector<int64_t> empty = {int64_t{1} << 60, int64_t{1} << 60, 0};
  EXPECT_THAT(DenseStrides(empty, 4), ElementsAre(0, 0, 0)) << "no product of large dimensions is made";
  EXPECT_EQ(IndexBox::Whole(empty).Elements(), 0);
  EXPECT_TRUE(IsDense({2, 3}, {12, 4}, 4));
  EXPECT_FALSE(IsDense({2, 3}, {4, 8}, 4));
  EXPECT_TRUE(IsDense({1, 3}, {999, 4}, 4)) << "the stride of a dimension of size one does not matter";
  EXPECT_TRUE(IsDense({0, 3}, {4, 8}, 4));
  EXPECT_FALSE(IsDense({2, 3}, {12}, 4));
}

TEST(Strides, StayInsideTheImage) {
  EXPECT_TRUE(CheckStrides({2, 3}, {4, 8}, 4, 24).ok());
  EXPECT_FALSE(CheckStrides({2, 3}, {4, 8}, 4, 23).ok());
  EXPECT_TRUE(CheckStrides({5}, {0}, 4, 4).ok());
  EXPECT_THAT(CheckStrides({5}, {-4}, 4, 20).message(), HasSubstr("negative stride"));
  EXPECT_FALSE(CheckStrides({int64_t{1} << 40}, {int64_t{1} << 40}, 4, 100).ok()) << "overflow";
  EXPECT_FALSE(CheckStrides({2, 3}, {4}, 4, 24).ok());
  EXPECT_TRUE(CheckStrides({0, 3}, {4, 8}, 4, 0).ok());
}

TEST(Boxes, AreChecked) {
  EXPECT_TRUE(CheckBox({4, 4}, {{0, 1}, {4, 3}}).ok());
  EXPECT_FALSE(CheckBox({4, 4}, {{0, 1}, {4, 5}}).ok());
  EXPECT_FALSE(CheckBox({4, 4}, {{-1, 1}, {4, 4}}).ok());
  EXPECT_FALSE(CheckBox({4, 4}, {{3, 1}, {2, 4}}).ok());
  EXPECT_FALSE(CheckBox({4, 4}, {{0}, {4}}).ok());
  EXPECT_TRUE(CheckBox({}, {{}, {}}).ok());
}

TEST(Boxes, ContiguousOnes) {
  auto range = ContiguousRange({4, 6}, {{1, 0}, {3, 6}}, 4);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->offset, 24);
  EXPECT_EQ(range->bytes, 48);
  EXPECT_FALSE(ContiguousRange({4, 6}, {{1, 0}, {3, 5}}, 4).has_value());
  range = ContiguousRange({4, 6}, {{2, 1}, {3, 5}}, 2);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->offset, (2 * 6 + 1) * 2);
  EXPECT_EQ(range->bytes, 8);
  range = ContiguousRange({}, {{}, {}}, 8);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->bytes, 8);
  EXPECT_EQ(ContiguousRange({4, 6}, {{1, 2}, {1, 5}}, 4)->bytes, 0);
}

// Against the definition, element by element, for random shapes, boxes and strides.
TEST(Boxes, CopyAndGatherEqualTheDefinition) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 600; ++round) {
    const int64_t element = std::vector<int64_t>{1, 2, 3, 4, 8, 16}[random() % 6];
    const size_t rank = random() % 5;
    std::vector<int64_t> src_dims(rank), dst_dims(rank);
    IndexBox src_box, dst_box;
    for (size_t i = 0; i < rank; ++i) {
      const int64_t extent = static_cast<int64_t>(random() % 4) + (random() % 10 != 0 ? 1 : 0);
      const int64_t a = static_cast<int64_t>(random() % 3), b = static_cast<int64_t>(random() % 3);
      src_box.start.push_back(a);
      src_box.limit.push_back(a + extent);
      dst_box.start.push_back(b);
      dst_box.limit.push_back(b + extent);
      src_dims[i] = a + extent + static_cast<int64_t>(random() % 2);
      dst_dims[i] = b + extent + static_cast<int64_t>(random() % 2);
    }
    ASSERT_TRUE(CheckBox(src_dims, src_box).ok());
    std::vector<int64_t> src_strides = DenseStrides(src_dims, element);
    if (rank > 1 && *DenseBytes(src_dims, element) > 0 && random() % 2) {  // column-major source
      int64_t stride = element;
      for (size_t i = 0; i < rank; ++i) {
        src_strides[i] = stride;
        stride *= src_dims[i];
      }
    }
    const std::vector<int64_t> dst_strides = DenseStrides(dst_dims, element);
    const auto src = Numbered(*DenseBytes(src_dims, element));
    std::vector<std::byte> got(static_cast<size_t>(*DenseBytes(dst_dims, element)), std::byte{0xee});
    auto want = got;
    std::vector<std::byte> packed;
    const Dims extents = src_box.dims();
    ForEach({extents.begin(), extents.end()}, [&](const std::vector<int64_t>& index) {
      int64_t from = OffsetOf(src_box.start, src_strides) + OffsetOf(index, src_strides);
      int64_t to = OffsetOf(dst_box.start, dst_strides) + OffsetOf(index, dst_strides);
      for (int64_t i = 0; i < element; ++i) {
        want[static_cast<size_t>(to + i)] = src[static_cast<size_t>(from + i)];
        packed.push_back(src[static_cast<size_t>(from + i)]);
      }
    });
    CopyStrided(got.data() + OffsetOf(dst_box.start, dst_strides), dst_strides,
                src.data() + OffsetOf(src_box.start, src_strides), src_strides, src_box.dims(), element);
    ASSERT_EQ(got, want) << "round " << round;

    const int64_t total = static_cast<int64_t>(packed.size());
    for (int part = 0; part < 4; ++part) {
      const int64_t offset = static_cast<int64_t>(random() % static_cast<uint64_t>(total + 1));
      const int64_t bytes = static_cast<int64_t>(random() % static_cast<uint64_t>(total - offset + 1));
      std::vector<std::byte> gathered(static_cast<size_t>(bytes));
      GatherPackedRange(gathered.data(), offset, bytes, src.data(), src_strides, src_box, element);
      ASSERT_EQ(gathered, std::vector<std::byte>(packed.begin() + offset, packed.begin() + offset + bytes))
          << "round " << round << " offset " << offset;
      // And back: what was not in the range stays as it was.
      std::vector<std::byte> image(src.size(), std::byte{0x5a});
      ScatterPackedRange(image.data(), src_strides, src_box, element, gathered.data(), offset, bytes);
      std::vector<std::byte> again(static_cast<size_t>(total));
      GatherPackedRange(again.data(), 0, total, image.data(), src_strides, src_box, element);
      for (int64_t i = 0; i < total; ++i) {
        const bool inside = i >= offset && i < offset + bytes;
        ASSERT_EQ(again[static_cast<size_t>(i)], inside ? packed[static_cast<size_t>(i)] : std::byte{0x5a})
            << "round " << round << " byte " << i;
      }
    }
  }
}

TEST(Boxes, ZeroStridesBroadcast) {
  const std::vector<int32_t> src = {5, 6};
  std::vector<int32_t> dst(6);
  CopyStrided(reinterpret_cast<std::byte*>(dst.data()), DenseStrides({3, 2}, 4),
              reinterpret_cast<const std::byte*>(src.data()), {0, 4}, {3, 2}, 4);
  EXPECT_THAT(dst, ElementsAre(5, 6, 5, 6, 5, 6));
}

TEST(Bits, PackAndUnpackAreInverse) {
  for (int bits : {1, 2, 4}) {
    for (int64_t elements : {0, 1, 2, 3, 7, 8, 9, 31}) {
      std::vector<std::byte> image(static_cast<size_t>(elements));
      for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>((i * 5 + 1) & ((1u << bits) - 1));
      std::vector<std::byte> packed(static_cast<size_t>((elements * bits + 7) / 8), std::byte{0xaa});
      PackBits(packed.data(), image.data(), elements, bits);
      std::vector<std::byte> back(image.size());
      UnpackBits(back.data(), packed.data(), elements, bits, false);
      EXPECT_EQ(back, image) << bits << " bits, " << elements << " elements";
    }
  }
}

// A box, packed as if its elements lay in an image of their own; any bytes of it, there and back.
TEST(Bits, BoxesTravelPacked) {
  const std::vector<int64_t> dims = {5, 7, 3};
  const IndexBox box{{1, 2, 0}, {4, 7, 3}};  // 45 elements
  const std::vector<int64_t> strides = DenseStrides(dims, 1);
  for (int bits : {1, 2, 4}) {
    auto image = Numbered(5 * 7 * 3);
    for (std::byte& element : image) element &= static_cast<std::byte>((1u << bits) - 1);
    std::vector<std::byte> elements(45);
    GatherPackedRange(elements.data(), 0, 45, image.data(), strides, box, 1);
    const int64_t total = PackedBytes(45, bits);
    EXPECT_EQ(total, (45 * bits + 7) / 8);
    std::vector<std::byte> packed(static_cast<size_t>(total));
    PackBits(packed.data(), elements.data(), 45, bits);
    for (int64_t offset = 0; offset <= total; ++offset) {
      for (int64_t bytes = 0; bytes <= total - offset; ++bytes) {
        std::vector<std::byte> gathered(static_cast<size_t>(bytes));
        GatherPackedBits(gathered.data(), offset, bytes, image.data(), strides, box, bits);
        ASSERT_EQ(gathered, std::vector<std::byte>(packed.begin() + offset, packed.begin() + offset + bytes));
        std::vector<std::byte> back(image.size(), std::byte{0x5a}), want = back;
        ScatterPackedBits(back.data(), strides, box, bits, gathered.data(), offset, bytes);
        const int64_t per_byte = 8 / bits, first = offset * per_byte;
        const int64_t count = std::max<int64_t>(0, std::min<int64_t>(45, (offset + bytes) * per_byte) - first);
        if (count > 0) ScatterPackedRange(want.data(), strides, box, 1, elements.data() + first, first, count);
        ASSERT_EQ(back, want) << bits << " bits, bytes " << offset << " to " << offset + bytes;
      }
    }
  }
  EXPECT_EQ(PackedBytes(0, 4), 0);
  EXPECT_EQ(PackedBytes(3, 128), 48);
}

TEST(Bits, FirstElementIsLowest) {  // as XLA lays out s4 on a CPU
  const std::vector<std::byte> image = {std::byte{1}, std::byte{2}, std::byte{0xfd}, std::byte{1}, std::byte{7}};
  std::vector<std::byte> packed(3);
  PackBits(packed.data(), image.data(), 5, 4);
  EXPECT_THAT(packed, ElementsAre(std::byte{0x21}, std::byte{0x1d}, std::byte{0x07}));
  std::vector<std::byte> back(5);
  UnpackBits(back.data(), packed.data(), 5, 4, true);
  EXPECT_EQ(back, image) << "sign comes back";
}

}  // namespace
}  // namespace landbridge
