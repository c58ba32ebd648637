#include "env/frame.h"

#include <string>
#include <utility>
#include <vector>

#include "env/clock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using Frames = std::vector<std::pair<uint32_t, std::string>>;

FrameParser::OnFrame Collect(Frames* frames) {
  return [frames](uint32_t type, absl::string_view payload) {
    frames->emplace_back(type, std::string(payload));
    return true;
  };
}

TEST(Frame, LayoutOnTheWire) {
  const std::string frame = EncodeFrame(7, "123456789");
  ASSERT_EQ(frame.size(), 16u + 9u);
  EXPECT_EQ(frame.substr(0, 4), "LBB1");
  EXPECT_EQ(frame.substr(4, 4), std::string("\x09\0\0\0", 4));
  EXPECT_EQ(frame.substr(8, 4), "\x83\x92\x06\xe3");  // CRC-32C of "123456789" is e3069283
  EXPECT_EQ(frame.substr(12, 4), std::string("\x07\0\0\0", 4));
}

TEST(FrameParser, AnyCutGivesTheSameFrames) {
  const Frames expected = {{1, ""}, {2, "x"}, {3, std::string(1000, 'y')}, {4, "last"}};
  std::string stream;
  for (const auto& [type, payload] : expected) stream += EncodeFrame(type, payload);
  for (size_t step : {size_t{1}, size_t{2}, size_t{15}, size_t{16}, size_t{17}, size_t{500}, stream.size()}) {
    FrameParser parser;
    Frames frames;
    for (size_t at = 0; at < stream.size(); at += step) {
      ASSERT_TRUE(parser.Feed(absl::string_view(stream).substr(at, step), Collect(&frames)).ok());
    }
    EXPECT_EQ(frames, expected) << step;
    EXPECT_FALSE(parser.InsideFrame());
  }
  for (size_t cut = 0; cut <= stream.size(); ++cut) {
    FrameParser parser;
    Frames frames;
    ASSERT_TRUE(parser.Feed(stream.substr(0, cut), Collect(&frames)).ok());
    ASSERT_TRUE(parser.Feed(stream.substr(cut), Collect(&frames)).ok());
    ASSERT_EQ(frames, expected) << cut;
  }
}

TEST(FrameParser, LimitIsCheckedBeforeMemoryIsTaken) {
  FrameParser parser(100);
  Frames frames;
  ASSERT_TRUE(parser.Feed(EncodeFrame(1, std::string(100, 'a')), Collect(&frames)).ok());
  std::string big = EncodeFrame(1, std::string(101, 'a'));
  EXPECT_EQ(parser.Feed(big.substr(0, kFrameHeaderBytes), Collect(&frames)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(frames.size(), 1u);
  EXPECT_FALSE(parser.Feed(EncodeFrame(1, "fine"), Collect(&frames)).ok());  // there is no way back into step
}

TEST(FrameParser, StrangersAreTold) {
  auto said = [](absl::string_view bytes) {
    FrameParser parser;
    Frames frames;
    return std::string(parser.Feed(bytes, Collect(&frames)).message());
  };
  EXPECT_NE(said("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").find("it is a gRPC client"), std::string::npos);
  EXPECT_NE(said("GET / HTTP/1.1\r\nHost: x\r\n").find("it speaks HTTP"), std::string::npos);
  EXPECT_EQ(said("something else entirely"), "the peer does not speak Landbridge's frames (bad magic number)");
}

TEST(FrameParser, MemoryFollowsWhatArrivedNotWhatWasAnnounced) {
  FrameParser parser;
  Frames frames;
  std::string header = EncodeFrame(1, "").substr(0, kFrameHeaderBytes);
  header[6] = 0x3f;  // announces 0x3f0000 bytes
  ASSERT_TRUE(parser.Feed(header + std::string(100, 'a'), Collect(&frames)).ok());
  EXPECT_EQ(parser.held_bytes(), kFrameHeaderBytes + 100);
  EXPECT_TRUE(frames.empty());
}

TEST(FrameParser, EveryDamagedBitIsSeen) {
  const std::string frame = EncodeFrame(3, "payload");
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    const size_t byte = bit / 8;
    std::string damaged = frame;
    damaged[byte] = static_cast<char>(damaged[byte] ^ (1 << (bit % 8)));
    FrameParser parser;
    Frames frames;
    const absl::Status status = parser.Feed(damaged, Collect(&frames));
    if (byte >= 12 && byte < 16) {
      EXPECT_TRUE(status.ok());  // another type: for the receiver to refuse
      continue;
    }
    EXPECT_TRUE(frames.empty()) << bit;
    const bool longer = byte >= 4 && byte < 8 && parser.InsideFrame();  // waits for more, bounded
    EXPECT_TRUE(!status.ok() || longer) << bit;
  }
}

TEST(FrameParser, GarbageNeverCrashesAndNeverYieldsFrames) {
  SeededRandom random(1);
  for (int run = 0; run < 3000; ++run) {
    FrameParser parser(1 << 16);
    Frames frames;
    std::string noise = random.NextBelow(2) == 0 ? "LBB1" : "";
    noise += random.NextBytes(random.NextBelow(200));
    absl::Status status;
    for (size_t at = 0; at < noise.size();) {
      const size_t step = 1 + random.NextBelow(30);
      status = parser.Feed(absl::string_view(noise).substr(at, step), Collect(&frames));
      at += step;
    }
    EXPECT_TRUE(frames.empty());
    EXPECT_LE(parser.held_bytes(), noise.size());
  }
}

// Random damage to a valid stream: every frame that is delivered is one that was sent, in order.
TEST(FrameParser, DamagedStreamsDeliverOnlyWhatWasSent) {
  SeededRandom random(2);
  for (int run = 0; run < 2000; ++run) {
    Frames sent;
    std::string stream;
    for (int i = 0; i < 5; ++i) {
      sent.emplace_back(static_cast<uint32_t>(i), random.NextBytes(random.NextBelow(300)));
      stream += EncodeFrame(sent.back().first, sent.back().second);
    }
    if (random.NextBelow(2) == 0) stream.resize(random.NextBelow(stream.size()));
    const size_t at = random.NextBelow(stream.size() + 1);
    if (at < stream.size()) stream[at] = static_cast<char>(stream[at] ^ (1 + random.NextBelow(255)));
    FrameParser parser;
    Frames frames;
    parser.Feed(stream, Collect(&frames)).IgnoreError();
    for (size_t i = 0; i < frames.size(); ++i) EXPECT_EQ(frames[i].second, sent[i].second);
  }
}

TEST(FrameParser, StopsWhenTheOwnerGoesAway) {
  FrameParser parser;
  int seen = 0;
  ASSERT_TRUE(parser
                  .Feed(EncodeFrame(1, "a") + EncodeFrame(2, "b"),
                        [&](uint32_t, absl::string_view) {
                          ++seen;
                          return false;
                        })
                  .ok());
  EXPECT_EQ(seen, 1);
}

}  // namespace
}  // namespace landbridge
