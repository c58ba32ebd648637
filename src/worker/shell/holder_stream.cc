#include "worker/shell/holder_stream.h"

#include <limits>
#include <utility>

#include "base/limits.h"
#include "base/status.h"
#include "cluster/control_frames.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

// In buffers that come or go, roughly.
int64_t Work(const WorkerOp& op) {
  switch (op.op_case()) {
    case WorkerOp::kDelete: return 1 + op.delete_().arrays_size() + op.delete_().shards_size();
    case WorkerOp::kUnpublish: return 1 + op.unpublish().transfers_size();
    case WorkerOp::kLaunch: return 1 + op.launch().outputs_size();
    default: return 1;
  }
}

}  // namespace

absl::Status HolderStream::Resume(uint64_t received) {
  sender_.OnDisconnect();
  return sender_.Resume(received);
}

absl::Status HolderStream::OnFrame(absl::string_view payload, WorkerCore& core, TimeNs now) {
  ControlFrame frame;
  if (!frame.ParseFromArray(payload.data(), static_cast<int>(payload.size())) || frame.reports_size() != 0) {
    return absl::InvalidArgumentError("a control frame of the proxy does not parse");
  }
  LB_RETURN_IF_ERROR(sender_.OnAck(frame.ack()));
  if (frame.has_heartbeat() && frame.heartbeat().number() > peer_heartbeat_number_) {
    peer_heartbeat_number_ = frame.heartbeat().number();
    peer_sent_ns_ = frame.heartbeat().sent_ns();
    if (!callbacks_.on_heartbeat(frame.heartbeat().echo_ns())) {
      return absl::FailedPreconditionError("the lease has ended");
    }
  }
  LB_ASSIGN_OR_RETURN(size_t skip,
                      receiver_.OnFrame(frame.first_seq(), static_cast<size_t>(frame.ops_size()), payload.size()));
  int next = static_cast<int>(skip);
  int64_t room = OpsPerTurn();
  for (; next < frame.ops_size() && waiting_.empty() && !asked_again_ && room > 0; ++next) {
    room -= Work(frame.ops(next));
    core.OnOp(std::move(*frame.mutable_ops(next)), now);
  }
  for (; next < frame.ops_size(); ++next) waiting_.push_back(std::move(*frame.mutable_ops(next)));
  if (!waiting_.empty() && !std::exchange(asked_again_, true)) callbacks_.left_over();
  return absl::OkStatus();
}

int64_t HolderStream::OpsPerTurn() const {
  return callbacks_.left_over ? limits::kOpsPerTurn : std::numeric_limits<int64_t>::max();
}

void HolderStream::ApplyMore(WorkerCore& core, TimeNs now) {
  asked_again_ = false;
  int64_t room = OpsPerTurn();
  while (!waiting_.empty() && room > 0) {
    WorkerOp op = std::move(waiting_.front());
    waiting_.pop_front();
    room -= Work(op);
    core.OnOp(std::move(op), now);
  }
  if (waiting_.empty()) return;
  asked_again_ = true;
  callbacks_.left_over();
}

void HolderStream::Queue(const WorkerReport& report) {
  if (fenced_) return;
  std::string bytes = report.SerializeAsString();
  const size_t size = bytes.size();
  if (!parked_.empty() || !sender_.TryPush(bytes, size)) parked_.push_back(std::move(bytes));
}

bool HolderStream::Flush(WorkerCore& core, bool late) {
  if (fenced_) return false;
  core.Flush(late);
  if (sender_.HasUnsent()) core.Flush(/*all=*/true);  // the frame goes anyway
  while (!parked_.empty()) {
    const size_t size = parked_.front().size();
    if (!sender_.TryPush(parked_.front(), size)) break;
    parked_.pop_front();
  }
  while (sender_.HasUnsent() || (sender_.resumed() && receiver_.ack_due())) {
    const uint64_t first = sender_.TakeInPlace(limits::kControlFrameBytesMax, &taken_);
    receiver_.AckMade();
    if (!callbacks_.send(JoinControlFrame(first, acknowledged(), kControlFrameReports, taken_))) {
      sender_.OnDisconnect();
    }
  }
  return core.HoldsProgress();
}

void HolderStream::SendHeartbeat(Heartbeat heartbeat, TimeNs now) {
  if (fenced_ || !sender_.resumed()) return;
  heartbeat.set_number(++heartbeat_number_);
  heartbeat.set_sent_ns(now);
  heartbeat.set_echo_ns(peer_sent_ns_);
  receiver_.AckMade();
  callbacks_.send(JoinControlFrame(0, acknowledged(), kControlFrameReports, {}, heartbeat.SerializeAsString()));
}

void HolderStream::Fence() {
  fenced_ = true;
  sender_.Fence();
  receiver_.Fence();
  parked_.clear();
  waiting_.clear();
}

}  // namespace landbridge
