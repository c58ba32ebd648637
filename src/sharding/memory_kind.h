// Where on (or beside) a device a buffer lives.
//
// Thread-safety: plain values.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

// The numbers are those of MemoryKindProto (proto/landbridge/control.proto).
enum class MemoryKind : int { kDevice = 0, kPinnedHost = 1, kUnpinnedHost = 2 };

// "device", "pinned_host", "unpinned_host"; "" is the default kind, device. INVALID_ARGUMENT for anything else.
absl::StatusOr<MemoryKind> ParseMemoryKind(absl::string_view name);
absl::string_view MemoryKindName(MemoryKind kind);

}  // namespace landbridge
