#include "worker/shell/inbox.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;

struct Batch {
  std::vector<int> events;
  bool late = false;
  friend bool operator==(const Batch&, const Batch&) = default;
};

class InboxTest : public ::testing::Test {
 protected:
  InboxTest() {
    inbox_ = std::make_shared<Inbox>(&loop_, [this](bool late) {
      batches_.push_back({std::move(ran_), late});
      ran_.clear();
      return outlook_;
    });
  }
  ~InboxTest() override { inbox_->Close(); }

  Inbox::Event Event(int number) {
    return [this, number] { ran_.push_back(number); };
  }
  // Runs the loop until there are so many batches.
  void RunUntil(size_t batches) {
    while (batches_.size() < batches) loop_.RunOnce(kSecond);
  }

  Loop loop_;
  std::shared_ptr<Inbox> inbox_;
  Inbox::Outlook outlook_;
  std::vector<int> ran_;
  std::vector<Batch> batches_;
};

TEST_F(InboxTest, OneBatchForAllThatCameMeanwhile) {
  for (int i = 1; i <= 3; ++i) inbox_->Push(Event(i));
  RunUntil(1);
  inbox_->Push(Event(4));
  RunUntil(2);
  EXPECT_THAT(batches_, ElementsAre(Batch{{1, 2, 3}, false}, Batch{{4}, false}));
}

TEST_F(InboxTest, LateEventsFollowTheFirstInOneBatch) {
  inbox_->PushLate(Event(1));  // nobody knows how long it would wait: it wakes
  RunUntil(1);
  inbox_->PushLate(Event(2));
  inbox_->PushLate(Event(3));
  RunUntil(2);  // by the timer alone
  EXPECT_THAT(batches_, ElementsAre(Batch{{1}, false}, Batch{{2, 3}, true}));
}

TEST_F(InboxTest, AnEventThatCannotWaitTakesTheLateOnesAlongInOrder) {
  inbox_->PushLate(Event(1));
  RunUntil(1);
  inbox_->PushLate(Event(2));
  inbox_->Push(Event(3));
  inbox_->PushLate(Event(4));
  RunUntil(2);
  EXPECT_THAT(batches_, ElementsAre(Batch{{1}, false}, Batch{{2, 3, 4}, false}));
}

TEST_F(InboxTest, WhoIsInAHurryIsToldAtOnce) {
  outlook_.in_a_hurry = true;
  inbox_->PushLate(Event(1));
  RunUntil(1);
  inbox_->PushLate(Event(2));
  RunUntil(2);
  EXPECT_THAT(batches_, ElementsAre(Batch{{1}, false}, Batch{{2}, false}));
}

// Somebody begins to wait when a late event is here already.
TEST_F(InboxTest, AHurryThatBeginsFindsWhatCameQuietly) {
  inbox_->PushLate(Event(1));
  RunUntil(1);
  outlook_.in_a_hurry = true;
  inbox_->Push([this] { inbox_->PushLate(Event(2)); });
  RunUntil(3);
  EXPECT_THAT(batches_, ElementsAre(Batch{{1}, false}, Batch{{}, false}, Batch{{2}, false}));
}

TEST_F(InboxTest, ComesBackForWhatWasPutOff) {
  outlook_.put_off = true;
  inbox_->Push(Event(1));
  RunUntil(1);
  outlook_.put_off = false;
  RunUntil(2);
  EXPECT_THAT(batches_, ElementsAre(Batch{{1}, false}, Batch{{}, true}));
}

TEST_F(InboxTest, NothingRunsAfterClose) {
  inbox_->PushLate(Event(1));
  RunUntil(1);
  inbox_->PushLate(Event(2));
  inbox_->Close();
  inbox_->Push(Event(3));
  loop_.RunOnce(3 * limits::kProgressDelay);
  EXPECT_EQ(batches_.size(), 1u);
}

// Whatever the outlook says and whenever it changes, no event is forgotten.
TEST(Inbox, NoEventIsLostAmongChangingOutlooks) {
  constexpr int kEvents = 20'000;
  Loop loop;
  int batches = 0, next = 0;
  bool in_order = true;
  auto inbox = std::make_shared<Inbox>(&loop, [&](bool) {
    ++batches;
    return Inbox::Outlook{batches % 3 == 0, batches % 5 == 0};
  });
  std::thread pusher([&] {
    for (int i = 0; i < kEvents; ++i) {
      auto event = [&, i] {
        in_order = in_order && next++ == i;
        if (next == kEvents) loop.Stop();
      };
      if (i % 7 == 0) {
        inbox->Push(event);
      } else {
        inbox->PushLate(event);
      }
      if (i % 64 == 0) std::this_thread::yield();
    }
  });
  loop.Run();
  pusher.join();
  inbox->Close();
  EXPECT_TRUE(in_order);
  EXPECT_EQ(next, kEvents);
}

}  // namespace
}  // namespace landbridge
