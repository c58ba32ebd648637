// Does what the worker's core decides, without devices: launches are timers, programs are never run, buffers have sizes.
// Small uploads keep their bytes, so that they can be moved, cut, put together and read back; what a program makes has
// no values, and reading it is an error that says so. One per grant.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/time.h"
#include "worker/mail_gate.h"
#include "worker/simulated/transfer_board.h"
#include "worker/worker_core.h"

namespace landbridge {

class SimulatedShell;

// What the simulated workers of one process share.
struct SimulatedHostContext {
  std::function<TimeNs()> now;
  std::function<void(std::function<void()>)> post;  // runs in a later turn of the loop
  std::function<void(DurationNs, std::function<void()>)> run_after;
  TransferBoard* board = nullptr;
  absl::flat_hash_map<Incarnation, SimulatedShell*> shells;  // whose grants stand
  DurationNs launch_time = 0;                                // of every launch, on each of its devices
  int64_t bytes_kept = 0;  // real bytes of all buffers; at most limits::kSimulatedBytesMax
  std::shared_ptr<int> alive = std::make_shared<int>(0);  // what is posted may run when this is gone
};

// Thread-safety: the loop's thread only.
class SimulatedShell : private WorkerSink {
 public:
  struct Options {
    Incarnation self;  // under the grant
    std::string worker_name;
    WorkerLimits limits;
    std::function<void(const WorkerReport&)> report;  // must not call back
    std::function<void()> changed;                    // an event has reached the core: flush at the end of this turn
  };

  SimulatedShell(SimulatedHostContext* host, Options options);
  ~SimulatedShell() override;

  WorkerCore& core() { return core_; }
  void Fence(const absl::Status& why);
  // Nothing that was started is left.
  bool Idle() const { return open_ == 0; }
  int64_t launches_done() const { return launches_done_; }

 private:
  void Report(WorkerReport report) override { options_.report(report); }
  void Load(const LoadExecutable& load) override;
  void Unload(ExecutableId) override {}
  void HandOver(std::shared_ptr<const Launch> launch, uint64_t place) override;
  void StartUpload(std::shared_ptr<const Upload> upload) override;
  void UploadBytes(uint64_t key, std::string data) override;
  void CancelUpload(uint64_t key, const absl::Status& why) override;
  void StartMake(std::shared_ptr<const MakeBuffers> make, int index) override;
  void CancelMake(Ticket ticket, int index, const absl::Status& why) override;
  void StartPublish(const Publish& publish) override;
  void FailPublish(TransferId transfer, const absl::Status& why) override;
  void SnapshotPublish(TransferId transfer) override;
  void StopPublish(TransferId transfer, const absl::Status& why) override;
  void StartRead(const Read& read, bool snapshot) override;
  void SnapshotRead(uint64_t) override {}  // reads hold no buffer: the bytes were taken at once
  void StopRead(uint64_t) override {}
  void Free(BufferRef ref) override;
  void PeerLost(Incarnation peer, const absl::Status& why) override;
  void AbortLaunch(Ticket, const absl::Status&) override {}  // timers end by themselves
  // Arrives in a later turn; nowhere, if the peer is not of this process.
  void SendMail(Incarnation peer, std::string mail) override;
  void ListenTo(Incarnation peer) override;
  void ReadMail(Incarnation peer);

  using MakeId = std::pair<Ticket, int>;
  struct Make {
    std::shared_ptr<const MakeBuffers> op;
    int index = 0;
    DType dtype = DType::kInvalid;
    std::vector<int64_t> dims;
    std::string image;  // dense; meaningless once some piece has no bytes
    bool has_bytes = false;
    int missing = 0;  // pieces that are on their way
    absl::Status status;
  };

  // `event` tells the core something; it runs in a later turn, unless this shell is gone by then.
  void Post(std::function<void()> event);
  std::function<void()> Guarded(std::function<void()> event);
  void LaunchDone(Ticket ticket);
  void Keep(BufferRef ref, SimulatedBytes bytes);
  SimulatedBytes BytesOf(BufferRef ref) const;
  absl::Status PrepareMake(const std::shared_ptr<Make>& make);
  absl::Status AddPiece(const std::shared_ptr<Make>& make, const Piece& piece);
  void Arrived(const std::shared_ptr<Make>& make, const Piece& piece, const absl::StatusOr<SimulatedBytes>& bytes);
  void FinishMake(const std::shared_ptr<Make>& make);
  absl::StatusOr<std::string> ReadImage(const Read& read) const;
  void FinishUpload(uint64_t key, const absl::Status& status);

  SimulatedHostContext* const host_;
  const Options options_;
  WorkerCore core_;
  absl::flat_hash_map<BufferRef, SimulatedBytes> bytes_;                  // of buffers that have some
  absl::flat_hash_map<uint64_t, std::shared_ptr<const Upload>> uploads_;  // that wait for their bytes
  absl::flat_hash_map<MakeId, std::shared_ptr<Make>> makes_;
  absl::flat_hash_set<Incarnation> foreign_peers_;  // workers that are not of this process
  MailGate mails_;
  std::vector<TimeNs> device_free_at_;
  int64_t open_ = 0;           // launches under way
  std::vector<Ticket> ended_;  // of these: told in the next turn
  int64_t launches_done_ = 0;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace landbridge
