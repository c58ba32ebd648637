// SHA-256, from libcrypto.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

std::string Sha256Raw(absl::string_view bytes);  // 32 bytes
std::string Sha256Hex(absl::string_view bytes);  // lower case
// FAILED_PRECONDITION naming the path if it cannot be read.
absl::StatusOr<std::string> Sha256FileHex(const std::string& path);

}  // namespace landbridge
