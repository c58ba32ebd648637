// The fixture of the suites that every implementation of DataPlane passes. For tests only.
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/limits.h"
#include "dataplane/data_plane.h"
#include "dataplane/in_process_data_plane.h"
#include "dataplane/test_pattern.h"
#include "dataplane/socket_data_plane.h"
#include "gtest/gtest.h"

namespace landbridge::dataplane {

inline constexpr absl::Duration kPatience = absl::Seconds(30);

inline std::shared_ptr<std::vector<std::byte>> Bytes(uint64_t size, uint64_t seed) {
  return std::make_shared<std::vector<std::byte>>(TestPattern(size, seed));
}

inline absl::Span<const std::byte> View(const std::shared_ptr<std::vector<std::byte>>& bytes) {
  return {bytes->data(), bytes->size()};
}

// A pull's outcome; fails the test when done comes twice.
class Outcome {
 public:
  std::function<void(absl::Status)> Callback() {
    return [state = state_](absl::Status status) {
      ASSERT_EQ(state->calls.fetch_add(1), 0) << "done was called twice";
      state->status = std::move(status);
      state->done.Notify();
    };
  }
  bool Done() const { return state_->done.HasBeenNotified(); }
  absl::Status Wait() const {
    if (!state_->done.WaitForNotificationWithTimeout(kPatience)) return absl::DeadlineExceededError("test gave up");
    return state_->status;
  }

 private:
  struct State {
    std::atomic<int> calls{0};
    absl::Notification done;
    absl::Status status;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Hands out reads only when told to, in any order, from the test's thread.
class HeldSource final : public Source {
 public:
  struct Open {
    uint64_t offset;
    uint64_t size;
    ReadDone done;
  };
  explicit HeldSource(std::shared_ptr<std::vector<std::byte>> bytes) : bytes_(std::move(bytes)) {}
  uint64_t size() const override { return bytes_->size(); }
  void Read(uint64_t offset, uint64_t size, ReadDone done) override {
    absl::MutexLock lock(&mutex_);
    open_.push_back({offset, size, std::move(done)});
  }
  // Waits for a read; the last one or the first.
  Open Take(bool last = false) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(
                                +[](std::deque<Open>* o) { return !o->empty(); }, &open_),
                            kPatience);
    EXPECT_FALSE(open_.empty());
    Open open = last ? std::move(open_.back()) : std::move(open_.front());
    last ? open_.pop_back() : open_.pop_front();
    return open;
  }
  void Answer(const Open& open) { open.done(Chunk{bytes_->data() + open.offset, open.size, bytes_}); }
  void AnswerAll() {
    std::deque<Open> open;
    {
      absl::MutexLock lock(&mutex_);
      open.swap(open_);
    }
    for (const Open& read : open) Answer(read);
  }

 private:
  const std::shared_ptr<std::vector<std::byte>> bytes_;
  absl::Mutex mutex_;
  std::deque<Open> open_;
};

enum class Kind {
  kInProcess,
  kDirect,  // local sockets, chunks read from the source's memory
  kLocal,   // local sockets alone
  kTcp,
};

inline std::string KindName(const testing::TestParamInfo<Kind>& instance) {
  switch (instance.param) {
    case Kind::kInProcess: return "InProcess";
    case Kind::kDirect: return "Direct";
    case Kind::kLocal: return "Local";
    case Kind::kTcp: return "Tcp";
  }
  return "";
}

inline constexpr Kind kAllKinds[] = {Kind::kInProcess, Kind::kDirect, Kind::kLocal, Kind::kTcp};

inline SocketOptions SocketOptionsOf(Kind kind) {
  SocketOptions options;
  options.local_sockets = kind != Kind::kTcp;
  options.direct_reads = kind == Kind::kDirect;
  return options;
}

class DataPlaneTest : public testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<DataPlane> Make(uint64_t id, Authorizer authorizer = {}, Token token = {1, 2}) {
    DataPlaneOptions options;
    options.self = PeerId(id);
    options.token = token;
    options.authorizer = std::move(authorizer);
    options.peer_failed = [this](PeerId peer, absl::Status) {
      absl::MutexLock lock(&mutex_);
      failed_.push_back(peer);
    };
    if (GetParam() == Kind::kInProcess) return fabric_.MakeDataPlane(std::move(options));
    auto plane = MakeSocketDataPlane(std::move(options), SocketOptionsOf(GetParam()));
    EXPECT_TRUE(plane.ok()) << plane.status();
    return *std::move(plane);
  }
  static void Introduce(DataPlane& a, DataPlane& b) {
    ASSERT_TRUE(a.AddPeer(b.self(), b.address()).ok());
    ASSERT_TRUE(b.AddPeer(a.self(), a.address()).ok());
  }
  // Waits until the predicate holds; events are asynchronous, so some facts can only be seen by asking again.
  template <typename Predicate>
  static bool Eventually(Predicate predicate) {
    const absl::Time end = absl::Now() + kPatience;
    while (!predicate()) {
      if (absl::Now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // True when everything that was sent before has been handled: a small pull passed behind it.
  static void RoundTrip(DataPlane& from, DataPlane& source) {
    static std::atomic<uint64_t> next{1};
    const Key key{0xfeed, next++};
    auto bytes = Bytes(16, key.id);
    source.PublishSpan(key, View(bytes), bytes);
    std::vector<std::byte> dst(16);
    Outcome outcome;
    from.Pull(source.self(), key, 0, dst.data(), dst.size(), outcome.Callback());
    ASSERT_TRUE(outcome.Wait().ok());
    source.Unpublish(key, absl::FailedPreconditionError("used up"));
  }

  InProcessFabric fabric_;
  absl::Mutex mutex_;
  std::vector<PeerId> failed_;
};

}  // namespace landbridge::dataplane
