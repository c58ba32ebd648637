// Shared libraries with custom-call handlers of users (--ffi_library): finding handlers in them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/ffi_libraries.h"

namespace landbridge {

// Opened for good: code of handlers is never unloaded. Thread-safety: immutable.
class FfiLibrary {
 public:
  // FAILED_PRECONDITION names the path and the reason. Runs the library's constructors.
  static absl::StatusOr<FfiLibrary> Open(const FfiLibrarySpec& spec);

  const FfiLibrarySpec& spec() const { return spec_; }
  // A function that this library itself defines and exports, not one of the libraries below it (a client could name
  // `system`). Null if there is none.
  void* FindFunction(const std::string& symbol) const;
  // The handler of `target`, listed or under its own name; null if it is neither.
  void* FindHandler(absl::string_view target) const;
  // Every listed target has its symbol, which says that it is a handler of an FFI version that plugins take.
  absl::Status CheckListed() const;

 private:
  FfiLibrarySpec spec_;
  void* handle_ = nullptr;
};

absl::StatusOr<std::vector<FfiLibrary>> OpenFfiLibraries(const std::vector<FfiLibrarySpec>& specs);

}  // namespace landbridge
