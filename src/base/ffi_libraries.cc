#include "base/ffi_libraries.h"

#include <filesystem>
#include <system_error>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace landbridge {
namespace {

constexpr absl::string_view kForm =
    "--ffi_library takes PATH, or PATH:TARGET=SYMBOL:TARGET=SYMBOL..., and commas between libraries";

absl::Status BadFlag(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat(why, "; ", kForm)); }

absl::Status CheckFfiName(absl::string_view what, absl::string_view name, absl::string_view path) {
  if (name.empty()) return BadFlag(absl::StrCat("a ", what, " of ", path, " has no name"));
  if (name.size() > kFfiNameBytesMax) {
    return BadFlag(absl::StrCat("a ", what, " of ", path, " has a name of ", name.size(), " bytes; at most ",
                                kFfiNameBytesMax, " are possible"));
  }
  for (char c : name) {
    if (c <= ' ' || c == '"' || c == '\\' || c == 0x7f) {
      return BadFlag(absl::StrCat("the ", what, " '", name, "' of ", path, " has a character that names cannot have"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FfiLibrarySpec> ParseFfiLibrary(absl::string_view text) {
  std::vector<std::string> parts = absl::StrSplit(text, ':');
  FfiLibrarySpec spec;
  spec.path = std::move(parts[0]);
  if (spec.path.empty()) return BadFlag("a library has no path");
  for (size_t i = 1; i < parts.size(); ++i) {
    std::pair<std::string, std::string> target = absl::StrSplit(parts[i], absl::MaxSplits('=', 1));
    if (!absl::StrContains(parts[i], '=')) target.second = target.first;
    LB_RETURN_IF_ERROR(CheckFfiName("target", target.first, spec.path));
    LB_RETURN_IF_ERROR(CheckFfiName("symbol", target.second, spec.path));
    if (absl::StartsWith(target.first, "landbridge_")) {
      return BadFlag(absl::StrCat("the target '", target.first, "' belongs to Landbridge"));
    }
    spec.targets.push_back(std::move(target));
  }
  return spec;
}

}  // namespace

absl::StatusOr<std::vector<FfiLibrarySpec>> ParseFfiLibraries(absl::string_view flag) {
  std::vector<FfiLibrarySpec> specs;
  if (flag.empty()) return specs;
  absl::flat_hash_set<std::string> seen;
  for (absl::string_view text : absl::StrSplit(flag, ',')) {
    LB_ASSIGN_OR_RETURN(FfiLibrarySpec spec, ParseFfiLibrary(text));
    for (const auto& [target, symbol] : spec.targets) {
      if (!seen.insert(target).second) return BadFlag(absl::StrCat("the target '", target, "' is named twice"));
    }
    specs.push_back(std::move(spec));
  }
  if (specs.size() > kFfiLibrariesMax || seen.size() > kFfiTargetsMax) {
    return BadFlag(absl::StrCat(specs.size(), " libraries with ", seen.size(), " targets; at most ", kFfiLibrariesMax,
                                " and ", kFfiTargetsMax, " are possible"));
  }
  return specs;
}

absl::StatusOr<std::string> AbsoluteFfiLibraries(absl::string_view flag) {
  LB_ASSIGN_OR_RETURN(std::vector<FfiLibrarySpec> specs, ParseFfiLibraries(flag));
  std::string result;
  for (const FfiLibrarySpec& spec : specs) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(spec.path, error)) {
      return BadFlag(absl::StrCat("the library ", spec.path, " of --ffi_library is no file here"));
    }
    absl::StrAppend(&result, result.empty() ? "" : ",", std::filesystem::absolute(spec.path).string());
    for (const auto& [target, symbol] : spec.targets) absl::StrAppend(&result, ":", target, "=", symbol);
  }
  return result;
}

}  // namespace landbridge
