// Copies and resharding: arrays put together from pieces of others, wherever those are.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {

absl::StatusOr<ctl::PlanPtr> Controller::Impl::PlanMove(const Array& array, const ArraySpec& target,
                                                        CopySemantics semantics) {
  const bool keep = semantics != CopySemantics::kAlwaysCopy;
  const ArraySpec& have = *array.spec;
  if (buffers_.Error(array).ok()) return plans_.Get(have.dims, have.sharding, target.sharding, keep, nullptr);
  std::vector<bool> usable(array.size());
  for (uint32_t i = 0; i < array.size(); ++i) usable[i] = !array.at(i)->Is(Shard::kFailed);
  return plans_.Get(have.dims, have.sharding, target.sharding, keep, &usable);
}

// The shards of the array that are at the worker.
void Controller::Impl::NameSource(const Array& array, const ctl::Plan::Worker& worker, ReshardSource* proto) const {
  if (array.form == Array::Form::kWhole) {
    proto->set_array(array.group->id.value());
    return;
  }
  for (uint32_t shard : worker.source) {
    const BufferRef ref = array.at(shard).ref();
    BufferRefProto* out = proto->add_shards();
    out->set_array(ref.array.value());
    out->set_shard(ref.shard);
  }
}

// The arrays that hold its shards.
std::vector<ArrayId> Controller::Impl::SourcesOf(const Array& array) const {
  std::vector<ArrayId> sources;
  for (uint32_t i = 0; i < array.size(); ++i) {
    const ArrayId id = array.at(i).group->id;
    if (sources.empty() || sources.back() != id) sources.push_back(id);
  }
  return sources;
}

// Puts the new array together: kept shards, and those that the plan's workers are told to make.
ArrayId Controller::Impl::Move(SessionId session, const Array& source, SpecPtr spec, const ctl::PlanPtr& plan,
                               uint64_t user_context, TimeNs now) {
  const ArrayId id = buffers_.NextId();
  const auto count = static_cast<uint32_t>(plan->plan.targets.size());
  const std::vector<DeviceId>& devices = spec->sharding->devices();
  const auto dtype = static_cast<int32_t>(spec->dtype);
  Group* group = nullptr;
  std::vector<ShardRef> refs(count);
  for (const ReshardTarget& target : plan->plan.targets) {
    const uint32_t i = target.shard;
    if (target.kept) {
      refs[i] = source.at(*target.kept);
      continue;
    }
    if (group == nullptr) group = buffers_.NewGroup(id, count, DeviceBytes(spec->dtype, target.dims).value_or(0));
    refs[i] = {group, i};
    if (target.unavailable) {
      buffers_.MarkFailed(group, i, source.at(*target.unavailable)->error);
      continue;
    }
    refs[i]->life = cluster_.LifeOf(devices[i]);
    refs[i]->flags = Shard::kTold;
  }
  buffers_.NewView(id, session, std::move(spec), std::move(refs));

  auto life_at = [this](int64_t slot) { return cluster_.slots()[static_cast<size_t>(slot)].life.get(); };
  std::vector<TransferId> transfers;
  for (uint32_t e = 0; e < plan->plan.edges.size(); ++e) {
    const ReshardEdge& edge = plan->plan.edges[e];
    ctl::Transfer transfer{session, life_at(edge.from), life_at(edge.to), id, plan, e, false, false, {}};
    if (options_.sequential_dispatch && !edge.passed_on) transfer.sources = SourcesOf(source);
    transfers.push_back(transfers_.Add(std::move(transfer)));
  }
  auto send = [&](bool passed_on) {
    for (uint32_t e = 0; e < plan->plan.edges.size(); ++e) {
      const ReshardEdge& edge = plan->plan.edges[e];
      if (edge.passed_on != passed_on) continue;
      WorkerOp op;
      ReshardSend* out = op.mutable_reshard_send();
      out->set_ticket(nodes_.NextTicket().value());
      out->set_transfer(transfers[e].value());
      out->set_dtype(dtype);
      out->set_edge(e);
      if (passed_on) {
        out->set_target(id.value());
      } else {
        NameSource(source, plan->At(static_cast<int>(edge.from)), out->mutable_source());
      }
      dispatcher_.Send(life_at(edge.from), std::move(op), session);
    }
  };
  send(false);
  for (const ctl::Plan::Worker& worker : plan->workers) {
    if (worker.makes.empty()) continue;
    Life* life = life_at(worker.slot);
    const Ticket ticket = nodes_.NextTicket();
    ctl::Node& node = nodes_.Add(ticket, life, session, now);
    nodes_.AddArray(node, id);
    node.shards = worker.makes;
    node.plan = plan;
    WorkerOp op;
    ReshardReceive* out = op.mutable_reshard_receive();
    out->set_ticket(ticket.value());
    out->set_session(session.value());
    out->set_user_context(user_context);
    out->set_dtype(dtype);
    if (worker.uses_source) NameSource(source, worker, out->mutable_source());
    out->set_target(id.value());
    for (uint32_t e : worker.edges_in) out->add_edges()->set_transfer(transfers[e].value());
    dispatcher_.Send(life, std::move(op), session);
  }
  send(true);  // after what makes it, on the same stream
  return id;
}

// Donation: the array is gone; buffers that the result does not hold go with it, after they have been read. (Of what
// is lost other arrays may still hold the rest.)
void Controller::Impl::GiveUp(Array* source, const ctl::Plan& plan) {
  if (plan.keeps) {
    buffers_.Abandon(source);
  } else {
    buffers_.Destroy(source);
  }
}

absl::StatusOr<std::vector<ArrayId>> Controller::Impl::MoveAll(SessionId session, const std::vector<Array*>& arrays,
                                                               std::vector<SpecPtr> specs, CopySemantics semantics,
                                                               uint64_t user_context, TimeNs now) {
  std::vector<ctl::PlanPtr> plans;  // all of them before anything is changed
  for (size_t i = 0; i < arrays.size(); ++i) {
    ctl::PlanPtr& plan = plans.emplace_back();
    if (arrays[i]->form == Array::Form::kNone) continue;
    LB_ASSIGN_OR_RETURN(plan, PlanMove(*arrays[i], *specs[i], semantics));
  }
  std::vector<ArrayId> results;
  for (size_t i = 0; i < arrays.size(); ++i) {
    Array* array = arrays[i];
    if (plans[i] == nullptr) {
      results.push_back(buffers_.NextId());
      buffers_.NewError(results.back(), session, std::move(specs[i]), array->error);
      if (semantics == CopySemantics::kDonate) buffers_.Abandon(array);
      continue;
    }
    results.push_back(Move(session, *array, std::move(specs[i]), plans[i], user_context, now));
    if (semantics == CopySemantics::kDonate) GiveUp(array, *plans[i]);
  }
  return results;
}

absl::StatusOr<std::vector<ArrayId>> Controller::Impl::Copy(SessionId session, absl::Span<const ArrayId> ids,
                                                            const std::vector<DeviceId>* devices,
                                                            const MemoryKind* memory, CopySemantics semantics,
                                                            uint64_t user_context, TimeNs now) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  std::vector<Array*> arrays;
  std::vector<SpecPtr> specs;
  std::shared_ptr<const Sharding> last_source, last_target;  // usually the same for all
  for (ArrayId id : ids) {
    LB_ASSIGN_OR_RETURN(Array * array, FindToMove(session, id, arrays, semantics, "copy"));
    const ArraySpec& spec = *array->spec;
    if (spec.sharding != last_source) {
      std::shared_ptr<const Sharding> target = spec.sharding;
      if (devices != nullptr) {
        LB_ASSIGN_OR_RETURN(target, target->WithDevices(*devices));
        LB_RETURN_IF_ERROR(cluster_.CheckDevices(*target));
      }
      if (memory != nullptr && target->memory() != *memory) target = target->WithMemory(*memory);
      last_source = spec.sharding;
      last_target = std::move(target);
    }
    arrays.push_back(array);
    specs.push_back(Share(ArraySpec{spec.dtype, spec.dims, last_target}));
  }
  return MoveAll(session, arrays, std::move(specs), semantics, user_context, now);
}

absl::StatusOr<Controller::Impl::Array*> Controller::Impl::FindToMove(SessionId session, ArrayId id,
                                                                      const std::vector<Array*>& others,
                                                                      CopySemantics semantics,
                                                                      absl::string_view what) const {
  LB_ASSIGN_OR_RETURN(Array * array, FindLiving(session, id, what));
  if (semantics == CopySemantics::kDonate && std::find(others.begin(), others.end(), array) != others.end()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": the same array is donated twice"));
  }
  return array;
}

absl::StatusOr<std::vector<ArrayId>> Controller::Impl::Reshard(SessionId session, absl::Span<const ArrayId> ids,
                                                               std::vector<ArraySpec> outputs, CopySemantics semantics,
                                                               uint64_t user_context, TimeNs now) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  if (ids.size() != outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("reshard: ", ids.size(), " arrays, ", outputs.size(), " targets"));
  }
  std::vector<Array*> arrays;
  std::vector<SpecPtr> specs;
  for (size_t i = 0; i < ids.size(); ++i) {
    LB_ASSIGN_OR_RETURN(Array * array, FindToMove(session, ids[i], arrays, semantics, "reshard"));
    const ArraySpec& have = *array->spec;
    LB_RETURN_IF_ERROR(CheckSpec(outputs[i]));
    if (have.dtype != outputs[i].dtype || have.dims != outputs[i].dims) {
      return absl::InvalidArgumentError(absl::StrCat("reshard: ", DTypeName(have.dtype), DimsToString(have.dims),
                                                     " cannot become ", DTypeName(outputs[i].dtype),
                                                     DimsToString(outputs[i].dims)));
    }
    arrays.push_back(array);
    specs.push_back(Share(std::move(outputs[i])));
  }
  return MoveAll(session, arrays, std::move(specs), semantics, user_context, now);
}

// ---------------------------------------------------------------- transfers

void Controller::Impl::CancelPublication(Life* source, TransferId id) {
  dispatcher_.EditWaiting(source, [id](ctl::ParkedOp* entry, std::vector<ctl::ParkedOp>*) {
    return !(entry->op.has_reshard_send() && entry->op.reshard_send().transfer() == id.value());
  });
  dispatcher_.Recheck(source);
}

void Controller::Impl::EndTransfer(TransferId id) {
  const ctl::Transfer* found = transfers_.Find(id);
  if (found == nullptr) return;
  const ctl::Transfer transfer = *found;
  transfers_.Erase(id);
  if (transfer.published) {
    dispatcher_.EndTransfer(transfer.from, id, transfer.pieces());
  } else {
    CancelPublication(transfer.from, id);
  }
}

}  // namespace landbridge
