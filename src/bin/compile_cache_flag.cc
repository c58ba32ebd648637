#include "bin/compile_cache_flag.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace landbridge {
namespace {

constexpr absl::string_view kOff = "off";
constexpr absl::string_view kBelowScratch = "/landbridge_compile_cache";
constexpr absl::string_view kBelowUserCache = "/landbridge/compile_cache";

absl::string_view FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Nothing for gs://bucket/x and its like.
std::optional<std::string> LocalFolder(absl::string_view place) {
  absl::ConsumePrefix(&place, "file://");
  if (absl::StrContains(place, "://")) return std::nullopt;
  while (place.size() > 1 && absl::ConsumeSuffix(&place, "/")) {
  }
  if (place.empty()) return std::nullopt;
  return std::string(place);
}

absl::StatusOr<std::string> Named(absl::string_view what, absl::string_view place) {
  if (place == kOff) return "";
  std::optional<std::string> folder = LocalFolder(place);
  if (!folder.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(what, "=", place, ": a local folder, or off"));
  }
  return *std::move(folder);
}

std::string UsersFolder() {
  const absl::string_view xdg = FromEnvironment("XDG_CACHE_HOME"), home = FromEnvironment("HOME");
  if (absl::StartsWith(xdg, "/")) return absl::StrCat(absl::StripSuffix(xdg, "/"), kBelowUserCache);
  if (absl::StartsWith(home, "/")) return absl::StrCat(absl::StripSuffix(home, "/"), "/.cache", kBelowUserCache);
  return "";
}

}  // namespace

absl::StatusOr<CompileCachePlace> PlaceCompileCache(absl::string_view flag, absl::string_view scratch,
                                                    absl::string_view xla_flags) {
  CompileCachePlace place;
  if (!scratch.empty() && !LocalFolder(scratch).has_value()) {
    place.notices.push_back(
        absl::StrCat("--gcs_scratch_location=", scratch, " has no effect: it is no local folder; see --compile_cache"));
    scratch = "";
  }
  constexpr const char* kVariable = "LANDBRIDGE_COMPILE_CACHE";
  if (!flag.empty()) {
    LB_ASSIGN_OR_RETURN(place.folder, Named("--compile_cache", flag));
  } else if (const absl::string_view variable = FromEnvironment(kVariable); !variable.empty()) {
    LB_ASSIGN_OR_RETURN(place.folder, Named(kVariable, variable));
  } else if (!scratch.empty()) {
    place.folder = absl::StrCat(*LocalFolder(scratch), kBelowScratch);
  } else if (place.folder = UsersFolder(); place.folder.empty()) {
    place.notices.push_back(
        "the compile cache is in memory only: neither HOME nor XDG_CACHE_HOME is set; --compile_cache names a folder");
  }
  if (!place.folder.empty() && absl::StrContains(xla_flags, "--xla_dump")) {
    place.notices.push_back("the compile cache on disk is off: XLA's flags ask for dumps, which only a compile writes");
    place.folder.clear();
  }
  return place;
}

}  // namespace landbridge
