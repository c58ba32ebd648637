// With a real plugin: bytes in and out of buffers, slots and pins.
#include "worker/shell/buffer_io.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pjrt/test_support.h"
#include "worker/shell/box_copy.h"
#include "worker/shell/device_store.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

class BufferIoTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { pjrt::PreparePluginEnvironment(2); }
  void SetUp() override {
    auto plugin = pjrt::Plugin::Load(pjrt::TestPluginPath());
    ASSERT_TRUE(plugin.ok()) << plugin.status();
    auto client = (*plugin)->CreateClient(pjrt::Plugin::CpuOptions(2));
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    auto io = BufferIo::Create(client_.get());
    ASSERT_TRUE(io.ok()) << io.status();
    io_ = *std::move(io);
  }

  std::shared_ptr<BufferSlot> Make(const std::vector<std::byte>& image, DType dtype, const std::vector<int64_t>& dims,
                                   const std::vector<int64_t>& strides = {}) {
    auto buffer = io_->FromImage(image.data(), dtype, dims, strides, *client_->devices()[1].default_memory);
    EXPECT_TRUE(buffer.ok()) << buffer.status();
    auto slot = std::make_shared<BufferSlot>();
    EXPECT_TRUE(buffer->ReadyEvent()->Await().ok());
    slot->Fill(*std::move(buffer));
    return slot;
  }
  std::vector<std::byte> Read(const std::shared_ptr<BufferSlot>& slot, DType dtype, const std::vector<int64_t>& dims) {
    auto image = io_->ReadImage(slot, dtype, dims);
    EXPECT_TRUE(image.ok()) << image.status();
    if (!image.ok()) return {};
    return {image->data, image->data + image->bytes};
  }

  std::unique_ptr<pjrt::Client> client_;
  std::unique_ptr<BufferIo> io_;
};

TEST_F(BufferIoTest, CpuMemoryIsReadInPlace) {
  EXPECT_TRUE(io_->host_accessible());
  EXPECT_EQ(io_->device_count(), 2);
  std::vector<std::byte> image(4096);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<std::byte>(i % 251);
  auto slot = Make(image, DType::kF32, {32, 32});
  EXPECT_TRUE(io_->IsInPlace(*slot->buffer(), DType::kF32, 4096));
  EXPECT_FALSE(io_->IsInPlace(*slot->buffer(), DType::kF32, 4097)) << "it has fewer bytes";
  EXPECT_EQ(Read(slot, DType::kF32, {32, 32}), image);
}

TEST_F(BufferIoTest, EverySubByteTypeComesBack) {
  for (DType dtype : {DType::kS4, DType::kU4, DType::kS2, DType::kU2}) {
    const int bits = DeviceElementBits(dtype);
    // Only the low bits count, both ways: XLA leaves the others zero when it unpacks, numpy's types ignore them.
    const std::byte mask = static_cast<std::byte>((1u << bits) - 1);
    std::vector<std::byte> image(15), want(15);
    for (size_t i = 0; i < image.size(); ++i) {
      image[i] = static_cast<std::byte>(i * 0x35);
      want[i] = image[i] & mask;
    }
    auto slot = Make(image, dtype, {3, 5});
    EXPECT_FALSE(io_->IsInPlace(*slot->buffer(), dtype, 15));
    std::vector<std::byte> got = Read(slot, dtype, {3, 5});
    for (std::byte& value : got) value &= mask;
    EXPECT_EQ(got, want) << DTypeName(dtype);
  }
}

TEST_F(BufferIoTest, StridedImages) {
  std::vector<float> values(12);
  std::iota(values.begin(), values.end(), 0.0f);
  std::vector<std::byte> image(48);
  std::memcpy(image.data(), values.data(), 48);
  auto slot = Make(image, DType::kF32, {4, 3}, {4, 16});  // column-major
  const std::vector<std::byte> bytes = Read(slot, DType::kF32, {4, 3});
  std::vector<float> got(12);
  ASSERT_EQ(bytes.size(), 48u);
  std::memcpy(got.data(), bytes.data(), 48);
  EXPECT_EQ(got, (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
}

TEST_F(BufferIoTest, EmptyArraysAndScalars) {
  auto empty = Make({}, DType::kF64, {0, 7});
  EXPECT_TRUE(Read(empty, DType::kF64, {0, 7}).empty());
  const std::vector<std::byte> one(8, std::byte{42});
  EXPECT_EQ(Read(Make(one, DType::kS64, {}), DType::kS64, {}), one);
}

TEST_F(BufferIoTest, RefusesWhatCannotBe) {
  EXPECT_EQ(io_->FindMemory(2, MEMORY_DEVICE).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(io_->FindMemory(1, MEMORY_PINNED_HOST).ok());
  EXPECT_EQ(BufferIo::ImageBytes(DType::kString, {3}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(BufferIo::ImageBytes(static_cast<DType>(12345), {3}).status().code(), absl::StatusCode::kInvalidArgument);
  auto slot = Make(std::vector<std::byte>(8), DType::kS4, {8});
  EXPECT_FALSE(io_->ReadImage(slot, DType::kS4, {4000}).ok()) << "described larger than it is";
}

TEST_F(BufferIoTest, HostCanReadSaysNoWithoutACrash) {
  int x = 7;
  EXPECT_TRUE(HostCanRead(&x, sizeof(x)));
  EXPECT_FALSE(HostCanRead(reinterpret_cast<const void*>(uintptr_t{16}), 4));
}

TEST_F(BufferIoTest, SlotsFillOnceFailForEverAndKeepPins) {
  auto slot = Make(std::vector<std::byte>(16, std::byte{3}), DType::kU8, {16});
  auto pinned = slot->Pin();
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  std::shared_ptr<pjrt::Buffer> taken = slot->Take();
  EXPECT_NE(taken, nullptr);
  EXPECT_EQ(slot->buffer(), nullptr);
  taken.reset();
  EXPECT_EQ((*pinned)->data()[15], std::byte{3}) << "the pin holds the memory";
  pinned->reset();
  EXPECT_FALSE(slot->Pin().ok());

  auto failed = std::make_shared<BufferSlot>();
  failed->Fail(absl::ResourceExhaustedError("first"));
  failed->Fail(absl::InternalError("second"));
  EXPECT_EQ(failed->failure().message(), "first");
  auto buffer = io_->FromImage(nullptr, DType::kU8, std::vector<int64_t>{0}, {}, *client_->devices()[0].default_memory);
  ASSERT_TRUE(buffer.ok());
  failed->Fill(*std::move(buffer));
  EXPECT_EQ(failed->buffer(), nullptr);

  DeviceStore store;
  const BufferRef ref{ArrayId(4), 2};
  EXPECT_EQ(store.Find(ref), nullptr);
  auto made = store.Create(ref, 1);
  EXPECT_EQ(store.Find(ref)->slot, made);
  EXPECT_EQ(store.Find(ref)->device, 1);
  store.Erase(ref);
  EXPECT_EQ(store.Find(ref), nullptr);
}

}  // namespace
}  // namespace landbridge
