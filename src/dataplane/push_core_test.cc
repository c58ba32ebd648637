#include "dataplane/push_core.h"

#include <string>
#include <utility>
#include <vector>

#include "dataplane/core_test_util.h"
#include "gtest/gtest.h"

namespace landbridge::dataplane {
namespace {

constexpr uint64_t kSpace = 7;

// Runs a PushCore by hand: collects what it asks for.
class PushCoreTest : public testing::Test {
 protected:
  using Sent = std::pair<PeerId, MessageType>;
  void Listen(std::vector<PeerId> peers, uint64_t space = kSpace) {
    core_.Listen(space, peers,
                 {.value = [](PeerId, const Key&, absl::Span<const std::byte>) {},
                  .ended = [this](PeerId peer, const absl::Status& why) { ended_.emplace_back(peer, why); }});
  }
  // True: it may go now.
  bool Push(PeerId peer, uint64_t id, const std::string& value = "value", uint64_t space = kSpace) {
    auto owner = std::make_shared<std::string>(value);
    Message message;
    const bool now = core_.Push(
        peer, {space, id}, {owner->data(), owner->size(), owner}, [this, id] { gone_.push_back(id); }, &message);
    if (now) {
      EXPECT_EQ(message.type, MessageType::kPush);
      EXPECT_EQ(message.to, peer);
      EXPECT_EQ(message.key, (Key{space, id}));
      EXPECT_EQ(message.size, value.size());
    }
    return now;
  }
  static Message Of(MessageType type, uint64_t space = kSpace, uint64_t id = 0, uint64_t size = 0) {
    Message m;
    m.type = type;
    m.key = {space, id};
    m.size = size;
    return m;
  }
  void Heard(PeerId peer, uint64_t space = kSpace) {
    core_.OnListen(peer, Of(MessageType::kListen, space), absl::OkStatus());
  }
  std::vector<Sent> Drain() {
    std::vector<Sent> sent;
    for (Action& action : core_.TakeActions()) {
      if (auto* a = std::get_if<SendMessage>(&action)) {
        sent.emplace_back(a->peer, a->message.type);
        texts_.push_back(a->text);
      }
      if (auto* a = std::get_if<RunQuiescent>(&action)) a->quiescent();
      if (auto* a = std::get_if<TellListener>(&action)) a->listener->ended(a->peer, a->why);
    }
    return sent;
  }

  PushCore core_{kSelf};
  std::vector<uint64_t> gone_;
  std::vector<std::string> texts_;
  std::vector<std::pair<PeerId, absl::Status>> ended_;
};

TEST_F(PushCoreTest, ValuesGoAtOnceToThoseWhoListenAndWaitForTheOthers) {
  Listen({kPeer, kOther});
  EXPECT_EQ(Drain().size(), 2u);
  EXPECT_FALSE(Push(kPeer, 1, "one"));
  EXPECT_FALSE(Push(kPeer, 2, "two"));
  EXPECT_EQ(core_.waiting(), 2u);
  EXPECT_TRUE(Drain().empty() && gone_.empty());
  Heard(kPeer);
  texts_.clear();
  EXPECT_EQ(Drain(), (std::vector<Sent>{{kPeer, MessageType::kPush}, {kPeer, MessageType::kPush}}));
  EXPECT_EQ(texts_, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(gone_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(core_.waiting(), 0u);
  EXPECT_TRUE(Push(kPeer, 3));
  EXPECT_FALSE(Push(kOther, 3));
}

TEST_F(PushCoreTest, OnlyWhatIsListenedForIsTold) {
  Listen({kPeer});
  EXPECT_NE(core_.OnPush(kPeer, Of(MessageType::kPush, kSpace, 1, 5), 5), nullptr);
  EXPECT_EQ(core_.OnPush(kPeer, Of(MessageType::kPush, kSpace, 1, 5), 4), nullptr);
  EXPECT_EQ(core_.OnPush(kPeer, Of(MessageType::kPush, kSpace, 1, kPushBytesMax + 1), kPushBytesMax + 1), nullptr);
  EXPECT_EQ(core_.OnPush(kOther, Of(MessageType::kPush, kSpace, 1, 5), 5), nullptr);
  EXPECT_EQ(core_.OnPush(kPeer, Of(MessageType::kPush, kSpace + 1, 1, 5), 5), nullptr);
  core_.Unlisten(kSpace);
  EXPECT_EQ(core_.OnPush(kPeer, Of(MessageType::kPush, kSpace, 1, 5), 5), nullptr) << "late";
}

TEST_F(PushCoreTest, NothingIsLeftOfALaunchThatIsOver) {
  // The other end began, sent, and ended: it forgets by itself. One that sent nothing is told.
  Listen({kPeer, kOther});
  Heard(kPeer);
  core_.OnPush(kPeer, Of(MessageType::kPush, kSpace, 1, 5), 5);
  Drain();
  core_.Unlisten(kSpace);
  EXPECT_EQ(Drain(), (std::vector<Sent>{{kOther, MessageType::kUnlisten}}));
  EXPECT_EQ(core_.outlets(), 0u);
  EXPECT_EQ(core_.spaces(), 0u);
  // A peer whose launch never begins here.
  Heard(kPeer, 8);
  EXPECT_EQ(core_.outlets(), 1u);
  core_.OnUnlisten(kPeer, Of(MessageType::kUnlisten, 8));
  EXPECT_EQ(core_.outlets(), 0u);
}

TEST_F(PushCoreTest, WhatWaitsOutlivesUnlisten) {
  Listen({kPeer});
  EXPECT_FALSE(Push(kPeer, 1));
  core_.Unlisten(kSpace);
  EXPECT_EQ(core_.waiting(), 1u);
  Drain();
  Heard(kPeer);
  EXPECT_EQ(Drain(), (std::vector<Sent>{{kPeer, MessageType::kPush}}));
  EXPECT_EQ(core_.outlets(), 0u);
}

TEST_F(PushCoreTest, WhoWantsNothingGetsNothing) {
  Listen({kPeer});
  Heard(kPeer);
  EXPECT_TRUE(Push(kPeer, 1));
  core_.OnUnlisten(kPeer, Of(MessageType::kUnlisten));
  EXPECT_FALSE(Push(kPeer, 2));
  Drain();
  EXPECT_EQ(gone_, (std::vector<uint64_t>{2}));
  EXPECT_EQ(core_.waiting(), 0u);
  core_.Unlisten(kSpace);
  EXPECT_EQ(core_.outlets(), 0u);
}

TEST_F(PushCoreTest, AClosedSpaceIsToldToThoseWhoListenNowAndLater) {
  Listen({kPeer, kOther});
  Heard(kPeer);
  EXPECT_FALSE(Push(kOther, 1));
  Drain();
  core_.CloseSpace(kSpace, absl::DataLossError("worker 3 died"));
  EXPECT_EQ(core_.outlets() + core_.spaces() + core_.waiting(), 0u);
  texts_.clear();
  EXPECT_EQ(Drain()[0], (Sent{kPeer, MessageType::kRefuse}));
  EXPECT_EQ(texts_[0], "worker 3 died");
  EXPECT_EQ(gone_, (std::vector<uint64_t>{1}));
  Heard(kOther);
  EXPECT_EQ(Drain(), (std::vector<Sent>{{kOther, MessageType::kRefuse}}));
  EXPECT_FALSE(Push(kOther, 2));
  Drain();
  EXPECT_EQ(gone_, (std::vector<uint64_t>{1, 2}));
  EXPECT_EQ(core_.outlets(), 0u);
}

TEST_F(PushCoreTest, ListenersHearOnceThatAPeerClosedTheSpaceOrWentDown) {
  Listen({kPeer, kOther});
  core_.OnRefuse(kPeer, Of(MessageType::kRefuse), absl::AbortedError("cancelled"));
  core_.OnRefuse(kPeer, Of(MessageType::kRefuse), absl::AbortedError("cancelled"));
  core_.OnPeerDown(kPeer, absl::UnavailableError("broke"));
  EXPECT_FALSE(Push(kOther, 1));
  core_.OnPeerDown(kOther, absl::UnavailableError("broke"));
  Drain();
  ASSERT_EQ(ended_.size(), 2u);
  EXPECT_EQ(ended_[0], (std::pair(kPeer, absl::AbortedError("cancelled"))));
  EXPECT_EQ(ended_[1], (std::pair(kOther, absl::UnavailableError("broke"))));
  EXPECT_EQ(gone_, (std::vector<uint64_t>{1}));
  EXPECT_EQ(core_.outlets() + core_.waiting(), 0u);
}

TEST_F(PushCoreTest, OnePeerListensForABoundedNumberOfSpaces) {
  for (uint64_t space = 1; space <= kListensPerPeerMax; ++space) Heard(kPeer, space);
  EXPECT_TRUE(Drain().empty());
  Heard(kPeer, kListensPerPeerMax + 1);
  Heard(kPeer, 5);  // again: nothing
  EXPECT_EQ(Drain(), (std::vector<Sent>{{kPeer, MessageType::kRefuse}}));
  EXPECT_EQ(core_.outlets(), kListensPerPeerMax);
  core_.OnPeerDown(kPeer, absl::UnavailableError("gone"));
  EXPECT_EQ(core_.outlets(), 0u);
}

TEST_F(PushCoreTest, ThoseWhoMayNotListenAreTold) {
  core_.OnListen(kPeer, Of(MessageType::kListen), absl::PermissionDeniedError("no"));
  EXPECT_EQ(Drain(), (std::vector<Sent>{{kPeer, MessageType::kRefuse}}));
  EXPECT_EQ(core_.outlets(), 0u);
}

}  // namespace
}  // namespace landbridge::dataplane
