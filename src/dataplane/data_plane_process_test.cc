// The data plane against real processes that are killed, stopped and resumed.
#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/limits.h"
#include "dataplane/data_plane.h"
#include "dataplane/test_pattern.h"
#include "dataplane/socket_data_plane.h"
#include "gtest/gtest.h"

extern char** environ;

namespace landbridge::dataplane {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr PeerId kParent(1);

template <typename Predicate>
bool Eventually(Predicate predicate) {
  const absl::Time end = absl::Now() + kPatience;
  while (!predicate()) {
    if (absl::Now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

struct ProcessOutcome {
  std::vector<std::byte> dst;
  absl::Notification done;
  absl::Status status;

  explicit ProcessOutcome(uint64_t size) : dst(size) {}
  absl::Status Wait() {
    return done.WaitForNotificationWithTimeout(kPatience) ? status : absl::DeadlineExceededError("test gave up");
  }
};

class ChildPeer {
 public:
  ChildPeer(uint64_t id, const std::string& transports, uint64_t bytes) : id_(id) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    control_ = fds[0];
    std::string program = LB_DATAPLANE_PEER, self = absl::StrCat(id), parent = absl::StrCat(kParent.value()),
                tls = transports, size = absl::StrCat(bytes);
    char* argv[] = {program.data(), self.data(), parent.data(), tls.data(), size.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 3);
    posix_spawn_file_actions_addclosefrom_np(&actions, 4);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    address_ = Hear();
  }
  ~ChildPeer() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(control_);
  }

  PeerId id() const { return PeerId(id_); }
  Key key() const { return {id_, 1}; }
  void Introduce(DataPlane& plane) {
    ASSERT_TRUE(plane.AddPeer(id(), address_).ok());
    Say(plane.address());
  }
  void Say(const std::string& text) {
    ASSERT_EQ(send(control_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  std::string Hear() {
    std::string text(8192, '\0');
    const ssize_t n = recv(control_, text.data(), text.size(), 0);
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  std::string Ask(const std::string& text) {
    Say(text);
    return Hear();
  }
  void Signal(int signal) { ASSERT_EQ(kill(pid_, signal), 0); }
  // Stopped when this returns, not merely told to.
  void Stop() {
    Signal(SIGSTOP);
    int status = 0;
    ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
    ASSERT_TRUE(WIFSTOPPED(status));
  }
  // Returns at the end of the process: what a control stream's end-of-file tells.
  void Kill() {
    Signal(SIGKILL);
    ASSERT_EQ(waitpid(pid_, nullptr, 0), pid_);
    pid_ = 0;
  }
  int Quit() {
    Say("quit");
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = 0;
    return status;
  }

 private:
  const uint64_t id_;
  pid_t pid_ = 0;
  int control_ = -1;
  std::string address_;
};

class DataPlaneProcessTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    DataPlaneOptions options;
    options.self = kParent;
    options.peer_failed = [this](PeerId peer, absl::Status) {
      absl::MutexLock lock(&mutex_);
      failed_.push_back(peer);
    };
    SocketOptions sockets;
    sockets.local_sockets = GetParam() != "tcp";
    sockets.direct_reads = GetParam() == "direct";
    auto plane = MakeSocketDataPlane(std::move(options), sockets);
    ASSERT_TRUE(plane.ok()) << plane.status();
    plane_ = *std::move(plane);
  }
  void Pull(PeerId peer, Key key, ProcessOutcome& outcome) {
    plane_->Pull(peer, key, 0, outcome.dst.data(), outcome.dst.size(), [&outcome](absl::Status status) {
      outcome.status = std::move(status);
      outcome.done.Notify();
    });
  }
  uint64_t Received(PeerId peer) const {
    for (const PeerBytes& p : plane_->Stats().peers) {
      if (p.peer == peer) return p.bytes_received;
    }
    return 0;
  }
  std::vector<PeerId> Failed() {
    absl::MutexLock lock(&mutex_);
    return failed_;
  }

  absl::Mutex mutex_;
  std::vector<PeerId> failed_;
  std::unique_ptr<DataPlane> plane_;
};

TEST_P(DataPlaneProcessTest, BytesCrossBothWays) {
  ChildPeer child(2, GetParam(), 20u << 20);
  child.Introduce(*plane_);
  ProcessOutcome pulled(20u << 20);
  Pull(child.id(), child.key(), pulled);
  ASSERT_TRUE(pulled.Wait().ok()) << pulled.Wait();
  EXPECT_TRUE(pulled.dst == TestPattern(20u << 20, 2));
  for (uint64_t size : {0u, 100u, 70'000u, 30u << 20}) {
    auto bytes = std::make_shared<std::vector<std::byte>>(TestPattern(size, size + 5));
    plane_->PublishSpan({9, size + 5}, {bytes->data(), bytes->size()}, bytes);
    EXPECT_EQ(child.Ask(absl::StrCat("pull 9 ", size + 5, " ", size)), "ok");
  }
  EXPECT_EQ(child.Quit(), 0);
}

// A killed peer costs its own pulls only, as soon as the control plane says so.
TEST_P(DataPlaneProcessTest, KilledPeerPoisonsItsPullsOnly) {
  const uint64_t size = 200u << 20;
  ChildPeer victim(2, GetParam(), size);
  ChildPeer healthy(3, GetParam(), size / 4);
  victim.Introduce(*plane_);
  healthy.Introduce(*plane_);
  ProcessOutcome doomed(size), waiting(100), fine(size / 4);
  Pull(victim.id(), victim.key(), doomed);
  Pull(victim.id(), {2, 99}, waiting);
  Pull(healthy.id(), healthy.key(), fine);
  ASSERT_TRUE(Eventually([&] { return Received(victim.id()) >= 8u << 20; }));
  ASSERT_FALSE(doomed.done.HasBeenNotified());
  victim.Kill();
  const absl::Time killed = absl::Now();
  plane_->ClosePeer(victim.id(), absl::DataLossError("worker i2 died"));
  // The transport may have seen it first.
  for (ProcessOutcome* outcome : {&doomed, &waiting}) {
    const absl::Status status = outcome->Wait();
    EXPECT_TRUE(status == absl::DataLossError("worker i2 died") || status.code() == absl::StatusCode::kUnavailable)
        << status;
  }
  RecordProperty("poisoned_after_us", static_cast<int>(absl::ToInt64Microseconds(absl::Now() - killed)));
  ASSERT_TRUE(fine.Wait().ok()) << fine.Wait();
  EXPECT_TRUE(fine.dst == TestPattern(size / 4, 3));
  EXPECT_EQ(healthy.Quit(), 0);
}

// Without the control plane's help the transport notices by itself.
TEST_P(DataPlaneProcessTest, KilledPeerIsNoticed) {
  ChildPeer victim(2, GetParam(), 100);
  victim.Introduce(*plane_);
  ProcessOutcome first(100), waiting(100);
  Pull(victim.id(), victim.key(), first);
  ASSERT_TRUE(first.Wait().ok());
  Pull(victim.id(), {2, 99}, waiting);
  EXPECT_EQ(victim.Ask("ping"), "pong");
  victim.Kill();
  EXPECT_EQ(waiting.Wait().code(), absl::StatusCode::kUnavailable) << waiting.Wait();
  ASSERT_TRUE(Eventually([&] { return !Failed().empty(); }));
  // Twice, when the pull was asked for only after the end-of-file: it dialled anew.
  for (PeerId peer : Failed()) EXPECT_EQ(peer, victim.id());
}

// A killed receiver lets go of the source's memory.
TEST_P(DataPlaneProcessTest, KilledReceiverLetsTheSourceGo) {
  const uint64_t size = 200u << 20;
  ChildPeer victim(2, GetParam(), 100);
  victim.Introduce(*plane_);
  auto bytes = std::make_shared<std::vector<std::byte>>(TestPattern(size, 7));
  std::weak_ptr<std::vector<std::byte>> watch = bytes;
  plane_->PublishSpan({9, 7}, {bytes->data(), bytes->size()}, bytes);
  bytes.reset();
  EXPECT_EQ(victim.Ask(absl::StrCat("start 9 7 ", size)), "started");
  ASSERT_TRUE(Eventually([&] { return plane_->Stats().bytes_sent >= 4u << 20; }));
  victim.Kill();
  plane_->ClosePeer(victim.id(), absl::DataLossError("died"));
  absl::Notification quiescent;
  plane_->Unpublish({9, 7}, absl::AbortedError("over"), [&] { quiescent.Notify(); });
  ASSERT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
  EXPECT_TRUE(Eventually([&] { return watch.expired(); }));
  EXPECT_TRUE(Eventually([&] { return plane_->Stats().sends_in_flight == 0; }));
}

// Pulls in both directions are in the middle when the peer stops: all of them end at once when it is given up.
TEST_P(DataPlaneProcessTest, StoppedPeerWithPullsBothWaysIsLetGo) {
  const uint64_t size = 200u << 20;
  ChildPeer sleeper(2, GetParam(), size);
  sleeper.Introduce(*plane_);
  auto bytes = std::make_shared<std::vector<std::byte>>(TestPattern(size, 7));
  plane_->PublishSpan({9, 7}, {bytes->data(), bytes->size()}, bytes);
  ProcessOutcome outcome(size);
  Pull(sleeper.id(), sleeper.key(), outcome);
  EXPECT_EQ(sleeper.Ask(absl::StrCat("start 9 7 ", size)), "started");
  ASSERT_TRUE(Eventually([&] {
    return outcome.done.HasBeenNotified() ||
           (plane_->Stats().bytes_sent >= 4u << 20 && plane_->Stats().bytes_received >= 4u << 20);
  }));
  sleeper.Stop();
  absl::Notification quiescent;
  plane_->ClosePeer(sleeper.id(), absl::DataLossError("silent"));
  plane_->Unpublish({9, 7}, absl::AbortedError("over"), [&] { quiescent.Notify(); });
  // While it is stopped.
  ASSERT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
  const absl::Status status = outcome.Wait();
  EXPECT_TRUE(status.ok() || status == absl::DataLossError("silent")) << status;
  std::weak_ptr<std::vector<std::byte>> watch = bytes;
  bytes.reset();
  EXPECT_TRUE(Eventually([&] { return watch.expired(); }));
  std::memset(outcome.dst.data(), 0x44, size);
  sleeper.Signal(SIGCONT);
  EXPECT_NE(sleeper.Ask("finish"), "ok");
  EXPECT_EQ(sleeper.Quit(), 0);
  EXPECT_EQ(FirstOther(outcome.dst.data(), size, std::byte{0x44}), size) << "late byte";
}

// A stopped source is given up; what it does when it wakes up lands nowhere.
TEST_P(DataPlaneProcessTest, ResumedSourceWritesNothing) {
  const uint64_t size = 200u << 20;
  for (uint64_t round = 0; round < 3; ++round) {
    const uint64_t id = 10 + round;
    ChildPeer sleeper(id, GetParam(), size);
    sleeper.Introduce(*plane_);
    ProcessOutcome outcome(size);
    Pull(sleeper.id(), sleeper.key(), outcome);
    ASSERT_TRUE(Eventually([&] { return Received(sleeper.id()) >= (1 + 4 * round) << 20; }));
    sleeper.Stop();
    plane_->ClosePeer(sleeper.id(), absl::DataLossError("silent past its lease"));
    const absl::Status status = outcome.Wait();
    ASSERT_TRUE(status == absl::DataLossError("silent past its lease")) << status;
    std::memset(outcome.dst.data(), 0x33, size);
    sleeper.Signal(SIGCONT);
    ASSERT_EQ(sleeper.Ask("ping"), "pong");
    // It pulls from us, too: refused by silence, and its own close ends that.
    EXPECT_EQ(sleeper.Ask("start 9 1 100"), "started");
    EXPECT_EQ(sleeper.Ask("close"), "closed");
    EXPECT_NE(sleeper.Ask("finish"), "ok");
    EXPECT_EQ(sleeper.Quit(), 0);
    EXPECT_EQ(FirstOther(outcome.dst.data(), size, std::byte{0x33}), size) << "late byte";
  }
}

TEST_P(DataPlaneProcessTest, StoppedReceiverLetsTheSourceGoWhenClosed) {
  const uint64_t size = 200u << 20;
  ChildPeer sleeper(2, GetParam(), 100);
  sleeper.Introduce(*plane_);
  auto bytes = std::make_shared<std::vector<std::byte>>(TestPattern(size, 7));
  plane_->PublishSpan({9, 7}, {bytes->data(), bytes->size()}, bytes);
  EXPECT_EQ(sleeper.Ask(absl::StrCat("start 9 7 ", size)), "started");
  ASSERT_TRUE(Eventually([&] { return plane_->Stats().bytes_sent >= 4u << 20; }));
  sleeper.Stop();
  absl::Notification quiescent;
  plane_->Unpublish({9, 7}, absl::AbortedError("over"), [&] { quiescent.Notify(); });
  plane_->ClosePeer(sleeper.id(), absl::DataLossError("silent"));
  ASSERT_TRUE(quiescent.WaitForNotificationWithTimeout(kPatience));
  sleeper.Signal(SIGCONT);
  EXPECT_EQ(sleeper.Ask("close"), "closed");
  EXPECT_NE(sleeper.Ask("finish"), "ok");
  EXPECT_EQ(sleeper.Quit(), 0);
}

// What is asked of it and taken back again would pile up for as long as it is stopped.
TEST_P(DataPlaneProcessTest, MessagesToOneThatDoesNotReadAreBounded) {
  DataPlaneOptions options;
  options.self = kParent;
  SocketOptions sockets;
  sockets.local_sockets = GetParam() != "tcp";
  sockets.queued_bytes_max = 1u << 20;
  plane_->Shutdown();
  auto plane = MakeSocketDataPlane(std::move(options), sockets);
  ASSERT_TRUE(plane.ok()) << plane.status();
  plane_ = *std::move(plane);
  ChildPeer sleeper(2, GetParam(), 100);
  sleeper.Introduce(*plane_);
  ProcessOutcome first(100), waiting(100);
  Pull(sleeper.id(), sleeper.key(), first);
  ASSERT_TRUE(first.Wait().ok()) << first.Wait();
  Pull(sleeper.id(), {2, 99}, waiting);
  sleeper.Stop();
  std::byte nowhere[1];
  for (uint64_t i = 0; i < 1'000'000 && !waiting.done.HasBeenNotified(); ++i) {
    const PullId pull = plane_->Pull(sleeper.id(), {2, 1000 + i}, 0, nowhere, 1, [](absl::Status) {});
    plane_->Cancel(pull, absl::AbortedError("not wanted"));
  }
  EXPECT_EQ(waiting.Wait().code(), absl::StatusCode::kUnavailable) << waiting.Wait();
  EXPECT_TRUE(absl::StrContains(waiting.Wait().message(), "it does not read")) << waiting.Wait();
  // It is not given up: when it goes on, the next pull connects anew.
  sleeper.Signal(SIGCONT);
  ProcessOutcome again(100);
  Pull(sleeper.id(), sleeper.key(), again);
  EXPECT_TRUE(again.Wait().ok()) << again.Wait();
  EXPECT_TRUE(again.dst == TestPattern(100, 2));
  EXPECT_EQ(sleeper.Quit(), 0);
}

struct Footprint {
  int descriptors = 0;
  int threads = 0;
  int64_t rss_kib = 0;
};

// What each descriptor is, for the message of a failure.
std::string Descriptors() {
  std::string text;
  DIR* dir = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(dir)) {
    char target[256] = {};
    if (readlink(absl::StrCat("/proc/self/fd/", entry->d_name).c_str(), target, sizeof(target) - 1) > 0) {
      absl::StrAppend(&text, entry->d_name, " ", target, "\n");
    }
  }
  closedir(dir);
  return text;
}

Footprint Measure() {
  Footprint f;
  for (auto [path, count] : {std::pair<const char*, int*>{"/proc/self/fd", &f.descriptors},
                             std::pair<const char*, int*>{"/proc/self/task", &f.threads}}) {
    DIR* dir = opendir(path);
    while (const dirent* entry = readdir(dir)) *count += entry->d_name[0] != '.';
    closedir(dir);
  }
  std::ifstream statm("/proc/self/statm");
  int64_t total = 0, resident = 0;
  statm >> total >> resident;
  f.rss_kib = resident * (sysconf(_SC_PAGESIZE) / 1024);
  return f;
}

TEST_P(DataPlaneProcessTest, PeersComeAndGoAndLeaveNothing) {
  auto cycle = [&](uint64_t i) {
    ChildPeer child(1000 + i, GetParam(), 300'000);
    child.Introduce(*plane_);
    ProcessOutcome outcome(300'000);
    Pull(child.id(), child.key(), outcome);
    ASSERT_TRUE(outcome.Wait().ok()) << outcome.Wait();
    ASSERT_TRUE(outcome.dst == TestPattern(300'000, 1000 + i));
    if (i % 2 == 0) {
      child.Kill();
    } else {
      ASSERT_EQ(child.Quit(), 0);
    }
    plane_->ClosePeer(child.id(), absl::AbortedError("left"));
  };
  uint64_t next = 0;
  for (; next < 20; ++next) cycle(next);
  // Closing goes on behind our back; the count settles.
  Footprint before = Measure();
  EXPECT_TRUE(Eventually([&] {
    const Footprint now = Measure();
    const bool settled = now.descriptors == before.descriptors;
    before = now;
    return settled;
  }));
  const uint64_t peers = std::getenv("LB_TEST_PEERS") != nullptr ? std::stoull(std::getenv("LB_TEST_PEERS")) : 200;
  for (; next < peers; ++next) cycle(next);
  EXPECT_TRUE(Eventually([&] { return Measure().descriptors <= before.descriptors; }))
      << Measure().descriptors << " descriptors, before " << before.descriptors << "\n"
      << Descriptors();
  const Footprint after = Measure();
  EXPECT_LE(after.threads, before.threads);
#ifndef LB_SANITIZED  // sanitizers keep what was freed
  EXPECT_LE(after.rss_kib, before.rss_kib + 8 * 1024);
#endif
  RecordProperty("descriptors", after.descriptors);
  RecordProperty("rss_growth_kib", static_cast<int>(after.rss_kib - before.rss_kib));
}

INSTANTIATE_TEST_SUITE_P(All, DataPlaneProcessTest, testing::Values("direct", "local", "tcp"),
                         [](const testing::TestParamInfo<std::string>& instance) { return instance.param; });

}  // namespace
}  // namespace landbridge::dataplane
