#include "controller/dispatcher.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "base/log.h"

namespace landbridge::ctl {
namespace {

constexpr int kDeletesPerOp = 1024;

size_t BytesOf(const WorkerOp& op) {
  // Small uploads keep their bytes here until they go out.
  const bool waits_with_bytes = op.has_upload() && !op.upload().pulled();
  return op.ByteSizeLong() + (waits_with_bytes ? static_cast<size_t>(op.upload().image_bytes()) : 0);
}

}  // namespace

void Dispatcher::Send(Life* life, WorkerOp&& op, SessionId session) {
  FlushCollected(life);
  Route(life, std::move(op), session);
}

void Dispatcher::SendNow(Life* life, WorkerOp&& op) {
  if (life->up) Emit(life, std::move(op), SessionId());
}

void Dispatcher::Route(Life* life, WorkerOp&& op, SessionId session) {
  if (life->up && life->parked.empty() && life->blocked.empty()) {  // nearly always
    const bool node = IsNode(op);
    if ((!node || life->unfinished < launches_max_) && !hooks_->MustWait(op)) {
      Emit(life, std::move(op), session);
      return;
    }
  }
  const OpRefs refs = RefsOf(op);
  if (!hooks_->MustWait(op) && !life->MustFollowBlocked(refs)) {
    Place(life, std::move(op), session, refs);
    return;
  }
  ParkedOp entry{std::move(op), session, 0, next_order_++};
  entry.bytes = BytesOf(entry.op);
  Count(entry);
  Enqueue(life, true, std::move(entry), refs);
}

void Dispatcher::Place(Life* life, WorkerOp&& op, SessionId session, const OpRefs& refs) {
  const bool node = IsNode(op);
  if (life->up && HasCredit(life, op) && (life->parked.empty() || (!node && !life->MustFollowParked(refs)))) {
    Emit(life, std::move(op), session);
    return;
  }
  ParkedOp entry{std::move(op), session, 0, next_order_++};
  entry.bytes = BytesOf(entry.op);
  Count(entry);
  Enqueue(life, false, std::move(entry), refs);
}

bool Dispatcher::HasCredit(const Life* life, const WorkerOp& op) const {
  if (!IsNode(op) || life->unfinished < launches_max_) return true;
  const Ticket ticket = TicketOf(op);
  return ticket < life->youngest_sent && hooks_->OldestAt(life, ticket);
}

// Younger ones went past while it was blocked.
void Dispatcher::PlaceFreed(Life* life, ParkedOp&& entry) {
  const OpRefs refs = RefsOf(entry.op);
  const bool passes = !life->MustFollowParked(refs);
  if (life->up && HasCredit(life, entry.op) && (life->parked.empty() || passes)) {
    Emit(life, std::move(entry.op), entry.session);
    return;
  }
  const auto at = std::upper_bound(life->parked.begin(), life->parked.end(), entry.order,
                                   [](uint64_t order, const ParkedOp& other) { return order < other.order; });
  Count(entry);
  life->parked_refs.Add(refs, entry.order);
  life->parked.insert(at, std::move(entry));
}

void Dispatcher::Enqueue(Life* life, bool blocked, ParkedOp&& entry, const OpRefs& refs) {
  (blocked ? life->blocked_refs : life->parked_refs).Add(refs, entry.order);
  (blocked ? life->blocked : life->parked).push_back(std::move(entry));
}

void Dispatcher::Emit(Life* life, WorkerOp&& op, SessionId session) {
  hooks_->BeforeSend(life, &op);
  if (IsNode(op)) {
    ++life->unfinished;
    life->youngest_sent = std::max(life->youngest_sent, TicketOf(op));
  }
  if (session.valid() && session != life->last_session) {
    life->sessions.insert(session);
    life->last_session = session;
  }
  const bool upload = op.has_upload();
  const uint64_t key = upload ? op.upload().key() : 0;
  sink_->SendToWorker(life->incarnation, std::move(op));
  if (upload) hooks_->AfterUploadSent(life, key);
}

void Dispatcher::Collected(Life* life) {
  if (std::exchange(life->collected, true)) return;
  collected_.push_back(life->slot);
}

void Dispatcher::DeleteArray(Life* life, ArrayId array, SessionId session) {
  Collected(life);
  if (life->deletes_session != session) FlushCollected(life);
  life->deletes_session = session;
  life->deletes.add_arrays(array.value());
  if (life->deletes.arrays_size() >= kDeletesPerOp) FlushCollected(life);
}

void Dispatcher::DeleteShard(Life* life, BufferRef ref, SessionId session) {
  Collected(life);
  if (life->deletes_session != session) FlushCollected(life);
  life->deletes_session = session;
  BufferRefProto* proto = life->deletes.add_shards();
  proto->set_array(ref.array.value());
  proto->set_shard(ref.shard);
  if (life->deletes.shards_size() >= kDeletesPerOp) FlushCollected(life);
}

void Dispatcher::EndTransfer(Life* source, TransferId transfer, uint32_t count) {
  Collected(source);
  source->unpublishes.add_transfers(transfer.value());
  source->unpublishes.add_counts(count);
}

void Dispatcher::FlushCollected(Life* life) {
  if (life->unpublishes.transfers_size() != 0) {
    WorkerOp op;
    op.mutable_unpublish()->Swap(&life->unpublishes);
    SendNow(life, std::move(op));
  }
  if (life->deletes.arrays_size() == 0 && life->deletes.shards_size() == 0) return;
  DeleteBuffers deletes;
  deletes.Swap(&life->deletes);
  const SessionId session = life->deletes_session;
  if (life->blocked.empty() && life->parked.empty()) {
    WorkerOp op;
    op.mutable_delete_()->Swap(&deletes);
    Route(life, std::move(op), session);
    return;
  }
  // Those that must wait for something do not keep the others from being freed.
  auto held = [life](uint64_t array) { return life->Holds(array); };
  DeleteBuffers wait, go;
  for (uint64_t array : deletes.arrays()) (held(array) ? wait : go).add_arrays(array);
  for (const BufferRefProto& ref : deletes.shards()) *(held(ref.array()) ? wait : go).add_shards() = ref;
  for (DeleteBuffers* part : {&go, &wait}) {
    if (part->arrays_size() == 0 && part->shards_size() == 0) continue;
    WorkerOp op;
    op.mutable_delete_()->Swap(part);
    Route(life, std::move(op), session);
  }
}

void Dispatcher::FlushAll() {
  std::vector<int> slots;
  slots.swap(collected_);
  for (int slot : slots) {
    Life* life = cluster_->slots()[static_cast<size_t>(slot)].life.get();
    life->collected = false;
    FlushCollected(life);
  }
}

void Dispatcher::OnUp(Life* life) {
  FlushCollected(life);
  Recheck(life);
  Drain(life);
  // Others may have waited for this peer.
  RecheckAll();
}

void Dispatcher::RecheckAll() {
  for (ClusterTable::Slot& slot : cluster_->slots()) Recheck(slot.life.get());
}

void Dispatcher::Recheck(Life* life) {
  if (life->blocked.empty()) return;
  std::deque<ParkedOp> entries;
  entries.swap(life->blocked);
  life->blocked_refs.Clear();
  std::vector<ParkedOp> free;
  for (ParkedOp& entry : entries) {
    const OpRefs refs = RefsOf(entry.op);
    if (hooks_->MustWait(entry.op) || life->MustFollowBlocked(refs)) {
      Enqueue(life, true, std::move(entry), refs);
    } else {
      free.push_back(std::move(entry));
    }
  }
  for (ParkedOp& entry : free) {
    Uncount(entry);
    PlaceFreed(life, std::move(entry));
  }
}

void Dispatcher::Drain(Life* life) {
  while (life->up && !life->parked.empty()) {
    ParkedOp& front = life->parked.front();
    if (!HasCredit(life, front.op)) return;
    ParkedOp entry = std::move(front);
    life->parked.pop_front();
    Uncount(entry);
    Emit(life, std::move(entry.op), entry.session);
    life->parked_refs.Trim(life->parked.size(), life->parked.empty() ? 0 : life->parked.front().order);
  }
}

void Dispatcher::OnNodeEnded(Life* life) {
  if (life->unfinished > 0) --life->unfinished;
  if (!life->parked.empty()) Drain(life);
}

void Dispatcher::DropLife(Life* life) {
  for (const auto* queue : {&life->parked, &life->blocked}) {
    for (const ParkedOp& entry : *queue) Uncount(entry);
  }
  life->parked.clear();
  life->blocked.clear();
  life->parked_refs.Clear();
  life->blocked_refs.Clear();
}

void Dispatcher::DropSession(SessionId session) {
  for (ClusterTable::Slot& slot : cluster_->slots()) {
    Life* life = slot.life.get();
    if (life->deletes_session == session) life->deletes.Clear();
    EditWaiting(life, [session](ParkedOp* entry, std::vector<ParkedOp>*) { return entry->session != session; });
    Recheck(life);
    Drain(life);
  }
  pressure_.erase(session);
}

bool Dispatcher::DropWaitingLoad(Life* life, ExecutableId program) {
  bool loads = false;
  for (const auto* queue : {&life->parked, &life->blocked}) {
    for (const ParkedOp& entry : *queue) {
      if (entry.op.has_launch() && entry.op.launch().executable() == program.value()) return false;
      loads |= entry.op.has_load() && entry.op.load().executable() == program.value();
    }
  }
  if (!loads) return false;
  EditWaiting(life, [program](ParkedOp* entry, std::vector<ParkedOp>*) {
    return !(entry->op.has_load() && entry->op.load().executable() == program.value());
  });
  Recheck(life);
  return true;
}

void Dispatcher::EditWaiting(Life* life, const Editor& fn) {
  if (life->parked.empty() && life->blocked.empty()) return;
  for (auto* queue : {&life->parked, &life->blocked}) {
    std::deque<ParkedOp> entries;
    entries.swap(*queue);
    std::vector<ParkedOp> extra;
    for (ParkedOp& entry : entries) {
      Uncount(entry);
      const uint64_t order = entry.order;
      extra.clear();
      if (fn(&entry, &extra)) {
        Count(entry);
        queue->push_back(std::move(entry));
      }
      for (ParkedOp& more : extra) {
        more.order = order;
        Count(more);
        queue->push_back(std::move(more));
      }
    }
  }
  Rebuild(life);
}

void Dispatcher::Rebuild(Life* life) {
  life->parked_refs.Clear();
  life->blocked_refs.Clear();
  for (const ParkedOp& entry : life->parked) life->parked_refs.Add(RefsOf(entry.op), entry.order);
  for (const ParkedOp& entry : life->blocked) life->blocked_refs.Add(RefsOf(entry.op), entry.order);
}

void Dispatcher::Count(const ParkedOp& entry) {
  ++waiting_;
  if (!entry.session.valid()) return;
  Pressure& pressure = pressure_[entry.session];
  ++pressure.ops;
  pressure.bytes += entry.bytes;
  if (!pressure.paused &&
      (pressure.ops >= limits::kSessionParkedRequestsMax || pressure.bytes >= limits::kSessionParkedBytesMax)) {
    pressure.paused = true;
    sink_->PauseSession(entry.session, true);
  }
}

void Dispatcher::Uncount(const ParkedOp& entry) {
  --waiting_;
  auto it = pressure_.find(entry.session);
  if (it == pressure_.end()) return;
  Pressure& pressure = it->second;
  --pressure.ops;
  pressure.bytes -= entry.bytes;
  if (pressure.paused && pressure.ops <= limits::kSessionParkedRequestsMax / 2 &&
      pressure.bytes <= limits::kSessionParkedBytesMax / 2) {
    pressure.paused = false;
    sink_->PauseSession(entry.session, false);
  }
}

Pressure Dispatcher::PressureOf(SessionId session) const {
  auto it = pressure_.find(session);
  return it == pressure_.end() ? Pressure() : it->second;
}

}  // namespace landbridge::ctl
