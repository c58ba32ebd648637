// Messages of the data plane, as bytes.
//
// A message is a fixed header, little-endian, and, for some types, a payload beside it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dataplane/data_plane.h"

namespace landbridge::dataplane {

enum class MessageType : uint8_t {
  kRequest = 1,  // send me [offset, offset + size) of key, for `pull`
  kData = 2,     // payload: those bytes
  kRefuse = 3,   // payload: text of the error; `code` its code. Ends the pull; without one, all pushes of the space
  kForget = 4,   // the pull was cancelled: drop its requests
  // Of a space, without a pull (as is its kRefuse):
  kListen = 5,    // send me what is pushed under it
  kPush = 6,      // payload: the bytes of key
  kUnlisten = 7,  // send me nothing
};

struct Message {
  MessageType type = MessageType::kRequest;
  PeerId from;
  PeerId to;
  Key key;
  PullId pull;
  uint64_t offset = 0;  // within the key
  uint64_t size = 0;
  uint64_t end = 0;   // kRequest: end of the whole pull within the key, so that a bad one fails at once
  uint32_t code = 0;  // kRefuse: absl::StatusCode
};

constexpr size_t kMessageBytes = 80;
using MessageHeader = std::array<std::byte, kMessageBytes>;

void EncodeMessage(const Message& message, MessageHeader& out);
// Nothing for bytes that are not a message of this version. Checks form only: sizes against each other and the
// limits, not identity.
std::optional<Message> DecodeMessage(absl::Span<const std::byte> bytes);

// kRefuse's payload, cut to limits::kTransferErrorTextBytesMax; and back. A foreign code that is not an error
// becomes UNKNOWN.
std::string RefusalText(const absl::Status& status);
absl::Status RefusalStatus(uint32_t code, absl::Span<const std::byte> text);

}  // namespace landbridge::dataplane
