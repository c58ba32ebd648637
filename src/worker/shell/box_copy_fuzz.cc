// Copies of boxes between strided images, against the plain way: element by element. Address sanitizer watches the ends.
#include "worker/shell/box_copy.h"

#include <cstring>
#include <memory>

#include "base/log.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

constexpr int64_t kBytesMax = 1 << 14;

// Visits a box in row-major order.
template <typename Fn>
void ForEach(const IndexBox& box, Fn fn) {
  if (box.Elements() == 0) return;
  std::vector<int64_t> at(box.start.begin(), box.start.end());
  while (true) {
    fn(at);
    size_t i = at.size();
    while (i > 0 && ++at[i - 1] == box.limit[i - 1]) {
      at[i - 1] = box.start[i - 1];
      --i;
    }
    if (i == 0) return;
  }
}

template <typename Fill>
std::string Filled(size_t size, Fill fill) {  // allocated to the byte
  std::unique_ptr<std::byte[]> out(new std::byte[size]);
  fill(out.get());
  return {reinterpret_cast<const char*>(out.get()), size};
}

// Elements of less than a byte, of which the image has a byte each: any run of bytes of the packed box, out of an image with
// any strides and into a dense one. `wanted`: the box's elements.
void CheckPackedBits(Choices* choices, const std::byte* image, const std::vector<int64_t>& strides,
                     const std::vector<int64_t>& dims, const IndexBox& box, const std::string& wanted) {
  const int bits = 1 << choices->Below(3);
  const size_t per_byte = 8 / static_cast<size_t>(bits);
  const std::string packed = Filled((wanted.size() + per_byte - 1) / per_byte, [&](std::byte* out) {
    PackBits(out, reinterpret_cast<const std::byte*>(wanted.data()), static_cast<int64_t>(wanted.size()), bits);
  });
  const size_t offset = choices->U64() % packed.size();
  const size_t bytes = choices->U64() % (packed.size() - offset + 1);
  const std::string run = Filled(bytes, [&](std::byte* out) {
    GatherPackedBits(out, static_cast<int64_t>(offset), static_cast<int64_t>(bytes), image, strides, box, bits);
  });
  LB_CHECK(run == packed.substr(offset, bytes));

  const std::vector<int64_t> dense = DenseStrides(dims, 1);
  const auto image_bytes = static_cast<size_t>(IndexBox::Whole(dims).Elements());
  constexpr char kUntouched = '\xa5';
  std::string back(image_bytes, kUntouched);
  size_t at = 0;
  ForEach(box, [&](const std::vector<int64_t>& index) {
    const char value = static_cast<char>(wanted[at] & ((1 << bits) - 1));
    if (at >= offset * per_byte && at < (offset + bytes) * per_byte)
      back[static_cast<size_t>(OffsetOf(index, dense))] = value;
    ++at;
  });
  LB_CHECK(Filled(image_bytes, [&](std::byte* out) {
             std::memset(out, kUntouched, image_bytes);
             ScatterPackedBits(out, dense, box, bits, reinterpret_cast<const std::byte*>(run.data()),
                               static_cast<int64_t>(offset), static_cast<int64_t>(bytes));
           }) == back);
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  return {"\x02\x03\x04\x01\x01\x03\x02\x04\x04\x01\x02\x03", "\x03\x02\x02\x03\x01",
          std::string("\x01\x07\x02\xff\xff", 5), std::string("\0\x04", 2),
          "\x04\x02\x01\x03\x02\x02\x11\x22\x33\x44\x55",
          // Elements of one byte, packed to bits.
          std::string("\x02\x00\x05\x07\x01\x07\x01\x01\x40\x00\x01\x04\x02\x06", 14) + std::string(16, '\x03') +
              "\x02" + std::string(7, '\0') + "\x02" + std::string(7, '\0') + "\x01"};
}

void FuzzOne(absl::string_view input) {
  Choices choices(input);
  const size_t rank = choices.Below(5);
  const int64_t element = int64_t{1} << choices.Below(5);
  std::vector<int64_t> dims(rank), strides(rank);
  for (int64_t& dim : dims) dim = choices.Size();
  for (int64_t& stride : strides) {
    const auto unit = static_cast<uint64_t>(choices.Flag() ? 1 : element);
    stride = static_cast<int64_t>(unit * static_cast<uint64_t>(choices.Size()));  // may wrap: any value will do
  }
  const int64_t image_bytes = static_cast<int64_t>(choices.Byte()) << choices.Below(7);
  const absl::StatusOr<int64_t> dense = DenseBytes(dims, element);
  if (!dense.ok() || *dense > kBytesMax) return;
  const std::vector<int64_t> dense_strides = DenseStrides(dims, element);
  const bool is_dense = IsDense(dims, strides, element);
  if (is_dense ? image_bytes < *dense : !CheckStrides(dims, strides, element, image_bytes).ok()) return;
  if (is_dense) strides = dense_strides;
  // Allocated to the byte, so that reading beyond is seen.
  std::unique_ptr<std::byte[]> image(new std::byte[static_cast<size_t>(image_bytes)]);
  for (int64_t i = 0; i < image_bytes; ++i) image[static_cast<size_t>(i)] = static_cast<std::byte>(i * 31 + (i >> 8));

  IndexBox box;
  for (size_t i = 0; i < rank; ++i) {
    box.start.push_back(choices.Size());
    box.limit.push_back(choices.Size());
  }
  if (!CheckBox(dims, box).ok()) box = IndexBox::Whole(dims);
  std::string wanted;
  ForEach(box, [&](const std::vector<int64_t>& at) {
    wanted.append(reinterpret_cast<const char*>(image.get() + OffsetOf(at, strides)), static_cast<size_t>(element));
  });
  const Dims extents = box.dims();
  if (!wanted.empty()) {
    const std::vector<int64_t> packed = DenseStrides(extents, element);
    LB_CHECK(Filled(wanted.size(), [&](std::byte* out) {
               CopyStrided(out, packed, image.get() + OffsetOf(box.start, strides), strides, extents, element);
             }) == wanted);
    const auto offset = static_cast<int64_t>(choices.U64() % wanted.size());
    const auto bytes = static_cast<int64_t>(choices.U64() % (wanted.size() - static_cast<size_t>(offset) + 1));
    LB_CHECK(Filled(static_cast<size_t>(bytes), [&](std::byte* out) {
               GatherPackedRange(out, offset, bytes, image.get(), strides, box, element);
             }) == wanted.substr(static_cast<size_t>(offset), static_cast<size_t>(bytes)));
  }
  if (element == 1 && !wanted.empty()) CheckPackedBits(&choices, image.get(), strides, dims, box, wanted);
  if (strides == dense_strides) {
    if (const std::optional<ByteRange> range = ContiguousRange(dims, box, element)) {
      LB_CHECK(range->bytes == static_cast<int64_t>(wanted.size()) && range->offset >= 0 &&
               range->offset + range->bytes <= *dense);
      LB_CHECK(std::memcmp(image.get() + range->offset, wanted.data(), wanted.size()) == 0);
    }
  }
  const int bits = 1 << choices.Below(3);
  const auto elements = static_cast<int64_t>(wanted.size());
  const std::string packed = Filled(static_cast<size_t>((elements * bits + 7) / 8), [&](std::byte* out) {
    PackBits(out, reinterpret_cast<const std::byte*>(wanted.data()), elements, bits);
  });
  const std::string back = Filled(wanted.size(), [&](std::byte* out) {
    UnpackBits(out, reinterpret_cast<const std::byte*>(packed.data()), elements, bits, choices.Flag());
  });
  for (size_t i = 0; i < wanted.size(); ++i) LB_CHECK(((back[i] ^ wanted[i]) & ((1 << bits) - 1)) == 0);
}

}  // namespace landbridge::fuzz
