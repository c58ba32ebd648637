// One shard's memory on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "pjrt/c_api.h"
#include "pjrt/event.h"

namespace landbridge::pjrt {

class Client;
struct Device;
struct Memory;
class Plugin;

// Keeps a buffer's memory in place and readable at `data()` until destroyed: no donation takes it meanwhile
// (a launch that wants to donate it copies instead). Wait for the buffer's ready event before reading.
// Thread-safety: none; counts of one buffer are not locked by the plugin, so take and drop on one thread at a time.
class ExternalReference {
 public:
  ExternalReference() = default;
  ExternalReference(ExternalReference&& other) noexcept;
  ExternalReference& operator=(ExternalReference&& other) noexcept;
  ~ExternalReference();
  void* data() const { return data_; }
  explicit operator bool() const { return buffer_ != nullptr; }

 private:
  friend class Buffer;
  const Plugin* plugin_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
  void* data_ = nullptr;
};

// Thread-safety: const members from any thread, except AcquireExternalReference (see there).
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Plugin* plugin, PJRT_Buffer* buffer) : plugin_(plugin), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();  // the memory lives on for work that is under way

  explicit operator bool() const { return buffer_ != nullptr; }
  PJRT_Buffer* get() const { return buffer_; }

  absl::StatusOr<DType> dtype() const;
  absl::StatusOr<std::vector<int64_t>> dims() const;
  absl::StatusOr<size_t> on_device_bytes() const;
  absl::StatusOr<PJRT_Memory*> memory() const;
  absl::StatusOr<PJRT_Device*> device() const;
  absl::StatusOr<std::vector<int64_t>> minor_to_major() const;
  // True for a dense row-major buffer, whose bytes CopyRawToHost and external references show in that order.
  bool IsRowMajor() const;

  // Fires when the content is there or has failed.
  absl::StatusOr<Event> ReadyEvent() const;

  // Copies `bytes` from `offset` of the physical buffer; the event fires when `dst` is filled. On CPU this
  // hops through the plugin's pool: for a ready buffer an external reference and memcpy is 10 times faster.
  absl::StatusOr<Event> CopyRawToHost(void* dst, int64_t offset, int64_t bytes) const;
  // A dense row-major image whatever the device layout; sub-byte types take a byte each. `dst_bytes` must be
  // at least HostImageBytes().
  absl::StatusOr<Event> CopyToHost(void* dst, size_t dst_bytes) const;
  absl::StatusOr<size_t> HostImageBytes() const;

  absl::StatusOr<Buffer> CopyToMemory(PJRT_Memory* memory) const;
  absl::StatusOr<Buffer> CopyToDevice(PJRT_Device* device) const;

  // Never on an alias buffer that is not fulfilled yet.
  absl::StatusOr<ExternalReference> AcquireExternalReference() const;

  // Frees the memory once running work has finished with it; the object stays, as a deleted buffer.
  absl::Status Delete();
  bool IsDeleted() const;

 private:
  friend class Client;
  friend class LoadedExecutable;
  PJRT_Buffer* Release();
  const Plugin* plugin_ = nullptr;
  PJRT_Buffer* buffer_ = nullptr;
};

// The right to fill an alias buffer; made with it by Client::CreateAlias. Consume it exactly once: destroying it
// unfulfilled fails the buffer (ABORTED), for a forgotten one would leave its readers waiting for ever.
// Thread-safety: none.
class Promise {
 public:
  Promise() = default;
  Promise(Promise&& other) noexcept;
  Promise& operator=(Promise&& other) noexcept;
  ~Promise();
  explicit operator bool() const { return callback_ != nullptr; }

  // Donates `value` into the alias: same memory space, dtype, dims and row-major layout; `value` need not be
  // ready yet. It must be live and without external references: both are checked here where the plugin would
  // crash (deleted buffers) or left to the caller (references).
  absl::Status Fulfill(Buffer value);
  // Poisons the alias and all that reads it. Do not use for inputs of programs of several devices: peers hang.
  absl::Status Fail(const absl::Status& status);

 private:
  friend class Client;
  const Plugin* plugin_ = nullptr;
  PJRT_Client* client_ = nullptr;
  PJRT_FulfillAliasBufferCallback* callback_ = nullptr;
};

}  // namespace landbridge::pjrt
