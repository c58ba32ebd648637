// Bytes in and out of device buffers, on whatever the plugin is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "pjrt/client.h"
#include "proto/landbridge/control.pb.h"
#include "worker/shell/device_store.h"

namespace landbridge {

// Host memory that lives as long as its owner.
struct HostImage {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<const void> owner;
};

// Memory of our own, content undefined. RESOURCE_EXHAUSTED if the host has no more.
struct OwnedImage {
  std::byte* data = nullptr;
  int64_t bytes = 0;
  std::shared_ptr<void> owner;
  HostImage Read() const { return {data, bytes, owner}; }
};
absl::StatusOr<OwnedImage> AllocateImage(int64_t bytes);

// Whether this process can read `bytes` bytes at `address`, without trying it the hard way.
bool HostCanRead(const void* address, size_t bytes);

// Wire images (base/dtype.h HostElementBytes: a byte per sub-byte element) to and from buffers.
//
// Thread-safety: all members from any thread, after Create.
class BufferIo {
 public:
  // Where the plugin's memory should be ordinary memory for us (pjrt::Traits), makes one small buffer to see that it is.
  static absl::StatusOr<std::unique_ptr<BufferIo>> Create(pjrt::Client* client);

  pjrt::Client& client() const { return *client_; }
  int device_count() const { return static_cast<int>(client_->devices().size()); }
  // Device memory can be read and written in place through an external reference.
  bool host_accessible() const { return host_accessible_; }

  // INVALID_ARGUMENT for a device that is not there, UNIMPLEMENTED for a memory kind that it lacks.
  absl::StatusOr<const pjrt::Memory*> FindMemory(uint32_t device, MemoryKindProto kind) const;

  // The type is known, held by devices, and not longer than fits: bytes of its dense wire image.
  static absl::StatusOr<int64_t> ImageBytes(DType dtype, absl::Span<const int64_t> dims);

  // Its bytes in memory are its dense wire image: row-major, whole bytes per element, readable by us.
  bool IsInPlace(const pjrt::Buffer& buffer, DType dtype, int64_t image_bytes) const;
  // A buffer of this type in any of our memories, made uninitialised, will be in place.
  bool CanFillInPlace(DType dtype) const { return host_accessible_ && !IsSubByte(dtype); }

  // The dense wire image of a resident buffer: in place where possible, else a copy. Blocks for the copy: not on
  // the loop's thread unless IsInPlace.
  absl::StatusOr<HostImage> ReadImage(const std::shared_ptr<BufferSlot>& slot, DType dtype,
                                      absl::Span<const int64_t> dims) const;

  // A copy of the dense wire image, which has `image_bytes`, made by the plugin. Blocks.
  absl::StatusOr<HostImage> CopyOut(const pjrt::Buffer& buffer, DType dtype, int64_t image_bytes) const;

  // A buffer with the content of an image, which is not needed any more when this returns. The buffer may still
  // have to become ready.
  absl::StatusOr<pjrt::Buffer> FromImage(const std::byte* data, DType dtype, absl::Span<const int64_t> dims,
                                         absl::Span<const int64_t> byte_strides, const pjrt::Memory& memory) const;

 private:
  explicit BufferIo(pjrt::Client* client) : client_(client) {}

  pjrt::Client* const client_;
  bool host_accessible_ = false;
};

}  // namespace landbridge
