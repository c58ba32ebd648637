// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78) of RFC 3720: guards frames and envelopes against damage.
//
// Thread-safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace landbridge {

// Continues from `crc` (0 at the start), so Crc32c(b, Crc32c(a)) is the checksum of a followed by b.
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0);
inline uint32_t Crc32c(absl::string_view data, uint32_t crc = 0) { return Crc32c(data.data(), data.size(), crc); }

}  // namespace landbridge
