// Workers that go, and what was waiting for them.
#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {

void Controller::Impl::OnWorkerLost(Incarnation worker, const absl::Status& why, TimeNs now) {
  (void)now;
  Life* life = cluster_.FindLife(worker);
  if (life == nullptr) {
    ++stale_reports_;
    return;
  }
  // From here on the slot is that of the next life.
  const std::unique_ptr<Life> dead = cluster_.End(life);
  life->up = false;  // so what still names it as a peer stays where it is until it is dealt with below
  dispatcher_.DropLife(life);
  buffers_.LoseLife(life, why);
  uploads_.LoseLife(life);
  programs_.LoseLife(life);
  for (Ticket ticket : nodes_.Select([life](const ctl::Node& node) { return node.life == life; })) {
    const absl::Status earlier = nodes_.Find(ticket)->error;
    EndNode(ticket, earlier.ok() ? why : earlier);
  }
  requests_.LoseLife(life, why);

  WorkerOp news;
  news.mutable_peer_lost()->set_incarnation(worker.value());
  ctl::ToProto(why, news.mutable_peer_lost()->mutable_why());
  for (ctl::ClusterTable::Slot& slot : cluster_.slots()) {
    slot.life->peers.erase(worker);
    dispatcher_.SendNow(slot.life.get(), news);
  }

  // Destinations that were told hear it by PeerLost; those that wait get errors in place of pulls.
  std::vector<std::pair<Life*, std::vector<Doomed>>> doomed;
  for (TransferId id : transfers_.Select([life](const ctl::Transfer& t) { return t.from == life || t.to == life; })) {
    const ctl::Transfer transfer = *transfers_.Find(id);
    if (transfer.to == life) {
      transfers_.Erase(id);
      if (transfer.published) {
        dispatcher_.EndTransfer(transfer.from, id);
      } else {
        CancelPublication(transfer.from, id);
      }
      continue;
    }
    if (transfer.asked) {
      transfers_.Erase(id);
      continue;
    }
    auto at = std::find_if(doomed.begin(), doomed.end(), [&](const auto& entry) { return entry.first == transfer.to; });
    if (at == doomed.end()) at = doomed.insert(doomed.end(), {transfer.to, {}});
    at->second.push_back({transfer.target, why});
  }
  for (auto& [destination, targets] : doomed) PoisonWaiting(destination, std::move(targets));
  dispatcher_.RecheckAll();
  Settle();
}

const absl::Status* Controller::Impl::FailureOf(const BufferRefProto& ref) const {
  const Group* group = buffers_.FindGroup(ArrayId(ref.array()));
  if (group == nullptr || ref.shard() >= group->count) return nullptr;
  const Shard& shard = group->at(ref.shard());
  return shard.Is(Shard::kFailed) ? &shard.error : nullptr;
}

// Errors travel along what waits, from life to life, so that nobody waits for a worker that is not there to learn of an
// error that is known. Operations still go out later, and the workers then come to the same.
void Controller::Impl::PoisonWaiting(Life* first, std::vector<Doomed> first_doomed) {
  std::deque<std::pair<Life*, std::vector<Doomed>>> work;
  work.emplace_back(first, std::move(first_doomed));
  while (!work.empty()) {
    Life* life = work.front().first;
    const std::vector<Doomed> doomed = std::move(work.front().second);
    work.pop_front();
    std::vector<TransferId> needless;
    std::vector<std::pair<Ticket, absl::Status>> ended;
    auto fate = [&](const BufferRefProto& ref) -> const absl::Status* {
      for (const Doomed& one : doomed) {
        if (one.target.array.value() == ref.array() && one.target.shard == ref.shard()) return &one.why;
      }
      return nullptr;
    };
    if (!doomed.empty()) {
      dispatcher_.EditWaiting(life, [&](ctl::ParkedOp* entry, std::vector<ctl::ParkedOp>* extra) {
        if (!entry->op.has_make()) return true;
        MakeBuffers* make = entry->op.mutable_make();
        MakeBuffers kept;
        for (MakeBuffer& buffer : *make->mutable_buffers()) {
          const absl::Status* why = fate(buffer.target().ref());
          if (why == nullptr) {
            *kept.add_buffers() = std::move(buffer);
            continue;
          }
          ctl::ParkedOp poison;
          poison.session = entry->session;
          PoisonBuffers* op = poison.op.mutable_poison();
          op->set_ticket(make->ticket());
          *op->add_targets() = buffer.target();
          const absl::Status error = ctl::WithOrigin(*why, make->user_context(), Ticket(make->ticket()));
          ctl::ToProto(error, op->mutable_why());
          poison.bytes = poison.op.ByteSizeLong();
          extra->push_back(std::move(poison));
          for (const Piece& piece : buffer.pieces()) {
            if (piece.has_remote()) needless.push_back(TransferId(piece.remote().transfer()));
          }
          if (Group* group = buffers_.FindGroup(ArrayId(buffer.target().ref().array()))) {
            const uint32_t shard = buffer.target().ref().shard();
            buffers_.MarkFailed(group, shard, error);
            group->at(shard).flags |= Shard::kOrphan;
          }
        }
        make->mutable_buffers()->Swap(kept.mutable_buffers());
        if (make->buffers_size() != 0) return true;
        ended.emplace_back(Ticket(make->ticket()), doomed[0].why);
        return false;
      });
    }
    for (const auto& [ticket, why] : ended) EndNode(ticket, why);
    for (TransferId id : needless) EndTransfer(id);
    SpreadErrors(life, &work);
    dispatcher_.Recheck(life);
  }
}

void Controller::Impl::SpreadErrors(Life* life, std::deque<std::pair<Life*, std::vector<Doomed>>>* more) {
  if (life->up) return;  // the worker will do so
  auto fail = [this](uint64_t array, uint32_t shard, const absl::Status& why) {
    if (Group* group = buffers_.FindGroup(ArrayId(array)); group != nullptr && shard < group->count) {
      buffers_.MarkFailed(group, shard, why);
    }
  };
  std::vector<std::pair<uint64_t, absl::Status>> watches;
  std::vector<std::pair<RequestId, absl::Status>> reads;
  dispatcher_.EditWaiting(life, [&](ctl::ParkedOp* entry, std::vector<ctl::ParkedOp>*) {
    const WorkerOp& op = entry->op;
    if (op.has_launch()) {
      const absl::Status* why = nullptr;
      for (const LaunchArg& arg : op.launch().args()) {
        if (arg.shards_size() == 0) {
          const Group* group = buffers_.FindGroup(ArrayId(arg.array()));
          for (uint32_t i = 0; group != nullptr && group->failed != 0 && i < group->count && why == nullptr; ++i) {
            if (group->at(i).Is(Shard::kFailed)) why = &group->at(i).error;
          }
        }
        for (const BufferRefProto& ref : arg.shards()) {
          if (why == nullptr) why = FailureOf(ref);
        }
      }
      if (why == nullptr) return true;
      const absl::Status error = *why;
      for (uint64_t output : op.launch().outputs()) {
        for (int i = 0; i < op.launch().devices_size(); ++i) fail(output, static_cast<uint32_t>(i), error);
      }
      return true;
    }
    if (op.has_make()) {
      for (const MakeBuffer& buffer : op.make().buffers()) {
        for (const Piece& piece : buffer.pieces()) {
          const absl::Status* why = piece.has_local() ? FailureOf(piece.local()) : nullptr;
          if (why == nullptr) continue;
          const absl::Status error = *why;
          fail(buffer.target().ref().array(), buffer.target().ref().shard(), error);
          break;
        }
      }
      return true;
    }
    if (op.has_publish()) {
      const absl::Status* why = FailureOf(op.publish().ref());
      const ctl::Transfer* transfer =
          why == nullptr ? nullptr : transfers_.Find(TransferId(op.publish().transfer()));
      if (transfer == nullptr || transfer->asked) return true;
      auto at = std::find_if(more->begin(), more->end(), [&](const auto& item) { return item.first == transfer->to; });
      if (at == more->end()) at = more->insert(more->end(), {transfer->to, {}});
      at->second.push_back({transfer->target, *why});
      return true;
    }
    if (op.has_watch()) {
      const absl::Status* why = nullptr;
      for (uint64_t array : op.watch().arrays()) {
        BufferRefProto ref;
        ref.set_array(array);
        if (why == nullptr) why = FailureOf(ref);
      }
      for (const BufferRefProto& ref : op.watch().shards()) {
        if (why == nullptr) why = FailureOf(ref);
      }
      if (why == nullptr) return true;
      watches.emplace_back(op.watch().watch(), *why);
      return false;
    }
    if (op.has_read()) {
      const absl::Status* why = FailureOf(op.read().ref());
      if (why == nullptr) return true;
      reads.emplace_back(RequestId(op.read().read()), *why);
      return false;
    }
    return true;
  });
  for (const auto& [watch, why] : watches) requests_.EndWatch(watch, life, why);
  for (const auto& [read, why] : reads) requests_.AnswerRead(read, why);
}

}  // namespace landbridge
