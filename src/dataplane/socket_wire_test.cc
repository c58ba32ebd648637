#include "dataplane/socket_wire.h"

#include <random>
#include <string>

#include "base/limits.h"
#include "gtest/gtest.h"

namespace landbridge::dataplane {
namespace {

absl::Span<const std::byte> BytesOf(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

Message Data() {
  Message m;
  m.type = MessageType::kData;
  m.from = PeerId(1);
  m.to = PeerId(2);
  m.key = {3, 4};
  m.pull = PullId(5);
  m.size = 6;
  return m;
}

TEST(SocketWireTest, AddressRoundTrip) {
  const HostAddress address = {"boot/net:[1]", "landbridge-0123", {"127.0.0.1:80", "[::1]:80"}};
  const auto back = DecodeHostAddress(EncodeHostAddress(address));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->machine, address.machine);
  EXPECT_EQ(back->local, address.local);
  EXPECT_EQ(back->tcp, address.tcp);
  const std::string blob = EncodeHostAddress(address);
  for (size_t cut = 0; cut < blob.size(); ++cut) {
    auto part = DecodeHostAddress(blob.substr(0, cut));
    if (part.ok()) {
      EXPECT_LT(part->tcp.size(), address.tcp.size()) << cut;
    }
  }
  EXPECT_FALSE(DecodeHostAddress("").ok());
  EXPECT_FALSE(DecodeHostAddress("x" + blob.substr(1)).ok());
  EXPECT_FALSE(DecodeHostAddress(EncodeHostAddress({"machine", "", {}})).ok()) << "nowhere to connect to";
  EXPECT_FALSE(DecodeHostAddress(blob + std::string(limits::kTransferAddressBytesMax, '\0')).ok());
}

TEST(SocketWireTest, OnlyTheTokenMakesAHelloGenuine) {
  Hello hello;
  hello.kind = StreamKind::kBulk;
  hello.from = PeerId(7);
  hello.to = PeerId(8);
  hello.link = 9;
  hello.probe_address = 10;
  hello.probe[3] = std::byte{11};
  hello.nonce[0] = std::byte{12};
  const Nonce challenge = {std::byte{1}};
  const Token token = {13, 14};
  const std::string bytes = EncodeHello(hello, challenge, token);
  ASSERT_EQ(bytes.size(), kHelloBytes);
  const auto back = DecodeHello(bytes);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(back->kind, hello.kind);
  EXPECT_EQ(back->from, hello.from);
  EXPECT_EQ(back->to, hello.to);
  EXPECT_EQ(back->link, hello.link);
  EXPECT_EQ(back->probe_address, hello.probe_address);
  EXPECT_EQ(back->probe, hello.probe);
  EXPECT_EQ(back->nonce, hello.nonce);
  EXPECT_TRUE(HelloIsGenuine(bytes, challenge, token));
  EXPECT_FALSE(HelloIsGenuine(bytes, challenge, {13, 15}));
  EXPECT_FALSE(HelloIsGenuine(bytes, challenge, {12, 14}));
  EXPECT_FALSE(HelloIsGenuine(bytes, {std::byte{2}}, token)) << "recorded from another connection";
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(DecodeHello(damaged).has_value() && HelloIsGenuine(damaged, challenge, token)) << i;
  }
}

TEST(SocketWireTest, OnlyTheTokenMakesAWelcome) {
  const Nonce nonce = {std::byte{1}};
  const Token token = {13, 14};
  EXPECT_TRUE(CheckWelcome(EncodeWelcome(Verdict::kWelcome, nonce, token), nonce, token).ok());
  EXPECT_FALSE(CheckWelcome(EncodeWelcome(Verdict::kWelcome, nonce, {1, 2}), nonce, token).ok());
  EXPECT_FALSE(CheckWelcome(EncodeWelcome(Verdict::kWelcome, {}, token), nonce, token).ok());
  for (Verdict verdict : {Verdict::kWrongToken, Verdict::kNotHere, Verdict::kGivenUp, Verdict::kStale, Verdict(99)}) {
    EXPECT_EQ(CheckWelcome(EncodeWelcome(verdict, nonce, token), nonce, token).code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_FALSE(CheckWelcome("", nonce, token).ok());
}

TEST(SocketWireTest, TokenOfASecret) {
  EXPECT_EQ(TokenFromSecret(""), Token());
  EXPECT_EQ(TokenFromSecret("a"), TokenFromSecret("a"));
  EXPECT_FALSE(TokenFromSecret("a") == TokenFromSecret("b"));
  EXPECT_FALSE(TokenFromSecret("a") == Token());
}

TEST(SocketWireTest, FramesRoundTripInAnyPieces) {
  const std::string payload(limits::kTransferSmallBytesMax, 'p');
  const std::string stream = EncodeMessageFrame(Data(), BytesOf(payload)) + EncodeOfferFrame(Data(), 77, 88) +
                             EncodeCookieFrame(FrameKind::kFetch, 99) + EncodeMessageFrame(Data(), {});
  for (size_t piece : {1u, 7u, 100u, 1'000'000u}) {
    std::string have;
    std::vector<FrameKind> kinds;
    for (size_t at = 0; at < stream.size(); at += piece) {
      have += stream.substr(at, piece);
      absl::Span<const std::byte> input = BytesOf(have);
      Frame frame;
      while (true) {
        const FrameResult result = TakeFrame(&input, &frame);
        ASSERT_NE(result, FrameResult::kBad);
        if (result == FrameResult::kMore) break;
        kinds.push_back(frame.kind);
        if (kinds.size() == 1) {
          EXPECT_EQ(frame.payload.size(), payload.size());
          EXPECT_EQ(frame.message.key, Data().key);
        }
        if (kinds.size() == 2) {
          EXPECT_EQ(frame.cookie, 77u);
          EXPECT_EQ(frame.address, 88u);
          EXPECT_EQ(frame.message.size, 6u);
        }
        if (kinds.size() == 3) {
          EXPECT_EQ(frame.cookie, 99u);
        }
      }
      have = have.substr(have.size() - input.size());
    }
    EXPECT_EQ(kinds,
              (std::vector<FrameKind>{FrameKind::kMessage, FrameKind::kOffer, FrameKind::kFetch, FrameKind::kMessage}));
    EXPECT_TRUE(have.empty());
  }
}

TEST(SocketWireTest, DamageIsSeen) {
  const std::string good = EncodeOfferFrame(Data(), 77, 88);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    absl::Span<const std::byte> input = BytesOf(damaged);
    Frame frame;
    EXPECT_EQ(TakeFrame(&input, &frame), FrameResult::kBad) << i;
  }
}

// An announced size is judged at once: nobody waits for, or holds, what no frame can have.
TEST(SocketWireTest, OversizeIsRefusedBeforeItsBody) {
  for (const std::string& good :
       {EncodeMessageFrame(Data(), {}), EncodeOfferFrame(Data(), 1, 2), EncodeCookieFrame(FrameKind::kDropped, 3)}) {
    std::string head = good.substr(0, kFrameHeadBytes);
    head[2] = 2;  // 128 KiB more
    absl::Span<const std::byte> input = BytesOf(head);
    Frame frame;
    EXPECT_EQ(TakeFrame(&input, &frame), FrameResult::kBad);
  }
}

TEST(SocketWireTest, RandomBytesAreNoFrames) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 100'000; ++i) {
    std::string bytes(random() % 200, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 4 == 0 ? random() : 0);
    absl::Span<const std::byte> input = BytesOf(bytes);
    Frame frame;
    ASSERT_NE(TakeFrame(&input, &frame), FrameResult::kFrame);
  }
}

}  // namespace
}  // namespace landbridge::dataplane
