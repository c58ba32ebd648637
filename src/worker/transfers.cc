#include "worker/transfers.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {
namespace {

absl::StatusOr<PoolId> PoolOf(const Target& target, uint32_t devices) {
  if (target.device() >= devices) {
    return absl::InvalidArgumentError(absl::StrCat("this worker has no device ", target.device()));
  }
  return PoolId{target.device(), target.memory() != MEMORY_DEVICE};
}

// Of buffers that may be made together. Null: they may not.
ShardLayoutPtr EvenLayout(const BufferTable& buffers, const std::vector<BufferRef>& refs,
                          const std::vector<PoolId>& pools) {
  if (refs.size() < 2 || buffers.AnyOf(refs[0].array)) return nullptr;
  auto layout = std::make_shared<ShardLayout>();
  for (size_t i = 0; i < refs.size(); ++i) {
    const std::vector<uint32_t>& devices = layout->devices;
    if (refs[i].array != refs[0].array || pools[i].host != pools[0].host) return nullptr;
    if (std::find(devices.begin(), devices.end(), pools[i].device) != devices.end()) return nullptr;
    layout->shards.push_back(refs[i].shard);
    layout->devices.push_back(pools[i].device);
  }
  return layout;
}

uint64_t EdgeOf(const RemoteSource& piece) { return piece.edge() != 0 ? piece.edge() : piece.transfer(); }

}  // namespace

// ---------------------------------------------------------------- uploads

void Transfers::OnUpload(Upload op, TimeNs now) {
  const Ticket ticket(op.ticket());
  if (context_->unfinished.Contains(ticket) || upload_by_key_.contains(op.key())) {
    ++context_->anomalies;
    return;
  }
  context_->unfinished.TryEmplace(ticket);
  absl::StatusOr<int64_t> bytes = DeviceBytes(op.dtype(), op.dims());
  absl::Status status = bytes.status();
  std::vector<BufferRef> refs;
  std::vector<PoolId> pools;
  for (const Target& target : op.targets()) {
    refs.push_back(RefFromProto(target.ref()));
    absl::StatusOr<PoolId> pool = PoolOf(target, context_->memory.devices());
    if (pool.ok()) pools.push_back(*pool);
    if (status.ok()) status = pool.status();
    if (status.ok() && context_->buffers.Exists(refs.back())) {
      status = absl::InvalidArgumentError(
          absl::StrCat(ticket.ToString(), " makes ", refs.back().ToString(), ", which exists"));
    }
  }
  std::vector<BufferRef> sorted = refs;
  std::sort(sorted.begin(), sorted.end());
  if (status.ok() && std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    status = absl::InvalidArgumentError(absl::StrCat(ticket.ToString(), " makes a buffer twice"));
  }
  if (status.ok() && (op.image_bytes() < 0 || op.image_bytes() > limits::kArrayBytesMax)) {
    status = absl::InvalidArgumentError(absl::StrCat("an image of ", op.image_bytes(), " bytes"));
  }
  if (status.ok() && context_->unfinished.size() > limits::kWorkerNodesMax) {
    status = absl::InvalidArgumentError(
        absl::StrCat("the controller sent more than ", limits::kWorkerNodesMax, " nodes ahead"));
  }
  if (!status.ok()) {
    context_->CreatePoisoned(refs, ticket, SessionId(op.session()), MakePoison(status, ticket, op.user_context()),
                             true);
    context_->report.UploadDone(op.key());
    context_->NodeEnded(ticket);
    return;
  }

  auto [handle, slot] = uploads_.Add();
  UploadNode& node = *slot;
  node.self = handle;
  node.op = std::make_shared<const Upload>(std::move(op));
  node.ticket = ticket;
  node.arrived = now;
  upload_by_key_.emplace(node.op->key(), handle);
  for (size_t i = 0; i < refs.size(); ++i) node.memory.Add(pools[i], *bytes);
  const SessionId session(node.op->session());
  if (ShardLayoutPtr layout = EvenLayout(context_->buffers, refs, pools)) {
    node.targets.push_back(
        context_->buffers.CreateTogether(refs[0].array, std::move(layout), pools[0].host, *bytes, session, ticket));
  } else {
    for (size_t i = 0; i < refs.size(); ++i) {
      node.targets.push_back(context_->buffers.Create(refs[i], pools[i], *bytes, session, ticket));
    }
  }
  for (Buffer* buffer : node.targets) context_->buffers.Pin(*buffer);
  const absl::Status fits =
      node.memory.Ask(context_->memory, MemoryAdmission::Key{ticket}, Waiter{WaiterKind::kUpload, handle});
  if (!fits.ok()) {
    EndUpload(node, MakePoison(fits, ticket, node.op->user_context()));
    return;
  }
  if (node.memory.waiting() > 0) context_->memory_may_be_stuck = true;
  StartUploadIfReady(node);
}

void Transfers::StartUploadIfReady(UploadNode& node) {
  if (node.started || node.memory.waiting() > 0) return;
  node.started = true;
  ++running_;
  for (Buffer* buffer : node.targets) context_->buffers.SetInShell(*buffer);
  context_->sink->StartUpload(node.op);
  if (node.data_came) context_->sink->UploadBytes(node.op->key(), std::exchange(node.data, {}));
}

void Transfers::OnUploadData(UploadData op) {
  auto it = upload_by_key_.find(op.key());
  if (it == upload_by_key_.end()) return;  // given up since: the bytes are of no use
  UploadNode& node = *uploads_.Get(it->second);
  if (op.has_error()) {
    GiveUpUpload(node, PoisonFromProto(op.error(), node.ticket, node.op->user_context()));
    return;
  }
  if (node.data_came || node.op->pulled()) {
    ++context_->anomalies;
    return;
  }
  node.data_came = true;
  if (static_cast<int64_t>(op.data().size()) != node.op->image_bytes()) {
    GiveUpUpload(node, MakePoison(absl::InvalidArgumentError(absl::StrCat("an upload of ", node.op->image_bytes(),
                                                                          " bytes got ", op.data().size())),
                                  node.ticket, node.op->user_context()));
  } else if (node.cancelled != nullptr) {
    // Given up already.
  } else if (node.started) {
    context_->sink->UploadBytes(op.key(), std::move(*op.mutable_data()));
  } else {
    node.data = std::move(*op.mutable_data());
  }
}

void Transfers::OnUploadDone(uint64_t key, const absl::Status& status) {
  auto it = upload_by_key_.find(key);
  UploadNode* node = it == upload_by_key_.end() ? nullptr : uploads_.Get(it->second);
  if (node == nullptr || !node->started) {
    ++context_->anomalies;
    return;
  }
  --running_;
  if (status.ok()) {
    EndUpload(*node, nullptr);
  } else {
    EndUpload(*node, node->cancelled != nullptr ? node->cancelled
                                                : MakePoison(status, node->ticket, node->op->user_context()));
  }
}

void Transfers::GiveUpUpload(UploadNode& node, const PoisonPtr& why) {
  if (!node.started) {
    EndUpload(node, why);
  } else if (node.cancelled == nullptr) {
    node.cancelled = why;  // its memory stays taken until no byte can land any more
    context_->sink->CancelUpload(node.op->key(), why->status);
  }
}

void Transfers::EndUpload(UploadNode& node, const PoisonPtr& poison) {
  BufferTable& buffers = context_->buffers;
  std::vector<BufferRef> failed;
  if (poison != nullptr) node.memory.Drop(context_->memory, MemoryAdmission::Key{node.ticket});
  for (Buffer* buffer : node.targets) {
    if (poison == nullptr) {
      buffers.SetResident(*buffer);
    } else {
      BufferTable::ForEachPlace(*buffer, [&](BufferRef ref, PoolId) { failed.push_back(ref); });
      buffers.SetPoisoned(*buffer, poison);
    }
    buffers.Unpin(*buffer);
  }
  if (poison != nullptr) context_->report.Failed(failed, *poison, node.ticket);
  context_->report.UploadDone(node.op->key());
  context_->NodeEnded(node.ticket);
  upload_by_key_.erase(node.op->key());
  uploads_.Erase(node.self);
}

// ---------------------------------------------------------------- resharding

void Transfers::OnReshardReceive(ReshardReceive op, TimeNs now) {
  absl::StatusOr<std::shared_ptr<const ReshardPart>> part = plans_.Use(op.plan());
  absl::StatusOr<MakeBuffers> make = part.ok() ? (*part)->Expand(op) : part.status();
  if (make.ok()) return OnMake(*std::move(make), now);
  // A mistake of the controller. What it was to make is not known here; whoever uses that will be told so.
  ++context_->anomalies;
  const PoisonPtr poison = MakePoison(make.status(), Ticket(op.ticket()), op.user_context());
  for (const ReshardEdgeProto& edge : op.edges())
    context_->report.TransferDone(TransferId(edge.transfer()), poison.get());
  context_->NodeEnded(Ticket(op.ticket()));
}

void Transfers::OnReshardSend(ReshardSend op, TimeNs now) {
  absl::StatusOr<std::shared_ptr<const ReshardPart>> part = plans_.Use(op.plan());
  absl::StatusOr<std::vector<Publish>> publications = part.ok() ? (*part)->Expand(op) : part.status();
  if (!publications.ok()) {
    ++context_->anomalies;
    return;
  }
  for (Publish& publish : *publications) OnPublish(std::move(publish), now);
}

// ---------------------------------------------------------------- makes

absl::Status Transfers::CheckPart(const MakeBuffer& spec) const {
  LB_ASSIGN_OR_RETURN(const PoolId pool, PoolOf(spec.target(), context_->memory.devices()));
  static_cast<void>(pool);
  LB_RETURN_IF_ERROR(DeviceBytes(spec.dtype(), spec.dims()).status());
  for (const Piece& piece : spec.pieces()) {
    if (piece.has_local() == piece.has_remote()) {
      return absl::InvalidArgumentError("a piece must have one source, here or elsewhere");
    }
    if (!piece.has_local()) continue;
    const BufferRef ref = RefFromProto(piece.local());
    const Buffer* source = context_->buffers.Find(ref);
    if (source == nullptr || source->delete_requested) {
      return absl::InvalidArgumentError(
          absl::StrCat("takes ", ref.ToString(), ", which was deleted or never made here"));
    }
    if (source->donor.kind != WaiterKind::kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat("takes ", ref.ToString(), ", which was donated to ", source->donor_ticket.ToString()));
    }
    if (piece.donate()) {
      int uses = 0;
      for (const Piece& other : spec.pieces()) uses += other.has_local() && RefFromProto(other.local()) == ref ? 1 : 0;
      if (uses != 1)
        return absl::InvalidArgumentError(absl::StrCat("donates ", ref.ToString(), " and uses it a second time"));
    }
  }
  return absl::OkStatus();
}

void Transfers::OnMake(MakeBuffers op, TimeNs now) {
  const Ticket ticket(op.ticket());
  if (context_->unfinished.Contains(ticket)) {
    ++context_->anomalies;
    return;
  }
  context_->unfinished.TryEmplace(ticket);
  const bool too_many = context_->unfinished.size() > limits::kWorkerNodesMax;
  auto owned = std::make_unique<MakeOp>();
  MakeOp& make = *owned;
  make.op = std::make_shared<const MakeBuffers>(std::move(op));
  make.arrived = now;
  make.unfinished = 1;  // this function
  makes_.emplace(ticket, std::move(owned));
  const SessionId session(make.op->session());
  make.parts.resize(static_cast<size_t>(make.op->buffers_size()));
  for (const MakeBuffer& buffer : make.op->buffers()) {
    for (const Piece& piece : buffer.pieces()) {
      if (piece.has_remote()) ++make.edges[EdgeOf(piece.remote())];
    }
  }

  for (int i = 0; i < make.op->buffers_size(); ++i) {
    const MakeBuffer& spec = make.op->buffers(i);
    const BufferRef ref = RefFromProto(spec.target().ref());
    absl::Status status = CheckPart(spec);
    if (status.ok() && too_many) {
      status = absl::InvalidArgumentError(
          absl::StrCat("the controller sent more than ", limits::kWorkerNodesMax, " nodes ahead"));
    }
    Buffer* target = nullptr;
    if (status.ok()) {
      target = context_->buffers.Create(ref, *PoolOf(spec.target(), context_->memory.devices()),
                                        *DeviceBytes(spec.dtype(), spec.dims()), session, ticket);
      if (target == nullptr)
        status = absl::InvalidArgumentError(absl::StrCat("makes ", ref.ToString(), ", which exists"));
    }
    if (!status.ok()) {
      const PoisonPtr poison = MakePoison(AddContext(status, ticket.ToString()), ticket, make.op->user_context());
      context_->CreatePoisoned({ref}, ticket, session, poison, true);
      for (const Piece& piece : spec.pieces()) {
        if (piece.has_remote()) PieceOver(make, piece.remote(), poison.get());
        // What it would have consumed is gone for the client.
        Buffer* source =
            piece.donate() && piece.has_local() ? context_->buffers.Find(RefFromProto(piece.local())) : nullptr;
        if (source != nullptr && source->donor.kind == WaiterKind::kNone) context_->buffers.RequestDelete(*source);
      }
      continue;
    }
    auto [handle, slot] = parts_.Add();
    MakePart& part = *slot;
    part.self = handle;
    part.ticket = ticket;
    part.index = i;
    part.make = &make;
    part.target = target;
    make.parts[static_cast<size_t>(i)] = handle;
    ++make.unfinished;
    context_->buffers.Pin(*target);
    PoisonPtr poison = TakePart(part);
    if (poison == nullptr) {
      part.memory.Add(target->pool, target->bytes);
      const absl::Status fits =
          part.memory.Ask(context_->memory, MemoryAdmission::Key{ticket, static_cast<uint32_t>(i)},
                          Waiter{WaiterKind::kMakePart, handle});
      if (!fits.ok()) poison = MakePoison(fits, ticket, make.op->user_context());
    }
    if (poison != nullptr) {
      EndPart(part, poison);
      continue;
    }
    if (part.memory.waiting() > 0) context_->memory_may_be_stuck = true;
    StartPartIfReady(part);
  }
  --make.unfinished;
  EndMakeIfDone(ticket);
}

PoisonPtr Transfers::TakePart(MakePart& part) {
  BufferTable& buffers = context_->buffers;
  PoisonPtr poison;
  for (const Piece& piece : part.spec().pieces()) {
    if (!piece.has_local()) continue;
    Buffer* source = buffers.Find(RefFromProto(piece.local()));
    part.sources.push_back(source);
    buffers.Pin(*source);
    buffers.AddTransfer(*source);
    if (piece.donate()) part.donated.push_back(source);
    if (source->state == BufferState::kPoisoned) {
      if (poison == nullptr) poison = source->poison;
    } else if (source->state != BufferState::kResident) {
      ++part.inputs_missing;
      buffers.AddWaiter(*source, Waiter{WaiterKind::kMakePart, part.self});
    }
  }
  for (Buffer* source : part.donated) {
    if (!buffers.SetDonor(*source, Waiter{WaiterKind::kMakePart, part.self}, part.ticket, true)) {
      ++part.donations_missing;
    }
  }
  return poison;
}

void Transfers::StartPartIfReady(MakePart& part) {
  if (part.started || part.inputs_missing > 0 || part.donations_missing > 0 || part.memory.waiting() > 0) return;
  part.started = true;
  ++running_;
  part.target->in_shell = true;
  context_->sink->StartMake(part.make->op, part.index);
}

void Transfers::OnMakeDone(Ticket ticket, int index, const absl::Status& status) {
  auto it = makes_.find(ticket);
  MakePart* part = nullptr;
  if (it != makes_.end() && index >= 0 && static_cast<size_t>(index) < it->second->parts.size()) {
    part = parts_.Get(it->second->parts[static_cast<size_t>(index)]);
  }
  if (part == nullptr || !part->started) {
    ++context_->anomalies;
    return;
  }
  --running_;
  if (status.ok()) {
    EndPart(*part, nullptr);
  } else {
    EndPart(*part,
            part->cancelled != nullptr ? part->cancelled : MakePoison(status, ticket, part->make->op->user_context()));
  }
  EndMakeIfDone(ticket);
}

// The caller ends the make.
void Transfers::GiveUpPart(MakePart& part, const PoisonPtr& why) {
  if (!part.started) {
    EndPart(part, why);
  } else if (part.cancelled == nullptr) {
    part.cancelled = why;  // sources stay pinned and the memory taken until the shell says that it is over
    context_->sink->CancelMake(part.ticket, part.index, why->status);
  }
}

void Transfers::EndPart(MakePart& part, const PoisonPtr& poison) {
  BufferTable& buffers = context_->buffers;
  for (Buffer* source : part.sources) {
    if (std::find(part.donated.begin(), part.donated.end(), source) != part.donated.end())
      buffers.RequestDelete(*source);
    buffers.EndTransfer(*source);
    buffers.Unpin(*source);
  }
  for (const Piece& piece : part.spec().pieces()) {
    if (piece.has_remote()) PieceOver(*part.make, piece.remote(), poison.get());
  }
  const BufferRef ref = part.target->ref;
  if (poison == nullptr) {
    buffers.SetResident(*part.target);
  } else {
    part.memory.Drop(context_->memory, MemoryAdmission::Key{part.ticket, static_cast<uint32_t>(part.index)});
    buffers.SetPoisoned(*part.target, poison);
  }
  buffers.Unpin(*part.target);
  if (poison != nullptr) context_->report.Failed({ref}, *poison, part.ticket);
  --part.make->unfinished;
  parts_.Erase(part.self);
}

// The controller hears of an edge once, when its last piece has landed or never will.
void Transfers::PieceOver(MakeOp& make, const RemoteSource& piece, const Poison* poison) {
  auto it = make.edges.find(EdgeOf(piece));
  if (it == make.edges.end() || --it->second > 0) return;
  context_->report.TransferDone(TransferId(it->first), poison);
  make.edges.erase(it);
}

void Transfers::EndMakeIfDone(Ticket ticket) {
  auto it = makes_.find(ticket);
  if (it == makes_.end() || it->second->unfinished > 0) return;
  makes_.erase(it);
  context_->NodeEnded(ticket);
}

// ---------------------------------------------------------------- publishes

void Transfers::OnPublish(Publish op, TimeNs now) {
  const TransferId transfer(op.transfer());
  if (publish_by_id_.contains(transfer)) {
    ++context_->anomalies;
    return;
  }
  auto [handle, slot] = publishes_.Add();
  PublishNode& node = *slot;
  node.self = handle;
  node.transfer = transfer;
  node.ticket = Ticket(op.ticket());
  node.peer = Incarnation(op.peer());
  node.op = std::move(op);
  node.arrived = now;
  publish_by_id_.emplace(transfer, handle);
  const BufferRef ref = RefFromProto(node.op.ref());
  Buffer* buffer = context_->buffers.Find(ref);
  if (buffer == nullptr || buffer->delete_requested || buffer->donor.kind != WaiterKind::kNone) {
    ++context_->anomalies;
    FailPublish(node, absl::InvalidArgumentError(absl::StrCat(transfer.ToString(), " offers ", ref.ToString(),
                                                              ", which was deleted, donated or never made here")));
    return;
  }
  if (buffer->state == BufferState::kPoisoned) {
    FailPublish(node, PoisonStatus(*buffer->poison));
    return;
  }
  node.buffer = buffer;
  context_->buffers.Pin(*buffer);
  context_->buffers.AddTransfer(*buffer);
  if (buffer->state == BufferState::kResident) {
    Offer(node);
  } else {
    context_->buffers.AddWaiter(*buffer, Waiter{WaiterKind::kPublish, handle});
  }
}

void Transfers::Offer(PublishNode& node) {
  node.stage = PublishStage::kOffered;
  ++running_;
  node.buffer->open_sends.push_back(node.transfer);
  context_->sink->StartPublish(node.op);
  if (node.buffer->donor.kind != WaiterKind::kNone) context_->sink->SnapshotPublish(node.transfer);
}

void Transfers::LetGo(PublishNode& node) {
  if (node.buffer == nullptr) return;
  Buffer* buffer = std::exchange(node.buffer, nullptr);
  auto& sends = buffer->open_sends;
  sends.erase(std::remove(sends.begin(), sends.end(), node.transfer), sends.end());
  context_->buffers.EndTransfer(*buffer);
  context_->buffers.Unpin(*buffer);
  context_->memory_may_be_stuck = true;
}

void Transfers::FailPublish(PublishNode& node, const absl::Status& why) {
  LetGo(node);
  node.stage = PublishStage::kFailed;  // the shell answers pulls with the error until the transfer is over
  context_->sink->FailPublish(node.transfer, why);
}

void Transfers::StopPublish(PublishNode& node, const absl::Status& why) {
  switch (node.stage) {
    case PublishStage::kOffered:
      context_->sink->StopPublish(node.transfer, why);
      if (node.buffer == nullptr) {  // let go before: nobody waits for the end of the copy
        --running_;
        return ErasePublish(node);
      }
      node.stage = PublishStage::kStopping;
      context_->buffers.StartRunning(*node.buffer);
      return;
    case PublishStage::kWaiting:
    case PublishStage::kFailed:
      context_->sink->StopPublish(node.transfer, why);
      ErasePublish(node);
      return;
    case PublishStage::kStopping: return;
  }
}

void Transfers::ErasePublish(PublishNode& node) {
  LetGo(node);
  publish_by_id_.erase(node.transfer);
  publishes_.Erase(node.self);
}

void Transfers::OnUnpublish(TransferId transfer, const absl::Status& why) {
  auto it = publish_by_id_.find(transfer);
  if (it != publish_by_id_.end()) StopPublish(*publishes_.Get(it->second), why);
}

void Transfers::OnPublishQuiet(TransferId transfer) {
  auto it = publish_by_id_.find(transfer);
  PublishNode* node = it == publish_by_id_.end() ? nullptr : publishes_.Get(it->second);
  if (node == nullptr) return;
  if (node->stage == PublishStage::kOffered && node->buffer != nullptr &&
      node->buffer->donor.kind != WaiterKind::kNone) {
    ++send_snapshots_;
    return LetGo(*node);
  }
  if (node->stage != PublishStage::kStopping) return;
  --running_;
  context_->buffers.StopRunning(*node->buffer);
  ErasePublish(*node);
}

bool Transfers::OlderPublishWillFree(PoolId pool, Ticket ticket) const {
  bool found = false;
  publishes_.ForEach([&](SlabHandle, const PublishNode& node) {
    if (node.buffer != nullptr && node.ticket < ticket && node.buffer->delete_requested && node.buffer->charged &&
        node.buffer->pool == pool) {
      found = true;
    }
  });
  return found;
}

// ---------------------------------------------------------------- all of them

void Transfers::OnWake(const BufferTable::Wake& wake) {
  if (wake.who.kind == WaiterKind::kPublish) {
    PublishNode* node = publishes_.Get(wake.who.handle);
    if (node == nullptr || node->stage != PublishStage::kWaiting) return;
    if (wake.poison != nullptr) {
      FailPublish(*node, PoisonStatus(*wake.poison));
    } else {
      Offer(*node);
    }
    return;
  }
  MakePart* part = parts_.Get(wake.who.handle);
  if (part == nullptr || part->started) return;
  if (wake.event == BufferTable::Event::kMayTake) {
    --part->donations_missing;
  } else if (wake.poison != nullptr) {
    const Ticket ticket = part->ticket;
    EndPart(*part, wake.poison);
    EndMakeIfDone(ticket);
    return;
  } else {
    --part->inputs_missing;
  }
  StartPartIfReady(*part);
}

void Transfers::OnMemoryGranted(Waiter who, PoolId pool) {
  if (who.kind == WaiterKind::kUpload) {
    UploadNode& node = *uploads_.Get(who.handle);
    node.memory.Granted(pool);
    StartUploadIfReady(node);
  } else {
    MakePart& part = *parts_.Get(who.handle);
    part.memory.Granted(pool);
    StartPartIfReady(part);
  }
}

void Transfers::OnMemoryNeverFits(const MemoryAdmission::Blocked& blocked) {
  const absl::Status status = context_->memory.DoesNotFit(blocked.pool, blocked.key, blocked.bytes);
  if (blocked.who.kind == WaiterKind::kUpload) {
    UploadNode& node = *uploads_.Get(blocked.who.handle);
    EndUpload(node, MakePoison(status, node.ticket, node.op->user_context()));
  } else {
    MakePart& part = *parts_.Get(blocked.who.handle);
    EndPart(part, MakePoison(status, part.ticket, part.make->op->user_context()));
    EndMakeIfDone(blocked.key.ticket);
  }
}

void Transfers::OnPeerLost(Incarnation peer, const absl::Status& why) {
  std::vector<Ticket> touched;
  parts_.ForEach([&](SlabHandle, MakePart& part) {
    for (const Piece& piece : part.spec().pieces()) {
      if (!piece.has_remote() || piece.remote().incarnation() != peer.value()) continue;
      touched.push_back(part.ticket);
      GiveUpPart(part, MakePoison(why, part.ticket, part.make->op->user_context()));
      return;
    }
  });
  for (Ticket ticket : touched) EndMakeIfDone(ticket);
  publishes_.ForEach([&](SlabHandle, PublishNode& node) {
    if (node.peer == peer) StopPublish(node, why);
  });
}

void Transfers::CancelSession(SessionId session, const PoisonPtr& why) {
  uploads_.ForEach([&](SlabHandle, UploadNode& node) {
    if (SessionId(node.op->session()) == session) GiveUpUpload(node, why);
  });
  std::vector<Ticket> touched;
  parts_.ForEach([&](SlabHandle, MakePart& part) {
    if (SessionId(part.make->op->session()) != session) return;
    touched.push_back(part.ticket);
    GiveUpPart(part, why);
  });
  for (Ticket ticket : touched) EndMakeIfDone(ticket);
}

void Transfers::Fence(const PoisonPtr& why) {
  uploads_.ForEach([&](SlabHandle, UploadNode& node) { GiveUpUpload(node, why); });
  std::vector<Ticket> touched;
  parts_.ForEach([&](SlabHandle, MakePart& part) {
    touched.push_back(part.ticket);
    GiveUpPart(part, why);
  });
  for (Ticket ticket : touched) EndMakeIfDone(ticket);
  publishes_.ForEach([&](SlabHandle, PublishNode& node) { StopPublish(node, why->status); });
}

}  // namespace landbridge
