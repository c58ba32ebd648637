// Messages, refusals, addresses, handshakes and frames of the data plane.
#include "dataplane/socket_wire.h"

#include "base/limits.h"
#include "base/log.h"
#include "testing/fuzz.h"

namespace landbridge::fuzz {
namespace {

using namespace landbridge::dataplane;  // NOLINT

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string Encoded(const Message& message) {
  MessageHeader header;
  EncodeMessage(message, header);
  return std::string(reinterpret_cast<const char*>(header.data()), header.size());
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  Message request;
  request.from = PeerId(1);
  request.to = PeerId(2);
  request.key = {3, 4};
  request.pull = PullId(5);
  request.offset = 100;
  request.size = 200;
  request.end = 4000;
  Message refuse = request;
  refuse.type = MessageType::kRefuse;
  refuse.code = 5;
  Message push = request;
  push.type = MessageType::kPush;
  push.pull = PullId();
  return {Encoded(request),
          Encoded(refuse),
          Encoded(push),
          EncodeMessageFrame(push, Bytes("a value")),
          EncodeHostAddress({"machine", "local", {"127.0.0.1:80"}}),
          std::string("\x03\0\0\0text", 8),
          EncodeHello(Hello{StreamKind::kMessages, PeerId(1), PeerId(2), 3, 0, {}, {}}, {}, {}),
          EncodeChallenge({}),
          EncodeMessageFrame(request, Bytes("payload")) + EncodeOfferFrame(request, 7, 8),
          EncodeCookieFrame(FrameKind::kFetch, 9)};
}

void FuzzOne(absl::string_view input) {
  if (const std::optional<Message> message = DecodeMessage(Bytes(input)); message.has_value()) {
    LB_CHECK(Encoded(*message) == input);
    LB_CHECK(message->offset <= limits::kTransferBytesMax && message->size <= limits::kTransferBytesMax);
    if (message->type == MessageType::kRequest) LB_CHECK(message->offset + message->size <= message->end);
    if (message->type == MessageType::kPush) LB_CHECK(message->size <= kPushBytesMax);
  }
  if (const absl::StatusOr<HostAddress> address = DecodeHostAddress(input); address.ok()) {
    LB_CHECK(EncodeHostAddress(*address) == input);
  }
  const Nonce nonce = {};
  const Token token = {1, 2};
  if (const std::optional<Hello> hello = DecodeHello(input); hello.has_value()) {
    LB_CHECK(hello->from.valid() && hello->to.valid());
    LB_CHECK(!HelloIsGenuine(input, nonce, token) || EncodeHello(*hello, nonce, token) == input);
  }
  LB_CHECK(!CheckWelcome(input, nonce, token).ok() || input == EncodeWelcome(Verdict::kWelcome, nonce, token));
  absl::Span<const std::byte> stream = Bytes(input);
  Frame frame;
  while (true) {
    const size_t before = stream.size();
    const FrameResult result = TakeFrame(&stream, &frame);
    if (result != FrameResult::kFrame) {
      LB_CHECK(stream.size() == before);
      break;
    }
    LB_CHECK(stream.size() < before && frame.payload.size() <= limits::kTransferSmallBytesMax);
  }
  Choices choices(input);
  const auto code = static_cast<uint32_t>(choices.U64());
  const absl::Status status = RefusalStatus(code, Bytes(choices.Rest()));
  LB_CHECK(!status.ok() && status.message().size() <= limits::kTransferErrorTextBytesMax);
}

}  // namespace landbridge::fuzz
