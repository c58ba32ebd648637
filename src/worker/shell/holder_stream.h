// A holder's control stream, seen from the worker: ops in, once and in order, so many a turn; reports out, in one frame per turn of the
// loop, kept until acknowledged; heartbeats beside. It outlives connections.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "cluster/stream.h"
#include "worker/worker_core.h"

namespace landbridge {

// Thread-safety: the loop's thread only.
class HolderStream {
 public:
  struct Callbacks {
    // Writes a frame's payload; false when the stream is broken (it will be resumed).
    std::function<bool(std::string payload)> send;
    // A heartbeat of the holder; false: the grant has ended.
    std::function<bool(int64_t echo_ns)> on_heartbeat;
    // Ops are left for a later turn of the loop: call ApplyMore then. Empty: all ops of a frame are applied at once.
    std::function<void()> left_over;
  };

  explicit HolderStream(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}

  bool resumed() const { return sender_.resumed(); }
  // Ops up to it are here, applied or about to be: goes into ControlWelcome.
  uint64_t received_ops() const { return receiver_.applied(); }
  // The proxy has come (back) and has applied reports up to `received`. An error: this is not our stream.
  absl::Status Resume(uint64_t received);
  void OnBroken() { sender_.OnDisconnect(); }
  // A kFrameControl payload; its ops go to `core`, as many as a turn of the loop may take (limits::kOpsPerTurn): heartbeats
  // never wait behind the end of thousands of arrays. An error: close the connection, the proxy resumes it.
  absl::Status OnFrame(absl::string_view payload, WorkerCore& core, TimeNs now);
  void ApplyMore(WorkerCore& core, TimeNs now);

  void Queue(const WorkerReport& report);
  // Sends what has been reported since the last call; once per turn of the loop. True: progress that nobody waits for
  // was put off; it leaves with the next frame, or with Flush(late = true).
  bool Flush(WorkerCore& core, bool late);
  // Fills in number and times; the rest is the caller's.
  void SendHeartbeat(Heartbeat heartbeat, TimeNs now);
  // The grant has ended: the replay buffer goes, and nothing is sent any more.
  void Fence();

 private:
  // What the sender need not keep: it bounds what waits here.
  int64_t OpsPerTurn() const;
  uint64_t acknowledged() const { return receiver_.applied() - waiting_.size(); }

  const Callbacks callbacks_;
  StreamReceiver receiver_;
  StreamSender<std::string> sender_;
  std::deque<WorkerOp> waiting_;           // received, not applied
  std::vector<const std::string*> taken_;  // scratch of Flush
  bool asked_again_ = false;
  std::deque<std::string> parked_;  // reports beyond the replay bound: bounded by the work that the peer gave us
  uint64_t heartbeat_number_ = 0;
  uint64_t peer_heartbeat_number_ = 0;
  int64_t peer_sent_ns_ = 0;
  bool fenced_ = false;
};

}  // namespace landbridge
