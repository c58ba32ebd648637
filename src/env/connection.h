// Framed messages over TCP and unix sockets.
//
// Addresses: "host:port", "1.2.3.4:port", "[::1]:port", ":port" (loopback for Connect, all interfaces for Listen),
// "unix:/path". Listening on port 0 picks a free port.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "base/time.h"
#include "env/loop.h"

namespace landbridge {

class ConnectionImpl;
class ListenerImpl;

// Whether the peer's machine answered that nobody listens there (or the unix socket is gone): the process is dead.
// Everything else (silence, broken pipe, no route) says nothing about the process.
bool IsConnectionRefused(const absl::Status& status);

// Thread-safety: the loop's thread only. Handlers are never called from inside Send, Close or Connect, nor after the
// object is destroyed; it may be destroyed inside its own handlers.
class Connection {
 public:
  struct Handlers {
    std::function<void()> on_connected;  // optional; for Connect only
    // `payload` is valid during the call only.
    std::function<void(uint32_t type, absl::string_view payload)> on_frame;
    // Once, last: the peer closed (UNAVAILABLE), could not be reached (UNAVAILABLE; see IsConnectionRefused), sent a
    // malformed frame (INVALID_ARGUMENT), does not read (RESOURCE_EXHAUSTED). Not called after our own Close.
    std::function<void(const absl::Status&)> on_close;
  };

  // Returns at once; frames sent before the connection stands are queued.
  static std::unique_ptr<Connection> Connect(Loop* loop, absl::string_view address, Handlers handlers,
                                             DurationNs timeout = limits::kConnectTimeout);

  // Closes. Frames that were sent and fit into the kernel's buffer still arrive.
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // For accepted connections: nothing is read before this.
  void Start(Handlers handlers);

  // Queues one frame; frames of one turn of the loop leave in one write. False when the connection is closed, or
  // becomes so because more than kConnectionUnsentBytesMax would be unsent (then on_close follows).
  bool Send(uint32_t type, std::string payload);

  // Frames passed to Send are written out, then the connection is closed. No more frames are delivered.
  void CloseWhenSent();
  void Close();

  // Back-pressure on the peer: while paused nothing is read (frames that were read already are still delivered).
  void PauseReading();
  void ResumeReading();

  bool connected() const;
  size_t unsent_bytes() const;
  std::string peer() const;  // "127.0.0.1:4711"
  // Unix sockets: the peer's user id; -1 for TCP.
  int peer_uid() const;

 private:
  friend class ListenerImpl;
  explicit Connection(std::shared_ptr<ConnectionImpl> impl);

  std::shared_ptr<ConnectionImpl> impl_;  // requests in the kernel hold it too
};

// Thread-safety: the loop's thread only.
class Listener {
 public:
  using OnAccept = std::function<void(std::unique_ptr<Connection>)>;

  // FAILED_PRECONDITION when the port is in use (names it); INVALID_ARGUMENT for an address that does not parse or
  // resolve. A unix socket's file is replaced when nobody listens on it, and removed at the end.
  static absl::StatusOr<std::unique_ptr<Listener>> Listen(Loop* loop, absl::string_view address, OnAccept on_accept);
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  int port() const;             // 0 for unix sockets
  std::string address() const;  // what to Connect to on this machine

 private:
  explicit Listener(std::shared_ptr<ListenerImpl> impl);
  std::shared_ptr<ListenerImpl> impl_;
};

// Splits "host:port". INVALID_ARGUMENT names the text and the form that is expected.
struct HostPort {
  std::string host;
  int port = 0;
};
absl::StatusOr<HostPort> ParseHostPort(absl::string_view address);

}  // namespace landbridge
