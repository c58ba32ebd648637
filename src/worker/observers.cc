#include "worker/observers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace landbridge {

// ---------------------------------------------------------------- reads

void Observers::Answer(uint64_t read, const StatusProto& status, std::string data, bool published) {
  WorkerReport report;
  ReadReady* ready = report.mutable_read_ready();
  ready->set_read(read);
  *ready->mutable_status() = status;
  ready->set_data(std::move(data));
  ready->set_published(published);
  context_->report.Now(std::move(report));
}

void Observers::OnRead(Read op, TimeNs now) {
  const uint64_t id = op.read();
  if (read_by_id_.contains(id)) {
    ++context_->anomalies;
    return;
  }
  const BufferRef ref = RefFromProto(op.ref());
  Buffer* buffer = context_->buffers.Find(ref);
  if (buffer == nullptr || buffer->delete_requested || buffer->donor.kind != WaiterKind::kNone) {
    ++context_->anomalies;
    Answer(id,
           StatusToProto(absl::InvalidArgumentError(
               absl::StrCat("read of ", ref.ToString(), ", which was deleted, donated or never made here"))),
           "", false);
    return;
  }
  if (buffer->state == BufferState::kPoisoned) {
    Answer(id, PoisonToProto(*buffer->poison), "", false);
    return;
  }
  auto [handle, slot] = reads_.Add();
  ReadNode& node = *slot;
  node.self = handle;
  node.op = std::move(op);
  node.buffer = buffer;
  node.arrived = now;
  read_by_id_.emplace(id, handle);
  context_->buffers.Pin(*buffer);
  context_->buffers.AddTransfer(*buffer);
  if (buffer->state == BufferState::kResident) {
    Start(node);
  } else {
    context_->buffers.AddWaiter(*buffer, Waiter{WaiterKind::kRead, handle});
  }
}

void Observers::Start(ReadNode& node) {
  node.started = true;
  ++running_;
  node.buffer->open_reads.push_back(node.op.read());
  context_->buffers.StartRunning(*node.buffer);
  context_->sink->StartRead(node.op, node.buffer->donor.kind != WaiterKind::kNone);
}

void Observers::LetGo(ReadNode& node) {
  Buffer* buffer = std::exchange(node.buffer, nullptr);
  if (buffer == nullptr) return;
  if (node.started) {
    auto& open = buffer->open_reads;
    open.erase(std::remove(open.begin(), open.end(), node.op.read()), open.end());
    context_->buffers.StopRunning(*buffer);
  }
  context_->buffers.EndTransfer(*buffer);
  context_->buffers.Unpin(*buffer);
  context_->memory_may_be_stuck = true;
}

void Observers::Erase(ReadNode& node) {
  LetGo(node);
  if (node.started) --running_;
  read_by_id_.erase(node.op.read());
  reads_.Erase(node.self);
}

void Observers::OnReadDone(uint64_t read, const absl::Status& status, std::string inline_data, bool published) {
  auto it = read_by_id_.find(read);
  ReadNode* node = it == read_by_id_.end() ? nullptr : reads_.Get(it->second);
  if (node == nullptr) return;  // released, or the session is gone
  if (!node->started || node->done) {
    ++context_->anomalies;
    return;
  }
  node->done = true;
  if (!node->stopping) Answer(read, StatusToProto(status), std::move(inline_data), published && status.ok());
  // A publication goes on until it is released. (With `stopping`, OnReadQuiet is still to come for it.)
  if (!published || !status.ok()) Erase(*node);
}

void Observers::OnReadQuiet(uint64_t read) {
  auto it = read_by_id_.find(read);
  ReadNode* node = it == read_by_id_.end() ? nullptr : reads_.Get(it->second);
  if (node == nullptr || !node->started) return;
  if (node->stopping) {
    Erase(*node);
  } else {
    LetGo(*node);  // a snapshot was taken
  }
}

void Observers::OnReleaseRead(uint64_t read) {
  auto it = read_by_id_.find(read);
  if (it != read_by_id_.end()) Stop(*reads_.Get(it->second));
}

void Observers::Stop(ReadNode& node) {
  if (node.stopping) return;
  if (!node.started) {
    Erase(node);
    return;
  }
  node.stopping = true;
  context_->sink->StopRead(node.op.read());
  // The buffer was let go before (a snapshot, or everything fetched): no OnReadQuiet will come.
  if (node.buffer == nullptr) Erase(node);
}

// ---------------------------------------------------------------- watches

void Observers::AnswerWatch(uint64_t watch, const Poison* poison) {
  WorkerReport report;
  report.mutable_watched()->set_watch(watch);
  *report.mutable_watched()->mutable_status() =
      poison == nullptr ? StatusToProto(absl::OkStatus()) : PoisonToProto(*poison);
  context_->report.Now(std::move(report));
}

void Observers::OnWatch(const Watch& op, TimeNs now) {
  auto [handle, slot] = watches_.Add();
  WatchNode& node = *slot;
  node.self = handle;
  node.id = op.watch();
  node.arrived = now;
  auto look = [&, watch = handle](Buffer& buffer) {
    if (buffer.state == BufferState::kPoisoned) {
      if (node.poison == nullptr) node.poison = buffer.poison;
    } else if (buffer.state != BufferState::kResident) {
      ++node.missing;
      context_->buffers.AddWaiter(buffer, Waiter{WaiterKind::kWatch, watch});
    }
  };
  auto unknown = [&](const std::string& name) {
    ++context_->anomalies;
    if (node.poison == nullptr) {
      node.poison = MakePoison(
          absl::InvalidArgumentError(absl::StrCat(name, " was deleted, donated or never made here")), Ticket(), 0);
    }
  };
  for (uint64_t array : op.arrays()) {
    bool any = false;
    context_->buffers.ForEachShard(ArrayId(array), [&](Buffer& buffer) {
      any = true;
      look(buffer);
    });
    if (!any) unknown(ArrayId(array).ToString());
  }
  for (const BufferRefProto& ref : op.shards()) {
    Buffer* buffer = context_->buffers.Find(RefFromProto(ref));
    if (buffer == nullptr) {
      unknown(RefFromProto(ref).ToString());
    } else {
      look(*buffer);
    }
  }
  if (node.missing > 0) return;
  AnswerWatch(node.id, node.poison.get());
  watches_.Erase(handle);
}

// ---------------------------------------------------------------- both

void Observers::OnWake(const BufferTable::Wake& wake) {
  if (wake.who.kind == WaiterKind::kWatch) {
    WatchNode* node = watches_.Get(wake.who.handle);
    if (node == nullptr) return;
    if (wake.event == BufferTable::Event::kMore) {
      node->missing += wake.more;
      return;
    }
    if (wake.poison != nullptr && node->poison == nullptr) node->poison = wake.poison;
    if (--node->missing > 0) return;
    AnswerWatch(node->id, node->poison.get());
    watches_.Erase(wake.who.handle);
    return;
  }
  ReadNode* node = reads_.Get(wake.who.handle);
  if (node == nullptr || node->started) return;
  if (wake.poison == nullptr) {
    Start(*node);
  } else {
    Answer(node->op.read(), PoisonToProto(*wake.poison), "", false);
    Erase(*node);
  }
}

void Observers::CancelSession(SessionId session, const PoisonPtr& why) {
  reads_.ForEach([&](SlabHandle, ReadNode& node) {
    if (SessionId(node.op.session()) != session || node.stopping) return;
    if (!node.done) Answer(node.op.read(), PoisonToProto(*why), "", false);
    Stop(node);
  });
}

void Observers::Fence() {
  reads_.ForEach([&](SlabHandle, ReadNode& node) { Stop(node); });
  watches_.ForEach([&](SlabHandle handle, WatchNode&) { watches_.Erase(handle); });
}

}  // namespace landbridge
