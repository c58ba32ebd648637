#include "worker/shell/control_session.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "cluster/control_frames.h"

namespace landbridge {

ControlSession::ControlSession(Grant grant, ProxyLife holder, std::shared_ptr<ShellContext> context,
                               std::unique_ptr<dataplane::DataPlane> data_plane, WorkerLimits limits, uint64_t space,
                               Callbacks callbacks)
    : grant_(std::move(grant)),
      holder_(holder),
      context_(std::move(context)),
      data_plane_(std::move(data_plane)),
      callbacks_(std::move(callbacks)),
      shell_(context_, data_plane_.get(),
             WorkerShell::Options{data_plane_->self(), std::move(limits), Incarnation(holder.value()), space,
                                            [this](WorkerReport report) { QueueReport(std::move(report)); }}) {}

ControlSession::~ControlSession() { data_plane_->Shutdown(); }

absl::Status ControlSession::Resume(uint64_t received) {
  sender_.OnDisconnect();
  return sender_.Resume(received);
}

absl::Status ControlSession::OnFrame(absl::string_view payload) {
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
  const TimeNs now = context_->Now();
  for (int i = static_cast<int>(skip); i < frame.ops_size(); ++i) {
    shell_.core().OnOp(std::move(*frame.mutable_ops(i)), now);
  }
  return absl::OkStatus();
}

void ControlSession::QueueReport(WorkerReport report) {
  if (fenced_) return;
  std::string bytes = report.SerializeAsString();
  const size_t size = bytes.size();
  if (!parked_.empty() || !sender_.TryPush(bytes, size)) parked_.push_back(std::move(bytes));
}

bool ControlSession::Flush(bool late) {
  if (fenced_) return false;
  shell_.core().Flush(late);
  if (sender_.HasUnsent()) shell_.core().Flush(/*all=*/true);  // the frame goes anyway
  while (!parked_.empty()) {
    const size_t size = parked_.front().size();
    if (!sender_.TryPush(parked_.front(), size)) break;
    parked_.pop_front();
  }
  while (sender_.HasUnsent() || (sender_.resumed() && receiver_.ack_due())) {
    StreamSender<std::string>::Batch batch = sender_.Take(limits::kControlFrameBytesMax);
    receiver_.AckMade();
    if (!callbacks_.send(JoinControlFrame(batch.first, receiver_.applied(), kControlFrameReports, batch.messages, ""))) {
      sender_.OnDisconnect();
    }
  }
  return shell_.core().HoldsProgress();
}

void ControlSession::SendHeartbeat() {
  if (fenced_ || !sender_.resumed()) return;
  Heartbeat heartbeat;
  heartbeat.set_number(++heartbeat_number_);
  heartbeat.set_sent_ns(context_->Now());
  heartbeat.set_echo_ns(peer_sent_ns_);
  shell_.core().FillDeviceUse(&heartbeat);
  for (const dataplane::PeerBytes& peer : context_->data_plane->Stats().peers) {
    if (peer.bytes_received == 0) continue;
    LinkUse* link = heartbeat.add_links();
    link->set_peer(peer.peer.value());
    link->set_bytes_received(peer.bytes_received);
  }
  receiver_.AckMade();
  callbacks_.send(JoinControlFrame(0, receiver_.applied(), kControlFrameReports, {}, heartbeat.SerializeAsString()));
}

void ControlSession::Fence(const absl::Status& why) {
  if (fenced_) return;
  fenced_ = true;
  sender_.Fence();
  receiver_.Fence();
  parked_.clear();
  shell_.Fence(why);
  data_plane_->Shutdown();
}

}  // namespace landbridge
