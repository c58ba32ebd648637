#include "worker/shell/buffer_io.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "worker/shell/box_copy.h"

namespace landbridge {
namespace {

constexpr std::align_val_t kImageAlignment{64};
// Small images are written with one `write` into a pipe: below PIPE_BUF, so it never blocks half-way.
constexpr size_t kProbeBytes = 1024;

absl::string_view KindName(MemoryKindProto kind) {
  switch (kind) {
    case MEMORY_PINNED_HOST: return "pinned_host";
    case MEMORY_UNPINNED_HOST: return "unpinned_host";
    default: return "device";
  }
}

}  // namespace

absl::StatusOr<OwnedImage> AllocateImage(int64_t bytes) {
  void* data = ::operator new(static_cast<size_t>(bytes), kImageAlignment, std::nothrow);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the worker's host has no memory for an image of ", bytes, " bytes"));
  }
  return OwnedImage{static_cast<std::byte*>(data), bytes,
                    std::shared_ptr<void>(data, [](void* p) { ::operator delete(p, kImageAlignment); })};
}

bool HostCanRead(const void* address, size_t bytes) {
  // The kernel copies from the address and answers EFAULT where we would get a signal.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return false;
  const bool readable = ::write(ends[1], address, bytes) == static_cast<ssize_t>(bytes);
  ::close(ends[0]);
  ::close(ends[1]);
  return readable;
}

absl::StatusOr<std::unique_ptr<BufferIo>> BufferIo::Create(pjrt::Client* client) {
  std::unique_ptr<BufferIo> io(new BufferIo(client));
  if (client->devices().empty()) return absl::FailedPreconditionError("the PJRT plugin shows no device");
  if (!client->plugin().traits().host_memory) return io;
  std::string bytes(kProbeBytes, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 37 + 11);
  const pjrt::Device& device = client->devices()[0];
  const int64_t dims[] = {static_cast<int64_t>(bytes.size())};
  auto made = client->BufferFromHost(bytes.data(), DType::kU8, dims, {}, *device.default_memory,
                                     pjrt::HostSemantics::kOnlyDuringCall);
  LB_RETURN_IF_ERROR(AddContext(made.status(), "trying the PJRT plugin's device memory"));
  LB_ASSIGN_OR_RETURN(pjrt::Event ready, made->buffer.ReadyEvent());
  LB_RETURN_IF_ERROR(AddContext(ready.Await(), "trying the PJRT plugin's device memory"));
  auto reference = made->buffer.AcquireExternalReference();
  io->host_accessible_ = reference.ok() && HostCanRead(reference->data(), bytes.size()) &&
                         std::memcmp(reference->data(), bytes.data(), bytes.size()) == 0;
  return io;
}

absl::StatusOr<const pjrt::Memory*> BufferIo::FindMemory(uint32_t device, MemoryKindProto kind) const {
  if (device >= client_->devices().size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("local device ", device, " of a worker with ", client_->devices().size(), " devices"));
  }
  const pjrt::Device& found = client_->devices()[device];
  if (kind == MEMORY_DEVICE) return found.default_memory;
  const pjrt::Memory* memory = found.FindMemory(KindName(kind));
  if (memory == nullptr) {
    return absl::UnimplementedError(absl::StrCat("device ", found.debug_string, " has no ", KindName(kind),
                                                 " memory; use the device's own memory"));
  }
  return memory;
}

absl::StatusOr<int64_t> BufferIo::ImageBytes(DType dtype, absl::Span<const int64_t> dims) {
  const int element_bytes = HostElementBytes(dtype);
  if (element_bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat("devices hold no arrays of type ", DTypeName(dtype)));
  }
  return DenseBytes(dims, element_bytes);
}

bool BufferIo::IsInPlace(const pjrt::Buffer& buffer, DType dtype, int64_t image_bytes) const {
  if (!host_accessible_ || IsSubByte(dtype) || !buffer.IsRowMajor()) return false;
  auto bytes = buffer.on_device_bytes();
  return bytes.ok() && static_cast<int64_t>(*bytes) >= image_bytes;
}

absl::StatusOr<HostImage> BufferIo::ReadImage(const std::shared_ptr<BufferSlot>& slot, DType dtype,
                                              absl::Span<const int64_t> dims) const {
  LB_ASSIGN_OR_RETURN(int64_t bytes, ImageBytes(dtype, dims));
  std::shared_ptr<pjrt::Buffer> buffer = slot->buffer();
  if (buffer == nullptr) {
    LB_RETURN_IF_ERROR(slot->failure());
    return absl::FailedPreconditionError("the buffer has no memory (any more)");
  }
  if (bytes == 0) return HostImage{};
  if (IsInPlace(*buffer, dtype, bytes)) {
    LB_ASSIGN_OR_RETURN(std::shared_ptr<const BufferSlot::Pinned> pinned, slot->Pin());
    return HostImage{pinned->data(), bytes, pinned};
  }
  return CopyOut(*buffer, dtype, bytes);
}

absl::StatusOr<HostImage> BufferIo::CopyOut(const pjrt::Buffer& buffer, DType dtype, int64_t image_bytes) const {
  if (image_bytes == 0) return HostImage{};
  LB_ASSIGN_OR_RETURN(size_t host_bytes, buffer.HostImageBytes());
  if (static_cast<int64_t>(host_bytes) != image_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("a buffer of ", host_bytes, " bytes was described as ",
                                                   DTypeName(dtype), " of ", image_bytes, " bytes"));
  }
  LB_ASSIGN_OR_RETURN(OwnedImage image, AllocateImage(image_bytes));
  LB_ASSIGN_OR_RETURN(pjrt::Event event, buffer.CopyToHost(image.data, static_cast<size_t>(image_bytes)));
  LB_RETURN_IF_ERROR(FromPluginError(event.Await(), "reading a buffer"));
  return image.Read();
}

absl::StatusOr<pjrt::Buffer> BufferIo::FromImage(const std::byte* data, DType dtype, absl::Span<const int64_t> dims,
                                                 absl::Span<const int64_t> byte_strides,
                                                 const pjrt::Memory& memory) const {
  static const std::byte kNothing[64] = {};
  // Where bytes are copied by the device, a copy for the device to read would be one too many.
  auto made = client_->BufferFromHost(
      data == nullptr ? kNothing : data, dtype, dims, byte_strides, memory,
      host_accessible_ ? pjrt::HostSemantics::kOnlyDuringCall : pjrt::HostSemantics::kUntilTransferCompletes);
  if (!made.ok()) return FromPluginError(made.status(), "making a buffer");
  if (!host_accessible_) LB_RETURN_IF_ERROR(FromPluginError(made->done_with_host.Await(), "making a buffer"));
  return std::move(made->buffer);
}

}  // namespace landbridge
