#include "controller/op_refs.h"

#include <algorithm>

namespace landbridge::ctl {
namespace {

// Programs are ordered like buffers: loaded before launches, unloaded after them.
uint64_t ProgramKey(uint64_t executable) { return executable | uint64_t{1} << 63; }

void UseSource(const ReshardSource& source, OpRefs* refs) {
  if (source.shards_size() == 0) refs->uses.push_back(source.array());
  for (const BufferRefProto& shard : source.shards()) {
    if (refs->uses.empty() || refs->uses.back() != shard.array()) refs->uses.push_back(shard.array());
  }
}

}  // namespace

OpRefs RefsOf(const WorkerOp& op) {
  OpRefs refs;
  switch (op.op_case()) {
    case WorkerOp::kLaunch: {
      const Launch& launch = op.launch();
      int next_donated = 0;
      for (int i = 0; i < launch.args_size(); ++i) {
        const bool donated =
            next_donated < launch.donated_size() && launch.donated(next_donated) == static_cast<uint32_t>(i);
        if (donated) ++next_donated;
        auto& list = donated ? refs.ends : refs.uses;
        const LaunchArg& arg = launch.args(i);
        if (arg.shards_size() == 0) list.push_back(arg.array());
        for (const BufferRefProto& shard : arg.shards()) {
          if (list.empty() || list.back() != shard.array()) list.push_back(shard.array());
        }
      }
      for (uint64_t output : launch.outputs()) refs.makes.push_back(output);
      refs.uses.push_back(ProgramKey(launch.executable()));
      break;
    }
    case WorkerOp::kLoad: refs.makes.push_back(ProgramKey(op.load().executable())); break;
    case WorkerOp::kUnload: refs.ends.push_back(ProgramKey(op.unload().executable())); break;
    case WorkerOp::kUpload:
      for (const Target& target : op.upload().targets()) refs.makes.push_back(target.ref().array());
      break;
    case WorkerOp::kReshardReceive:
      refs.makes.push_back(op.reshard_receive().target());
      if (op.reshard_receive().has_source()) UseSource(op.reshard_receive().source(), &refs);
      break;
    case WorkerOp::kReshardSend:
      if (op.reshard_send().has_source()) UseSource(op.reshard_send().source(), &refs);
      if (op.reshard_send().target() != 0) refs.uses.push_back(op.reshard_send().target());
      break;
    case WorkerOp::kRead: refs.uses.push_back(op.read().ref().array()); break;
    case WorkerOp::kWatch:
      for (uint64_t array : op.watch().arrays()) refs.uses.push_back(array);
      for (const BufferRefProto& shard : op.watch().shards()) refs.uses.push_back(shard.array());
      break;
    case WorkerOp::kDelete:
      for (uint64_t array : op.delete_().arrays()) refs.ends.push_back(array);
      for (const BufferRefProto& shard : op.delete_().shards()) refs.ends.push_back(shard.array());
      break;
    case WorkerOp::kPoison:
      for (const Target& target : op.poison().targets()) refs.makes.push_back(target.ref().array());
      break;
    default: break;
  }
  return refs;
}

bool IsNode(const WorkerOp& op) { return op.has_launch() || op.has_upload() || op.has_reshard_receive(); }

Ticket TicketOf(const WorkerOp& op) {
  switch (op.op_case()) {
    case WorkerOp::kLaunch: return Ticket(op.launch().ticket());
    case WorkerOp::kUpload: return Ticket(op.upload().ticket());
    case WorkerOp::kReshardReceive: return Ticket(op.reshard_receive().ticket());
    case WorkerOp::kReshardSend: return Ticket(op.reshard_send().ticket());
    default: return Ticket();
  }
}

void HeldRefs::Add(const OpRefs& refs, uint64_t order) {
  for (uint64_t array : refs.makes) {
    uint64_t& makes = held_.TryEmplace(array).first->makes;
    makes = std::max(makes, order);
  }
  for (uint64_t array : refs.uses) {
    uint64_t& uses = held_.TryEmplace(array).first->uses;
    uses = std::max(uses, order);
  }
}

bool HeldRefs::Holds(uint64_t array, uint64_t front) const {
  const Latest* latest = held_.Find(array);
  return latest != nullptr && std::max(latest->makes, latest->uses) >= front;
}

bool HeldRefs::MustFollow(const OpRefs& refs, uint64_t front) const {
  if (held_.empty()) return false;
  for (uint64_t array : refs.uses) {
    const Latest* latest = held_.Find(array);
    if (latest != nullptr && latest->makes >= front) return true;
  }
  return std::any_of(refs.ends.begin(), refs.ends.end(), [&](uint64_t array) { return Holds(array, front); });
}

void HeldRefs::Trim(size_t waiting, uint64_t front) {
  if (waiting == 0) {
    if (!held_.empty()) held_.Clear();
    trim_at_ = kKeptMin;
    return;
  }
  if (held_.size() < trim_at_) return;
  held_.EraseIf([&](uint64_t, const Latest& latest) { return std::max(latest.makes, latest.uses) < front; });
  trim_at_ = std::max(kKeptMin, 2 * held_.size());
}

}  // namespace landbridge::ctl
