// One holder's grant on this worker: the core and shell that serve it, and its control stream over changing connections.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cluster/grant.h"
#include "worker/shell/holder_stream.h"
#include "worker/shell/worker_shell.h"

namespace landbridge {

// Thread-safety: the loop's thread only.
class ControlSession {
 public:
  using Callbacks = HolderStream::Callbacks;

  // `data_plane` is this grant's alone, and open under its life (LifeUnder).
  ControlSession(Grant grant, ProxyLife holder, std::shared_ptr<ShellContext> context,
                 std::unique_ptr<dataplane::DataPlane> data_plane, WorkerLimits limits, uint64_t space,
                 Callbacks callbacks);
  ~ControlSession();

  const Grant& grant() const { return grant_; }
  ProxyLife holder() const { return holder_; }
  WorkerShell& shell() { return shell_; }
  dataplane::DataPlane& data_plane() { return *data_plane_; }
  bool connected() const { return stream_.resumed(); }

  // Ops up to it are here: goes into ControlWelcome.
  uint64_t received_ops() const { return stream_.received_ops(); }
  // The proxy has come (back) and has applied reports up to `received`. An error: this is not our stream.
  absl::Status Resume(uint64_t received) { return stream_.Resume(received); }
  void OnBroken() { stream_.OnBroken(); }
  // A kFrameControl payload. An error: close the connection, the proxy resumes it.
  absl::Status OnFrame(absl::string_view payload) { return stream_.OnFrame(payload, shell_.core(), context_->Now()); }
  void ApplyMore() { stream_.ApplyMore(shell_.core(), context_->Now()); }

  // Sends what has been reported, and said to other workers, since the last call; once per turn of the loop. True: progress that nobody waits for
  // was put off; it leaves with the next frame, or with Flush(late = true).
  bool Flush(bool late) {
    shell_.Flush();
    return stream_.Flush(shell_.core(), late);
  }
  void SendHeartbeat();

  // The grant has ended: the replay buffer goes, queued work is dropped, the data plane is shut: when this returns no byte
  // of it lands here, and nobody reads from here, any more.
  void Fence(const absl::Status& why);
  // After Fence: nothing of it can act any more.
  bool OldWorkEnded() const { return shell_.Idle() && shell_.core().OldWorkEnded(); }
  bool Idle() const { return shell_.Idle(); }

 private:
  const Grant grant_;
  const ProxyLife holder_;
  const std::shared_ptr<ShellContext> context_;
  const std::unique_ptr<dataplane::DataPlane> data_plane_;
  HolderStream stream_;
  WorkerShell shell_;
  bool fenced_ = false;
};

}  // namespace landbridge
