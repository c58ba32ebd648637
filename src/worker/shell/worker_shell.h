// Does what the worker's core decides, with the plugin and the data plane. One per grant.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "worker/shell/collective_launches.h"
#include "worker/shell/host_call_launches.h"
#include "worker/shell/launcher.h"
#include "worker/shell/loads.h"
#include "worker/shell/makes.h"
#include "worker/shell/order_mail.h"
#include "worker/shell/publishes.h"
#include "worker/shell/puller.h"
#include "worker/shell/reads.h"
#include "worker/shell/shell_context.h"
#include "worker/shell/uploads.h"
#include "worker/worker_core.h"

namespace landbridge {

// Plugin and data plane never call into it: their events come through the context's inbox.
//
// Lifetime: destroy it only when Idle(); events that come later are dropped.
//
// Thread-safety: the loop's thread only.
class WorkerShell : public WorkerSink {
 public:
  struct Options {
    Incarnation self;
    WorkerLimits limits;
    dataplane::PeerId proxy;
    uint64_t space = 0;
    std::function<void(WorkerReport)> report;  // must not call back into the shell
  };

  // Of `context` everything up to `inbox` is set, but for the data plane, which outlives the shell.
  WorkerShell(std::shared_ptr<ShellContext> context, dataplane::DataPlane* data_plane, Options options);
  ~WorkerShell() override;

  WorkerCore& core() { return core_; }
  const WorkerCore& core() const { return core_; }

  // The grant has ended. Afterwards nothing new starts; Idle turns true when nothing can act any more.
  void Fence(const absl::Status& why);
  // Nothing that was handed to the plugin, the data plane or the pool is left.
  bool Idle() const;
  int64_t launches_open() const { return launches_open_; }

  // WorkerSink:
  void Report(WorkerReport report) override;
  void Load(const LoadExecutable& load) override;
  void Unload(ExecutableId executable) override;
  void HandOver(std::shared_ptr<const Launch> launch, uint64_t place) override;
  void AbortLaunch(Ticket ticket, const absl::Status& why) override;
  void StartUpload(std::shared_ptr<const Upload> upload) override;
  void UploadBytes(uint64_t key, std::string data) override;
  void CancelUpload(uint64_t key, const absl::Status& why) override;
  void StartMake(std::shared_ptr<const MakeBuffers> make, int index) override;
  void CancelMake(Ticket ticket, int index, const absl::Status& why) override;
  void StartPublish(const Publish& publish) override;
  void FailPublish(TransferId transfer, const absl::Status& why) override;
  void StopPublish(TransferId transfer, const absl::Status& why) override;
  void StartRead(const Read& read, bool snapshot) override;
  void SnapshotPublish(TransferId transfer) override;
  void SnapshotRead(uint64_t read) override;
  void StopRead(uint64_t read) override;
  void Free(BufferRef ref) override;
  void HostCallReplied(HostCallReply reply) override;
  void PeerLost(Incarnation peer, const absl::Status& why) override;
  void MeetPeer(Incarnation peer, const std::string& address) override;
  void SendMail(Incarnation peer, std::string mail) override;
  void ListenTo(Incarnation peer) override;

  // End of a turn of the loop: what the core has said to others leaves.
  void Flush() { mails_.Flush(); }

 private:
  absl::StatusOr<LaunchWork> Resolve(const Launch& launch);
  void EndNative(Ticket ticket, const absl::Status& why);
  void OnLaunchDone(const Launch& launch, absl::Status status, TimeNs start, TimeNs end);

  const std::shared_ptr<ShellContext> context_;
  const std::function<void(WorkerReport)> report_;
  WorkerCore core_;
  Puller puller_;
  Loads loads_;
  Uploads uploads_;
  Makes makes_;
  Publishes publishes_;
  Reads reads_;
  CollectiveLaunches collectives_;
  HostCallLaunches host_calls_;
  OrderMails mails_;
  absl::flat_hash_set<Ticket> natives_;    // handed over, with the plugin's own collectives over several workers
  std::vector<TimeNs> device_busy_until_;  // end of the last launch that is done
  int64_t launches_open_ = 0;
};

}  // namespace landbridge
