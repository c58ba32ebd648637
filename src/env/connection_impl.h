// The parts of a connection that outlive its owner until the kernel has let go of them. For env/ only.
#pragma once

#include <uv.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "env/connection.h"
#include "env/frame.h"
#include "env/loop.h"

namespace landbridge {

// Thread-safety: the loop's thread only.
class ConnectionImpl : public std::enable_shared_from_this<ConnectionImpl> {
 public:
  explicit ConnectionImpl(Loop* loop) : loop_(loop) {}
  ~ConnectionImpl() { loop_->ForgetFlush(this); }

  void Connect(absl::string_view address, DurationNs timeout);
  bool Accept(uv_stream_t* listener, bool unix_socket);
  void Start(Connection::Handlers handlers);
  bool Send(uint32_t type, std::string payload);
  void CloseWhenSent();
  void Close();  // silently
  void SetReading(bool reading);
  void FlushNow();

  bool connected() const { return state_ == State::kConnected; }
  size_t unsent_bytes() const { return unsent_bytes_; }
  std::string peer() const;
  int peer_uid() const;
  void ForgetHandlers() { handlers_.reset(); }

 private:
  enum class State { kConnecting, kConnected, kClosed };
  // A libuv stream; freed by its close callback. Holds its connection until then.
  struct Stream {
    union {
      uv_handle_t handle;
      uv_stream_t stream;
      uv_tcp_t tcp;
      uv_pipe_t pipe;
    } uv;
    std::shared_ptr<ConnectionImpl> owner;
  };
  struct Resolve;
  struct ConnectRequest;
  struct WriteRequest;
  struct ShutdownRequest;

  Stream* OpenStream(bool unix_socket);
  void DropStream();
  void TryNextAddress();
  void OnConnectDone(int error);
  void StartReading();
  void OnRead(ssize_t size, const char* data);
  void OnDrained();
  void Fail(absl::Status status);  // on_close comes in a later turn
  absl::Status ConnectError(int error) const;

  Loop* const loop_;
  State state_ = State::kConnecting;
  // Null: nobody listens any more. Shared, so that one that is running survives being forgotten.
  std::shared_ptr<Connection::Handlers> handlers_;
  bool started_ = false;
  Stream* stream_ = nullptr;

  std::string address_;
  std::vector<sockaddr_storage> candidates_;  // still to be tried, last first
  bool all_refused_ = true;
  Loop::TimerId timeout_ = 0;

  FrameParser parser_;
  bool reading_wanted_ = true;
  bool reading_ = false;

  // Each chunk is one or more whole frames, or a large frame's payload; the first one's first bytes may be gone.
  std::deque<std::string> out_;
  size_t out_offset_ = 0;  // of the first chunk
  bool writing_ = false;
  size_t unsent_bytes_ = 0;
  bool close_when_sent_ = false;
  bool shut_down_ = false;

  friend class ListenerImpl;
};

}  // namespace landbridge
