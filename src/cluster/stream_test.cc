#include "cluster/stream.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "env/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;

void Push(StreamSender<std::string>& sender, std::string text) { ASSERT_TRUE(sender.TryPush(text, text.size())); }

TEST(StreamSender, NothingLeavesBeforeTheHandshake) {
  StreamSender<std::string> sender;
  Push(sender, "a");
  EXPECT_EQ(sender.Take(100).first, 0u);
  ASSERT_TRUE(sender.Resume(0).ok());
  auto batch = sender.Take(100);
  EXPECT_EQ(batch.first, 1u);
  EXPECT_THAT(batch.messages, ElementsAre("a"));
  EXPECT_FALSE(sender.HasUnsent());
}

TEST(StreamSender, BatchesByBytesButSendsALargeMessage) {
  StreamSender<std::string> sender;
  ASSERT_TRUE(sender.Resume(0).ok());
  Push(sender, "aaaa");
  Push(sender, "bbbb");
  Push(sender, std::string(100, 'c'));
  EXPECT_THAT(sender.Take(8).messages, ElementsAre("aaaa", "bbbb"));
  auto batch = sender.Take(8);
  EXPECT_EQ(batch.first, 3u);
  EXPECT_EQ(batch.messages.size(), 1u);
}

// Counterexample: a sender that drops at its bound loses the op for ever; the receiver then sees a gap that no
// reconnection repairs.
TEST(StreamSender, ParksAtTheBoundAndNeverDrops) {
  StreamSender<std::string> sender(10);
  ASSERT_TRUE(sender.Resume(0).ok());
  Push(sender, "123456");
  Push(sender, "abcdef");  // overshoots by one message
  EXPECT_TRUE(sender.parked());
  std::string kept = "kept";
  EXPECT_FALSE(sender.TryPush(kept, kept.size()));
  EXPECT_EQ(kept, "kept");
  EXPECT_THAT(sender.Take(100).messages, ElementsAre("123456", "abcdef"));
  EXPECT_TRUE(sender.parked());  // sent is not acknowledged
  ASSERT_TRUE(sender.OnAck(1).ok());
  EXPECT_FALSE(sender.parked());
  EXPECT_TRUE(sender.TryPush(kept, 4));
  auto batch = sender.Take(100);
  EXPECT_EQ(batch.first, 3u);
  EXPECT_THAT(batch.messages, ElementsAre("kept"));
}

TEST(StreamSender, ReplaysWhatThePeerLacks) {
  StreamSender<std::string> sender;
  ASSERT_TRUE(sender.Resume(0).ok());
  for (const char* text : {"a", "b", "c"}) Push(sender, text);
  EXPECT_EQ(sender.Take(100).messages.size(), 3u);
  ASSERT_TRUE(sender.OnAck(1).ok());
  sender.OnDisconnect();
  Push(sender, "d");
  EXPECT_FALSE(sender.HasUnsent());
  ASSERT_TRUE(sender.Resume(2).ok());  // its acknowledgement of b was lost
  auto batch = sender.Take(100);
  EXPECT_EQ(batch.first, 3u);
  EXPECT_THAT(batch.messages, ElementsAre("c", "d"));
}

TEST(StreamSender, RefusesImpossibleClaims) {
  StreamSender<std::string> sender;
  ASSERT_TRUE(sender.Resume(0).ok());
  Push(sender, "a");
  Push(sender, "b");
  EXPECT_EQ(sender.OnAck(1).code(), absl::StatusCode::kInvalidArgument);  // nothing was sent yet
  sender.Take(1);
  EXPECT_EQ(sender.OnAck(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sender.OnAck(1).ok());
  EXPECT_TRUE(sender.OnAck(0).ok());  // late
  sender.OnDisconnect();
  EXPECT_EQ(sender.Resume(0).code(), absl::StatusCode::kInvalidArgument);  // forgot what it had acknowledged
  EXPECT_EQ(sender.Resume(2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(sender.Resume(1).ok());
}

TEST(StreamSender, AcknowledgementOfAnEarlierConnectionStaysKnown) {
  StreamSender<std::string> sender;
  ASSERT_TRUE(sender.Resume(0).ok());
  Push(sender, "a");
  sender.Take(100);
  sender.OnDisconnect();
  ASSERT_TRUE(sender.Resume(0).ok());  // breaks again before anything was sent
  sender.OnDisconnect();
  EXPECT_TRUE(sender.Resume(1).ok());  // the first connection's message had arrived after all
  EXPECT_FALSE(sender.HasUnsent());
}

// Counterexample: a replay after fencing brings the old holder's launches back onto buffers of the new one.
TEST(StreamSender, FencedNeverResumes) {
  StreamSender<std::string> sender;
  ASSERT_TRUE(sender.Resume(0).ok());
  Push(sender, "a");
  sender.Fence();
  EXPECT_EQ(sender.replay_bytes(), 0u);
  EXPECT_EQ(sender.Resume(0).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(sender.Take(100).first, 0u);
  std::string more = "b";
  EXPECT_FALSE(sender.TryPush(more, 1));
}

TEST(StreamReceiver, AppliesExactlyTheNext) {
  StreamReceiver receiver;
  EXPECT_EQ(*receiver.OnFrame(1, 3, 30), 0u);
  EXPECT_EQ(receiver.applied(), 3u);
  EXPECT_FALSE(receiver.ack_due());
  EXPECT_EQ(*receiver.OnFrame(2, 3, 30), 2u);  // 2 and 3 are known, 4 is new
  EXPECT_EQ(receiver.applied(), 4u);
  EXPECT_TRUE(receiver.ack_due());
  receiver.AckMade();
  EXPECT_EQ(*receiver.OnFrame(1, 4, 40), 4u);  // all known: acknowledged again, else the sender parks for ever
  EXPECT_TRUE(receiver.ack_due());
  EXPECT_EQ(receiver.applied(), 4u);
}

// What the sender must keep for replay stays bounded, however little there is to say in the other direction.
TEST(StreamReceiver, AcknowledgesMuchAtOnce) {
  StreamReceiver receiver(/*ack_bytes=*/100);
  ASSERT_TRUE(receiver.OnFrame(1, 1, 60).ok());
  EXPECT_FALSE(receiver.ack_due());
  ASSERT_TRUE(receiver.OnFrame(2, 1, 40).ok());
  EXPECT_TRUE(receiver.ack_due());
  receiver.AckMade();
  EXPECT_FALSE(receiver.ack_due());
  ASSERT_TRUE(receiver.OnFrame(0, 0, 500).ok());  // a heartbeat: nothing to acknowledge
  EXPECT_FALSE(receiver.ack_due());
  static_assert(limits::kStreamAckBytes < limits::kStreamReplayBytesMax);
}

// Counterexample: applying 3 after 1 loses 2, and the cumulative acknowledgement then tells the sender to forget it.
TEST(StreamReceiver, RefusesGaps) {
  StreamReceiver receiver;
  ASSERT_TRUE(receiver.OnFrame(1, 1, 10).ok());
  EXPECT_EQ(receiver.OnFrame(3, 1, 10).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(receiver.applied(), 1u);
  EXPECT_EQ(*receiver.OnFrame(2, 2, 10), 0u);
  EXPECT_EQ(receiver.OnFrame(0, 1, 10).status().code(), absl::StatusCode::kInvalidArgument);
  receiver.Fence();
  EXPECT_FALSE(receiver.OnFrame(4, 1, 10).ok());
}

// Random cuts, losses and repetitions: every message is applied once, in order.
TEST(Stream, RandomRuns) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SeededRandom random(seed);
    StreamSender<std::string> sender(64);
    StreamReceiver receiver;
    std::vector<std::string> applied;
    std::deque<std::pair<uint64_t, std::vector<std::string>>> wire;
    uint64_t pushed = 0;
    bool up = false;
    for (int step = 0; step < 3000 && applied.size() < 100; ++step) {
      switch (random.NextBelow(5)) {
        case 0: {
          std::string text = std::to_string(pushed + 1);
          if (pushed < 100 && sender.TryPush(text, 8)) ++pushed;
          break;
        }
        case 1: {
          auto batch = sender.Take(random.NextBelow(40));
          if (batch.first != 0) wire.emplace_back(batch.first, batch.messages);
          break;
        }
        case 2:
          if (!wire.empty()) {
            auto [first, messages] = wire.front();
            if (random.NextBelow(4) != 0) wire.pop_front();  // else it comes again
            auto skip = receiver.OnFrame(first, messages.size(), 10);
            if (!skip.ok()) {
              up = false;
            } else {
              applied.insert(applied.end(), messages.begin() + static_cast<std::ptrdiff_t>(*skip), messages.end());
            }
          }
          break;
        case 3:
          if (up) {
            ASSERT_TRUE(sender.OnAck(receiver.applied()).ok());
          }
          break;
        case 4:
          if (random.NextBelow(8) == 0) up = false;
          break;
      }
      if (!up) {
        sender.OnDisconnect();
        wire.clear();  // lost with the connection
        ASSERT_TRUE(sender.Resume(receiver.applied()).ok()) << seed;
        up = true;
      }
    }
    ASSERT_EQ(applied.size(), 100u) << "seed " << seed;
    for (size_t i = 0; i < applied.size(); ++i) ASSERT_EQ(applied[i], std::to_string(i + 1)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace landbridge
