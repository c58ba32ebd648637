// What a worker decides, without doing it: which buffers exist and in what state, which launches are runnable,
// their order (through the Sequencer), memory admission in ticket order, pins, deletes after uses, poison.
// The shell (worker_shell.h) does what WorkerSink says with the plugin and the data plane, and reports back.
// The simulator runs this very class.
//
// Buffer states: kPending (will be made by a node that is not in the order log yet, or by bytes on their way),
// kEnqueued (its launch was handed to the plugin on that device; usable by later launches on the same device),
// kResident, kPoisoned (holds a status), and gone.
//
// Runnable (scheduler.md): memory reserved, and every input shard resident, or enqueued on the same device; every
// earlier reader of a donated array on that device is in the log or withdrawn, and transfers and reads of it are
// finished. Consumers of launches that can fail on one shard wait until their producer has completed.
// A launch with a poisoned input is dropped and its outputs poisoned with the original status and root ticket.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "base/time.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge {

// Records what to do. Never calls back into the core.
class WorkerSink {
 public:
  virtual ~WorkerSink() = default;

  virtual void Report(WorkerReport report) = 0;

  // Fetch (or take inline), verify and load; answer OnLoadDone.
  virtual void Load(const LoadExecutable& load) = 0;
  // No launch of it is queued any more; those that run keep what they need.
  virtual void Unload(ExecutableId executable) = 0;

  // Hand the launch to the plugin. Calls come in order-log order; the shell keeps that order on each device, and
  // issues multi-device programs through one gate. Every argument is resident, or the output of a launch handed
  // over earlier to the same device. Answer OnLaunchDone once, when all devices are done (or the call failed).
  // `place` is the entry's number in the order log.
  virtual void HandOver(std::shared_ptr<const Launch> launch, uint64_t place) = 0;
  // The part of a launch that spans workers was handed over, and another part failed: its collectives must fail with `why`, so
  // that it ends. OnLaunchDone still comes, if it has not. Also for one that is over here: peers may still wait for it.
  virtual void AbortLaunch(Ticket ticket, const absl::Status& why) = 0;

  // Make the targets' buffers and fill them (pull, or take `inline_data`); answer OnUploadDone once.
  virtual void StartUpload(std::shared_ptr<const Upload> upload) = 0;
  virtual void UploadBytes(uint64_t key, std::string data) = 0;  // for StartUpload with pulled == false
  // Give up: the pull is cancelled, memory quarantined until no byte can land. OnUploadDone still comes, once.
  virtual void CancelUpload(uint64_t key, const absl::Status& why) = 0;

  // Make buffer `index` of the op from its pieces; local sources are resident and stay pinned until OnMakeDone.
  virtual void StartMake(std::shared_ptr<const MakeBuffers> make, int index) = 0;
  virtual void CancelMake(Ticket ticket, int index, const absl::Status& why) = 0;  // OnMakeDone still comes

  // Offer the (resident) buffer's box to the peer until StopPublish; then answer OnPublishQuiet when no peer
  // reads it any more. FailPublish: the bytes will never be there; pulls are answered with `why`.
  virtual void StartPublish(const Publish& publish) = 0;
  virtual void FailPublish(TransferId transfer, const absl::Status& why) = 0;
  // StopPublish also comes for a transfer that failed, or was never started (a parked pull is to be answered with
  // `why`); then no OnPublishQuiet is needed (and one does no harm).
  virtual void StopPublish(TransferId transfer, const absl::Status& why) = 0;
  // A donor waits for the buffer of an open publication: if the peer takes long, go on from a copy. OnPublishQuiet when
  // nothing of the publication reads the buffer itself any more (never, if there is no room for a copy).
  virtual void SnapshotPublish(TransferId transfer) = 0;

  // The buffer is resident. Answer OnReadDone with the image (small) or after publishing it; StopRead ends the
  // publication and is answered by OnReadQuiet. `snapshot`: the shell copies first, since a donation waits; it then
  // calls OnReadQuiet as soon as the buffer itself is free again.
  virtual void StartRead(const Read& read, bool snapshot) = 0;
  // OnReadQuiet comes once for a read: when its buffer is free (snapshot taken, everything fetched, or stopped).
  virtual void SnapshotRead(uint64_t read) = 0;  // an open read must let go of its buffer (a donor waits)
  virtual void StopRead(uint64_t read) = 0;

  // Drop the plugin's buffer. Never called while a node, transfer or read still needs it. Called exactly once for
  // each buffer that the shell was told to make, also when its making failed (there may be nothing to drop) and for
  // donated inputs after their launch (the plugin's handle is dead, but must be destroyed).
  virtual void Free(BufferRef ref) = 0;

  virtual void PeerLost(Incarnation peer, const absl::Status& why) = 0;
  // For a launch that was handed over and calls its client. Also for calls that are over here.
  virtual void HostCallReplied(HostCallReply /*reply*/) {}
  // To the core of another worker, which it reaches in order and once (OnMail), unless one of the two is lost.
  virtual void SendMail(Incarnation /*peer*/, std::string /*mail*/) {}
  // Mail of the peer is welcome from here on. May come again.
  virtual void ListenTo(Incarnation /*peer*/) {}
  // An op named the peer's address. Comes when the op does, which may be dropped later: addresses are told once.
  virtual void MeetPeer(Incarnation /*peer*/, const std::string& /*address*/) {}
};

struct WorkerLimits {
  std::vector<int64_t> device_bytes;  // per local device
  std::vector<int64_t> host_bytes;    // pinned/unpinned host memory per device
  int placed_launches_max = 16;       // K's upper bound
  uint64_t policy_seed = 0;
  bool spans_unordered = false;  // for the control experiment only: see SpanMember
};

class WorkerCore {
 public:
  WorkerCore(Incarnation self, WorkerLimits limits, WorkerSink* sink);
  ~WorkerCore();
  WorkerCore(const WorkerCore&) = delete;
  WorkerCore& operator=(const WorkerCore&) = delete;

  // From the controller, in stream order. Never fails as a whole: a bad op poisons what it would have made (and is
  // reported), or is answered with an error report; unknown ids are reported, nothing else is disturbed.
  void OnOp(const WorkerOp& op, TimeNs now);
  void OnOp(WorkerOp&& op, TimeNs now);  // the same without copying

  // From the shell.
  void OnLoadDone(ExecutableId executable, const absl::Status& status, TimeNs now);
  // `run_ns`: device time of the launch (its longest device), for K and for shares.
  void OnLaunchDone(Ticket ticket, const absl::Status& status, DurationNs run_ns, TimeNs now);
  void OnUploadDone(uint64_t key, const absl::Status& status, TimeNs now);
  void OnMakeDone(Ticket ticket, int index, const absl::Status& status, TimeNs now);
  void OnPublishQuiet(TransferId transfer, TimeNs now);
  void OnReadDone(uint64_t read, const absl::Status& status, std::string inline_data, bool published, TimeNs now);
  void OnReadQuiet(uint64_t read, TimeNs now);
  // What SendMail of another worker's core gave away for us.
  void OnMail(Incarnation from, absl::string_view mail, TimeNs now);
  // Mail of the peer does not come through for long. What waits for it here fails with `why`.
  void OnMailBroken(Incarnation peer, const absl::Status& why, TimeNs now);
  void OnTime(TimeNs now);

  // Errors, answers to reads, watches and loads are reported at once. What merely ended is collected and reported by
  // Flush (UploadsDone, TransfersDone, then one Progress): the shell calls it once per wake-up of its loop. `all`: also
  // progress that nobody waits for; call that within limits::kProgressDelay while HoldsProgress.
  void Flush(bool all = true);
  bool HoldsProgress() const;
  // Something here waits for a launch that runs to end: tell it at once. Otherwise an end may be told late.
  bool WaitsForLaunches() const;

  // Fenced: queued nodes are dropped, pulls cancelled, reports stop. What is handed over runs to its end; OldWorkEnded
  // turns true when nothing of it can touch a device or another process's memory any more.
  void Fence(const absl::Status& why, TimeNs now);
  bool OldWorkEnded() const;

  void FillDeviceUse(Heartbeat* heartbeat) const;
  std::string ExplainJson(TimeNs now) const;  // queues, and for each unready node what it waits for, since when

  // For tests and the simulator.
  struct Counts {
    size_t buffers = 0, launches = 0, transfers = 0, reads = 0, uploads = 0, executables = 0, watches = 0;
    std::vector<int64_t> device_bytes_reserved;
    size_t spans = 0;             // what is remembered of launches that span workers
    uint64_t send_snapshots = 0;  // publications that went on without their buffer, ever
    size_t anomalies = 0;  // ops and answers that made no sense (unknown ids, doubles) and were ignored; never shrinks
  };
  Counts counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
