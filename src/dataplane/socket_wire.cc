#include "dataplane/socket_wire.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/hmac.h"
#include "base/limits.h"
#include "dataplane/integers.h"

namespace landbridge::dataplane {
namespace {

constexpr absl::string_view kAddressMagic = "LBDPADR2";
constexpr absl::string_view kStreamMagic = "LBDPSTR1";
constexpr size_t kMagicBytes = 8;
constexpr size_t kProofBytes = 32;
constexpr size_t kMessageBodyBytesMax =
    kMessageBytes + std::max<uint64_t>(limits::kTransferSmallBytesMax, limits::kTransferErrorTextBytesMax);

void PutBytes(std::byte*& at, const void* from, size_t size) {
  std::memcpy(at, from, size);
  at += size;
}

void GetBytes(const std::byte*& at, void* to, size_t size) {
  std::memcpy(to, at, size);
  at += size;
}

std::string Proof(absl::string_view role, const Nonce& nonce, absl::string_view said, const Token& token) {
  std::byte key[16];
  std::byte* at = key;
  PutInteger(at, token.high, 8);
  PutInteger(at, token.low, 8);
  return HmacSha256(
      {reinterpret_cast<const char*>(key), sizeof(key)},
      absl::StrCat(role, absl::string_view(reinterpret_cast<const char*>(nonce.data()), nonce.size()), said));
}

// A body whose first bytes are a header to be filled in.
std::string Sealed(FrameKind kind, std::string frame) {
  const size_t body = frame.size() - kFrameHeadBytes;
  std::byte* at = reinterpret_cast<std::byte*>(frame.data());
  PutInteger(at, body, 4);
  PutInteger(at, static_cast<uint8_t>(kind), 4);
  PutInteger(at, Crc32c(frame.data() + kFrameHeadBytes, body), 4);
  return frame;
}

const std::byte* AsBytes(absl::string_view text) { return reinterpret_cast<const std::byte*>(text.data()); }

void AppendText(std::string* blob, absl::string_view text) {
  blob->push_back(static_cast<char>(text.size()));
  blob->append(text.data(), text.size());
}

bool TakeText(absl::string_view* blob, std::string* text) {
  if (blob->empty()) return false;
  const size_t size = static_cast<unsigned char>(blob->front());
  if (blob->size() < 1 + size) return false;
  text->assign(blob->data() + 1, size);
  blob->remove_prefix(1 + size);
  return true;
}

}  // namespace

std::string EncodeHostAddress(const HostAddress& address) {
  std::string blob(kAddressMagic);
  AppendText(&blob, address.machine);
  AppendText(&blob, address.local);
  for (const std::string& tcp : address.tcp) AppendText(&blob, tcp);
  return blob;
}

absl::StatusOr<HostAddress> DecodeHostAddress(absl::string_view blob) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("not a data-plane address (", blob.size(), " bytes); are both processes of the same version?"));
  if (blob.size() > limits::kTransferAddressBytesMax || blob.substr(0, kAddressMagic.size()) != kAddressMagic) {
    return bad;
  }
  blob.remove_prefix(kAddressMagic.size());
  HostAddress address;
  if (!TakeText(&blob, &address.machine) || !TakeText(&blob, &address.local)) return bad;
  while (!blob.empty()) {
    if (!TakeText(&blob, &address.tcp.emplace_back())) return bad;
  }
  if (address.local.empty() && address.tcp.empty()) return bad;
  return address;
}

std::string EncodeChallenge(const Nonce& nonce) {
  std::string bytes(kStreamMagic);
  bytes.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  return bytes;
}

std::optional<Nonce> DecodeChallenge(absl::string_view bytes) {
  if (bytes.size() != kChallengeBytes || bytes.substr(0, kMagicBytes) != kStreamMagic) return std::nullopt;
  Nonce nonce;
  std::memcpy(nonce.data(), bytes.data() + kMagicBytes, nonce.size());
  return nonce;
}

std::string EncodeHello(const Hello& hello, const Nonce& challenge, const Token& token) {
  std::string bytes(kHelloBytes - kProofBytes, '\0');
  std::byte* at = reinterpret_cast<std::byte*>(bytes.data());
  PutBytes(at, kStreamMagic.data(), kMagicBytes);
  PutInteger(at, static_cast<uint8_t>(hello.kind), 8);
  PutInteger(at, hello.from.value(), 8);
  PutInteger(at, hello.to.value(), 8);
  PutInteger(at, hello.link, 8);
  PutInteger(at, hello.probe_address, 8);
  PutBytes(at, hello.probe.data(), hello.probe.size());
  PutBytes(at, hello.nonce.data(), hello.nonce.size());
  return bytes + Proof("hello", challenge, bytes, token);
}

std::optional<Hello> DecodeHello(absl::string_view bytes) {
  if (bytes.size() != kHelloBytes || bytes.substr(0, kMagicBytes) != kStreamMagic) return std::nullopt;
  const std::byte* at = AsBytes(bytes) + kMagicBytes;
  Hello hello;
  const uint64_t kind = GetInteger(at, 8);
  if (kind != static_cast<uint8_t>(StreamKind::kMessages) && kind != static_cast<uint8_t>(StreamKind::kBulk)) {
    return std::nullopt;
  }
  hello.kind = static_cast<StreamKind>(kind);
  hello.from = PeerId(GetInteger(at, 8));
  hello.to = PeerId(GetInteger(at, 8));
  hello.link = GetInteger(at, 8);
  hello.probe_address = GetInteger(at, 8);
  GetBytes(at, hello.probe.data(), hello.probe.size());
  GetBytes(at, hello.nonce.data(), hello.nonce.size());
  if (!hello.from.valid() || !hello.to.valid()) return std::nullopt;
  return hello;
}

bool HelloIsGenuine(absl::string_view bytes, const Nonce& challenge, const Token& token) {
  const absl::string_view said = bytes.substr(0, kHelloBytes - kProofBytes);
  return EqualConstantTime(bytes.substr(said.size()), Proof("hello", challenge, said, token));
}

std::string EncodeWelcome(Verdict verdict, const Nonce& nonce, const Token& token) {
  std::string bytes(kWelcomeBytes - kProofBytes, '\0');
  std::byte* at = reinterpret_cast<std::byte*>(bytes.data());
  PutBytes(at, kStreamMagic.data(), kMagicBytes);
  PutInteger(at, static_cast<uint8_t>(verdict), 8);
  return bytes + Proof("welcome", nonce, bytes, token);
}

absl::Status CheckWelcome(absl::string_view bytes, const Nonce& nonce, const Token& token) {
  if (bytes.size() != kWelcomeBytes || bytes.substr(0, kMagicBytes) != kStreamMagic) {
    return absl::UnavailableError("the other end does not speak the data plane's language");
  }
  const std::byte* at = AsBytes(bytes) + kMagicBytes;
  switch (static_cast<Verdict>(GetInteger(at, 8))) {
    case Verdict::kWelcome: {
      const absl::string_view said = bytes.substr(0, kWelcomeBytes - kProofBytes);
      if (EqualConstantTime(bytes.substr(said.size()), Proof("welcome", nonce, said, token))) return absl::OkStatus();
      return absl::UnavailableError("the other end does not have this cluster's data-plane token");
    }
    case Verdict::kWrongToken:
      return absl::UnavailableError("refused: the peer is of another cluster (it has another data-plane token)");
    case Verdict::kNotHere:
      return absl::UnavailableError("refused: the process there does not carry this peer, or not any more");
    case Verdict::kGivenUp: return absl::UnavailableError("refused: the peer has given this process up");
    case Verdict::kStale: return absl::UnavailableError("refused: the connection is over");
  }
  return absl::UnavailableError("refused, with a reason that this version does not know");
}

std::string EncodeMessageFrame(const Message& message, absl::Span<const std::byte> payload) {
  MessageHeader header;
  EncodeMessage(message, header);
  std::string frame(kFrameHeadBytes + header.size() + payload.size(), '\0');
  std::memcpy(frame.data() + kFrameHeadBytes, header.data(), header.size());
  if (!payload.empty()) std::memcpy(frame.data() + kFrameHeadBytes + header.size(), payload.data(), payload.size());
  return Sealed(FrameKind::kMessage, std::move(frame));
}

std::string EncodeOfferFrame(const Message& message, uint64_t cookie, uint64_t address) {
  MessageHeader header;
  EncodeMessage(message, header);
  std::string frame(kFrameHeadBytes + header.size() + 16, '\0');
  std::byte* at = reinterpret_cast<std::byte*>(frame.data()) + kFrameHeadBytes;
  PutBytes(at, header.data(), header.size());
  PutInteger(at, cookie, 8);
  PutInteger(at, address, 8);
  return Sealed(FrameKind::kOffer, std::move(frame));
}

std::string EncodeCookieFrame(FrameKind kind, uint64_t cookie) {
  std::string frame(kFrameHeadBytes + 8, '\0');
  std::byte* at = reinterpret_cast<std::byte*>(frame.data()) + kFrameHeadBytes;
  PutInteger(at, cookie, 8);
  return Sealed(kind, std::move(frame));
}

FrameResult TakeFrame(absl::Span<const std::byte>* input, Frame* frame) {
  if (input->size() < kFrameHeadBytes) return FrameResult::kMore;
  const std::byte* at = input->data();
  const uint64_t body = GetInteger(at, 4);
  const uint64_t kind = GetInteger(at, 4);
  const uint64_t crc = GetInteger(at, 4);
  // Judged before the body is here: nobody makes us wait for, or hold, more than a frame can have.
  if (kind < static_cast<uint8_t>(FrameKind::kMessage) || kind > static_cast<uint8_t>(FrameKind::kDropped)) {
    return FrameResult::kBad;
  }
  *frame = Frame();
  frame->kind = static_cast<FrameKind>(kind);
  const bool message = frame->kind == FrameKind::kMessage, offer = frame->kind == FrameKind::kOffer;
  const size_t least = message ? kMessageBytes : offer ? kMessageBytes + 16 : 8;
  if (body < least || body > (message ? kMessageBodyBytesMax : least)) return FrameResult::kBad;
  if (input->size() - kFrameHeadBytes < body) return FrameResult::kMore;
  if (Crc32c(at, body) != crc) return FrameResult::kBad;
  if (message || offer) {
    std::optional<Message> decoded = DecodeMessage({at, kMessageBytes});
    if (!decoded.has_value()) return FrameResult::kBad;
    frame->message = *decoded;
    at += kMessageBytes;
  }
  if (message) {
    frame->payload = {at, body - kMessageBytes};
  } else {
    frame->cookie = GetInteger(at, 8);
    if (offer) frame->address = GetInteger(at, 8);
  }
  input->remove_prefix(kFrameHeadBytes + body);
  return FrameResult::kFrame;
}

std::array<std::byte, kBulkHeadBytes> EncodeBulkHead(const BulkHead& head) {
  std::array<std::byte, kBulkHeadBytes> bytes;
  std::byte* at = bytes.data();
  PutInteger(at, head.cookie, 8);
  PutInteger(at, head.size, 8);
  return bytes;
}

BulkHead DecodeBulkHead(const std::byte* bytes) {
  BulkHead head;
  head.cookie = GetInteger(bytes, 8);
  head.size = GetInteger(bytes, 8);
  return head;
}

}  // namespace landbridge::dataplane
