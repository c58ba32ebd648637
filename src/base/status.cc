#include "base/status.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace landbridge {

absl::Status AddContext(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload([&](absl::string_view key, const absl::Cord& value) { result.SetPayload(key, value); });
  return result;
}

absl::Status AddToEnd(const absl::Status& status, absl::string_view text) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(status.message(), text));
  status.ForEachPayload([&](absl::string_view key, const absl::Cord& value) { result.SetPayload(key, value); });
  return result;
}

std::string FilterForeignText(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"DATA_LOSS", "data loss"},
                                    {"INTERNAL", "internal"},
                                    {"NOT_FOUND", "not found"},
                                    {"DEADLINE_EXCEEDED", "deadline exceeded"}});
}

absl::Status FromPluginError(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted: code = status.code(); break;
    default: break;
  }
  return absl::Status(code, absl::StrCat(context, ": ", FilterForeignText(status.message())));
}

}  // namespace landbridge
