#include "dataplane/wire.h"

#include <algorithm>
#include <cstring>

#include "base/limits.h"
#include "dataplane/integers.h"

namespace landbridge::dataplane {
namespace {

constexpr uint32_t kMessageMagic = 0x4c42'4450;  // "LBDP"
constexpr uint8_t kMessageVersion = 3;

}  // namespace

void EncodeMessage(const Message& message, MessageHeader& out) {
  std::byte* at = out.data();
  PutInteger(at, kMessageMagic, 4);
  PutInteger(at, kMessageVersion, 1);
  PutInteger(at, static_cast<uint8_t>(message.type), 1);
  PutInteger(at, 0, 2);
  PutInteger(at, message.from.value(), 8);
  PutInteger(at, message.to.value(), 8);
  PutInteger(at, message.key.space, 8);
  PutInteger(at, message.key.id, 8);
  PutInteger(at, message.pull.value(), 8);
  PutInteger(at, message.offset, 8);
  PutInteger(at, message.size, 8);
  PutInteger(at, message.end, 8);
  PutInteger(at, message.code, 4);
  PutInteger(at, 0, 4);
}

std::optional<Message> DecodeMessage(absl::Span<const std::byte> bytes) {
  if (bytes.size() != kMessageBytes) return std::nullopt;
  const std::byte* at = bytes.data();
  if (GetInteger(at, 4) != kMessageMagic) return std::nullopt;
  if (GetInteger(at, 1) != kMessageVersion) return std::nullopt;
  const uint64_t type = GetInteger(at, 1);
  if (type < static_cast<uint8_t>(MessageType::kRequest) || type > static_cast<uint8_t>(MessageType::kUnlisten)) {
    return std::nullopt;
  }
  if (GetInteger(at, 2) != 0) return std::nullopt;
  Message m;
  m.type = static_cast<MessageType>(type);
  m.from = PeerId(GetInteger(at, 8));
  m.to = PeerId(GetInteger(at, 8));
  m.key.space = GetInteger(at, 8);
  m.key.id = GetInteger(at, 8);
  m.pull = PullId(GetInteger(at, 8));
  m.offset = GetInteger(at, 8);
  m.size = GetInteger(at, 8);
  m.end = GetInteger(at, 8);
  m.code = static_cast<uint32_t>(GetInteger(at, 4));
  if (GetInteger(at, 4) != 0) return std::nullopt;
  if (!m.from.valid() || !m.to.valid()) return std::nullopt;
  // Both below 2^47, so that no sum below overflows.
  if (m.offset > limits::kTransferBytesMax || m.size > limits::kTransferBytesMax) return std::nullopt;
  if (m.type == MessageType::kRequest) {
    if (m.end > limits::kTransferBytesMax || m.offset + m.size > m.end) return std::nullopt;
    if (m.size > std::max<uint64_t>(limits::kTransferChunkBytes, limits::kTransferSmallBytesMax)) {
      return std::nullopt;
    }
  }
  if (m.type == MessageType::kPush && m.size > kPushBytesMax) return std::nullopt;
  return m;
}

std::string RefusalText(const absl::Status& status) {
  return std::string(status.message().substr(0, limits::kTransferErrorTextBytesMax));
}

absl::Status RefusalStatus(uint32_t code, absl::Span<const std::byte> text) {
  const size_t size = std::min(text.size(), limits::kTransferErrorTextBytesMax);
  const absl::string_view message(reinterpret_cast<const char*>(text.data()), size);
  const bool known = code >= static_cast<uint32_t>(absl::StatusCode::kCancelled) &&
                     code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown, message);
}

}  // namespace landbridge::dataplane
