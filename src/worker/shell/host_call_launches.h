// Launches that call functions of their client: from the plugin's call to the control stream, and back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "pjrt/host_calls.h"
#include "worker/shell/launcher.h"
#include "worker/shell/puller.h"
#include "worker/shell/shell_context.h"
#include "worker/shell/task_pool.h"

namespace landbridge {

// Of one grant. A call ends with the client's reply, or with what the proxy says in its place (the client is gone), or with
// the grant. Until then its launch waits; nothing else does.
//
// Thread-safety: the loop's thread only. What a program goes on with after a call runs on a pool of its own: it may take as
// long as the program.
class HostCallLaunches {
 public:
  HostCallLaunches(ShellContext* context, Puller* puller, std::function<void(WorkerReport)> report)
      : context_(context), puller_(puller), report_(std::move(report)) {}
  ~HostCallLaunches();

  // `work` is resolved, of a program that calls its client. Makes the launch known to the handler.
  void Open(const Launch& launch, const LaunchWork& work);
  // The launch is over. Why a call of it failed, if one did: the plugin wraps that in words of its own.
  absl::Status Close(Ticket ticket);

  void OnReply(HostCallReply reply);
  // Of a launch: those that wait now, and those that still come.
  void Abort(Ticket ticket, const absl::Status& why);
  void AbortAll(const absl::Status& why);
  size_t open() const { return calls_.size(); }

 private:
  struct OpenLaunch {
    pjrt::HostCallRegistration registration;
    uint64_t session = 0;
    absl::Status failure;  // of its first call that failed
    absl::Status aborted;
  };
  struct Call {
    Ticket ticket;
    pjrt::HostCall call;
    bool published = false;
    bool replied = false;  // its results are being pulled
  };
  using CallPtr = std::shared_ptr<Call>;

  void Start(Ticket ticket, pjrt::HostCall call);
  void PullResults(uint64_t id, const CallPtr& call, uint64_t results_key);
  // Lets the program go on, or fail. `results`: dense, or empty where they are in place.
  void Finish(uint64_t id, CallPtr call, absl::Status status, std::string results);
  void Complete(CallPtr call, absl::Status status, std::string results);

  ShellContext* const context_;
  Puller* const puller_;
  const std::function<void(WorkerReport)> report_;
  std::shared_ptr<TaskPool> pool_;
  absl::flat_hash_map<Ticket, OpenLaunch> launches_;
  absl::flat_hash_map<uint64_t, CallPtr> calls_;  // not finished
  absl::Status ended_;                            // the grant's end
  uint64_t last_ = 0;
};

}  // namespace landbridge
