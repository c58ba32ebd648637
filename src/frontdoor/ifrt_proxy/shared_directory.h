// Uploads by file: the client writes DIR/lt_N, the proxy maps it and removes the name at once.
//
// A file that its writer shortens later would hurt whoever reads the mapping, so the directory is for clients that
// are trusted, and off unless the operator names it.
//
// Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace landbridge {

// Maps `directory`/lt_N, N the handle as a signed 32-bit number, and unlinks it. Links are not followed; only a
// regular file of exactly `size` bytes will do. INVALID_ARGUMENT otherwise.
absl::StatusOr<std::shared_ptr<const char>> MapUploadedFile(const std::string& directory, uint64_t handle,
                                                            int64_t size);

}  // namespace landbridge
