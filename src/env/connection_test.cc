#include "env/connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "env/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Peer {
  std::unique_ptr<Connection> connection;
  std::vector<std::string> frames;  // "type:payload"
  std::vector<absl::Status> closed;
  bool connected = false;

  Connection::Handlers Handlers() {
    Connection::Handlers handlers;
    handlers.on_connected = [this] { connected = true; };
    handlers.on_frame = [this](uint32_t type, absl::string_view payload) {
      frames.push_back(payload.size() > 100 ? absl::StrCat(type, ":", payload.size(), " bytes")
                                            : absl::StrCat(type, ":", payload));
    };
    handlers.on_close = [this](const absl::Status& status) { closed.push_back(status); };
    return handlers;
  }
};

class ConnectionTest : public ::testing::Test {
 protected:
  void Listen(const std::string& address) {
    auto listener = Listener::Listen(&loop_, address, [this](std::unique_ptr<Connection> connection) {
      auto peer = std::make_unique<Peer>();
      peer->connection = std::move(connection);
      peer->connection->Start(peer->Handlers());
      accepted_.push_back(std::move(peer));
    });
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = std::move(*listener);
  }
  std::unique_ptr<Peer> Connect(const std::string& address) {
    auto peer = std::make_unique<Peer>();
    peer->connection = Connection::Connect(&loop_, address, peer->Handlers());
    return peer;
  }
  // Runs the loop until it holds; fails after 10 s.
  void Until(const std::function<bool()>& condition) {
    const TimeNs limit = loop_.Now() + 10 * kSecond;
    while (!condition() && loop_.Now() < limit) loop_.RunOnce(100 * kMillisecond);
    ASSERT_TRUE(condition());
  }
  int RawClient() {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address;
    std::memset(&address, 0, sizeof(address));
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(listener_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }

  Loop loop_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::unique_ptr<Peer>> accepted_;
};

TEST_F(ConnectionTest, WritingToAPeerThatIsGoneEndsTheConnectionAndNotTheProcess) {
  Listen("127.0.0.1:0");
  const int fd = RawClient();
  Until([&] { return !accepted_.empty(); });
  Peer& peer = *accepted_.front();
  peer.connection->PauseReading();  // so that only writes can notice
  close(fd);                        // says so; what is sent afterwards is answered by a reset, what follows by EPIPE
  Until([&] {
    peer.connection->Send(7, "hello");
    return !peer.closed.empty();
  });
  EXPECT_EQ(peer.closed.front().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ConnectionTest, BothWaysOverEveryKindOfAddress) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/lb_connection_", getpid());
  for (const std::string& address : {std::string("localhost:0"), std::string("127.0.0.1:0"), std::string("[::1]:0"),
                                     std::string(":0"), "unix:" + path}) {
    accepted_.clear();
    listener_.reset();
    if (address[0] == '[') {
      auto probe = Listener::Listen(&loop_, address, [](std::unique_ptr<Connection>) {});
      if (!probe.ok()) continue;  // a machine without IPv6
    }
    Listen(address);
    auto client = Connect(listener_->address());
    EXPECT_TRUE(client->connection->Send(1, "early"));  // before it stands
    Until([&] { return !accepted_.empty() && accepted_[0]->frames.size() == 1; });
    EXPECT_TRUE(client->connected);
    EXPECT_EQ(accepted_[0]->frames[0], "1:early");
    accepted_[0]->connection->Send(2, "");
    accepted_[0]->connection->Send(3, std::string(3'000'000, 'x'));
    accepted_[0]->connection->Send(4, "end");
    Until([&] { return client->frames.size() == 3; });
    EXPECT_THAT(client->frames, ElementsAre("2:", "3:3000000 bytes", "4:end")) << address;
    EXPECT_EQ(accepted_[0]->connection->unsent_bytes(), 0u);
    EXPECT_EQ(accepted_[0]->connection->peer_uid(), address[0] == 'u' ? static_cast<int>(getuid()) : -1);
    client->connection.reset();
    Until([&] { return accepted_[0]->closed.size() == 1; });
    EXPECT_EQ(accepted_[0]->closed[0].code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(client->closed.empty());
  }
  listener_.reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST_F(ConnectionTest, LocalhostNameAndPort) {
  Listen("127.0.0.1:0");
  auto client = Connect(absl::StrCat("localhost:", listener_->port()));
  client->connection->Send(1, "x");
  Until([&] { return !accepted_.empty() && accepted_[0]->frames.size() == 1; });
  EXPECT_EQ(client->connection->peer(), absl::StrCat("127.0.0.1:", listener_->port()));
}

TEST_F(ConnectionTest, RefusedIsToldApart) {
  Listen("127.0.0.1:0");
  const int port = listener_->port();
  listener_.reset();
  auto client = Connect(absl::StrCat("127.0.0.1:", port));
  Until([&] { return !client->closed.empty(); });
  EXPECT_TRUE(IsConnectionRefused(client->closed[0])) << client->closed[0];
  auto no_socket = Connect("unix:/nonexistent/socket");
  Until([&] { return !no_socket->closed.empty(); });
  EXPECT_TRUE(IsConnectionRefused(no_socket->closed[0]));
  auto no_host = Connect("host.invalid:1");
  Until([&] { return !no_host->closed.empty(); });
  EXPECT_FALSE(IsConnectionRefused(no_host->closed[0])) << no_host->closed[0];
  EXPECT_THAT(std::string(no_host->closed[0].message()), HasSubstr("host.invalid:1"));
  auto no_address = Connect("nonsense");
  Until([&] { return !no_address->closed.empty(); });
  EXPECT_EQ(no_address->closed[0].code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConnectionTest, BusyPortIsNamed) {
  Listen("127.0.0.1:0");
  auto second = Listener::Listen(&loop_, listener_->address(), [](std::unique_ptr<Connection>) {});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(listener_->address()));
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
}

// A malformed peer loses its own connection; the others notice nothing.
TEST_F(ConnectionTest, MalformedPeersDisturbNobody) {
  Listen("127.0.0.1:0");
  auto good = Connect(listener_->address());
  good->connection->Send(1, "a");
  Until([&] { return accepted_.size() == 1 && accepted_[0]->frames.size() == 1; });
  std::string oversize = EncodeFrame(1, "").substr(0, kFrameHeaderBytes);
  oversize[7] = 0x7f;
  std::string damaged = EncodeFrame(1, "payload");
  damaged.back() = 'X';
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), oversize, damaged}) {
    const size_t index = accepted_.size();
    const int fd = RawClient();
    ASSERT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    Until([&] { return accepted_.size() > index && !accepted_[index]->closed.empty(); });
    EXPECT_EQ(accepted_[index]->closed[0].code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(accepted_[index]->frames.empty());
    close(fd);
  }
  // One that stops inside a frame.
  const size_t index = accepted_.size();
  const int fd = RawClient();
  const std::string half = EncodeFrame(1, "payload").substr(0, 18);
  ASSERT_EQ(write(fd, half.data(), half.size()), 18);
  close(fd);
  Until([&] { return accepted_.size() > index && !accepted_[index]->closed.empty(); });
  EXPECT_THAT(std::string(accepted_[index]->closed[0].message()), HasSubstr("inside a frame"));
  good->connection->Send(1, "b");
  Until([&] { return accepted_[0]->frames.size() == 2; });
  EXPECT_TRUE(accepted_[0]->closed.empty());
}

TEST_F(ConnectionTest, PeerThatDoesNotReadLosesItsConnection) {
  Listen("127.0.0.1:0");
  const int fd = RawClient();
  Until([&] { return accepted_.size() == 1; });
  Peer& peer = *accepted_[0];
  const std::string block(limits::kFrameBytesMax, 'x');
  int taken = 0;
  while (peer.connection->Send(1, block)) {
    ASSERT_LT(++taken, 20);
    loop_.RunOnce(0);
    ASSERT_LE(peer.connection->unsent_bytes(), limits::kConnectionUnsentBytesMax);
  }
  EXPECT_GE(taken, 3);
  EXPECT_FALSE(peer.connection->connected());
  Until([&] { return !peer.closed.empty(); });
  EXPECT_EQ(peer.closed[0].code(), absl::StatusCode::kResourceExhausted);
  close(fd);
}

TEST_F(ConnectionTest, PausedReadingHoldsFramesBack) {
  Listen("127.0.0.1:0");
  auto client = Connect(listener_->address());
  client->connection->Send(1, "a");
  Until([&] { return accepted_.size() == 1 && accepted_[0]->frames.size() == 1; });
  accepted_[0]->connection->PauseReading();
  client->connection->Send(1, "b");
  for (int i = 0; i < 5; ++i) loop_.RunOnce(10 * kMillisecond);
  EXPECT_EQ(accepted_[0]->frames.size(), 1u);
  accepted_[0]->connection->ResumeReading();
  Until([&] { return accepted_[0]->frames.size() == 2; });
}

TEST_F(ConnectionTest, CloseWhenSentDeliversEverything) {
  Listen("127.0.0.1:0");
  auto client = Connect(listener_->address());
  client->connection->Send(1, "question");
  Until([&] { return accepted_.size() == 1 && accepted_[0]->frames.size() == 1; });
  client->connection->Send(1, "unread");  // must not reset the connection
  accepted_[0]->connection->Send(2, std::string(20'000'000, 'x'));
  accepted_[0]->connection->Send(2, "last");
  accepted_[0]->connection->CloseWhenSent();
  EXPECT_FALSE(accepted_[0]->connection->Send(2, "after"));
  Until([&] { return !client->closed.empty(); });
  EXPECT_THAT(client->frames, ElementsAre("2:20000000 bytes", "2:last"));
}

TEST_F(ConnectionTest, MayBeDestroyedInItsOwnHandlers) {
  Listen("127.0.0.1:0");
  auto client = std::make_unique<Peer>();
  Connection::Handlers handlers;
  const std::string captured(64, 'c');
  std::string seen;
  handlers.on_frame = [&client, &seen, captured](uint32_t, absl::string_view payload) {
    client->connection.reset();
    seen = captured + std::string(payload);  // the handler outlives its connection
  };
  handlers.on_close = [](const absl::Status&) { FAIL(); };
  client->connection = Connection::Connect(&loop_, listener_->address(), std::move(handlers));
  client->connection->Send(1, "x");
  Until([&] { return accepted_.size() == 1 && accepted_[0]->frames.size() == 1; });
  accepted_[0]->connection->Send(1, "y");
  accepted_[0]->connection->Send(1, "z");
  Until([&] { return !accepted_[0]->closed.empty(); });
  EXPECT_EQ(seen, captured + "y");
}

TEST_F(ConnectionTest, ConnectingMayBeGivenUp) {
  for (const char* address : {"127.0.0.1:1", "localhost:1", "host.invalid:1", "nonsense"}) {
    auto client = Connect(address);
    client->connection.reset();
    loop_.RunOnce(10 * kMillisecond);
    EXPECT_TRUE(client->closed.empty());
  }
}

TEST(HostPort, Parses) {
  EXPECT_EQ(ParseHostPort("host:29001")->host, "host");
  EXPECT_EQ(ParseHostPort("host:29001")->port, 29001);
  EXPECT_EQ(ParseHostPort("[fe80::1]:5")->host, "fe80::1");
  EXPECT_EQ(ParseHostPort(":5")->host, "");
  for (const char* bad : {"", "host", "host:", "host:x", "host:-1", "host:65536", "host:+5", "::1:5", "[::1]", "[]:5",
                          "[::1]5", "a:b:c"}) {
    auto parsed = ParseHostPort(bad);
    ASSERT_FALSE(parsed.ok()) << bad;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(absl::StrCat("\"", bad, "\""))) << bad;
  }
  EXPECT_FALSE(ParseHostPort(std::string(10'000, 'a') + ":1").ok());
}

}  // namespace
}  // namespace landbridge
