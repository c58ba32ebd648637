// Where the proxy keeps compiled programs.
//
// Thread-safety: one thread, at start (reads the environment).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

struct CompileCachePlace {
  std::string folder;  // empty: in memory only
  std::vector<std::string> notices;
};

// The first that says something: `flag` (--compile_cache), $LANDBRIDGE_COMPILE_CACHE, `scratch`
// (--gcs_scratch_location), the user's folder for caches ($XDG_CACHE_HOME or $HOME/.cache). Folders are paths or
// file:///PATH; "off" turns it off. Off too when `xla_flags` write dumps, which only a compile does.
// INVALID_ARGUMENT for a flag or variable that names no local folder; such a scratch location is a notice.
absl::StatusOr<CompileCachePlace> PlaceCompileCache(absl::string_view flag, absl::string_view scratch,
                                                    absl::string_view xla_flags);

}  // namespace landbridge
