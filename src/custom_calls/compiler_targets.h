// Custom-call targets in a process that only compiles. The plugin wants to find a handler under every target's name; it
// calls none. So names get one handler that refuses to run, and no library of jaxlib's is loaded here.
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "custom_calls/ffi_library.h"
#include "pjrt/plugin.h"

namespace landbridge {

// Thread-safety: none.
class CompilerTargets {
 public:
  // Registers what workers can supply (handler_supply.h) and what the libraries list. Errors name library and symbol.
  static absl::StatusOr<CompilerTargets> Register(pjrt::Plugin& plugin, const std::vector<FfiLibrarySpec>& libraries);

  // After a compile that failed for want of `target`: true if a library has it under its own name; it is registered
  // then, and the compile may be tried again. UNIMPLEMENTED if what the library has is no handler for this plugin.
  absl::StatusOr<bool> Offer(pjrt::Plugin& plugin, absl::string_view target);

 private:
  std::vector<FfiLibrary> libraries_;
  absl::flat_hash_set<std::string> offered_;
};

}  // namespace landbridge
