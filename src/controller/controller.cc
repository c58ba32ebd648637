#include "controller/controller.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {

Controller::Impl::Impl(Options options, ControllerSink* sink)
    : options_(options),
      sink_(sink),
      dispatcher_(options.launches_per_worker_max, &cluster_, sink, this),
      buffers_(&dispatcher_),
      nodes_(options.sequential_dispatch),
      plans_(&cluster_),
      uploads_(sink),
      programs_(&cluster_, sink, &dispatcher_),
      requests_(sink) {}

void Controller::Impl::Settle() {
  if (std::exchange(recheck_spans_, false)) dispatcher_.RecheckAll();
  dispatcher_.FlushAll();
  requests_.Deliver();
}

// ---------------------------------------------------------------- cluster

void Controller::Impl::DeclareDevices(std::vector<VirtualDevice> devices) { cluster_.Declare(std::move(devices)); }

void Controller::Impl::OnWorkerUp(SlotId slot_id, Incarnation worker, std::string data_address, std::string name,
                                  TimeNs now) {
  ctl::ClusterTable::Slot* slot = cluster_.FindSlot(slot_id);
  if (slot == nullptr || !worker.valid() || cluster_.FindLife(worker) != nullptr) {
    ++stale_reports_;
    return;
  }
  if (slot->life->up) {
    // The news of the loss comes late: there can be only one.
    OnWorkerLost(
        slot->life->incarnation,
        absl::DataLossError(absl::StrCat("worker ", slot->life->name, " of ", slot_id.ToString(), " (",
                                         slot->life->incarnation.ToString(), ") was replaced by ", worker.ToString())),
        now);
  }
  Life* life = slot->life.get();
  cluster_.SetUp(life, worker, std::move(data_address), std::move(name));
  if (options_.scheduling.policy() != POLICY_CLIENT_ORDER) {
    WorkerOp op;
    *op.mutable_scheduling() = options_.scheduling;
    dispatcher_.SendNow(life, std::move(op));
  }
  dispatcher_.OnUp(life);
  Settle();
}

bool Controller::Impl::MustWait(const WorkerOp& op) const {
  if (op.has_launch() && op.launch().has_span() && SpanMustWait(op.launch())) return true;
  return NeedsAbsentPeer(op) || (options_.sequential_dispatch && NeedsUnfinishedNode(op));
}

bool Controller::Impl::NeedsUnfinished(const ReshardSource& source) const {
  if (source.shards_size() == 0) return nodes_.Unfinished(ArrayId(source.array()));
  return std::any_of(source.shards().begin(), source.shards().end(),
                     [this](const BufferRefProto& shard) { return nodes_.Unfinished(ArrayId(shard.array())); });
}

bool Controller::Impl::NeedsUnfinishedNode(const WorkerOp& op) const {
  if (op.has_launch()) {
    for (const LaunchArg& arg : op.launch().args()) {
      if (arg.shards_size() == 0 && nodes_.Unfinished(ArrayId(arg.array()))) return true;
      for (const BufferRefProto& ref : arg.shards()) {
        if (nodes_.Unfinished(ArrayId(ref.array()))) return true;
      }
    }
  } else if (op.has_reshard_send()) {
    // What is passed on follows the node that makes it in the stream.
    return op.reshard_send().has_source() && NeedsUnfinished(op.reshard_send().source());
  } else if (op.has_reshard_receive()) {
    if (op.reshard_receive().has_source() && NeedsUnfinished(op.reshard_receive().source())) return true;
    for (const ReshardEdgeProto& edge : op.reshard_receive().edges()) {
      const ctl::Transfer* transfer = transfers_.Find(TransferId(edge.transfer()));
      if (transfer == nullptr) continue;
      for (ArrayId source : transfer->sources) {
        if (nodes_.Unfinished(source)) return true;
      }
    }
  }
  return false;
}

bool Controller::Impl::NeedsAbsentPeer(const WorkerOp& op) const {
  if (op.has_reshard_send()) {
    const ctl::Transfer* transfer = transfers_.Find(TransferId(op.reshard_send().transfer()));
    return transfer != nullptr && !transfer->to->up;
  }
  for (const ReshardEdgeProto& edge : op.reshard_receive().edges()) {
    const ctl::Transfer* transfer = transfers_.Find(TransferId(edge.transfer()));
    if (transfer != nullptr && !transfer->from->up) return true;
  }
  return false;
}

void Controller::Impl::BeforeSend(Life* life, WorkerOp* op) {
  switch (op->op_case()) {
    case WorkerOp::kLaunch:
      if (ctl::Node* node = nodes_.Find(Ticket(op->launch().ticket()))) node->sent = true;
      if (op->launch().has_span()) BeforeSpanSent(life, op->mutable_launch());
      life->differences.Encode(op->mutable_launch());
      return;
    case WorkerOp::kUnload: life->differences.Forget(ExecutableId(op->unload().executable())); return;
    case WorkerOp::kUpload:
      if (ctl::Node* node = nodes_.Find(Ticket(op->upload().ticket()))) node->sent = true;
      uploads_.BeforeUploadSent(life, op->upload().key());
      return;
    case WorkerOp::kReshardReceive: {
      ReshardReceive* receive = op->mutable_reshard_receive();
      ctl::Node* node = nodes_.Find(Ticket(receive->ticket()));
      if (node == nullptr) return;
      node->sent = true;
      life->plans.Name(*node->plan, life->slot, receive->mutable_plan());
      receive->set_space(options_.space);
      for (ReshardEdgeProto& edge : *receive->mutable_edges()) {
        ctl::Transfer* transfer = transfers_.Find(TransferId(edge.transfer()));
        if (transfer == nullptr) continue;
        transfer->asked = true;
        edge.set_incarnation(transfer->from->incarnation.value());
        if (life->peers.insert(transfer->from->incarnation).second) edge.set_data_address(transfer->from->data_address);
      }
      return;
    }
    case WorkerOp::kReshardSend:
      if (ctl::Transfer* transfer = transfers_.Find(TransferId(op->reshard_send().transfer()))) {
        transfer->published = true;
        life->pullers.insert(transfer->to->incarnation);
        life->plans.Name(*transfer->plan, life->slot, op->mutable_reshard_send()->mutable_plan());
        op->mutable_reshard_send()->set_peer(transfer->to->incarnation.value());
        op->mutable_reshard_send()->set_peer_address(transfer->to->data_address);
      }
      return;
    case WorkerOp::kLoad: programs_.BeforeLoadSent(life, ExecutableId(op->load().executable())); return;
    default: return;
  }
}

void Controller::Impl::AfterUploadSent(Life* life, uint64_t key) { uploads_.AfterUploadSent(life, key, &dispatcher_); }

// ---------------------------------------------------------------- reports

void Controller::Impl::OnReport(Incarnation worker, const WorkerReport& report, TimeNs now) {
  (void)now;
  Life* life = cluster_.FindLife(worker);
  if (life == nullptr) {
    ++stale_reports_;
    return;
  }
  bool known = true;
  switch (report.report_case()) {
    case WorkerReport::kLoadDone:
      known = programs_.OnLoadDone(life, ExecutableId(report.load_done().executable()),
                                   ctl::FromProto(report.load_done().status()));
      break;
    case WorkerReport::kProgress: OnProgress(life, report.progress()); break;
    case WorkerReport::kFailed: OnBuffersFailed(life, report.failed()); break;
    case WorkerReport::kTransfersDone:
      for (uint64_t transfer : report.transfers_done().transfers()) OnTransferDone(life, TransferId(transfer));
      break;
    case WorkerReport::kUploadsDone:
      for (uint64_t key : report.uploads_done().keys()) uploads_.OnUploadDone(life, key);
      break;
    case WorkerReport::kReadReady:
      known = requests_.EndRead(RequestId(report.read_ready().read()), life, report.read_ready(), options_.space);
      break;
    case WorkerReport::kWatched:
      known = requests_.EndWatch(report.watched().watch(), life, ctl::FromProto(report.watched().status()));
      break;
    case WorkerReport::kExplained:
      requests_.EndExplain(RequestId(report.explained().request()), life, report.explained().json());
      break;
    case WorkerReport::kMemoryUse:
      known = requests_.EndMemory(RequestId(report.memory_use().request()), life, report.memory_use());
      break;
    case WorkerReport::kHostCall:  // between the worker and the client; the controller has no part in them
    case WorkerReport::kHostCallTaken:
    case WorkerReport::REPORT_NOT_SET: known = false; break;
  }
  if (!known) ++stale_reports_;
  Settle();
}

void Controller::Impl::OnProgress(Life* life, const Progress& progress) {
  for (uint64_t number : progress.tickets()) {
    const Ticket ticket(number);
    ctl::Node* node = nodes_.Find(ticket);
    if (node == nullptr || node->life != life) {
      ++stale_reports_;
      continue;
    }
    for (ArrayId id : node->makes) {
      Group* group = buffers_.FindGroup(id);
      if (group == nullptr) continue;
      const bool all = node->shards.empty();
      const auto count = all ? group->count : static_cast<uint32_t>(node->shards.size());
      for (uint32_t i = 0; i < count; ++i) {
        const uint32_t at = all ? i : node->shards[i];
        const Shard& shard = group->at(at);
        if (shard.Is(Shard::kFailed)) {
          if (node->error.ok()) node->error = shard.error;
        } else if (shard.life == life) {
          buffers_.MarkReady(group, at);
        }
      }
    }
    const absl::Status error = node->error;
    EndNode(ticket, error);
    dispatcher_.OnNodeEnded(life);
  }
  if (options_.sequential_dispatch) dispatcher_.RecheckAll();
}

void Controller::Impl::EndNode(Ticket ticket, const absl::Status& error) {
  ctl::Node* node = nodes_.Find(ticket);
  if (node == nullptr) return;
  if (!error.ok()) {
    nodes_.KeepFailure(ticket, node->session, error);
    FailSpan(ticket, error);
  }
  const bool was_full = spans_.Full();
  spans_.EndPart(ticket);
  recheck_spans_ |= was_full && !spans_.Full();
  nodes_.Erase(ticket);
  requests_.EndLaunch(ticket, error);
}

void Controller::Impl::OnBuffersFailed(Life* life, const BuffersFailed& failed) {
  const absl::Status error = ctl::FromProto(failed.status());
  if (error.ok()) {
    ++stale_reports_;
    return;
  }
  // Also if nobody holds what it was to make: somebody may wait for its end, or for its other parts.
  ctl::Node* node = nodes_.Find(Ticket(failed.ticket()));
  if (node != nullptr && node->life == life && node->error.ok()) node->error = error;
  for (const BufferRefProto& ref : failed.refs()) {
    Group* group = buffers_.FindGroup(ArrayId(ref.array()));
    if (group == nullptr || ref.shard() >= group->count) continue;
    if (group->at(ref.shard()).life == life) buffers_.MarkFailed(group, ref.shard(), error);
  }
}

void Controller::Impl::OnTransferDone(Life* life, TransferId id) {
  const ctl::Transfer* transfer = transfers_.Find(id);
  if (transfer == nullptr || transfer->to != life) {
    ++stale_reports_;
    return;
  }
  EndTransfer(id);
}

// ---------------------------------------------------------------- sessions

void Controller::Impl::OpenSession(SessionId session, SessionHints hints) { sessions_.emplace(session, hints); }

absl::Status Controller::Impl::CheckSession(SessionId session) const {
  if (sessions_.contains(session)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("session ", session.ToString(), " is not open"));
}

void Controller::Impl::CloseSession(SessionId session, const absl::Status& why) {
  if (sessions_.erase(session) == 0) return;
  requests_.DropSession(session);
  dispatcher_.DropSession(session);
  for (TransferId id : transfers_.Select([session](const ctl::Transfer& t) { return t.session == session; })) {
    const ctl::Transfer transfer = *transfers_.Find(id);
    transfers_.Erase(id);
    if (transfer.published) dispatcher_.EndTransfer(transfer.from, id, transfer.pieces());
  }
  dispatcher_.FlushAll();
  buffers_.DropSession(session);
  DropSpans(session, why);
  for (Ticket ticket : nodes_.Select([session](const ctl::Node& node) { return node.session == session; })) {
    ctl::Node* node = nodes_.Find(ticket);
    Life* life = node->sent ? node->life : nullptr;
    nodes_.Erase(ticket);
    if (life != nullptr) dispatcher_.OnNodeEnded(life);
  }
  nodes_.ForgetFailures(session);
  programs_.DropSession(session);
  uploads_.DropSession(session);
  for (ctl::ClusterTable::Slot& slot : cluster_.slots()) {
    Life* life = slot.life.get();
    if (life->last_session == session) life->last_session = SessionId();
    if (life->sessions.erase(session) == 0) continue;
    WorkerOp op;
    op.mutable_cancel_session()->set_session(session.value());
    ctl::ToProto(why, op.mutable_cancel_session()->mutable_why());
    dispatcher_.SendNow(life, std::move(op));
  }
  for (SpecPtr& spec : specs_) spec.reset();
  Settle();
}

void Controller::Impl::OnTime(TimeNs) { Settle(); }

Controller::Counts Controller::Impl::counts() const {
  Counts counts;
  counts.sessions = sessions_.size();
  counts.arrays = buffers_.arrays();
  counts.buffers = buffers_.groups();
  counts.executables = programs_.size();
  counts.requests = requests_.size();
  counts.launches_unfinished = nodes_.size();
  counts.ops_parked = dispatcher_.waiting();
  counts.transfers = transfers_.size();
  counts.host_buffers = uploads_.size();
  return counts;
}

// ---------------------------------------------------------------- the public face

Controller::Controller(Options options, ControllerSink* sink) : impl_(std::make_unique<Impl>(options, sink)) {}
Controller::~Controller() = default;

void Controller::DeclareDevices(std::vector<VirtualDevice> devices) { impl_->DeclareDevices(std::move(devices)); }
void Controller::OnWorkerUp(SlotId slot, Incarnation worker, std::string data_address, std::string name, TimeNs now) {
  impl_->OnWorkerUp(slot, worker, std::move(data_address), std::move(name), now);
}
void Controller::OnWorkerLost(Incarnation worker, const absl::Status& why, TimeNs now) {
  impl_->OnWorkerLost(worker, why, now);
}
void Controller::OnReport(Incarnation worker, const WorkerReport& report, TimeNs now) {
  impl_->OnReport(worker, report, now);
}
void Controller::OpenSession(SessionId session, SessionHints hints) { impl_->OpenSession(session, hints); }
void Controller::CloseSession(SessionId session, const absl::Status& why) { impl_->CloseSession(session, why); }
absl::StatusOr<ArrayId> Controller::MakeFromHost(SessionId session, ArraySpec spec, std::vector<HostShard> shards,
                                                 uint64_t user_context, TimeNs now) {
  return impl_->MakeFromHost(session, std::move(spec), std::move(shards), user_context, now);
}
absl::StatusOr<ArrayId> Controller::MakeError(SessionId session, ArraySpec spec, const absl::Status& error) {
  return impl_->MakeError(session, std::move(spec), error);
}
absl::StatusOr<ArrayId> Controller::Assemble(SessionId session, ArraySpec spec, absl::Span<const ArrayId> singles,
                                             CopySemantics semantics) {
  return impl_->Assemble(session, std::move(spec), singles, semantics);
}
absl::StatusOr<std::vector<ArrayId>> Controller::Disassemble(SessionId session, ArrayId array,
                                                             CopySemantics semantics) {
  return impl_->Disassemble(session, array, semantics);
}
absl::StatusOr<ArrayId> Controller::FullyReplicatedShard(SessionId session, ArrayId array, CopySemantics semantics) {
  return impl_->FullyReplicatedShard(session, array, semantics);
}
absl::StatusOr<std::vector<ArrayId>> Controller::Copy(SessionId session, absl::Span<const ArrayId> arrays,
                                                      const std::vector<DeviceId>* devices, const MemoryKind* memory,
                                                      CopySemantics semantics, uint64_t user_context, TimeNs now) {
  return impl_->Copy(session, arrays, devices, memory, semantics, user_context, now);
}
absl::StatusOr<std::vector<ArrayId>> Controller::Remap(SessionId session, absl::Span<const ArrayId> arrays,
                                                       std::vector<ArraySpec> outputs,
                                                       absl::Span<const RemapStep> steps, CopySemantics semantics) {
  return impl_->Remap(session, arrays, std::move(outputs), steps, semantics);
}
absl::StatusOr<std::vector<ArrayId>> Controller::Reshard(SessionId session, absl::Span<const ArrayId> arrays,
                                                         std::vector<ArraySpec> outputs, CopySemantics semantics,
                                                         uint64_t user_context, TimeNs now) {
  return impl_->Reshard(session, arrays, std::move(outputs), semantics, user_context, now);
}
void Controller::Release(SessionId session, ArrayId array) { impl_->Release(session, array); }
absl::Status Controller::Delete(SessionId session, ArrayId array) { return impl_->Delete(session, array); }
absl::StatusOr<bool> Controller::IsDeleted(SessionId session, ArrayId array) const {
  return impl_->IsDeleted(session, array);
}
const ArraySpec* Controller::Spec(SessionId session, ArrayId array) const { return impl_->Spec(session, array); }
absl::StatusOr<bool> Controller::SpansWorkers(absl::Span<const DeviceId> devices) const {
  return impl_->SpansWorkers(devices);
}
absl::StatusOr<ExecutableId> Controller::AddExecutable(SessionId session, std::shared_ptr<const ProgramImage> program,
                                                       std::vector<DeviceId> devices) {
  return impl_->AddExecutable(session, std::move(program), std::move(devices));
}
void Controller::ReleaseExecutable(SessionId session, ExecutableId executable) {
  impl_->ReleaseExecutable(session, executable);
}
absl::StatusOr<ExecuteResult> Controller::Execute(SessionId session, const ExecuteArgs& args, uint64_t user_context,
                                                  TimeNs now) {
  return impl_->Execute(session, args, user_context, now);
}
void Controller::WhenReady(SessionId session, RequestId request, absl::Span<const ArrayId> arrays) {
  impl_->WhenReady(session, request, arrays);
  impl_->DeliverAnswers();
}
void Controller::WhenDone(SessionId session, RequestId request, Ticket launch) {
  impl_->WhenDone(session, request, launch);
  impl_->DeliverAnswers();
}
void Controller::ReadArray(SessionId session, RequestId request, ArrayId array, std::vector<int64_t> byte_strides,
                           int64_t image_bytes) {
  impl_->ReadArray(session, request, array, std::move(byte_strides), image_bytes);
  impl_->DeliverAnswers();
}
void Controller::ReleaseRead(RequestId request) { impl_->ReleaseRead(request); }
void Controller::AskMemory(SessionId session, RequestId request, DeviceId device) {
  impl_->AskMemory(session, request, device);
  impl_->DeliverAnswers();
}
void Controller::OnHostBytes(uint64_t key, absl::StatusOr<std::string> bytes) {
  impl_->OnHostBytes(key, std::move(bytes));
}
void Controller::OnTime(TimeNs now) { impl_->OnTime(now); }
void Controller::Explain(RequestId request, TimeNs now, bool graph) {
  impl_->Explain(request, now, graph);
  impl_->DeliverAnswers();
}
void Controller::EndExplain(RequestId request) {
  impl_->EndExplain(request);
  impl_->DeliverAnswers();
}
std::string Controller::StatusJson(TimeNs now) const { return impl_->StatusJson(now); }
Controller::Counts Controller::counts() const { return impl_->counts(); }

}  // namespace landbridge
