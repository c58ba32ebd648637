// What travels on the data plane's sockets, as bytes: addresses, handshakes, frames.
//
//   connector                                   acceptor
//             <------- challenge (a nonce) -----
//      hello (who, to whom, proof, a nonce) --->
//             <------- welcome (verdict, proof)
//      frames, one way only ------------------->
//
// Proofs are HMAC-SHA-256 under the cluster's token over the other side's nonce and everything said, so the token
// itself never travels, a recorded hello opens nothing, and both ends know that the other one has the token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "dataplane/data_plane.h"
#include "dataplane/wire.h"

namespace landbridge::dataplane {

// Where a process listens.
struct HostAddress {
  std::string machine;           // equal: the local socket can be reached
  std::string local;             // name of an abstract Unix socket; empty: none
  std::vector<std::string> tcp;  // "ip:port", "[ip6]:port"; tried in order
};
std::string EncodeHostAddress(const HostAddress& address);
// INVALID_ARGUMENT for anything that EncodeHostAddress did not make.
absl::StatusOr<HostAddress> DecodeHostAddress(absl::string_view blob);

enum class StreamKind : uint8_t {
  kMessages = 1,  // frames
  kBulk = 2,      // chunks that the receiver asked for: {cookie, size}, bytes
};

using Nonce = std::array<std::byte, 16>;

struct Hello {
  StreamKind kind = StreamKind::kMessages;
  PeerId from;
  PeerId to;
  uint64_t link = 0;           // random; the streams of one connection have the same
  uint64_t probe_address = 0;  // where in the connector's memory ...
  Nonce probe = {};            // ... these bytes lie: who finds them there may read its chunks directly
  Nonce nonce = {};            // the challenge for the acceptor
};

enum class Verdict : uint8_t {
  kWelcome = 1,
  kWrongToken = 2,
  kNotHere = 3,  // nobody of that name in this process
  kGivenUp = 4,  // the acceptor has closed this peer for good
  kStale = 5,    // a bulk stream of a connection that is over
};

constexpr size_t kChallengeBytes = 24;
constexpr size_t kHelloBytes = 112;
constexpr size_t kWelcomeBytes = 48;

std::string EncodeChallenge(const Nonce& nonce);
std::optional<Nonce> DecodeChallenge(absl::string_view bytes);
std::string EncodeHello(const Hello& hello, const Nonce& challenge, const Token& token);
std::optional<Hello> DecodeHello(absl::string_view bytes);  // its form only
bool HelloIsGenuine(absl::string_view bytes, const Nonce& challenge, const Token& token);
std::string EncodeWelcome(Verdict verdict, const Nonce& nonce, const Token& token);
// OK, or why not, in words for the log and the pulls that fail.
absl::Status CheckWelcome(absl::string_view bytes, const Nonce& nonce, const Token& token);

enum class FrameKind : uint8_t {
  kMessage = 1,  // a message, payload inside
  kOffer = 2,    // a kData message whose bytes stay with the sender: cookie, their address
  kFetch = 3,    // send the bytes of this cookie over the bulk stream
  kFetched = 4,  // they were read directly
  kDropped = 5,  // they are not wanted
};

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  Message message;                      // kMessage, kOffer
  absl::Span<const std::byte> payload;  // kMessage; into the reader's input
  uint64_t cookie = 0;                  // all others
  uint64_t address = 0;                 // kOffer; 0: cannot be read directly
};

constexpr size_t kFrameHeadBytes = 12;  // {body bytes, kind, CRC-32C of the body}

std::string EncodeMessageFrame(const Message& message, absl::Span<const std::byte> payload);
std::string EncodeOfferFrame(const Message& message, uint64_t cookie, uint64_t address);
std::string EncodeCookieFrame(FrameKind kind, uint64_t cookie);

// kFrame: *frame is set and its bytes are gone from *input. kMore: the rest is not there yet. kBad: not ours, or
// damaged; nothing after it can be read.
enum class FrameResult { kFrame, kMore, kBad };
FrameResult TakeFrame(absl::Span<const std::byte>* input, Frame* frame);

constexpr size_t kBulkHeadBytes = 16;
struct BulkHead {
  uint64_t cookie = 0;
  uint64_t size = 0;
};
std::array<std::byte, kBulkHeadBytes> EncodeBulkHead(const BulkHead& head);
BulkHead DecodeBulkHead(const std::byte* bytes);

}  // namespace landbridge::dataplane
