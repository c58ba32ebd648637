// What each unready node waits for, in words that a person can act on (landbridge why, status). Lists are cut at
// limits::kExplained*.
#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "nlohmann/json.hpp"
#include "worker/launch_queue.h"
#include "worker/observers.h"
#include "worker/transfers.h"

namespace landbridge {
namespace {

using nlohmann::json;

const char* StateName(BufferState state) {
  switch (state) {
    case BufferState::kPending: return "pending";
    case BufferState::kEnqueued: return "enqueued";
    case BufferState::kResident: return "resident";
    case BufferState::kPoisoned: return "poisoned";
  }
  return "?";
}

double Millis(DurationNs duration) { return static_cast<double>(duration) / kMillisecond; }

void Cut(json* reasons, size_t missing) {
  if (missing > 0) reasons->push_back({{"what", "more"}, {"count", missing}});
}

class Reasons {
 public:
  void Add(json reason) {
    if (list_.size() < limits::kExplainedReasonsMax) {
      list_.push_back(std::move(reason));
    } else {
      ++more_;
    }
  }
  void AddInput(const Buffer& buffer) {
    BufferTable::ForEachPlace(buffer, [&](BufferRef ref, PoolId pool) {
      Add({{"what", "input"},
           {"ref", ref.ToString()},
           {"state", StateName(buffer.state)},
           {"made_by", buffer.producer.ToString()},
           {"on", pool.ToString()}});
    });
  }
  // Of those that somebody else still needs.
  void AddDonation(const Buffer& buffer) {
    BufferTable::ForEachPart(buffer, [&](const Buffer& part) { AddDonation(part); });
    if (BufferTable::Separated(buffer) || buffer.donor_cleared) return;
    BufferTable::ForEachPlace(buffer, [&](BufferRef ref, PoolId) {
      Add({{"what", "readers"},
           {"ref", ref.ToString()},
           {"launches", buffer.unplaced_readers},
           {"transfers", buffer.transfers}});
    });
  }
  void AddMemory(const MemoryAdmission& memory, const MemoryNeeds& needs, Ticket ticket) {
    for (const MemoryNeeds::Need& need : needs.all()) {
      if (!need.waits) continue;
      const MemoryAdmission::Figures figures = memory.figures(need.pool);
      json reason = {{"what", "memory"},
                     {"on", need.pool.ToString()},
                     {"bytes", need.bytes},
                     {"bytes_in_use", figures.used},
                     {"bytes_limit", figures.limit}};
      const auto head = memory.Head(need.pool);
      if (head && head->ticket != ticket) reason["behind"] = head->ticket.ToString();
      Add(std::move(reason));
    }
  }
  json Take() {
    Cut(&list_, more_);
    return std::move(list_);
  }

 private:
  json list_ = json::array();
  size_t more_ = 0;
};

// The oldest first, at most kExplainedNodesMax.
template <typename Node>
std::vector<const Node*> Oldest(const Slab<Node>& slab) {
  std::vector<const Node*> nodes;
  slab.ForEach([&](SlabHandle, const Node& node) { nodes.push_back(&node); });
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->arrived < b->arrived; });
  if (nodes.size() > limits::kExplainedNodesMax) nodes.resize(limits::kExplainedNodesMax);
  return nodes;
}

}  // namespace

void LaunchQueue::ExplainNode(const Node& node, TimeNs now, json* out) const {
  const char* state = node.stage == Stage::kWaiting     ? "waiting"
                      : node.stage == Stage::kCandidate ? "runnable"
                      : node.stage == Stage::kPlaced    ? "handed over"
                                                        : "done";
  json entry = {{"ticket", node.ticket.ToString()},
                {"session", node.session.ToString()},
                {"state", state},
                {"executable", ExecutableId(node.op->executable()).ToString()},
                {"age_ms", Millis(now - node.arrived)},
                {"devices", std::vector<uint32_t>(node.devices.begin(), node.devices.end())}};
  if (!node.op->call_site().empty()) entry["call_site"] = node.op->call_site();
  auto program = programs_.find(ExecutableId(node.op->executable()));
  if (program != programs_.end()) entry["name"] = program->second->info.name();
  if (node.place != 0) entry["place"] = node.place;

  Reasons reasons;
  if (node.stage == Stage::kWaiting) {
    if (node.promised && !spans_->MayStart(NumberOf(*node.op))) {
      reasons.Add(
          {{"what", "turn"}});  // its other parts are not ready, or others of its devices have their turn before
    }
    if (node.load_missing) reasons.Add({{"what", "load"}, {"executable", entry["executable"]}});
    for (const Buffer* buffer : node.inputs) {
      if (!IsUsable(node, *buffer)) reasons.AddInput(*buffer);
    }
    for (const Buffer* buffer : node.donated) reasons.AddDonation(*buffer);
    reasons.AddMemory(context_->memory, node.memory, node.ticket);
  } else if (node.stage == Stage::kCandidate) {
    entry["runnable_ms"] = Millis(now - node.ready_since);
    const Candidate candidate = MakeCandidate(node);
    bool full = false;
    for (uint32_t device : node.devices) {
      if (sequencer_.HasRoom(candidate, device)) continue;
      full = true;
      reasons.Add({{"what", "room"}, {"device", device}, {"placed", sequencer_.placed(device)}});
    }
    if (sequencer_.OverBudget(candidate)) {
      reasons.Add({{"what", "activation budget"}});
    } else if (!full) {
      reasons.Add({{"what", "turn"}});
    }
  } else if (node.stage == Stage::kPlaced) {
    reasons.Add({{"what", "completion"}});
  } else {
    reasons.Add({{"what", "earlier launches on its devices"}});
  }
  entry["waits_for"] = reasons.Take();
  out->push_back(std::move(entry));
}

void LaunchQueue::Explain(TimeNs now, json* out) const {
  (*out)["order_log"] = {
      {"epoch", sequencer_.epoch()}, {"tail", sequencer_.tail()}, {"done_through", sequencer_.done_through()}};
  std::vector<const Node*> nodes;
  launches_.ForEach([&](SlabHandle, const Node& node) { nodes.push_back(&node); });
  std::sort(nodes.begin(), nodes.end(), [](const Node* a, const Node* b) { return a->ticket < b->ticket; });
  if (nodes.size() > limits::kExplainedNodesMax) nodes.resize(limits::kExplainedNodesMax);
  json launches = json::array();
  for (const Node* node : nodes) ExplainNode(*node, now, &launches);
  (*out)["launches"] = std::move(launches);
  (*out)["launches_total"] = launches_.size();

  json loading = json::array();
  for (const auto& [id, program] : programs_) {
    if (!program->loaded && program->failed.ok()) loading.push_back(id.ToString());
  }
  std::sort(loading.begin(), loading.end());
  (*out)["loading"] = std::move(loading);
}

void Transfers::Explain(TimeNs now, json* out) const {
  json uploads = json::array();
  for (const UploadNode* node : Oldest(uploads_)) {
    Reasons reasons;
    reasons.AddMemory(context_->memory, node->memory, node->ticket);
    if (node->memory.waiting() == 0)
      reasons.Add({{"what", node->cancelled != nullptr ? "end of a cancelled pull" : "bytes"}});
    uploads.push_back({{"ticket", node->ticket.ToString()},
                       {"key", node->op->key()},
                       {"bytes", node->op->image_bytes()},
                       {"age_ms", Millis(now - node->arrived)},
                       {"waits_for", reasons.Take()}});
  }
  (*out)["uploads"] = std::move(uploads);
  (*out)["uploads_total"] = uploads_.size();

  std::vector<const MakePart*> parts;
  parts_.ForEach([&](SlabHandle, const MakePart& part) { parts.push_back(&part); });
  std::sort(parts.begin(), parts.end(), [](const MakePart* a, const MakePart* b) {
    return std::make_pair(a->ticket, a->index) < std::make_pair(b->ticket, b->index);
  });
  if (parts.size() > limits::kExplainedNodesMax) parts.resize(limits::kExplainedNodesMax);
  json makes = json::array();
  for (const MakePart* part : parts) {
    Reasons reasons;
    if (!part->started) {
      for (const Buffer* source : part->sources) {
        if (source->state != BufferState::kResident) reasons.AddInput(*source);
      }
      for (const Buffer* source : part->donated) {
        if (!source->donor_cleared) reasons.AddDonation(*source);
      }
      reasons.AddMemory(context_->memory, part->memory, part->ticket);
    } else {
      for (const Piece& piece : part->spec().pieces()) {
        if (!piece.has_remote()) continue;
        reasons.Add({{"what", part->cancelled != nullptr ? "end of a cancelled pull" : "bytes of a peer"},
                     {"peer", Incarnation(piece.remote().incarnation()).ToString()},
                     {"transfer", TransferId(piece.remote().transfer()).ToString()}});
      }
    }
    makes.push_back({{"ticket", part->ticket.ToString()},
                     {"ref", part->target->ref.ToString()},
                     {"age_ms", Millis(now - part->make->arrived)},
                     {"started", part->started},
                     {"waits_for", reasons.Take()}});
  }
  (*out)["makes"] = std::move(makes);
  (*out)["makes_total"] = parts_.size();

  json publishes = json::array();
  for (const PublishNode* node : Oldest(publishes_)) {
    const char* state = node->stage == PublishStage::kWaiting   ? "waiting"
                        : node->stage == PublishStage::kOffered ? "offered"
                        : node->stage == PublishStage::kFailed  ? "failed"
                                                                : "stopping";
    Reasons reasons;
    if (node->stage == PublishStage::kWaiting) reasons.AddInput(*node->buffer);
    publishes.push_back({{"transfer", node->transfer.ToString()},
                         {"ref", RefFromProto(node->op.ref()).ToString()},
                         {"peer", node->peer.ToString()},
                         {"state", state},
                         {"age_ms", Millis(now - node->arrived)},
                         {"waits_for", reasons.Take()}});
  }
  (*out)["publishes"] = std::move(publishes);
  (*out)["publishes_total"] = publishes_.size();
}

void Observers::Explain(TimeNs now, json* out) const {
  json reads = json::array();
  for (const ReadNode* node : Oldest(reads_)) {
    Reasons reasons;
    if (!node->started) reasons.AddInput(*node->buffer);
    reads.push_back({{"read", RequestId(node->op.read()).ToString()},
                     {"ref", RefFromProto(node->op.ref()).ToString()},
                     {"started", node->started},
                     {"age_ms", Millis(now - node->arrived)},
                     {"waits_for", reasons.Take()}});
  }
  (*out)["reads"] = std::move(reads);
  (*out)["reads_total"] = reads_.size();
  (*out)["watches_total"] = watches_.size();
}

}  // namespace landbridge
