// A worker of the simulation: the production WorkerCore and WorkerLease around devices, transfers and memory that are
// events in virtual time. Checks what the shell of a real worker relies on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/ids.h"
#include "cluster/stream.h"
#include "cluster/worker_lease.h"
#include "sim/content.h"
#include "sim/knobs.h"
#include "sim/world.h"
#include "worker/mail_gate.h"
#include "worker/worker_core.h"

namespace landbridge::sim {

// How a part of a launch that spans workers ended.
struct SpanPart {
  Incarnation who;
  int parts = 0;             // of the launch
  bool collectives = false;  // it has some: no part ends by itself
  bool good = false;
};

// What the parts of a simulation need of each other.
class Fabric {
 public:
  virtual ~Fabric() = default;
  // Bytes of a client under a proxy's upload key; null: none (session gone).
  virtual const Content* HostBytes(uint64_t key) = 0;
  virtual class SimWorker* WorkerOf(Incarnation incarnation) = 0;  // null: dead
  // Worker -> proxy, on the control connection of `grant`; lost when it is broken.
  virtual void ToProxy(Incarnation from, const Grant& grant, std::string frame) = 0;
  virtual void ReportToRm(Incarnation from, MemberReport report) = 0;
  virtual void WorkerRestarts(Incarnation who, const std::string& why) = 0;
  // The worker closes the control connection of an ended grant.
  virtual void CloseConnection(Incarnation from, const Grant& grant) = 0;
  // The bytes of a published box begin to travel.
  virtual void PullStarted(Incarnation source, Incarnation target) = 0;
  // Between the cores of two workers: in order, unless one of the grants ends.
  virtual void Mail(Incarnation from, const Grant& grant, Incarnation to, std::string mail) = 0;
  // One part of a launch whose collectives need all `parts` has started: `met` runs, soon after all have.
  virtual void MeetSpan(uint64_t space, int parts, Incarnation who, std::function<void()> met) = 0;
  virtual void LeaveSpan(uint64_t space, Incarnation who) = 0;
  // The device's log has the launch now.
  virtual void SpanInLog(Incarnation who, const Grant& grant, uint32_t device, uint64_t number) = 0;
  virtual void SpanPartEnded(uint64_t number, const SpanPart& part) = 0;
};

class SimWorker : private WorkerSink, private WorkerLeaseSink {
 public:
  SimWorker(World* world, const Knobs& knobs, Fabric* fabric, Incarnation self, std::string name);
  ~SimWorker() override;

  Incarnation self() const { return self_; }
  const std::string& name() const { return name_; }
  const WorkerInfo& info() const { return info_; }
  WorkerLease& lease() { return *lease_; }

  // --- The control connection's end. Frames arrive in order.
  ControlWelcome OnHello(const ControlHello& hello);
  void OnFrame(const Grant& grant, const std::string& payload);
  void OnConnectionBroken(const Grant& grant);
  void OnUpdate(const MemberUpdate& update);
  void Tick();

  // SIGSTOP: nothing is processed until Resume; what arrived meanwhile comes first.
  void Pause() { paused_ = true; }
  void Resume();
  bool paused() const { return paused_; }
  // Runs now, or when the pause is over.
  void Deliver(std::function<void()> event);

  // A peer's pull: bytes of a published box, if `peer` may have it.
  struct Published {
    BufferRef ref;
    IndexBox box;
    Incarnation peer;
    bool failed = false;
    absl::Status why;
    int pulling = 0;
    bool stopping = false;
    std::optional<Content> copy;  // a donor took the buffer
  };
  // Null: not published (yet). Answers after the transfer's time through `done`, exactly once.
  void Pull(Incarnation peer, TransferId transfer, std::function<void(absl::StatusOr<Content>)> done);
  // The peer does not want them any more: a pull that waits for its publication ends at once.
  void CancelPull(Incarnation peer, TransferId transfer);
  absl::StatusOr<Content> ReadPublished(uint64_t read);
  const Grant& grant() const { return grant_; }
  // Of another worker, for the core under the grant `to`.
  void OnMail(Incarnation from, const Grant& to, const std::string& mail);
  void OnMailBroken(Incarnation peer);
  void PeerDied(Incarnation peer);  // its pulls that wait here end
  // SIGKILL: whoever waits for bytes of this process sees the connection end.
  void Die();

  // At the end: what is left of finished sessions. "" when nothing is.
  std::string Leftovers() const;
  bool connected() const { return connected_ && !fenced_; }
  WorkerCore::Counts counts() const { return core_ == nullptr ? WorkerCore::Counts{} : core_->counts(); }
  std::string Explain() const { return core_ == nullptr ? "" : core_->ExplainJson(world_->now()); }
  bool idle() const { return running_.empty(); }

 private:
  // WorkerSink
  void Report(WorkerReport report) override;
  void Load(const LoadExecutable& load) override;
  void Unload(ExecutableId executable) override;
  void HandOver(std::shared_ptr<const Launch> launch, uint64_t place) override;
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
  void PeerLost(Incarnation peer, const absl::Status& why) override;
  void AbortLaunch(Ticket ticket, const absl::Status& why) override;
  void SendMail(Incarnation peer, std::string mail) override;
  void ListenTo(Incarnation peer) override;
  void ReadMail(Incarnation peer);
  void TakeOwnTurn(Incarnation spanner, const std::string& mail);
  // WorkerLeaseSink
  void SendReport(MemberReport report) override;
  void Activated(const Grant& grant, ProxyLife holder) override;
  void Fence(const Grant& grant, const absl::Status& why) override;
  void RestartProcess(const std::string& why) override;
  void Refused(const std::string& why) override;
  void Placed(PhysicalSliceId slice, int index) override;

  struct Run {
    std::shared_ptr<const Launch> launch;
    uint64_t constant = 0;
    bool started = false;
    bool meets = false;  // waits for the other parts
    bool ends = false;   // nothing keeps it from its end
    absl::Status status, aborted;
    DurationNs duration = 0;
    std::vector<std::vector<Content>> arguments;  // by device
  };
  struct Make {
    std::shared_ptr<const MakeBuffers> op;
    TimeNs started = 0;
    int index = 0;
    Content content;
    size_t open = 0;
    absl::Status status;
    bool cancelled = false;
  };
  struct OpenRead {
    BufferRef ref;
    Content content;
    bool holds_buffer = true;
    bool published = false;
  };
  struct Loaded {
    LoadExecutable op;
    uint64_t constant = 0;
    bool ready = false;
  };

  void FlushSoon();
  void Flush(bool late);
  void OpenStream(const Grant& grant);
  void StartIfFirst(const std::shared_ptr<Run>& run);  // on all its devices
  void Start(const std::shared_ptr<Run>& run);
  void RunOn(const std::shared_ptr<Run>& run);
  static bool HasCollectives(const Run& run);
  void Abort(const std::shared_ptr<Run>& run, const absl::Status& why);
  void Finish(const std::shared_ptr<Run>& run, uint64_t generation);
  void StartPull(const std::shared_ptr<Make>& make, const Piece& piece, const IndexBox& target);
  void FinishMake(const std::shared_ptr<Make>& make);
  void AnswerEarlyPulls(uint64_t transfer, const absl::Status& why);
  void EndPublication(TransferId transfer);
  void Put(BufferRef ref, uint32_t device, Content content);
  Content* Find(BufferRef ref);
  void Told(BufferRef ref);
  // Runs `event` after the delay, unless the process is dead by then; a stopped one sees to it when it goes on.
  void Later(DurationNs delay, std::function<void()> event);
  void CheckOldWork();

  World* world_;
  const Knobs knobs_;
  Fabric* fabric_;
  const Incarnation self_;
  const std::string name_;
  WorkerInfo info_;
  std::unique_ptr<WorkerLease> lease_;
  bool paused_ = false;
  std::deque<std::function<void()>> backlog_;

  // Of the present grant.
  Grant grant_;
  uint64_t generation_ = 0;  // of core_
  std::unique_ptr<WorkerCore> core_;
  bool fenced_ = false;
  StreamSender<std::string> sender_;
  StreamReceiver receiver_;
  bool connected_ = false;
  bool flush_posted_ = false;
  bool late_flush_posted_ = false;
  uint64_t heartbeat_number_ = 0;
  int64_t echo_ns_ = 0;

  struct Stored {
    Content content;
    uint32_t device = 0;
  };
  absl::flat_hash_map<BufferRef, Stored> buffers_;
  std::set<BufferRef> told_;  // to be made, and not yet to be freed
  std::vector<int64_t> device_bytes_;
  std::map<uint64_t, Loaded> executables_;
  std::vector<std::deque<std::shared_ptr<Run>>> device_queue_;
  std::vector<uint64_t> last_place_;                           // per device: I1
  std::map<uint64_t, std::shared_ptr<Run>> running_;           // by ticket
  std::set<BufferRef> expected_;                               // outputs of launches handed over and not finished
  std::set<BufferRef> failed_;                                 // outputs of launches that failed, until they are freed
  std::map<uint64_t, std::shared_ptr<const Upload>> uploads_;  // by key
  std::map<std::pair<uint64_t, int>, std::shared_ptr<Make>> makes_;
  std::map<uint64_t, Published> published_;
  std::map<uint64_t, absl::Status> unpublished_;  // why pulls of these are refused
  std::map<uint64_t, std::vector<std::pair<Incarnation, std::function<void(absl::StatusOr<Content>)>>>> early_pulls_;
  std::map<uint64_t, OpenRead> reads_;
  MailGate mails_;
  uint64_t own_turns_ = 0;
};

}  // namespace landbridge::sim
