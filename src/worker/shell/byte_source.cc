#include "worker/shell/byte_source.h"

#include <cstring>
#include <optional>
#include <utility>

#include "base/status.h"

namespace landbridge {
namespace {

std::optional<ByteRange> OneRun(DType dtype, absl::Span<const int64_t> dims, const IndexBox& box) {
  if (IsSubByte(dtype)) return std::nullopt;  // images have a byte per element
  return ContiguousRange(dims, box, HostElementBytes(dtype));
}

}  // namespace

BoxSource::BoxSource(HostImage image, DType dtype, absl::Span<const int64_t> dims, IndexBox box, TaskPool* pool)
    : bytes_(PackedBytes(box.Elements(), DeviceElementBits(dtype))),
      packs_(!OneRun(dtype, dims, box).has_value()),
      pool_(pool) {
  if (auto range = OneRun(dtype, dims, box)) {
    ready_ = HostImage{image.data + range->offset, range->bytes, std::move(image.owner)};
    return;
  }
  const int element_bytes = HostElementBytes(dtype);
  layout_ = std::make_shared<const Layout>(Layout{std::move(image), DenseStrides(dims, element_bytes), std::move(box),
                                                  element_bytes, DeviceElementBits(dtype)});
}

void BoxSource::Layout::Pack(std::byte* dst, int64_t offset, int64_t bytes) const {
  if (bits < 8) {
    GatherPackedBits(dst, offset, bytes, image.data, strides, box, bits);
  } else {
    GatherPackedRange(dst, offset, bytes, image.data, strides, box, element_bytes);
  }
}

void BoxSource::Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) {
  HostImage ready;
  std::shared_ptr<const Layout> layout;
  {
    absl::MutexLock lock(&mutex_);
    ready = ready_;
    layout = layout_;
  }
  if (layout == nullptr) return done(dataplane::Chunk{ready.data + offset, size, std::move(ready.owner)});
  pool_->Run([layout = std::move(layout), offset, size, done = std::move(done)]() mutable {
    auto piece = AllocateImage(static_cast<int64_t>(size));
    if (!piece.ok()) return done(piece.status());
    layout->Pack(piece->data, static_cast<int64_t>(offset), static_cast<int64_t>(size));
    layout.reset();  // the chunk holds its own bytes
    done(dataplane::Chunk{piece->data, size, piece->owner});
  });
}

absl::StatusOr<HostImage> BoxSource::Copy() const {
  HostImage ready;
  std::shared_ptr<const Layout> layout;
  {
    absl::MutexLock lock(&mutex_);
    ready = ready_;
    layout = layout_;
  }
  LB_ASSIGN_OR_RETURN(OwnedImage copy, AllocateImage(bytes_));
  if (layout != nullptr) {
    layout->Pack(copy.data, 0, bytes_);
  } else if (bytes_ > 0) {
    std::memcpy(copy.data, ready.data, static_cast<size_t>(bytes_));
  }
  return copy.Read();
}

void BoxSource::Switch(HostImage copy) {
  std::shared_ptr<const Layout> layout;
  absl::MutexLock lock(&mutex_);
  std::swap(ready_, copy);  // both are destroyed without the lock
  layout_.swap(layout);
}

void SwitchableSource::Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) {
  HostImage now = image();
  done(dataplane::Chunk{now.data + offset, size, now.owner});
}

HostImage SwitchableSource::image() const {
  absl::MutexLock lock(&mutex_);
  return image_;
}

absl::StatusOr<HostImage> SwitchableSource::Copy() const {
  const HostImage now = image();
  LB_ASSIGN_OR_RETURN(OwnedImage copy, AllocateImage(now.bytes));
  if (now.bytes > 0) std::memcpy(copy.data, now.data, static_cast<size_t>(now.bytes));
  return copy.Read();
}

void SwitchableSource::Switch(HostImage same_bytes) {
  absl::MutexLock lock(&mutex_);
  std::swap(image_, same_bytes);
}

HostImage NotifyWhenReleased(HostImage image, std::function<void()> released) {
  struct Holder {
    Holder(std::shared_ptr<const void> held, std::function<void()> call)
        : owner(std::move(held)), released(std::move(call)) {}
    ~Holder() {
      owner.reset();
      released();
    }
    std::shared_ptr<const void> owner;
    std::function<void()> released;
  };
  image.owner = std::make_shared<Holder>(std::move(image.owner), std::move(released));
  return image;
}

}  // namespace landbridge
