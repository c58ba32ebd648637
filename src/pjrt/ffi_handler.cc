#include "pjrt/ffi_handler.h"

#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace landbridge::pjrt {
namespace {

template <typename T>
T Sized() {
  T args{};
  args.struct_size = sizeof(T);
  return args;
}

XLA_FFI_Error* MakeError(const XLA_FFI_Api* api, const absl::Status& status) {
  std::string text(status.message());  // the ABI wants a terminated string
  auto args = Sized<XLA_FFI_Error_Create_Args>();
  args.message = text.c_str();
  args.errc = static_cast<XLA_FFI_Error_Code>(status.code());
  return api->XLA_FFI_Error_Create(&args);
}

// Destroys `error`; OK for null.
absl::Status TakeFfiError(const XLA_FFI_Api* api, XLA_FFI_Error* error, absl::string_view what) {
  if (error == nullptr) return absl::OkStatus();
  auto message = Sized<XLA_FFI_Error_GetMessage_Args>();
  message.error = error;
  api->XLA_FFI_Error_GetMessage(&message);
  absl::Status status =
      absl::InternalError(absl::StrCat(what, ": ", message.message == nullptr ? "" : message.message));
  auto destroy = Sized<XLA_FFI_Error_Destroy_Args>();
  destroy.error = error;
  api->XLA_FFI_Error_Destroy(&destroy);
  return status;
}

absl::StatusOr<FfiBuffer> ReadBuffer(const void* raw, absl::string_view what, int64_t index) {
  auto* buffer = static_cast<const XLA_FFI_Buffer*>(raw);
  std::optional<DType> dtype = DTypeFromXla(static_cast<int32_t>(buffer->dtype));
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " ", index, " of a custom call has the unknown element type ", buffer->dtype));
  }
  FfiBuffer result;
  result.dtype = *dtype;
  result.data = buffer->data;
  result.dims = absl::MakeConstSpan(buffer->dims, static_cast<size_t>(buffer->rank));
  // Sub-byte types are packed on the device.
  int64_t elements = 1;
  for (int64_t dim : result.dims) elements *= dim;
  result.bytes = (elements * DeviceElementBits(*dtype) + 7) / 8;
  return result;
}

// Errors of handlers that are called outside of any plugin: texts.
XLA_FFI_Error* MakeQueryError(XLA_FFI_Error_Create_Args* args) {
  return reinterpret_cast<XLA_FFI_Error*>(new std::string(args->message == nullptr ? "" : args->message));
}
void GetQueryErrorText(XLA_FFI_Error_GetMessage_Args* args) {
  args->message = reinterpret_cast<const std::string*>(args->error)->c_str();
}
void DestroyQueryError(XLA_FFI_Error_Destroy_Args* args) { delete reinterpret_cast<std::string*>(args->error); }

// What a handler may call when it is only asked for its version.
const XLA_FFI_Api& QueryApi() {
  static const XLA_FFI_Api* const api = [] {
    auto* made = new XLA_FFI_Api(Sized<XLA_FFI_Api>());
    made->api_version = {sizeof(XLA_FFI_Api_Version), nullptr, kFfiApiMajor, kFfiApiMinor};
    made->XLA_FFI_Error_Create = &MakeQueryError;
    made->XLA_FFI_Error_GetMessage = &GetQueryErrorText;
    made->XLA_FFI_Error_Destroy = &DestroyQueryError;
    return made;
  }();
  return *api;
}

}  // namespace

absl::StatusOr<FfiVersion> QueryFfiVersion(XLA_FFI_Handler handler) {
  auto metadata = Sized<XLA_FFI_Metadata>();
  metadata.api_version.struct_size = sizeof(metadata.api_version);
  metadata.api_version.major_version = -1;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base.struct_size = sizeof(extension);
  extension.extension_base.type = XLA_FFI_Extension_Metadata;
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = offsetof(XLA_FFI_CallFrame, future);  // what comes after it is output; handlers compare exactly
  frame.extension_start = &extension.extension_base;
  frame.api = &QueryApi();
  if (XLA_FFI_Error* error = handler(&frame); error != nullptr) {
    std::unique_ptr<std::string> text(reinterpret_cast<std::string*>(error));
    return absl::FailedPreconditionError(absl::StrCat("a custom-call handler was built for another FFI version (",
                                                      *text, "); this build speaks ", kFfiApiMajor, ".", kFfiApiMinor));
  }
  if (metadata.api_version.major_version < 0) {
    return absl::FailedPreconditionError("a custom-call handler does not say for which FFI version it was built");
  }
  return FfiVersion{metadata.api_version.major_version, metadata.api_version.minor_version};
}

absl::StatusOr<FfiVersion> CheckFfiVersion(XLA_FFI_Handler handler) {
  absl::StatusOr<FfiVersion> version = QueryFfiVersion(handler);
  if (version.ok() && (version->major != kFfiApiMajor || version->minor < 1)) {
    return absl::FailedPreconditionError(absl::StrCat("a custom-call handler was built for FFI version ",
                                                      version->major, ".", version->minor,
                                                      ", which PJRT plugins do not take"));
  }
  return version;
}

FfiCompletion::FfiCompletion(FfiCompletion&& other) noexcept
    : api_(other.api_), future_(std::exchange(other.future_, nullptr)) {}

FfiCompletion& FfiCompletion::operator=(FfiCompletion&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(future_, other.future_);
  return *this;
}

FfiCompletion::~FfiCompletion() {
  if (future_ != nullptr) Complete(absl::AbortedError("a custom call was given up before it finished"));
}

void FfiCompletion::Complete(const absl::Status& status) {
  XLA_FFI_Future* future = std::exchange(future_, nullptr);
  if (future == nullptr) return;
  absl::Status failed;
  if (status.ok()) {
    auto args = Sized<XLA_FFI_Future_SetAvailable_Args>();
    args.future = future;
    failed = TakeFfiError(api_, api_->XLA_FFI_Future_SetAvailable(&args), "completing a custom call");
  } else {
    auto args = Sized<XLA_FFI_Future_SetError_Args>();
    args.future = future;
    args.error = MakeError(api_, status);
    failed = TakeFfiError(api_, api_->XLA_FFI_Future_SetError(&args), "failing a custom call");
  }
  if (!failed.ok()) LogError(failed.message());
}

bool FfiCall::AnswerMetadata(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Extension_Base* base = frame->extension_start;
  if (base == nullptr || base->type != XLA_FFI_Extension_Metadata) return false;
  auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(base);
  extension->metadata->api_version.struct_size = sizeof(XLA_FFI_Api_Version);
  extension->metadata->api_version.extension_start = nullptr;
  extension->metadata->api_version.major_version = kFfiApiMajor;
  extension->metadata->api_version.minor_version = kFfiApiMinor;
  extension->metadata->traits = 0;
  return true;
}

absl::StatusOr<FfiBuffer> FfiCall::Operand(int64_t index) const {
  const XLA_FFI_Args& args = frame_->args;
  if (index < 0 || index >= args.size || args.types[index] != XLA_FFI_ArgType_BUFFER) {
    return absl::InvalidArgumentError(absl::StrCat("a custom call has no buffer operand ", index));
  }
  return ReadBuffer(args.args[index], "operand", index);
}

absl::StatusOr<FfiBuffer> FfiCall::Result(int64_t index) const {
  const XLA_FFI_Rets& rets = frame_->rets;
  if (index < 0 || index >= rets.size || rets.types[index] != XLA_FFI_RetType_BUFFER) {
    return absl::InvalidArgumentError(absl::StrCat("a custom call has no buffer result ", index));
  }
  return ReadBuffer(rets.rets[index], "result", index);
}

const void* FfiCall::FindAttribute(absl::string_view name, XLA_FFI_AttrType type) const {
  const XLA_FFI_Attrs& attrs = frame_->attrs;
  for (int64_t i = 0; i < attrs.size; ++i) {
    if (absl::string_view(attrs.names[i]->ptr, attrs.names[i]->len) == name) {
      return attrs.types[i] == type ? attrs.attrs[i] : nullptr;
    }
  }
  return nullptr;
}

absl::StatusOr<int64_t> FfiCall::IntAttribute(absl::string_view name) const {
  if (const void* found = FindAttribute(name, XLA_FFI_AttrType_SCALAR)) {
    auto* scalar = static_cast<const XLA_FFI_Scalar*>(found);
    auto read = [&]<typename T>(T value) {
      std::memcpy(&value, scalar->value, sizeof(T));
      return value;
    };
    switch (DTypeFromXla(static_cast<int32_t>(scalar->dtype)).value_or(DType::kInvalid)) {
      case DType::kS8: return read(int8_t{});
      case DType::kS16: return read(int16_t{});
      case DType::kS32: return read(int32_t{});
      case DType::kS64: return read(int64_t{});
      case DType::kU8: return read(uint8_t{});
      case DType::kU16: return read(uint16_t{});
      case DType::kU32: return read(uint32_t{});
      case DType::kU64: {
        uint64_t value = read(uint64_t{});
        if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return static_cast<int64_t>(value);
        break;
      }
      default: break;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("a custom call needs the integer attribute '", name, "'"));
}

absl::StatusOr<std::string> FfiCall::StringAttribute(absl::string_view name) const {
  if (const void* found = FindAttribute(name, XLA_FFI_AttrType_STRING)) {
    auto* span = static_cast<const XLA_FFI_ByteSpan*>(found);
    return std::string(span->ptr, span->len);
  }
  return absl::InvalidArgumentError(absl::StrCat("a custom call needs the string attribute '", name, "'"));
}

absl::StatusOr<int64_t> FfiCall::RunId() const {
  auto args = Sized<XLA_FFI_RunId_Get_Args>();
  args.ctx = frame_->ctx;
  absl::Status status = TakeFfiError(frame_->api, frame_->api->XLA_FFI_RunId_Get(&args), "reading a run id");
  if (!status.ok()) return status;
  return args.run_id;
}

absl::StatusOr<int32_t> FfiCall::DeviceOrdinal() const {
  auto args = Sized<XLA_FFI_DeviceOrdinal_Get_Args>();
  args.ctx = frame_->ctx;
  absl::Status status =
      TakeFfiError(frame_->api, frame_->api->XLA_FFI_DeviceOrdinal_Get(&args), "reading a device ordinal");
  if (!status.ok()) return status;
  return args.device_ordinal;
}

XLA_FFI_Error* FfiCall::Fail(const absl::Status& status) const { return MakeError(frame_->api, status); }

absl::StatusOr<FfiCompletion> FfiCall::Defer() {
  auto args = Sized<XLA_FFI_Future_Create_Args>();
  absl::Status status = TakeFfiError(frame_->api, frame_->api->XLA_FFI_Future_Create(&args), "deferring a custom call");
  if (!status.ok()) return status;
  frame_->future = args.future;
  FfiCompletion completion;
  completion.api_ = frame_->api;
  completion.future_ = args.future;
  return completion;
}

}  // namespace landbridge::pjrt
