#include "worker/shell/control_session.h"

#include <utility>

namespace landbridge {

ControlSession::ControlSession(Grant grant, ProxyLife holder, std::shared_ptr<ShellContext> context,
                               std::unique_ptr<dataplane::DataPlane> data_plane, WorkerLimits limits, uint64_t space,
                               Callbacks callbacks)
    : grant_(std::move(grant)),
      holder_(holder),
      context_(std::move(context)),
      data_plane_(std::move(data_plane)),
      stream_(std::move(callbacks)),
      shell_(context_, data_plane_.get(),
             WorkerShell::Options{data_plane_->self(), std::move(limits), Incarnation(holder.value()), space,
                                  [this](WorkerReport report) { stream_.Queue(report); }}) {}

ControlSession::~ControlSession() { data_plane_->Shutdown(); }

void ControlSession::SendHeartbeat() {
  if (!stream_.resumed()) return;
  Heartbeat heartbeat;
  shell_.core().FillDeviceUse(&heartbeat);
  for (const dataplane::PeerBytes& peer : context_->data_plane->Stats().peers) {
    if (peer.bytes_received == 0) continue;
    LinkUse* link = heartbeat.add_links();
    link->set_peer(peer.peer.value());
    link->set_bytes_received(peer.bytes_received);
  }
  stream_.SendHeartbeat(std::move(heartbeat), context_->Now());
}

void ControlSession::Fence(const absl::Status& why) {
  if (fenced_) return;
  fenced_ = true;
  stream_.Fence();
  shell_.Fence(why);
  data_plane_->Shutdown();
}

}  // namespace landbridge
