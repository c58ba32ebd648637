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
  spans_.LoseLife(life);
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
  // Those that have met it; in a large cluster they are few.
  for (ctl::ClusterTable::Slot& slot : cluster_.slots()) {
    const size_t met = slot.life->peers.erase(worker) + slot.life->pullers.erase(worker);
    if (met > 0) dispatcher_.SendNow(slot.life.get(), WorkerOp(news));
  }
  if (life == spanner_.life) SeatSpanner();

  // Destinations that were told hear it by PeerLost; those that wait get errors in place of pulls.
  std::vector<std::pair<Life*, std::vector<Doomed>>> doomed;
  for (TransferId id : transfers_.Select([life](const ctl::Transfer& t) { return t.from == life || t.to == life; })) {
    const ctl::Transfer transfer = *transfers_.Find(id);
    if (transfer.to == life) {
      transfers_.Erase(id);
      if (transfer.published) {
        dispatcher_.EndTransfer(transfer.from, id, transfer.pieces());
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
    for (const ReshardEdge::Piece& piece : transfer.plan_edge().pieces) {
      at->second.push_back({{transfer.target, piece.target}, why});
    }
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

// Shards of it that are doomed become errors there, and are not made; edges that served only those are needless.
void Controller::Impl::PoisonReceive(ctl::ParkedOp* entry, const std::vector<Doomed>& doomed,
                                     std::vector<ctl::ParkedOp>* extra, std::vector<TransferId>* needless) {
  ReshardReceive* receive = entry->op.mutable_reshard_receive();
  const Ticket ticket(receive->ticket());
  const ctl::Node& node = *nodes_.Find(ticket);
  const ctl::Plan& plan = *node.plan;
  Group* group = buffers_.FindGroup(ArrayId(receive->target()));
  auto is_without = [&](uint32_t shard) {
    return std::find(receive->without().begin(), receive->without().end(), shard) != receive->without().end();
  };
  auto give_up = [&](uint32_t shard, const absl::Status& why) {
    receive->add_without(shard);
    ctl::ParkedOp poison;
    poison.session = entry->session;
    PoisonBuffers* op = poison.op.mutable_poison();
    op->set_ticket(ticket.value());
    Target* target = op->add_targets();
    target->mutable_ref()->set_array(receive->target());
    target->mutable_ref()->set_shard(shard);
    const absl::Status error = ctl::WithOrigin(why, receive->user_context(), ticket);
    ctl::ToProto(error, op->mutable_why());
    poison.bytes = poison.op.ByteSizeLong();
    extra->push_back(std::move(poison));
    if (group != nullptr) {
      buffers_.MarkFailed(group, shard, error);
      group->at(shard).flags |= Shard::kOrphan;
    }
  };
  for (const Doomed& one : doomed) {
    if (one.target.array.value() != receive->target() || is_without(one.target.shard)) continue;
    give_up(one.target.shard, one.why);
  }
  if (receive->without_size() == 0) return;
  // And those that were to be copies of them: they come later.
  const ctl::Plan::Worker& worker = plan.At(node.life->slot);
  for (uint32_t shard : worker.makes) {
    if (is_without(shard)) continue;
    for (const ReshardPiece& piece : plan.plan.targets[shard].pieces) {
      if (!piece.of_target || !is_without(piece.shard)) continue;
      const absl::Status why = group != nullptr ? group->at(piece.shard).error : doomed[0].why;
      give_up(shard, why);
      break;
    }
  }
  for (size_t i = 0; i < worker.edges_in.size(); ++i) {
    const std::vector<ReshardEdge::Piece>& pieces = plan.plan.edges[worker.edges_in[i]].pieces;
    if (std::all_of(pieces.begin(), pieces.end(), [&](const auto& piece) { return is_without(piece.target); })) {
      needless->push_back(TransferId(receive->edges(static_cast<int>(i)).transfer()));
    }
  }
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
    if (!doomed.empty()) {
      dispatcher_.EditWaiting(life, [&](ctl::ParkedOp* entry, std::vector<ctl::ParkedOp>* extra) {
        if (!entry->op.has_reshard_receive()) return true;
        PoisonReceive(entry, doomed, extra, &needless);
        const Ticket ticket = ctl::TicketOf(entry->op);
        const ctl::Plan::Worker& worker = nodes_.Find(ticket)->plan->At(life->slot);
        if (static_cast<size_t>(entry->op.reshard_receive().without_size()) < worker.makes.size()) return true;
        ended.emplace_back(ticket, doomed[0].why);
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
  // Of what a plan takes at this life.
  auto failure_of = [&](const ctl::Plan& plan, const ReshardSource& source, uint64_t made,
                        const ReshardPiece& piece) -> const absl::Status* {
    BufferRefProto ref;
    ref.set_array(piece.of_target ? made : source.array());
    ref.set_shard(piece.shard);
    if (!piece.of_target && source.shards_size() != 0) {
      const std::vector<uint32_t>& here = plan.At(life->slot).source;
      const auto at = std::find(here.begin(), here.end(), piece.shard);
      if (at == here.end()) return nullptr;
      ref = source.shards(static_cast<int>(at - here.begin()));
    }
    return FailureOf(ref);
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
        const Launch& launch = op.launch();
        for (int i = 0; i < launch.devices_size(); ++i) {
          fail(output, launch.has_span() ? launch.span().shards(i) : static_cast<uint32_t>(i), error);
        }
      }
      return true;
    }
    if (op.has_reshard_receive()) {
      const ReshardReceive& receive = op.reshard_receive();
      const ctl::Plan& plan = *nodes_.Find(Ticket(receive.ticket()))->plan;
      for (uint32_t shard : plan.At(life->slot).makes) {
        for (const ReshardPiece& piece : plan.plan.targets[shard].pieces) {
          if (!plan.IsLocal(piece, life->slot)) continue;
          const absl::Status* why = failure_of(plan, receive.source(), receive.target(), piece);
          if (why == nullptr) continue;
          const absl::Status error = *why;
          fail(receive.target(), shard, error);
          break;
        }
      }
      return true;
    }
    if (op.has_reshard_send()) {
      const ReshardSend& send = op.reshard_send();
      const ctl::Transfer* transfer = transfers_.Find(TransferId(send.transfer()));
      if (transfer == nullptr || transfer->asked) return true;
      for (const ReshardEdge::Piece& piece : transfer->plan_edge().pieces) {
        const absl::Status* why = failure_of(*transfer->plan, send.source(), send.target(),
                                             transfer->plan->plan.targets[piece.target].pieces[piece.piece]);
        if (why == nullptr) continue;
        auto at =
            std::find_if(more->begin(), more->end(), [&](const auto& item) { return item.first == transfer->to; });
        if (at == more->end()) at = more->insert(more->end(), {transfer->to, {}});
        at->second.push_back({{transfer->target, piece.target}, *why});
      }
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
