// The thread that owns a process's data-plane sockets: accepts, dials, shakes hands, and tells transports what is
// ready. What flows on a stream that is up is SocketTransport's.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "dataplane/socket_data_plane.h"
#include "dataplane/socket_wire.h"

namespace landbridge::dataplane {

LANDBRIDGE_DEFINE_ID(StreamId, "stream", uint64_t);

class SocketTransport;

// One socket. Bytes flow from the side that dialled only.
struct Stream {
  enum class State : uint8_t { kDialling, kGreeting, kUp };
  StreamId id;
  int fd = -1;
  State state = State::kGreeting;
  bool dialled = false;  // by us
  bool local = false;    // an AF_UNIX socket
  bool writing = false;  // waits for room
  StreamKind kind = StreamKind::kMessages;
  SocketTransport* owner = nullptr;  // null: accepted, and we do not know yet for whom
  PeerId peer;
  Hello hello;                        // dialled: what we say
  Nonce challenge = {};               // accepted: what we asked
  std::deque<std::string> endpoints;  // dialled: to be tried, "local:NAME" or "ip:port"
  std::string input;                  // handshake so far; later the beginning of a frame
};

// Thread-safety: address, Open, Wake, Run from any thread; the rest on the host's thread only.
class SocketHost final : public DataPlaneHost, public std::enable_shared_from_this<SocketHost> {
 public:
  static absl::StatusOr<std::shared_ptr<SocketHost>> Start(SocketOptions options);
  ~SocketHost() override;

  std::string address() const override { return address_; }
  absl::StatusOr<std::unique_ptr<DataPlane>> Open(DataPlaneOptions options) override;

  // --- For transports.
  absl::Status Add(PeerId self, SocketTransport* transport);  // ALREADY_EXISTS
  // Runs on the host's thread, soon. Blocks until it has run; not on the host's thread.
  void Run(std::function<void()> command);
  void Remove(PeerId self) { transports_.erase(self); }
  void Wake();

  const SocketOptions& options() const { return options_; }
  // Reached by a local socket.
  bool IsNear(const HostAddress& address) const;
  // At a random place of our memory, for Hello.
  const Nonce& probe() const { return *probe_; }

  StreamId NewStream() { return StreamId(next_stream_++); }
  // Ends by SocketTransport::OnUp or OnStreamEnd, the latter perhaps from inside.
  void Dial(StreamId id, SocketTransport* owner, const HostAddress& to, const Hello& hello);
  void Close(StreamId id);
  Stream* Find(StreamId id);
  void SetWriting(Stream& stream, bool writing);
  // Whether the other end has let go of the socket; asked of the kernel, now.
  static bool HungUp(const Stream& stream);
  absl::Span<std::byte> scratch() { return absl::MakeSpan(scratch_); }

 private:
  explicit SocketHost(SocketOptions options);
  absl::Status Init();
  absl::Status ListenTcp();
  absl::Status ListenLocal();
  void Loop();
  bool RunCommands();
  int WaitMs(bool busy);
  void OnEvent(StreamId id, uint32_t events);
  void Accept(int listener, bool local);
  void PauseAccepting();
  void CheckDeadlines();
  void DialNext(Stream& stream, const absl::Status& last);
  bool DialLocal(Stream& stream, const std::string& name);
  bool DialTcp(Stream& stream, const std::string& endpoint);
  void OnDialled(Stream& stream);
  void Greet(Stream& stream);  // reads on in the handshake
  void OnChallenge(Stream& stream);
  void OnHello(Stream& stream);
  void OnWelcome(Stream& stream);
  bool Say(Stream& stream, const std::string& bytes);
  void End(Stream& stream, const absl::Status& why);
  void Arm(Stream& stream, bool fresh);

  const SocketOptions options_;
  HostAddress own_;
  std::string address_;
  const std::unique_ptr<const Nonce> probe_;
  int epoll_ = -1, wake_ = -1, tcp_listener_ = -1, local_listener_ = -1;
  std::thread thread_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};

  absl::Mutex mutex_;
  std::vector<std::function<void()>> commands_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_commands_{false};

  // The host's thread.
  absl::flat_hash_map<PeerId, SocketTransport*> transports_;
  absl::flat_hash_map<StreamId, std::unique_ptr<Stream>> streams_;
  std::deque<std::pair<TimeNs, StreamId>> deadlines_;  // of handshakes; all are given the same time
  std::deque<StreamId> greeting_;                      // accepted and not up
  TimeNs accept_again_ = 0;                            // 0: accepting
  std::vector<std::byte> scratch_;
  uint64_t next_stream_ = 16;  // those below are listeners and the like
};

}  // namespace landbridge::dataplane
