#include "worker/shell/device_store.h"

#include <utility>

namespace landbridge {

void BufferSlot::Fill(pjrt::Buffer buffer) { FillShared(std::make_shared<pjrt::Buffer>(std::move(buffer))); }

void BufferSlot::FillShared(std::shared_ptr<pjrt::Buffer> buffer) {
  absl::MutexLock lock(&mutex_);
  if (failure_.ok()) buffer_.swap(buffer);
}

void BufferSlot::Fail(absl::Status why) {
  std::shared_ptr<pjrt::Buffer> dropped;
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  dropped.swap(buffer_);
}

std::shared_ptr<pjrt::Buffer> BufferSlot::buffer() const {
  absl::MutexLock lock(&mutex_);
  return buffer_;
}

absl::Status BufferSlot::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

std::shared_ptr<pjrt::Buffer> BufferSlot::Take() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(buffer_, nullptr);
}

absl::StatusOr<std::shared_ptr<const BufferSlot::Pinned>> BufferSlot::Pin() {
  auto pinned = std::make_shared<Pinned>();
  {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    if (buffer_ == nullptr) return absl::FailedPreconditionError("the buffer has no memory (any more)");
    pinned->buffer = buffer_;
  }
  pinned->slot = shared_from_this();
  absl::MutexLock lock(&pin_mutex_);
  auto reference = pinned->buffer->AcquireExternalReference();
  if (!reference.ok()) return reference.status();
  pinned->reference = *std::move(reference);
  return std::shared_ptr<const Pinned>(std::move(pinned));
}

BufferSlot::Pinned::~Pinned() {
  if (!reference) return;
  absl::MutexLock lock(&slot->pin_mutex_);
  reference = pjrt::ExternalReference();
}

std::shared_ptr<BufferSlot> DeviceStore::Create(BufferRef ref, int device) {
  auto slot = std::make_shared<BufferSlot>();
  entries_[ref] = Entry{slot, device};
  return slot;
}

const DeviceStore::Entry* DeviceStore::Find(BufferRef ref) const {
  auto it = entries_.find(ref);
  return it == entries_.end() ? nullptr : &it->second;
}

}  // namespace landbridge
