#include "pjrt/buffer.h"

#include <utility>

#include "base/status.h"
#include "pjrt/abi_call.h"
#include "pjrt/types.h"

namespace landbridge::pjrt {
namespace {

template <typename T>
Args<T> On(PJRT_Buffer* buffer) {
  Args<T> args;
  args->buffer = buffer;
  return args;
}

absl::Status NoBuffer() { return absl::InternalError("an empty buffer handle was used"); }

}  // namespace

ExternalReference::ExternalReference(ExternalReference&& other) noexcept
    : plugin_(other.plugin_), buffer_(std::exchange(other.buffer_, nullptr)), data_(other.data_) {}

ExternalReference& ExternalReference::operator=(ExternalReference&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(buffer_, other.buffer_);
  std::swap(data_, other.data_);
  return *this;
}

ExternalReference::~ExternalReference() {
  if (buffer_ == nullptr) return;
  auto args = On<PJRT_Buffer_DecreaseExternalReferenceCount_Args>(buffer_);
  LB_PJRT_CALL(plugin_, PJRT_Buffer_DecreaseExternalReferenceCount, args).IgnoreError();
}

Buffer::Buffer(Buffer&& other) noexcept : plugin_(other.plugin_), buffer_(std::exchange(other.buffer_, nullptr)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

Buffer::~Buffer() {
  if (buffer_ == nullptr) return;
  auto args = On<PJRT_Buffer_Destroy_Args>(buffer_);
  LB_PJRT_CALL(plugin_, PJRT_Buffer_Destroy, args).IgnoreError();
}

PJRT_Buffer* Buffer::Release() { return std::exchange(buffer_, nullptr); }

absl::StatusOr<DType> Buffer::dtype() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_ElementType_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_ElementType, args));
  return FromPjrtType(args->type);
}

absl::StatusOr<std::vector<int64_t>> Buffer::dims() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_Dimensions_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_Dimensions, args));
  return std::vector<int64_t>(args->dims, args->dims + args->num_dims);
}

absl::StatusOr<size_t> Buffer::on_device_bytes() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_OnDeviceSizeInBytes_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_OnDeviceSizeInBytes, args));
  return args->on_device_size_in_bytes;
}

absl::StatusOr<PJRT_Memory*> Buffer::memory() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_Memory_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_Memory, args));
  return args->memory;
}

absl::StatusOr<PJRT_Device*> Buffer::device() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_Device_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_Device, args));
  return args->device;
}

absl::StatusOr<std::vector<int64_t>> Buffer::minor_to_major() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_GetMemoryLayout_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_GetMemoryLayout, args));
  if (args->layout.type != PJRT_Buffer_MemoryLayout_Type_Tiled) {
    return absl::UnimplementedError("the plugin describes a buffer's layout by strides");
  }
  const PJRT_Buffer_MemoryLayout_Tiled& tiled = args->layout.tiled;
  return std::vector<int64_t>(tiled.minor_to_major, tiled.minor_to_major + tiled.minor_to_major_size);
}

bool Buffer::IsRowMajor() const {
  absl::StatusOr<std::vector<int64_t>> order = minor_to_major();
  if (!order.ok()) return false;
  for (size_t i = 0; i < order->size(); ++i) {
    if ((*order)[i] != static_cast<int64_t>(order->size() - 1 - i)) return false;
  }
  return true;
}

absl::StatusOr<Event> Buffer::ReadyEvent() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_ReadyEvent_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_ReadyEvent, args));
  return Event(plugin_, args->event);
}

absl::StatusOr<Event> Buffer::CopyRawToHost(void* dst, int64_t offset, int64_t bytes) const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_CopyRawToHost_Args>(buffer_);
  args->dst = dst;
  args->offset = offset;
  args->transfer_size = bytes;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_CopyRawToHost, args));
  return Event(plugin_, args->event);
}

namespace {

// The layout that makes the plugin write a row-major image. `order` backs it.
PJRT_Buffer_MemoryLayout RowMajor(size_t rank, std::vector<int64_t>& order) {
  order.resize(rank);
  for (size_t i = 0; i < rank; ++i) order[i] = static_cast<int64_t>(rank - 1 - i);
  PJRT_Buffer_MemoryLayout layout{};
  layout.struct_size = sizeof(layout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = sizeof(layout.tiled);
  layout.tiled.minor_to_major = order.data();
  layout.tiled.minor_to_major_size = rank;
  return layout;
}

}  // namespace

absl::StatusOr<Event> Buffer::CopyToHost(void* dst, size_t dst_bytes) const {
  LB_ASSIGN_OR_RETURN(std::vector<int64_t> shape, dims());
  std::vector<int64_t> order;
  PJRT_Buffer_MemoryLayout layout = RowMajor(shape.size(), order);
  Args<PJRT_Buffer_ToHostBuffer_Args> args;
  args->src = buffer_;
  args->host_layout = &layout;
  args->dst = dst;
  args->dst_size = dst_bytes;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_ToHostBuffer, args));
  return Event(plugin_, args->event);
}

absl::StatusOr<size_t> Buffer::HostImageBytes() const {
  LB_ASSIGN_OR_RETURN(std::vector<int64_t> shape, dims());
  std::vector<int64_t> order;
  PJRT_Buffer_MemoryLayout layout = RowMajor(shape.size(), order);
  Args<PJRT_Buffer_ToHostBuffer_Args> args;
  args->src = buffer_;
  args->host_layout = &layout;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_ToHostBuffer, args));
  return args->dst_size;
}

absl::StatusOr<Buffer> Buffer::CopyToMemory(PJRT_Memory* memory) const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_CopyToMemory_Args>(buffer_);
  args->dst_memory = memory;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_CopyToMemory, args));
  return Buffer(plugin_, args->dst_buffer);
}

absl::StatusOr<Buffer> Buffer::CopyToDevice(PJRT_Device* device) const {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_CopyToDevice_Args>(buffer_);
  args->dst_device = device;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_CopyToDevice, args));
  return Buffer(plugin_, args->dst_buffer);
}

absl::StatusOr<ExternalReference> Buffer::AcquireExternalReference() const {
  if (buffer_ == nullptr) return NoBuffer();
  auto increase = On<PJRT_Buffer_IncreaseExternalReferenceCount_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_IncreaseExternalReferenceCount, increase));
  ExternalReference reference;
  reference.plugin_ = plugin_;
  reference.buffer_ = buffer_;
  auto pointer = On<PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args>(buffer_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Buffer_OpaqueDeviceMemoryDataPointer, pointer));
  reference.data_ = pointer->device_memory_ptr;
  return reference;
}

absl::Status Buffer::Delete() {
  if (buffer_ == nullptr) return NoBuffer();
  auto args = On<PJRT_Buffer_Delete_Args>(buffer_);
  return LB_PJRT_CALL(plugin_, PJRT_Buffer_Delete, args);
}

bool Buffer::IsDeleted() const {
  if (buffer_ == nullptr) return true;
  auto args = On<PJRT_Buffer_IsDeleted_Args>(buffer_);
  return !LB_PJRT_CALL(plugin_, PJRT_Buffer_IsDeleted, args).ok() || args->is_deleted;
}

Promise::Promise(Promise&& other) noexcept
    : plugin_(other.plugin_), client_(other.client_), callback_(std::exchange(other.callback_, nullptr)) {}

Promise& Promise::operator=(Promise&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(client_, other.client_);
  std::swap(callback_, other.callback_);
  return *this;
}

Promise::~Promise() {
  if (callback_ != nullptr) {
    Fail(absl::AbortedError("the value of this buffer was never delivered")).IgnoreError();
  }
}

absl::Status Promise::Fulfill(Buffer value) {
  if (callback_ == nullptr) return absl::InternalError("a promise was fulfilled twice");
  if (value.IsDeleted()) {
    absl::Status status = absl::InvalidArgumentError("the value for a promised buffer has been deleted");
    Fail(status).IgnoreError();
    return status;
  }
  Args<PJRT_Client_FulfillAliasBuffer_Args> args;
  args->client = client_;
  args->buffer = value.get();
  args->status_code = PJRT_Error_Code_OK;
  args->fulfill_alias_buffer_cb = std::exchange(callback_, nullptr);
  return LB_PJRT_CALL(plugin_, PJRT_Client_FulfillAliasBuffer, args);
}

absl::Status Promise::Fail(const absl::Status& failure) {
  if (callback_ == nullptr) return absl::InternalError("a promise was fulfilled twice");
  Args<PJRT_Client_FulfillAliasBuffer_Args> args;
  args->client = client_;
  args->status_code = static_cast<PJRT_Error_Code>(failure.code());
  args->error_message = failure.message().data();
  args->error_message_size = failure.message().size();
  args->fulfill_alias_buffer_cb = std::exchange(callback_, nullptr);
  // The call reports the very error that it was given, although it takes effect.
  LB_PJRT_CALL(plugin_, PJRT_Client_FulfillAliasBuffer, args).IgnoreError();
  return absl::OkStatus();
}

}  // namespace landbridge::pjrt
