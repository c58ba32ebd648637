#include "env/frame.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/log.h"

namespace landbridge {
namespace {

void AppendU32(uint32_t value, std::string* out) {
  for (int shift = 0; shift < 32; shift += 8) out->push_back(static_cast<char>((value >> shift) & 0xff));
}

uint32_t ReadU32(const char* at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(at[i]);
  return value;
}

}  // namespace

void AppendFrameHeader(uint32_t type, absl::string_view payload, std::string* out) {
  LB_CHECK(payload.size() <= limits::kFrameBytesMax);  // our own frames are built below the limit
  AppendU32(kFrameMagic, out);
  AppendU32(static_cast<uint32_t>(payload.size()), out);
  AppendU32(Crc32c(payload), out);
  AppendU32(type, out);
}

std::string EncodeFrame(uint32_t type, absl::string_view payload) {
  std::string frame;
  frame.reserve(kFrameHeaderBytes + payload.size());
  AppendFrameHeader(type, payload, &frame);
  frame.append(payload.data(), payload.size());
  return frame;
}

absl::Status FrameParser::ReadHeader(const char* header) {
  if (ReadU32(header) != kFrameMagic) {
    const absl::string_view start(header, 4);
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer does not speak Landbridge's frames (bad magic number)",
        start == "PRI "
            ? ": it is a gRPC client. JAX clients connect to the proxy's port: JAX_BACKEND_TARGET=grpc://HOST:29000"
        : start == "GET " || start == "POST" || start == "HEAD"
            ? ": it speaks HTTP; ask this process with `landbridge status`"
            : ""));
  }
  length_ = ReadU32(header + 4);
  crc_ = ReadU32(header + 8);
  type_ = ReadU32(header + 12);
  if (length_ > frame_bytes_max_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer announced a frame of ", length_, " bytes; the limit is ", frame_bytes_max_));
  }
  return absl::OkStatus();
}

absl::Status FrameParser::Feed(absl::string_view bytes, const OnFrame& on_frame) {
  if (!broken_.ok()) return broken_;
  while (!bytes.empty() || held_.size() >= kFrameHeaderBytes) {
    if (held_.empty() && bytes.size() >= kFrameHeaderBytes) {
      // The common case: a whole frame in the buffer is not copied.
      if (absl::Status status = ReadHeader(bytes.data()); !status.ok()) return broken_ = status;
      if (bytes.size() >= kFrameHeaderBytes + length_) {
        absl::string_view payload = bytes.substr(kFrameHeaderBytes, length_);
        if (Crc32c(payload) != crc_) {
          return broken_ = absl::InvalidArgumentError("a frame was damaged on the way (checksum)");
        }
        bytes.remove_prefix(kFrameHeaderBytes + length_);
        if (!on_frame(type_, payload)) return absl::OkStatus();
        continue;
      }
      held_.assign(bytes.data(), bytes.size());
      return absl::OkStatus();
    }
    if (held_.size() < kFrameHeaderBytes) {
      const size_t take = std::min(bytes.size(), kFrameHeaderBytes - held_.size());
      held_.append(bytes.data(), take);
      bytes.remove_prefix(take);
      if (held_.size() < kFrameHeaderBytes) return absl::OkStatus();
      if (absl::Status status = ReadHeader(held_.data()); !status.ok()) return broken_ = status;
    }
    const size_t take = std::min<size_t>(bytes.size(), kFrameHeaderBytes + length_ - held_.size());
    held_.append(bytes.data(), take);
    bytes.remove_prefix(take);
    if (held_.size() < kFrameHeaderBytes + length_) return absl::OkStatus();
    std::string frame;
    frame.swap(held_);
    absl::string_view payload = absl::string_view(frame).substr(kFrameHeaderBytes);
    if (Crc32c(payload) != crc_) {
      return broken_ = absl::InvalidArgumentError("a frame was damaged on the way (checksum)");
    }
    if (!on_frame(type_, payload)) return absl::OkStatus();
  }
  return absl::OkStatus();
}

}  // namespace landbridge
