#include "worker/worker_core.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "base/limits.h"
#include "nlohmann/json.hpp"
#include "worker/core_context.h"
#include "worker/launch_queue.h"
#include "worker/observers.h"
#include "worker/span_orders.h"
#include "worker/transfers.h"

namespace landbridge {

class WorkerCore::Impl {
 public:
  Impl(Incarnation self, const WorkerLimits& limits, WorkerSink* sink)
      : context_(self, limits, sink),
        orders_(self, sink, limits.spans_unordered),
        launches_(&context_, limits, &orders_.member()),
        transfers_(&context_),
        observers_(&context_) {}

  void OnOp(WorkerOp&& op, TimeNs now) {
    if (context_.fenced) return;
    MeetPeers(op);
    switch (op.op_case()) {
      case WorkerOp::kLoad: launches_.OnLoad(std::move(*op.mutable_load()), now); break;
      case WorkerOp::kUnload: launches_.OnUnload(ExecutableId(op.unload().executable())); break;
      case WorkerOp::kLaunch: launches_.OnLaunch(std::unique_ptr<Launch>(op.release_launch()), now); break;
      case WorkerOp::kUpload: transfers_.OnUpload(std::move(*op.mutable_upload()), now); break;
      case WorkerOp::kUploadData: transfers_.OnUploadData(std::move(*op.mutable_upload_data())); break;
      case WorkerOp::kMake: transfers_.OnMake(std::move(*op.mutable_make()), now); break;
      case WorkerOp::kPublish: transfers_.OnPublish(std::move(*op.mutable_publish()), now); break;
      case WorkerOp::kUnpublish: OnUnpublish(op.unpublish()); break;
      case WorkerOp::kRead: observers_.OnRead(std::move(*op.mutable_read()), now); break;
      case WorkerOp::kReleaseRead: observers_.OnReleaseRead(op.release_read().read()); break;
      case WorkerOp::kWatch: observers_.OnWatch(op.watch(), now); break;
      case WorkerOp::kDelete: OnDelete(op.delete_()); break;
      case WorkerOp::kPoison: OnPoison(op.poison()); break;
      case WorkerOp::kPeerLost: OnPeerLost(op.peer_lost()); break;
      case WorkerOp::kExplain: OnExplain(op.explain(), now); break;
      case WorkerOp::kCancelSession: OnCancelSession(op.cancel_session()); break;
      case WorkerOp::kReshardReceive: transfers_.OnReshardReceive(std::move(*op.mutable_reshard_receive()), now); break;
      case WorkerOp::kReshardSend: transfers_.OnReshardSend(std::move(*op.mutable_reshard_send()), now); break;
      case WorkerOp::kScheduling: launches_.OnScheduling(op.scheduling()); break;
      case WorkerOp::kAbortLaunch: launches_.OnAbort(op.abort_launch()); break;
      case WorkerOp::kSpanOrder: CountAnomaly(orders_.OnOp(op.span_order())); break;
      case WorkerOp::kAskMemory: OnAskMemory(op.ask_memory()); break;
      case WorkerOp::kHostCallReply: context_.sink->HostCallReplied(std::move(*op.mutable_host_call_reply())); break;
      case WorkerOp::OP_NOT_SET: ++context_.anomalies; break;
    }
    Settle(now);
  }

  void MeetPeers(const WorkerOp& op) {
    auto meet = [this](uint64_t peer, const std::string& address) {
      if (!address.empty()) context_.sink->MeetPeer(Incarnation(peer), address);
    };
    for (const SpanWorker& worker : op.launch().span().workers()) meet(worker.incarnation(), worker.data_address());
    meet(op.span_order().spanner(), op.span_order().spanner_address());
    for (const SpanWorker& worker : op.span_order().members()) meet(worker.incarnation(), worker.data_address());
    for (const ReshardEdgeProto& edge : op.reshard_receive().edges()) meet(edge.incarnation(), edge.data_address());
    for (const MakeBuffer& buffer : op.make().buffers()) {
      for (const Piece& piece : buffer.pieces()) meet(piece.remote().incarnation(), piece.remote().data_address());
    }
  }

  // Everything that follows from what has just happened, until nothing moves: whatever order the parts are asked in,
  // each condition is counted once, so the end is the same.
  void Settle(TimeNs now) {
    for (;;) {
      BufferTable::Wake wake;
      while (context_.buffers.NextWake(&wake)) Route(wake, now);
      if (auto granted = context_.memory.NextGranted()) {
        if (granted->who.kind == WaiterKind::kLaunch) {
          launches_.OnMemoryGranted(granted->who, granted->pool, now);
        } else {
          transfers_.OnMemoryGranted(granted->who, granted->pool);
        }
        continue;
      }
      if (orders_.Advance() || launches_.Advance(now)) continue;
      if (!std::exchange(context_.memory_may_be_stuck, false) || !FailWhatNeverFits()) return;
      context_.memory_may_be_stuck = true;  // one at a time: it may have made room for the next
    }
  }

  void Fence(const absl::Status& why, TimeNs now) {
    if (context_.fenced) return;
    context_.fenced = true;
    context_.report.Mute();
    orders_.Fence();
    const PoisonPtr poison = MakePoison(why, Ticket(), 0);
    observers_.Fence();
    launches_.Fence(poison);
    transfers_.Fence(poison);
    DeleteIf([](const Buffer&) { return true; });
    Settle(now);
  }

  bool OldWorkEnded() const {
    return context_.fenced && launches_.running() == 0 && transfers_.running() == 0 && observers_.running() == 0;
  }

  template <typename Message>  // Heartbeat or MemoryUse
  void FillDeviceUse(Message* heartbeat) const {
    for (uint32_t d = 0; d < context_.memory.devices(); ++d) {
      const MemoryAdmission::Figures figures = context_.memory.figures(PoolId{d, false});
      DeviceUse* use = heartbeat->add_devices();
      use->set_device(d);
      use->set_bytes_in_use(figures.used);
      use->set_bytes_limit(figures.limit);
      use->set_bytes_peak(figures.peak);
      use->set_launches_queued(launches_.queued_on(d));
      use->set_launches_placed(static_cast<uint32_t>(launches_.placed_on(d)));
    }
  }

  std::string ExplainJson(TimeNs now) const {
    nlohmann::json out = nlohmann::json::object();
    out["worker"] = context_.self.ToString();
    out["fenced"] = context_.fenced;
    out["anomalies"] = context_.anomalies;
    out["buffers"] = context_.buffers.size();
    nlohmann::json pools = nlohmann::json::array();
    for (uint32_t d = 0; d < context_.memory.devices(); ++d) {
      const auto device = context_.memory.figures(PoolId{d, false});
      const auto host = context_.memory.figures(PoolId{d, true});
      pools.push_back({{"device", d},
                       {"bytes_in_use", device.used},
                       {"bytes_limit", device.limit},
                       {"bytes_peak", device.peak},
                       {"host_bytes_in_use", host.used},
                       {"queued", launches_.queued_on(d)},
                       {"placed", launches_.placed_on(d)},
                       {"activations_peak", launches_.activations_peak(d)}});
    }
    out["devices"] = std::move(pools);
    launches_.Explain(now, &out);
    transfers_.Explain(now, &out);
    observers_.Explain(now, &out);
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  std::string GraphJson() const {
    nlohmann::json out = nlohmann::json::object();
    launches_.Graph(&out);
    transfers_.Graph(&out);
    return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

  Counts counts() const {
    Counts counts;
    counts.buffers = context_.buffers.size();
    counts.launches = launches_.launches();
    counts.transfers = transfers_.publishes() + transfers_.make_parts();
    counts.reads = observers_.reads();
    counts.uploads = transfers_.uploads();
    counts.send_snapshots = transfers_.send_snapshots();
    counts.executables = launches_.executables();
    counts.watches = observers_.watches();
    for (uint32_t d = 0; d < context_.memory.devices(); ++d) {
      counts.device_bytes_reserved.push_back(context_.memory.figures(PoolId{d, false}).used);
    }
    counts.spans = orders_.remembered();
    counts.anomalies = context_.anomalies;
    return counts;
  }

  void OnMail(Incarnation from, absl::string_view mail, TimeNs now) {
    CountAnomaly(orders_.OnMail(from, mail));
    Settle(now);
  }

  void OnMailBroken(Incarnation peer, const absl::Status& why, TimeNs now) {
    for (Ticket ticket : orders_.WaitingFor(peer)) launches_.DropUnplaced(ticket, MakePoison(why, ticket, 0));
    Settle(now);
  }

  LaunchQueue& launches() { return launches_; }
  Transfers& transfers() { return transfers_; }
  Observers& observers() { return observers_; }
  void Flush(bool all) { context_.report.Flush(all, launches_.epoch(), launches_.done_through()); }
  bool HoldsProgress() const { return context_.report.HoldsProgress(); }
  bool WaitsForLaunches() const {
    return context_.fenced || launches_.AnyHurried() || launches_.AnyQueued() || observers_.reads() > 0 ||
           observers_.watches() > 0 || transfers_.publishes() > 0 || transfers_.make_parts() > 0 ||
           context_.memory.AnyWaiting();
  }

 private:
  // Of a peer that made no sense: ignored, but for this.
  void CountAnomaly(const absl::Status& status) { context_.anomalies += status.ok() ? 0 : 1; }

  void Route(const BufferTable::Wake& wake, TimeNs now) {
    switch (wake.who.kind) {
      case WaiterKind::kLaunch:
      case WaiterKind::kLaunchGang:
      case WaiterKind::kLaunchStrict:
      case WaiterKind::kLaunchPoison: launches_.OnWake(wake, now); return;
      case WaiterKind::kMakePart:
      case WaiterKind::kPublish: transfers_.OnWake(wake); return;
      case WaiterKind::kRead:
      case WaiterKind::kWatch: observers_.OnWake(wake); return;
      case WaiterKind::kUpload:
      case WaiterKind::kNone: return;
    }
  }

  // Requests that do not fit and for which nothing that must end before them will free anything: no older node is
  // unfinished, and nothing that ends by itself, and no older transfer, holds memory that is to be freed.
  bool FailWhatNeverFits() {
    if (!context_.memory.AnyWaiting() || context_.unfinished.empty()) return false;
    for (const MemoryAdmission::Blocked& blocked : context_.memory.BlockedHeads()) {
      if (context_.unfinished.First() < blocked.key.ticket) continue;
      if (launches_.AnyRunningOn(blocked.pool.device)) continue;
      if (transfers_.OlderPublishWillFree(blocked.pool, blocked.key.ticket)) continue;
      bool will_free = false;
      context_.buffers.ForEach([&](const Buffer& buffer) {
        will_free = will_free || (buffer.charged && buffer.running > 0 && buffer.delete_requested &&
                                  BufferTable::LiesIn(buffer, blocked.pool));
      });
      if (will_free) continue;
      if (blocked.who.kind == WaiterKind::kLaunch) {
        launches_.OnMemoryNeverFits(blocked);
      } else {
        transfers_.OnMemoryNeverFits(blocked);
      }
      return true;
    }
    return false;
  }

  template <typename Fn>
  void DeleteIf(Fn fn) {
    context_.buffers.ForEach([&](Buffer& buffer) {
      if (fn(buffer) && !buffer.delete_requested) context_.buffers.RequestDelete(buffer);
    });
    context_.memory_may_be_stuck = true;
  }

  void DeleteOne(Buffer& buffer) {
    if (buffer.delete_requested) {
      ++context_.anomalies;
    } else {
      context_.buffers.RequestDelete(buffer);
    }
  }

  void OnDelete(const DeleteBuffers& op) {
    for (uint64_t array : op.arrays()) {
      absl::InlinedVector<Buffer*, 8> buffers;  // deleting changes the list that is walked
      context_.buffers.ForEachShard(ArrayId(array), [&](Buffer& buffer) { buffers.push_back(&buffer); });
      if (buffers.empty()) ++context_.anomalies;
      for (Buffer* buffer : buffers) DeleteOne(*buffer);
    }
    for (const BufferRefProto& ref : op.shards()) {
      if (Buffer* buffer = context_.buffers.Find(RefFromProto(ref))) {
        DeleteOne(*buffer);
      } else {
        ++context_.anomalies;
      }
    }
    context_.memory_may_be_stuck = true;
  }

  void OnPoison(const PoisonBuffers& op) {
    std::vector<BufferRef> refs;
    for (const Target& target : op.targets()) refs.push_back(RefFromProto(target.ref()));
    const Ticket ticket(op.ticket());
    context_.CreatePoisoned(refs, ticket, SessionId(), PoisonFromProto(op.why(), ticket, 0), false);
  }

  void OnUnpublish(const Unpublish& op) {
    const absl::Status why =
        op.has_why() && op.why().code() != 0 ? StatusFromProto(op.why()) : absl::CancelledError("the transfer is over");
    if (op.counts_size() != 0 && op.counts_size() != op.transfers_size()) ++context_.anomalies;
    for (int i = 0; i < op.transfers_size(); ++i) {
      const uint64_t count = i < op.counts_size() ? std::min<uint64_t>(op.counts(i), limits::kReshardPiecesMax) : 1;
      for (uint64_t k = 0; k < count; ++k) transfers_.OnUnpublish(TransferId(op.transfers(i) + k), why);
    }
  }

  void OnPeerLost(const PeerLost& op) {
    const Incarnation peer(op.incarnation());
    const absl::Status why = StatusFromProto(op.why());
    transfers_.OnPeerLost(peer, why);
    orders_.OnPeerLost(peer);
    context_.sink->PeerLost(peer, why);
  }

  void OnCancelSession(const CancelSession& op) {
    const SessionId session(op.session());
    const PoisonPtr why = PoisonFromProto(op.why(), Ticket(), 0);
    observers_.CancelSession(session, why);
    launches_.CancelSession(session, why);
    transfers_.CancelSession(session, why);
    DeleteIf([&](const Buffer& buffer) { return buffer.session == session; });
  }

  void OnAskMemory(const AskMemory& op) {
    WorkerReport report;
    report.mutable_memory_use()->set_request(op.request());
    FillDeviceUse(report.mutable_memory_use());
    context_.report.Now(std::move(report));
  }

  void OnExplain(const Explain& op, TimeNs now) {
    WorkerReport report;
    report.mutable_explained()->set_request(op.request());
    report.mutable_explained()->set_json(op.graph() ? GraphJson() : ExplainJson(now));
    context_.report.Now(std::move(report));
  }

  CoreContext context_;
  SpanOrders orders_;
  LaunchQueue launches_;
  Transfers transfers_;
  Observers observers_;
};

WorkerCore::WorkerCore(Incarnation self, WorkerLimits limits, WorkerSink* sink)
    : impl_(std::make_unique<Impl>(self, limits, sink)) {}
WorkerCore::~WorkerCore() = default;

void WorkerCore::OnOp(const WorkerOp& op, TimeNs now) { impl_->OnOp(WorkerOp(op), now); }
void WorkerCore::OnOp(WorkerOp&& op, TimeNs now) { impl_->OnOp(std::move(op), now); }
void WorkerCore::OnLoadDone(ExecutableId executable, const absl::Status& status, TimeNs now) {
  impl_->launches().OnLoadDone(executable, status, now);
  impl_->Settle(now);
}
void WorkerCore::OnLaunchDone(Ticket ticket, const absl::Status& status, DurationNs run_ns, TimeNs now) {
  impl_->launches().OnLaunchDone(ticket, status, run_ns);
  impl_->Settle(now);
}
void WorkerCore::OnUploadDone(uint64_t key, const absl::Status& status, TimeNs now) {
  impl_->transfers().OnUploadDone(key, status);
  impl_->Settle(now);
}
void WorkerCore::OnMakeDone(Ticket ticket, int index, const absl::Status& status, TimeNs now) {
  impl_->transfers().OnMakeDone(ticket, index, status);
  impl_->Settle(now);
}
void WorkerCore::OnPublishQuiet(TransferId transfer, TimeNs now) {
  impl_->transfers().OnPublishQuiet(transfer);
  impl_->Settle(now);
}
void WorkerCore::OnReadDone(uint64_t read, const absl::Status& status, std::string inline_data, bool published,
                            TimeNs now) {
  impl_->observers().OnReadDone(read, status, std::move(inline_data), published);
  impl_->Settle(now);
}
void WorkerCore::OnReadQuiet(uint64_t read, TimeNs now) {
  impl_->observers().OnReadQuiet(read);
  impl_->Settle(now);
}
void WorkerCore::OnMail(Incarnation from, absl::string_view mail, TimeNs now) { impl_->OnMail(from, mail, now); }
void WorkerCore::OnMailBroken(Incarnation peer, const absl::Status& why, TimeNs now) {
  impl_->OnMailBroken(peer, why, now);
}
void WorkerCore::OnTime(TimeNs now) {
  impl_->launches().OnTime();
  impl_->Settle(now);
}
void WorkerCore::Flush(bool all) { impl_->Flush(all); }
bool WorkerCore::HoldsProgress() const { return impl_->HoldsProgress(); }
bool WorkerCore::WaitsForLaunches() const { return impl_->WaitsForLaunches(); }
void WorkerCore::Fence(const absl::Status& why, TimeNs now) { impl_->Fence(why, now); }
bool WorkerCore::OldWorkEnded() const { return impl_->OldWorkEnded(); }
void WorkerCore::FillDeviceUse(Heartbeat* heartbeat) const { impl_->FillDeviceUse(heartbeat); }
std::string WorkerCore::ExplainJson(TimeNs now) const { return impl_->ExplainJson(now); }
WorkerCore::Counts WorkerCore::counts() const { return impl_->counts(); }

}  // namespace landbridge
