// A worker's port: control streams of its holders (handshake by WorkerAgent) and admin questions. The counterpart of
// HolderAgent's control connections.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/admin.h"
#include "cluster/grant.h"
#include "cluster/worker_agent.h"
#include "env/connection.h"
#include "env/loop.h"

namespace landbridge {

// A control stream: outlives connections, never its grant.
struct ControlStreamId {
  ProxyLife holder;
  Grant grant;
  std::string data_address;  // of the holder's data plane, whose peer id is its life; empty: it has none
  uint64_t space = 0;        // of the stream's data-plane keys; 0: the holder's life
};

// Thread-safety: the loop's thread only. Callbacks run on the loop, never from inside Send or CloseStream.
class ControlServer {
 public:
  struct Callbacks {
    // The holder has come (back); its side has applied our reports up to `received`. Returns the number up to which
    // we have applied its ops. Called for grants that the agent holds active only. At most one connection stands
    // for a stream: an older one is dropped without on_stream_broken.
    std::function<uint64_t(const ControlStreamId&, uint64_t received)> on_stream_resumed;
    std::function<void(const ControlStreamId&)> on_stream_broken;
    // A kFrameControl payload; the lease was checked for it. An error closes the connection (the holder resumes it).
    std::function<absl::Status(const ControlStreamId&, absl::string_view payload)> on_control;
  };

  // `admin` may be null. Errors as Listener::Listen.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Listen(Loop* loop, absl::string_view address,
                                                               const AdminTable* admin, Callbacks callbacks);
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  // Until this is called hellos are answered NOT_YET (the port must be known before the agent can be made). The
  // agent must outlive this object, or be set to null.
  void SetAgent(WorkerAgent* agent);

  int port() const;
  std::string address() const;

  // Writes a kFrameControl frame; false when the stream is broken (it will be resumed).
  bool Send(const ControlStreamId& stream, std::string payload);
  // For WorkerAgent's on_fence: drops the grant's connection. The holder learns why when it connects again.
  void CloseStream(const Grant& grant);

 private:
  class Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
