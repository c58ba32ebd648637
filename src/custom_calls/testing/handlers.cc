// A user's library for tests of this room: handlers as a C compiler would export them.
#include <cstddef>

#include "pjrt/ffi_api.h"

using namespace landbridge::pjrt;  // NOLINT: a library of its own

namespace {

bool AnswersMetadata(XLA_FFI_CallFrame* frame, int major) {
  XLA_FFI_Extension_Base* base = frame->extension_start;
  if (base == nullptr || base->type != XLA_FFI_Extension_Metadata) return false;
  XLA_FFI_Api_Version& version = reinterpret_cast<XLA_FFI_Metadata_Extension*>(base)->metadata->api_version;
  version.major_version = major;
  version.minor_version = 1;
  return true;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int landbridge_test_number = 7;

// f32[n] -> f32[n], three times as much.
__attribute__((visibility("default"))) XLA_FFI_Error* TestTriple(XLA_FFI_CallFrame* frame) {
  if (AnswersMetadata(frame, 0)) return nullptr;
  auto* in = static_cast<const XLA_FFI_Buffer*>(frame->args.args[0]);
  auto* out = static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[0]);
  for (int64_t i = 0; i < in->dims[0]; ++i) static_cast<float*>(out->data)[i] = 3 * static_cast<float*>(in->data)[i];
  return nullptr;
}

// Built for an FFI that does not exist.
__attribute__((visibility("default"))) XLA_FFI_Error* TestOfVersionNine(XLA_FFI_CallFrame* frame) {
  AnswersMetadata(frame, 9);
  return nullptr;
}

// Refuses as handlers of other FFI versions do: with an error made by the caller's table.
__attribute__((visibility("default"))) XLA_FFI_Error* TestOfOtherSize(XLA_FFI_CallFrame* frame) {
  XLA_FFI_Error_Create_Args args{sizeof(args), nullptr, "Unexpected XLA_FFI_CallFrame size: expected 999", 3};
  return frame->api->XLA_FFI_Error_Create(&args);
}

}  // extern "C"
