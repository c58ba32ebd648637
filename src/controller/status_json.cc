// The controller's state for people and tools.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "controller/controller_impl.h"
#include "nlohmann/json.hpp"

namespace landbridge {
namespace {

using nlohmann::json;

constexpr size_t kListedMax = 64;  // operations per queue

std::string Describe(const WorkerOp& op) {
  switch (op.op_case()) {
    case WorkerOp::kLaunch: return "launch";
    case WorkerOp::kUpload: return "upload";
    case WorkerOp::kReshardReceive: return "copy or reshard";
    case WorkerOp::kReshardSend: return "send for a copy or reshard";
    case WorkerOp::kRead: return "read";
    case WorkerOp::kWatch: return "wait";
    case WorkerOp::kDelete: return "delete";
    case WorkerOp::kLoad: return absl::StrCat("load x", op.load().executable());
    case WorkerOp::kUnload: return absl::StrCat("unload x", op.unload().executable());
    case WorkerOp::kPoison: return "error";
    default: return "other";
  }
}

}  // namespace

std::string Controller::Impl::StatusJson(TimeNs now) const {
  json out;
  out["counts"] = {{"sessions", sessions_.size()},        {"arrays", buffers_.arrays()},
                   {"buffers", buffers_.groups()},        {"executables", programs_.size()},
                   {"requests", requests_.size()},        {"launches_unfinished", nodes_.size()},
                   {"ops_parked", dispatcher_.waiting()}, {"transfers", transfers_.size()},
                   {"host_buffers", uploads_.size()},     {"reports_ignored", stale_reports_}};
  out["reshard_plans"] = {{"kept", plans_.size()}, {"made", plans_.made()}};

  struct SessionFigures {
    size_t arrays = 0, lost = 0;
    int64_t bytes = 0;
  };
  std::map<SessionId, SessionFigures> figures;
  for (const auto& [session, hints] : sessions_) figures[session];
  buffers_.ForEachArray([&](ArrayId, const Array& array) {
    SessionFigures& at = figures[array.session];
    ++at.arrays;
    if (!buffers_.Error(array).ok()) ++at.lost;
    // Aliases are counted where they are used: what a session sees, not what the devices hold.
    for (uint32_t i = 0; i < array.size(); ++i) {
      const ctl::ShardRef shard = array.at(i);
      if (shard->life != nullptr && !shard->Is(Shard::kDead)) at.bytes += shard.group->shard_bytes;
    }
  });
  json sessions = json::array();
  for (const auto& [session, at] : figures) {
    const ctl::Pressure pressure = dispatcher_.PressureOf(session);
    sessions.push_back({{"session", session.ToString()},
                        {"arrays", at.arrays},
                        {"arrays_in_error", at.lost},
                        {"bytes", at.bytes},
                        {"executables", programs_.of(session)},
                        {"requests", requests_.of(session)},
                        {"parked_ops", pressure.ops},
                        {"parked_bytes", pressure.bytes},
                        {"paused", pressure.paused}});
  }
  out["sessions"] = std::move(sessions);

  std::map<int, int64_t> bytes_at;
  buffers_.ForEachGroup([&](const Group& group) {
    for (uint32_t i = 0; i < group.count; ++i) {
      const Shard& shard = group.at(i);
      if (shard.life != nullptr && !shard.Is(Shard::kDead)) bytes_at[shard.life->slot] += group.shard_bytes;
    }
  });

  // What a worker was sent and has not reported as done: all there is to show of one that does not answer.
  std::map<const Life*, json> sent_to;
  for (Ticket ticket : nodes_.Select([](const ctl::Node& node) { return node.sent; })) {
    const ctl::Node& node = *nodes_.Find(ticket);
    json& list = sent_to[node.life];
    if (list.is_array() && list.size() >= kListedMax) continue;
    list.push_back({{"ticket", ticket.ToString()},
                    {"session", node.session.ToString()},
                    {"age_ms", (now - node.since) / kMillisecond}});
  }

  json slots = json::array();
  for (size_t i = 0; i < cluster_.slots().size(); ++i) {
    const ctl::ClusterTable::Slot& slot = cluster_.slots()[i];
    const Life& life = *slot.life;
    json at = {{"slice", slot.id.slice.value()},
               {"worker", slot.id.index},
               {"up", life.up},
               {"name", life.up ? life.name : slot.last_name},
               {"incarnation", life.incarnation.ToString()},
               {"unfinished", life.unfinished},
               {"bytes", bytes_at[static_cast<int>(i)]},
               {"parked", life.parked.size()},
               {"blocked", life.blocked.size()}};
    json waiting = json::array();
    for (const auto* queue : {&life.blocked, &life.parked}) {
      for (const ctl::ParkedOp& entry : *queue) {
        if (waiting.size() >= kListedMax) break;
        std::string reason;
        if (NeedsAbsentPeer(entry.op)) {
          reason = "the worker of the other end of a transfer";
          const auto absent = transfers_.Select([&](const ctl::Transfer& transfer) {
            const Life* peer = transfer.to == &life ? transfer.from : transfer.to;
            return (transfer.to == &life || transfer.from == &life) && !peer->up;
          });
          if (!absent.empty()) {
            const ctl::Transfer& transfer = *transfers_.Find(absent[0]);
            const Life* peer = transfer.to == &life ? transfer.from : transfer.to;
            reason = absl::StrCat("a worker at ", cluster_.slots()[static_cast<size_t>(peer->slot)].id.ToString());
          }
        } else if (queue == &life.blocked) {
          reason = "an operation before it that waits";
        } else if (!life.up) {
          reason = absl::StrCat("a worker at ", slot.id.ToString());
        } else {
          reason = absl::StrCat(life.unfinished, " launches there that have not ended");
        }
        json item = {{"what", Describe(entry.op)}, {"waits_for", reason}};
        if (entry.session.valid()) item["session"] = entry.session.ToString();
        const Ticket ticket = ctl::TicketOf(entry.op);
        if (ticket.valid()) {
          item["ticket"] = ticket.ToString();
          if (const ctl::Node* node = nodes_.Find(ticket)) item["age_ms"] = (now - node->since) / kMillisecond;
        }
        if (entry.op.has_launch()) item["name"] = programs_.NameOf(ExecutableId(entry.op.launch().executable()));
        if (entry.op.has_launch() && !entry.op.launch().call_site().empty()) {
          item["call_site"] = entry.op.launch().call_site();
        }
        waiting.push_back(std::move(item));
      }
    }
    at["waiting"] = std::move(waiting);
    at["sent"] = sent_to.contains(&life) ? sent_to[&life] : json::array();
    slots.push_back(std::move(at));
  }
  out["slots"] = std::move(slots);
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

void Controller::Impl::Explain(RequestId request, TimeNs now, bool graph) {
  std::vector<Life*> lives;
  std::vector<std::string> names;
  for (ctl::ClusterTable::Slot& slot : cluster_.slots()) {
    if (!slot.life->up) continue;
    lives.push_back(slot.life.get());
    names.push_back(slot.id.ToString());
  }
  requests_.OpenExplain(request, graph ? GraphJson() : StatusJson(now), lives, std::move(names));
  for (Life* life : lives) {
    WorkerOp op;
    op.mutable_explain()->set_request(request.value());
    op.mutable_explain()->set_graph(graph);
    dispatcher_.SendNow(life, std::move(op));
  }
}

}  // namespace landbridge
