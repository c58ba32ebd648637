// Several planes on one host, and strangers at the door.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "base/limits.h"
#include "dataplane/data_plane_test_util.h"
#include "dataplane/interfaces.h"
#include "dataplane/socket_wire.h"

namespace landbridge::dataplane {
namespace {

std::shared_ptr<DataPlaneHost> Host() {
  auto host = MakeSocketHost({});
  EXPECT_TRUE(host.ok()) << host.status();
  return *std::move(host);
}

std::unique_ptr<DataPlane> Open(const std::shared_ptr<DataPlaneHost>& host, uint64_t id, Token token = {1, 2}) {
  DataPlaneOptions options;
  options.self = PeerId(id);
  options.token = token;
  auto plane = host->Open(std::move(options));
  EXPECT_TRUE(plane.ok()) << plane.status();
  return *std::move(plane);
}

void Introduce(DataPlane& a, DataPlane& b) {
  ASSERT_TRUE(a.AddPeer(b.self(), b.address()).ok());
  ASSERT_TRUE(b.AddPeer(a.self(), a.address()).ok());
}

absl::Status Pull(DataPlane& sink, PeerId source, Key key, std::vector<std::byte>* dst) {
  Outcome outcome;
  sink.Pull(source, key, 0, dst->data(), dst->size(), outcome.Callback());
  return outcome.Wait();
}

// One process, fenced and granted again: the old life stays closed, the new one serves the same peer.
TEST(SocketHostTest, ALaterLifeOnTheSameHostServesAPeerThatGaveTheFirstOneUp) {
  auto worker = Host(), proxy = Host();
  auto holder = Open(proxy, 1);
  auto first = Open(worker, 10);
  Introduce(*holder, *first);
  auto bytes = Bytes(5u << 20, 3);
  first->PublishSpan({7, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(bytes->size());
  ASSERT_TRUE(Pull(*holder, first->self(), {7, 1}, &dst).ok());
  EXPECT_TRUE(dst == *bytes);

  holder->ClosePeer(first->self(), absl::DataLossError("silent past its lease"));
  auto second = Open(worker, 11);
  Introduce(*holder, *second);
  auto other = Bytes(5u << 20, 4);
  second->PublishSpan({7, 1}, View(other), other);  // the same key, in another life
  ASSERT_TRUE(Pull(*holder, second->self(), {7, 1}, &dst).ok());
  EXPECT_TRUE(dst == *other);
  // The first one wakes up and knows of nothing.
  holder->PublishSpan({8, 1}, View(bytes), bytes);
  std::vector<std::byte> stolen(bytes->size());
  EXPECT_EQ(Pull(*first, holder->self(), {8, 1}, &stolen).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FirstOther(stolen.data(), stolen.size(), std::byte{0}), stolen.size());
  ASSERT_TRUE(Pull(*second, holder->self(), {8, 1}, &stolen).ok());
  EXPECT_EQ(Pull(*holder, first->self(), {7, 1}, &dst), absl::DataLossError("silent past its lease"));
  first->Shutdown();
  ASSERT_TRUE(Pull(*holder, second->self(), {7, 1}, &dst).ok()) << "the lives have nothing in common";
}

TEST(SocketHostTest, ALifeIsCarriedOnce) {
  auto host = Host();
  auto plane = Open(host, 10);
  DataPlaneOptions options;
  options.self = PeerId(10);
  EXPECT_EQ(host->Open(options).status().code(), absl::StatusCode::kAlreadyExists);
  options.self = PeerId();
  EXPECT_EQ(host->Open(options).status().code(), absl::StatusCode::kInvalidArgument);
  plane->Shutdown();
  options.self = PeerId(10);
  EXPECT_TRUE(host->Open(options).ok());
}

TEST(SocketHostTest, PlanesOfOneHostPullFromEachOther) {
  auto host = Host();
  auto a = Open(host, 10), b = Open(host, 11);
  host.reset();  // planes keep it
  Introduce(*a, *b);
  auto bytes = Bytes(5u << 20, 3);
  a->PublishSpan({7, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(bytes->size());
  ASSERT_TRUE(Pull(*b, a->self(), {7, 1}, &dst).ok());
  EXPECT_TRUE(dst == *bytes);
}

TEST(SocketHostTest, AnotherClustersProcessIsRefusedAndTold) {
  auto host = Host(), elsewhere = Host();
  auto ours = Open(host, 10, TokenFromSecret("ours"));
  auto theirs = Open(elsewhere, 11, TokenFromSecret("theirs"));
  Introduce(*ours, *theirs);
  auto bytes = Bytes(100, 3);
  ours->PublishSpan({7, 1}, View(bytes), bytes);
  std::vector<std::byte> dst(100);
  const absl::Status status = Pull(*theirs, ours->self(), {7, 1}, &dst);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "another cluster")) << status;
  EXPECT_EQ(dst, std::vector<std::byte>(100));
}

// Who died is the control plane's to say: what broke by itself waits for its word.
TEST(SocketHostTest, PullsOfABrokenConnectionEndWithWhatTheControlPlaneSays) {
  auto host = Host(), other = Host();
  DataPlaneOptions options;
  options.self = PeerId(1);
  options.token = {1, 2};
  options.broken_grace = 3600 * kSecond;
  absl::Notification broke[2];
  options.peer_failed = [&](PeerId peer, absl::Status) { broke[peer.value() - 10].Notify(); };
  auto sink = *host->Open(options);
  auto first = Open(other, 10), second = Open(other, 11);
  Introduce(*sink, *first);
  Introduce(*sink, *second);
  std::vector<std::byte> dst(100);
  Outcome lost, left;
  sink->Pull(first->self(), {7, 1}, 0, dst.data(), 100, lost.Callback());
  sink->Pull(second->self(), {7, 1}, 0, dst.data(), 100, left.Callback());
  while (first->Stats().reads_waiting == 0 || second->Stats().reads_waiting == 0) std::this_thread::yield();
  first->Shutdown();
  second->Shutdown();
  for (absl::Notification& b : broke) ASSERT_TRUE(b.WaitForNotificationWithTimeout(kPatience));
  EXPECT_FALSE(lost.Done());
  EXPECT_EQ(sink->Stats().pulls_open, 2u);
  sink->ClosePeer(first->self(), absl::DataLossError("slice0: worker i10 died"));
  EXPECT_EQ(lost.Wait(), absl::DataLossError("slice0: worker i10 died"));
  EXPECT_FALSE(left.Done());
  sink->Shutdown();
  EXPECT_EQ(left.Wait().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SocketHostTest, BadListenAddressesAreNamed) {
  for (const char* address : {"192.0.2.77", "127.x", "nowhere"}) {
    SocketOptions options;
    options.listen_address = address;
    auto host = MakeSocketHost(options);
    EXPECT_EQ(host.status().code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_TRUE(absl::StrContains(host.status().message(), address)) << host.status();
  }
  for (const char* address : {"0.0.0.0", "localhost", "127.0.0.1"}) {
    SocketOptions options;
    options.listen_address = address;
    EXPECT_TRUE(MakeSocketHost(options).ok()) << address;
  }
}

// A client of the bare socket.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    const auto host = DecodeHostAddress(address);
    EXPECT_TRUE(host.ok());
    sockaddr_storage to = {};
    socklen_t length = 0;
    EXPECT_TRUE(SplitEndpoint(host->tcp.at(0), &to, &length));
    fd_ = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), length), 0);
  }
  ~Stranger() { close(fd_); }
  void Say(const std::string& bytes) {
    [[maybe_unused]] ssize_t n = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  std::string Hear(size_t size) {
    std::string bytes(size, '\0');
    const ssize_t n = recv(fd_, bytes.data(), size, MSG_WAITALL);
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  bool HungUp() {
    char byte;
    ssize_t n;
    while ((n = recv(fd_, &byte, 1, 0)) > 0) {
    }
    return true;
  }

 private:
  int fd_ = -1;
};

// Whatever strangers send, they are let go, and others are served.
TEST(SocketHostTest, GarbageCostsItsSenderTheConnectionAndNobodyAnything) {
  auto host = Host(), other = Host();
  auto plane = Open(host, 10), peer = Open(other, 11);
  Introduce(*plane, *peer);
  auto bytes = Bytes(100'000, 3);
  plane->PublishSpan({7, 1}, View(bytes), bytes);
  std::mt19937_64 random(5);
  for (int i = 0; i < 200; ++i) {
    Stranger stranger(plane->address());
    std::string noise(kHelloBytes + random() % 1000, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    stranger.Say(noise);
    EXPECT_TRUE(stranger.HungUp());
  }
  // Some say nothing, and more than there is room for.
  std::vector<std::unique_ptr<Stranger>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<Stranger>(plane->address()));
  std::vector<std::byte> dst(bytes->size());
  ASSERT_TRUE(Pull(*peer, plane->self(), {7, 1}, &dst).ok());
  EXPECT_TRUE(dst == *bytes);
}

// A member of the cluster that breaks the protocol loses its connection.
TEST(SocketHostTest, AMemberThatBreaksTheProtocolIsCutOff) {
  auto host = Host();
  auto plane = Open(host, 10);
  const Token token = {1, 2};
  Message foreign;
  foreign.type = MessageType::kRequest;
  foreign.from = PeerId(12);  // not who said hello
  foreign.to = PeerId(10);
  const std::vector<std::string> crimes = {std::string(100, 'x'), EncodeMessageFrame(foreign, {})};
  for (const std::string& crime : crimes) {
    Stranger member(plane->address());
    const auto challenge = DecodeChallenge(member.Hear(kChallengeBytes));
    ASSERT_TRUE(challenge.has_value());
    Hello hello;
    hello.from = PeerId(11);
    hello.to = PeerId(10);
    hello.link = 1;
    member.Say(EncodeHello(hello, *challenge, token));
    ASSERT_TRUE(CheckWelcome(member.Hear(kWelcomeBytes), hello.nonce, token).ok());
    const uint64_t dropped = plane->Stats().messages_dropped;
    member.Say(crime);
    EXPECT_TRUE(member.HungUp());
    EXPECT_EQ(plane->Stats().messages_dropped, dropped + 1);
  }
}

}  // namespace
}  // namespace landbridge::dataplane
