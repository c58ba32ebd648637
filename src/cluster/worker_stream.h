// The proxy's end of one control stream: numbers ops, keeps them until acknowledged, joins them into frames, and
// tells which reports of a frame are new. The stream belongs to one worker's life under one grant; connections come
// and go beneath it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "cluster/stream.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge {

// Thread-safety: one thread.
class WorkerStream {
 public:
  explicit WorkerStream(size_t replay_bytes_max = limits::kStreamReplayBytesMax) : sender_(replay_bytes_max) {}

  // Takes the op; it leaves with NextFrame. Beyond the replay bound ops are parked, never dropped.
  void Push(const WorkerOp& op);

  // A new connection of this stream; the worker has applied ops up to `received`.
  absl::Status Resume(uint64_t received) { return sender_.Resume(received); }
  void OnDisconnect() { sender_.OnDisconnect(); }

  // The next frame's payload: acknowledges what came, and carries ops that were not sent on this connection.
  // Empty when there is nothing to say.
  std::string NextFrame();
  // A frame with (only) this heartbeat and the acknowledgement.
  std::string HeartbeatFrame(const Heartbeat& heartbeat);
  bool needs_flush() const { return sender_.HasUnsent() || receiver_.ack_due(); }

  // A frame's payload. Calls `on_report` for each report that was not applied before. An error means that the
  // connection is to be closed (and resumed): malformed, or messages are missing.
  absl::Status OnFrame(absl::string_view payload, const std::function<void(const Heartbeat&)>& on_heartbeat,
                       const std::function<void(const WorkerReport&)>& on_report);

  uint64_t applied_reports() const { return receiver_.applied(); }
  size_t unacknowledged_bytes() const { return sender_.replay_bytes(); }
  size_t parked() const { return parked_.size(); }

 private:
  void MoveParked();

  StreamSender<std::string> sender_;
  StreamReceiver receiver_;
  std::deque<std::string> parked_;
  std::vector<const std::string*> taken_;  // scratch of NextFrame
};

}  // namespace landbridge
