// Writing custom-call handlers in C++: reading the call, answering later.
//
// A handler is a plain function:
//   XLA_FFI_Error* MyHandler(XLA_FFI_CallFrame* frame) {
//     if (FfiCall::AnswerMetadata(frame)) return nullptr;
//     FfiCall call(frame);
//     auto rounds = call.IntAttribute("rounds");
//     if (!rounds.ok()) return call.Fail(rounds.status());
//     FfiCompletion later = ...call.Defer()...;   // the program goes on when `later.Complete()` is called
//     return nullptr;
//   }
// Rules: never block in a handler; copy what you need of the frame before returning (it dies then; the data that
// buffers point to stays until completion); the rest of the XLA program runs *inside* Complete(), so call it on a
// thread that may be busy for long, never on a network or timer thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "pjrt/ffi_api.h"

namespace landbridge::pjrt {

struct FfiVersion {
  int major = 0;
  int minor = 0;
};
// What version a handler says it was built for. FAILED_PRECONDITION if it says nothing.
absl::StatusOr<FfiVersion> QueryFfiVersion(XLA_FFI_Handler handler);

// The same; FAILED_PRECONDITION also for a version that no plugin takes. A plugin takes those up to its own: only it knows.
absl::StatusOr<FfiVersion> CheckFfiVersion(XLA_FFI_Handler handler);

struct FfiBuffer {
  DType dtype = DType::kInvalid;
  void* data = nullptr;
  absl::Span<const int64_t> dims;  // of the frame: copy before returning
  int64_t bytes = 0;               // dense; tokens have none
};

// The right to finish one deferred call. Destroying it unfinished fails the call (ABORTED).
// Thread-safety: none; may move between threads.
class FfiCompletion {
 public:
  FfiCompletion() = default;
  FfiCompletion(FfiCompletion&& other) noexcept;
  FfiCompletion& operator=(FfiCompletion&& other) noexcept;
  ~FfiCompletion();
  explicit operator bool() const { return future_ != nullptr; }
  // Runs the rest of the program in this call. Results must be written in full before an OK status.
  void Complete(const absl::Status& status = absl::OkStatus());

 private:
  friend class FfiCall;
  const XLA_FFI_Api* api_ = nullptr;
  XLA_FFI_Future* future_ = nullptr;
};

// Thread-safety: none. Lives no longer than the handler's call.
class FfiCall {
 public:
  explicit FfiCall(XLA_FFI_CallFrame* frame) : frame_(frame) {}

  // True if this call only asked for the handler's version; it is answered then.
  static bool AnswerMetadata(XLA_FFI_CallFrame* frame);

  int64_t num_operands() const { return frame_->args.size; }
  int64_t num_results() const { return frame_->rets.size; }
  // INVALID_ARGUMENT for an index or a type that is not there.
  absl::StatusOr<FfiBuffer> Operand(int64_t index) const;
  absl::StatusOr<FfiBuffer> Result(int64_t index) const;

  // Any integer type. INVALID_ARGUMENT naming the attribute if it is missing or something else.
  absl::StatusOr<int64_t> IntAttribute(absl::string_view name) const;
  absl::StatusOr<std::string> StringAttribute(absl::string_view name) const;

  absl::StatusOr<int64_t> RunId() const;          // the launch id
  absl::StatusOr<int32_t> DeviceOrdinal() const;  // the device's id in its client

  // What a handler returns for an error.
  XLA_FFI_Error* Fail(const absl::Status& status) const;
  // Makes the call asynchronous. Return null from the handler afterwards.
  absl::StatusOr<FfiCompletion> Defer();

 private:
  const void* FindAttribute(absl::string_view name, XLA_FFI_AttrType type) const;
  XLA_FFI_CallFrame* frame_;
};

}  // namespace landbridge::pjrt
