#include "dataplane/wire.h"

#include <random>

#include "base/limits.h"
#include "gtest/gtest.h"

namespace landbridge::dataplane {
namespace {

Message Sample() {
  Message m;
  m.type = MessageType::kRequest;
  m.from = PeerId(0x0102030405060708);
  m.to = PeerId(2);
  m.key = {5, 6};
  m.pull = PullId(7);
  m.offset = 8;
  m.size = 9;
  m.end = 100;
  m.code = 11;
  return m;
}

TEST(WireTest, MessageRoundTrip) {
  MessageHeader header;
  EncodeMessage(Sample(), header);
  EXPECT_EQ(header[8], std::byte{0x08});  // little-endian
  const auto m = DecodeMessage(header);
  ASSERT_TRUE(m.has_value());
  EXPECT_EQ(m->type, MessageType::kRequest);
  EXPECT_EQ(m->from, PeerId(0x0102030405060708));
  EXPECT_EQ(m->to, PeerId(2));
  EXPECT_EQ(m->key, (Key{5, 6}));
  EXPECT_EQ(m->pull, PullId(7));
  EXPECT_EQ(m->offset, 8u);
  EXPECT_EQ(m->size, 9u);
  EXPECT_EQ(m->end, 100u);
  EXPECT_EQ(m->code, 11u);
}

TEST(WireTest, RefusesBadForms) {
  auto accepted = [](auto change) {
    Message m = Sample();
    change(m);
    MessageHeader header;
    EncodeMessage(m, header);
    return DecodeMessage(header).has_value();
  };
  EXPECT_TRUE(accepted([](Message&) {}));
  EXPECT_FALSE(accepted([](Message& m) { m.from = PeerId(); }));
  EXPECT_FALSE(accepted([](Message& m) { m.to = PeerId(); }));
  EXPECT_FALSE(accepted([](Message& m) { m.type = static_cast<MessageType>(8); }));
  EXPECT_TRUE(accepted([](Message& m) { m.type = MessageType::kListen; }));
  EXPECT_FALSE(accepted([](Message& m) {
    m.type = MessageType::kPush;
    m.size = kPushBytesMax + 1;
  }));
  EXPECT_FALSE(accepted([](Message& m) { m.type = static_cast<MessageType>(0); }));
  EXPECT_FALSE(accepted([](Message& m) { m.end = 16; }));  // before its own chunk's end
  EXPECT_FALSE(accepted([](Message& m) { m.offset = ~uint64_t{0}; }));
  EXPECT_FALSE(accepted([](Message& m) { m.size = ~uint64_t{0} - 7; }));  // the sum wraps
  EXPECT_FALSE(accepted([](Message& m) { m.end = limits::kTransferBytesMax + 1; }));
  EXPECT_FALSE(accepted([](Message& m) {
    m.size = limits::kTransferChunkBytes + 1;
    m.end = m.offset + m.size;
  }));
  MessageHeader header;
  EncodeMessage(Sample(), header);
  EXPECT_FALSE(DecodeMessage(absl::MakeSpan(header).subspan(1)).has_value());
  EXPECT_FALSE(DecodeMessage({}).has_value());
  header[4] = std::byte{99};  // another version
  EXPECT_FALSE(DecodeMessage(header).has_value());
}

TEST(WireTest, RandomBytesNeverDecodeToOversize) {
  std::mt19937_64 random(1);
  MessageHeader good;
  EncodeMessage(Sample(), good);
  int decoded = 0;
  for (int i = 0; i < 200'000; ++i) {
    MessageHeader header = good;
    for (int flips = 0; flips < 3; ++flips) header[random() % header.size()] = static_cast<std::byte>(random());
    const auto m = DecodeMessage(header);
    if (!m.has_value()) continue;
    ++decoded;
    ASSERT_LE(m->offset, limits::kTransferBytesMax);
    ASSERT_LE(m->size, limits::kTransferBytesMax);
    if (m->type == MessageType::kRequest) {
      ASSERT_LE(m->offset + m->size, m->end);
    }
  }
  EXPECT_GT(decoded, 1000);
}

TEST(WireTest, RefusalsKeepCodeAndText) {
  const absl::Status status = absl::DataLossError("slice0: worker i7 died");
  const std::string text = RefusalText(status);
  auto bytes = [](const std::string& s) {
    return absl::Span<const std::byte>(reinterpret_cast<const std::byte*>(s.data()), s.size());
  };
  EXPECT_EQ(RefusalStatus(static_cast<uint32_t>(status.code()), bytes(text)), status);
  EXPECT_EQ(RefusalStatus(0, bytes(text)).code(), absl::StatusCode::kUnknown);  // never OK
  EXPECT_EQ(RefusalStatus(99, bytes(text)).code(), absl::StatusCode::kUnknown);
  const std::string longer(limits::kTransferErrorTextBytesMax + 100, 'x');
  EXPECT_EQ(RefusalText(absl::AbortedError(longer)).size(), limits::kTransferErrorTextBytesMax);
  EXPECT_EQ(RefusalStatus(10, bytes(longer)).message().size(), limits::kTransferErrorTextBytesMax);
}

}  // namespace
}  // namespace landbridge::dataplane
