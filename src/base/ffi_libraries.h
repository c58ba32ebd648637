// What --ffi_library says: shared libraries with custom-call handlers of users.
//
// Thread-safety: plain values and functions.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

constexpr size_t kFfiLibrariesMax = 64;
constexpr size_t kFfiTargetsMax = 1024;   // named in one flag
constexpr size_t kFfiNameBytesMax = 256;  // of a target or symbol

struct FfiLibrarySpec {
  std::string path;
  // (target, symbol). Empty: every target is looked for under its own name.
  std::vector<std::pair<std::string, std::string>> targets;
};

// "PATH[:TARGET[=SYMBOL]]...[,PATH...]", e.g. "/opt/librms.so:rms_norm=RmsNorm,/opt/libother.so".
// INVALID_ARGUMENT says what is wrong, also of a target that two libraries name.
absl::StatusOr<std::vector<FfiLibrarySpec>> ParseFfiLibraries(absl::string_view flag);

// The same text with absolute paths, for processes in other folders. INVALID_ARGUMENT names a file that is not there.
absl::StatusOr<std::string> AbsoluteFfiLibraries(absl::string_view flag);

}  // namespace landbridge
