// The controller's parts put together. Its methods are spread over controller.cc (cluster, sessions, reports),
// arrays.cc (making, viewing, deleting), movement.cc (copies, resharding), execute.cc (programs, waiting),
// loss.cc (workers that go) and status_json.cc.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "controller/buffer_table.h"
#include "controller/cluster_table.h"
#include "controller/controller.h"
#include "controller/dispatcher.h"
#include "controller/host_uploads.h"
#include "controller/node_table.h"
#include "controller/plan_table.h"
#include "controller/program_table.h"
#include "controller/requests.h"
#include "controller/span_table.h"
#include "controller/transfer_table.h"

namespace landbridge {

// Thread-safety: none; see Controller.
class Controller::Impl : private ctl::DispatchHooks {
 public:
  Impl(Options options, ControllerSink* sink);
  ~Impl() override = default;

  // As in Controller.
  void DeclareDevices(std::vector<VirtualDevice> devices);
  void OnWorkerUp(SlotId slot, Incarnation worker, std::string data_address, std::string name, TimeNs now);
  void OnWorkerLost(Incarnation worker, const absl::Status& why, TimeNs now);
  void OnReport(Incarnation worker, const WorkerReport& report, TimeNs now);
  void OpenSession(SessionId session, SessionHints hints);
  void CloseSession(SessionId session, const absl::Status& why);
  absl::StatusOr<ArrayId> MakeFromHost(SessionId session, ArraySpec spec, std::vector<HostShard> shards,
                                       uint64_t user_context, TimeNs now);
  absl::StatusOr<ArrayId> MakeError(SessionId session, ArraySpec spec, const absl::Status& error);
  absl::StatusOr<ArrayId> Assemble(SessionId session, ArraySpec spec, absl::Span<const ArrayId> singles,
                                   CopySemantics semantics);
  absl::StatusOr<std::vector<ArrayId>> Disassemble(SessionId session, ArrayId array, CopySemantics semantics);
  absl::StatusOr<ArrayId> FullyReplicatedShard(SessionId session, ArrayId array, CopySemantics semantics);
  absl::StatusOr<std::vector<ArrayId>> Copy(SessionId session, absl::Span<const ArrayId> arrays,
                                            const std::vector<DeviceId>* devices, const MemoryKind* memory,
                                            CopySemantics semantics, uint64_t user_context, TimeNs now);
  absl::StatusOr<std::vector<ArrayId>> Remap(SessionId session, absl::Span<const ArrayId> arrays,
                                             std::vector<ArraySpec> outputs, absl::Span<const RemapStep> steps,
                                             CopySemantics semantics);
  absl::StatusOr<std::vector<ArrayId>> Reshard(SessionId session, absl::Span<const ArrayId> arrays,
                                               std::vector<ArraySpec> outputs, CopySemantics semantics,
                                               uint64_t user_context, TimeNs now);
  void Release(SessionId session, ArrayId array) { buffers_.Release(session, array); }
  absl::Status Delete(SessionId session, ArrayId array);
  absl::StatusOr<bool> IsDeleted(SessionId session, ArrayId array) const;
  const ArraySpec* Spec(SessionId session, ArrayId array) const;
  absl::StatusOr<bool> SpansWorkers(absl::Span<const DeviceId> devices) const { return cluster_.SpansWorkers(devices); }
  absl::StatusOr<ExecutableId> AddExecutable(SessionId session, std::shared_ptr<const ProgramImage> program,
                                             std::vector<DeviceId> devices);
  void ReleaseExecutable(SessionId session, ExecutableId executable) { programs_.Release(session, executable); }
  absl::StatusOr<ExecuteResult> Execute(SessionId session, const ExecuteArgs& args, uint64_t user_context, TimeNs now);
  void WhenReady(SessionId session, RequestId request, absl::Span<const ArrayId> arrays);
  void WhenDone(SessionId session, RequestId request, Ticket launch);
  void ReadArray(SessionId session, RequestId request, ArrayId array, std::vector<int64_t> byte_strides,
                 int64_t image_bytes);
  void ReleaseRead(RequestId request);
  void AskMemory(SessionId session, RequestId request, DeviceId device);
  void OnHostBytes(uint64_t key, absl::StatusOr<std::string> bytes);
  void Explain(RequestId request, TimeNs now, bool graph);
  void EndExplain(RequestId request) { requests_.GiveUpExplain(request); }
  void OnTime(TimeNs now);
  std::string StatusJson(TimeNs now) const;
  std::string GraphJson() const;
  Counts counts() const;

  // The end of an event: what was collected goes out, then answers.
  void Settle();
  void DeliverAnswers() { requests_.Deliver(); }

 private:
  using Array = ctl::Array;
  using Group = ctl::Group;
  using Life = ctl::Life;
  using Shard = ctl::Shard;
  using ShardRef = ctl::ShardRef;
  using SpecPtr = std::shared_ptr<const ArraySpec>;

  // DispatchHooks.
  bool MustWait(const WorkerOp& op) const override;
  bool NeedsAbsentPeer(const WorkerOp& op) const;
  bool NeedsUnfinishedNode(const WorkerOp& op) const;
  bool NeedsUnfinished(const ReshardSource& source) const;
  void BeforeSend(Life* life, WorkerOp* op) override;
  void AfterUploadSent(Life* life, uint64_t key) override;
  bool OldestAt(const Life* life, Ticket ticket) const override { return nodes_.OldestSent(life, ticket); }

  // controller.cc
  absl::Status CheckSession(SessionId session) const;
  void OnProgress(Life* life, const Progress& progress);
  void OnBuffersFailed(Life* life, const BuffersFailed& failed);
  void EndNode(Ticket ticket, const absl::Status& error);
  void OnTransferDone(Life* life, TransferId transfer);

  // arrays.cc
  absl::Status CheckSpec(const ArraySpec& spec) const;
  absl::StatusOr<Array*> FindLiving(SessionId session, ArrayId id, absl::string_view what) const;
  SpecPtr Share(ArraySpec spec);
  SpecPtr SingleSpec(const ArraySpec& spec, uint32_t shard, Dims shard_dims);
  absl::Status ValidateHostShards(const ArraySpec& spec, const std::vector<HostShard>& shards) const;

  // movement.cc
  absl::StatusOr<ctl::PlanPtr> PlanMove(const Array& array, const ArraySpec& target, CopySemantics semantics);
  std::vector<ArrayId> SourcesOf(const Array& array) const;
  void NameSource(const Array& array, const ctl::Plan::Worker& worker, ReshardSource* proto) const;
  ArrayId Move(SessionId session, const Array& source, SpecPtr spec, const ctl::PlanPtr& plan, uint64_t user_context,
               TimeNs now);
  absl::StatusOr<std::vector<ArrayId>> MoveAll(SessionId session, const std::vector<Array*>& arrays,
                                               std::vector<SpecPtr> specs, CopySemantics semantics,
                                               uint64_t user_context, TimeNs now);
  absl::StatusOr<Array*> FindToMove(SessionId session, ArrayId id, const std::vector<Array*>& others,
                                    CopySemantics semantics, absl::string_view what) const;
  void GiveUp(Array* source, const ctl::Plan& plan);
  void EndTransfer(TransferId id);  // the destination needs it no more
  void CancelPublication(Life* source, TransferId transfer);

  // execute.cc
  static void NameSpan(const ctl::Placement& placement, const ctl::Placement::Part& here, LaunchSpan* span);

  // spans.cc
  bool SpanMustWait(const Launch& launch) const;
  void BeforeSpanSent(Life* life, Launch* launch);
  void FailSpan(Ticket ticket, const absl::Status& why);
  void DropSpans(SessionId session, const absl::Status& why);
  void NameSpanWorker(Life* to, const Life& who, SpanWorker* worker) const;
  void JoinSpans(Life* life);
  void SeatSpanner();
  void TellSpanner(const std::vector<Life*>& members);
  void TellSpanOrder(Life* life, const std::vector<Life*>& members);

  // loss.cc
  // Receives at `life` that wait and need transfers that will never come: their targets become errors.
  struct Doomed {
    BufferRef target;
    absl::Status why;
  };
  void PoisonWaiting(Life* life, std::vector<Doomed> doomed);
  void SpreadErrors(Life* life, std::deque<std::pair<Life*, std::vector<Doomed>>>* more);
  const absl::Status* FailureOf(const BufferRefProto& ref) const;
  void PoisonReceive(ctl::ParkedOp* entry, const std::vector<Doomed>& doomed, std::vector<ctl::ParkedOp>* extra,
                     std::vector<TransferId>* needless);

  const Options options_;
  ControllerSink* const sink_;
  ctl::ClusterTable cluster_;
  ctl::Dispatcher dispatcher_;
  ctl::BufferTable buffers_;
  ctl::NodeTable nodes_;
  ctl::SpanTable spans_;
  ctl::SpannerSeat spanner_;
  bool recheck_spans_ = false;  // some that wait go out now, as failed
  ctl::TransferTable transfers_;
  ctl::PlanTable plans_;
  ctl::HostUploads uploads_;
  ctl::ProgramTable programs_;
  ctl::Requests requests_;
  absl::flat_hash_map<SessionId, SessionHints> sessions_;
  // Steady loops make arrays of few kinds; sharing their specs saves most of an array's memory.
  std::array<SpecPtr, 256> specs_;
  std::vector<ctl::ShardRef> killed_;            // scratch of Execute
  std::vector<Array*> args_;                     // scratch of Execute
  std::vector<Group*> groups_;                   // scratch of Execute
  std::vector<std::pair<Life*, WorkerOp>> ops_;  // scratch of Execute
  uint64_t stale_reports_ = 0;
};

}  // namespace landbridge
