// How a frame of a control stream between a proxy and a worker is put together (types: frame_types.h).
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace landbridge {

constexpr int kControlFrameOps = 3;  // field numbers of ControlFrame
constexpr int kControlFrameReports = 4;

// The wire bytes of a ControlFrame from already serialized ops or reports: they are joined, never parsed again.
// `heartbeat`: a serialized Heartbeat, or empty for none.
std::string JoinControlFrame(uint64_t first_seq, uint64_t ack, int field, const std::vector<std::string>& messages,
                             absl::string_view heartbeat);
std::string JoinControlFrame(uint64_t first_seq, uint64_t ack, int field,
                             const std::vector<const std::string*>& messages);

}  // namespace landbridge
