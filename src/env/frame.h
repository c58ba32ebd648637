// Frames between daemons: {magic u32, payload length u32, CRC-32C of the payload u32, type u32}, little-endian, then
// the payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"

namespace landbridge {

constexpr uint32_t kFrameMagic = 0x3142424c;  // "LBB1" on the wire
constexpr size_t kFrameHeaderBytes = 16;

// Appends a header for `payload`. The payload must not exceed limits::kFrameBytesMax.
void AppendFrameHeader(uint32_t type, absl::string_view payload, std::string* out);
std::string EncodeFrame(uint32_t type, absl::string_view payload);

// Cuts a byte stream into frames. Pure. Memory grows with the bytes received, never with a length announced.
//
// Thread-safety: one thread.
class FrameParser {
 public:
  // `payload` is valid during the call only. Returning false stops the parser (the owner went away).
  using OnFrame = std::function<bool(uint32_t type, absl::string_view payload)>;

  explicit FrameParser(uint32_t frame_bytes_max = limits::kFrameBytesMax) : frame_bytes_max_(frame_bytes_max) {}

  // Feeds bytes, cut anywhere. INVALID_ARGUMENT on a bad magic number, length or checksum: the stream has no frame
  // boundaries from there on, so the parser stays broken and repeats the error.
  absl::Status Feed(absl::string_view bytes, const OnFrame& on_frame);

  // Bytes of an unfinished frame are held.
  bool InsideFrame() const { return !held_.empty(); }
  size_t held_bytes() const { return held_.size(); }

 private:
  // Checks a header. Sets the payload's length, checksum and type.
  absl::Status ReadHeader(const char* header);

  uint32_t frame_bytes_max_;
  std::string held_;  // start of an unfinished frame, header included
  uint32_t length_ = 0;
  uint32_t crc_ = 0;
  uint32_t type_ = 0;
  absl::Status broken_;
};

}  // namespace landbridge
