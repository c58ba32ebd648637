#include "cluster/worker_stream.h"

#include <utility>

#include "cluster/control_frames.h"

namespace landbridge {

void WorkerStream::Push(const WorkerOp& op) {
  std::string bytes = op.SerializeAsString();
  const size_t size = bytes.size();
  if (!parked_.empty() || !sender_.TryPush(bytes, size)) parked_.push_back(std::move(bytes));
}

void WorkerStream::MoveParked() {
  while (!parked_.empty()) {
    const size_t size = parked_.front().size();
    if (!sender_.TryPush(parked_.front(), size)) return;
    parked_.pop_front();
  }
}

std::string WorkerStream::NextFrame() {
  if (!needs_flush()) return "";
  const uint64_t first = sender_.TakeInPlace(limits::kControlFrameBytesMax, &taken_);
  receiver_.AckMade();
  return JoinControlFrame(first, receiver_.applied(), kControlFrameOps, taken_);
}

std::string WorkerStream::HeartbeatFrame(const Heartbeat& heartbeat) {
  receiver_.AckMade();
  return JoinControlFrame(0, receiver_.applied(), kControlFrameOps, {}, heartbeat.SerializeAsString());
}

absl::Status WorkerStream::OnFrame(absl::string_view payload, const std::function<void(const Heartbeat&)>& on_heartbeat,
                                   const std::function<void(const WorkerReport&)>& on_report) {
  ControlFrame frame;
  if (!frame.ParseFromArray(payload.data(), static_cast<int>(payload.size())) || frame.ops_size() != 0) {
    return absl::InvalidArgumentError("a control frame of the worker does not parse");
  }
  if (absl::Status status = sender_.OnAck(frame.ack()); !status.ok()) return status;
  MoveParked();
  if (frame.has_heartbeat()) on_heartbeat(frame.heartbeat());
  absl::StatusOr<size_t> skip =
      receiver_.OnFrame(frame.first_seq(), static_cast<size_t>(frame.reports_size()), payload.size());
  if (!skip.ok()) return skip.status();
  for (int i = static_cast<int>(*skip); i < frame.reports_size(); ++i) on_report(frame.reports(i));
  return absl::OkStatus();
}

}  // namespace landbridge
