#include "worker/shell/puller.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using dataplane::DataPlane;
using dataplane::Key;
using dataplane::PeerId;
using dataplane::PullId;

// Pulls end when the test says so.
class HeldPulls final : public DataPlane {
 public:
  struct Open {
    PeerId peer;
    Key key;
    std::function<void(absl::Status)> done;
    absl::Status cancelled;
  };
  std::vector<Open> pulls;

  PullId Pull(PeerId peer, Key key, uint64_t, void*, uint64_t, std::function<void(absl::Status)> done) override {
    pulls.push_back({peer, key, std::move(done), absl::OkStatus()});
    return PullId(pulls.size());
  }
  void Cancel(PullId pull, absl::Status why) override { pulls[pull.value() - 1].cancelled = std::move(why); }

  PeerId self() const override { return PeerId(1); }
  std::string address() const override { return ""; }
  absl::Status AddPeer(PeerId, absl::string_view) override { return absl::OkStatus(); }
  void ClosePeer(PeerId, absl::Status) override {}
  void Publish(Key, std::shared_ptr<dataplane::Source>, dataplane::PublishOptions) override {}
  void Unpublish(Key, absl::Status, std::function<void()>) override {}
  void CloseSpace(uint64_t, absl::Status, std::function<void()>) override {}
  void Listen(uint64_t, std::vector<PeerId>, dataplane::PushListener) override {}
  void Unlisten(uint64_t) override {}
  bool Push(PeerId, Key, dataplane::Chunk, std::function<void()>) override { return true; }
  dataplane::DataPlaneStats Stats() const override { return {}; }
  void Shutdown() override {}
};

class PullerTest : public ::testing::Test {
 protected:
  PullerTest() : context_(std::make_shared<ShellContext>()), puller_(context_.get()) {
    context_->loop = &loop_;
    context_->data_plane = &plane_;
    context_->inbox = std::make_shared<Inbox>(&loop_, [](bool) { return Inbox::Outlook(); });
  }
  ~PullerTest() override { context_->inbox->Close(); }

  Puller::Handle Pull() {
    return puller_.Pull(PeerId(2), {7, 1}, 0, nullptr, 0, nullptr, [this](absl::Status s) { ends_.push_back(s); });
  }
  void RunUntilPulls(size_t count) {
    while (plane_.pulls.size() < count) loop_.RunOnce(kSecond);
  }
  void RunUntilEnds(size_t count) {
    while (ends_.size() < count) loop_.RunOnce(kSecond);
  }

  Loop loop_;
  HeldPulls plane_;
  std::shared_ptr<ShellContext> context_;
  Puller puller_;
  std::vector<absl::Status> ends_;
};

TEST_F(PullerTest, ABrokenConnectionIsTriedAgainAndNobodyHearsOfIt) {
  Pull();
  plane_.pulls[0].done(absl::UnavailableError("broke"));
  RunUntilPulls(2);
  EXPECT_EQ(plane_.pulls[1].key, (Key{7, 1}));
  EXPECT_EQ(plane_.pulls[1].peer, PeerId(2));
  EXPECT_TRUE(ends_.empty());
  plane_.pulls[1].done(absl::OkStatus());
  RunUntilEnds(1);
  EXPECT_EQ(ends_[0], absl::OkStatus());
  EXPECT_EQ(puller_.open(), 0u);
  EXPECT_EQ(context_->open, 0);
}

// The control plane's word about a dead peer usually comes after the data plane saw the connection break: it does not
// wait for the next try, and there is none.
TEST_F(PullerTest, WhoWaitsForTheNextTryEndsWithTheControlPlanesWord) {
  const Puller::Handle pull = Pull(), other = Pull();
  plane_.pulls[0].done(absl::UnavailableError("broke"));
  bool seen = false;
  context_->Post([&seen] { seen = true; });  // after the news of the broken connection
  while (!seen) loop_.RunOnce(kSecond);
  puller_.Cancel(pull, absl::DataLossError("worker w died"));
  RunUntilEnds(1);
  EXPECT_EQ(ends_[0], absl::DataLossError("worker w died"));
  EXPECT_EQ(puller_.open(), 1u);  // exactly that one
  EXPECT_EQ(plane_.pulls.size(), 2u);
  puller_.Cancel(other, absl::OkStatus());
  EXPECT_FALSE(plane_.pulls[1].cancelled.ok());
  plane_.pulls[1].done(plane_.pulls[1].cancelled);
  RunUntilEnds(2);
  EXPECT_EQ(ends_[1].code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(plane_.pulls.size(), 2u);
}

TEST_F(PullerTest, OtherErrorsAreNotTriedAgain) {
  Pull();
  plane_.pulls[0].done(absl::FailedPreconditionError("gone"));
  RunUntilEnds(1);
  EXPECT_EQ(ends_[0], absl::FailedPreconditionError("gone"));
  EXPECT_EQ(plane_.pulls.size(), 1u);
}

}  // namespace
}  // namespace landbridge
