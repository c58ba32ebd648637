// HMAC-SHA-256 (RFC 2104): signs stamps, derives keys from the cluster's secret.
//
// Thread-safety: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace landbridge {

std::string HmacSha256(absl::string_view key, absl::string_view data);  // 32 raw bytes

// Time depends on the lengths only, so that a secret cannot be guessed byte by byte.
bool EqualConstantTime(absl::string_view a, absl::string_view b);

}  // namespace landbridge
