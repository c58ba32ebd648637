// One holder's grant on this worker: the core and shell that serve it, and its control stream over changing connections.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/grant.h"
#include "cluster/stream.h"
#include "worker/shell/worker_shell.h"

namespace landbridge {

// Ops are applied once, in order; reports leave in one frame per turn of the loop and are kept until acknowledged.
//
// Thread-safety: the loop's thread only.
class ControlSession {
 public:
  struct Callbacks {
    // Writes a frame's payload; false when the stream is broken (it will be resumed).
    std::function<bool(std::string payload)> send;
    // A heartbeat of the holder; false: the grant has ended.
    std::function<bool(int64_t echo_ns)> on_heartbeat;
  };

  // `data_plane` is this grant's alone, and open under its life (LifeUnder).
  ControlSession(Grant grant, ProxyLife holder, std::shared_ptr<ShellContext> context,
                 std::unique_ptr<dataplane::DataPlane> data_plane, WorkerLimits limits, uint64_t space, Callbacks callbacks);
  ~ControlSession();

  const Grant& grant() const { return grant_; }
  ProxyLife holder() const { return holder_; }
  WorkerShell& shell() { return shell_; }
  dataplane::DataPlane& data_plane() { return *data_plane_; }
  bool connected() const { return sender_.resumed(); }

  // Ops up to it were applied: goes into ControlWelcome.
  uint64_t applied_ops() const { return receiver_.applied(); }
  // The proxy has come (back) and has applied reports up to `received`. An error: this is not our stream.
  absl::Status Resume(uint64_t received);
  void OnBroken() { sender_.OnDisconnect(); }
  // A kFrameControl payload. An error: close the connection, the proxy resumes it.
  absl::Status OnFrame(absl::string_view payload);

  // Sends what has been reported since the last call; once per turn of the loop. True: progress that nobody waits for
  // was put off; it leaves with the next frame, or with Flush(late = true).
  bool Flush(bool late);
  void SendHeartbeat();

  // The grant has ended: the replay buffer goes, queued work is dropped, the data plane is shut: when this returns no byte
  // of it lands here, and nobody reads from here, any more.
  void Fence(const absl::Status& why);
  // After Fence: nothing of it can act any more.
  bool OldWorkEnded() const { return shell_.Idle() && shell_.core().OldWorkEnded(); }
  bool Idle() const { return shell_.Idle(); }

 private:
  void QueueReport(WorkerReport report);

  const Grant grant_;
  const ProxyLife holder_;
  const std::shared_ptr<ShellContext> context_;
  const std::unique_ptr<dataplane::DataPlane> data_plane_;
  const Callbacks callbacks_;
  WorkerShell shell_;
  StreamReceiver receiver_;
  StreamSender<std::string> sender_;
  std::deque<std::string> parked_;   // reports beyond the replay bound: bounded by the work that the peer gave us
  uint64_t heartbeat_number_ = 0;
  uint64_t peer_heartbeat_number_ = 0;
  int64_t peer_sent_ns_ = 0;
  bool fenced_ = false;
};

}  // namespace landbridge
