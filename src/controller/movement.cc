// Copies and resharding: arrays put together from pieces of others, wherever those are.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {
namespace {

void FillBox(const IndexBox& box, Box* proto) {
  proto->mutable_start()->Add(box.start.begin(), box.start.end());
  proto->mutable_limit()->Add(box.limit.begin(), box.limit.end());
}

void FillRef(BufferRef ref, BufferRefProto* proto) {
  proto->set_array(ref.array.value());
  proto->set_shard(ref.shard);
}

}  // namespace

void Controller::Impl::SendMake(Life* life, Ticket ticket, MakeBuffers make, SessionId session, ArrayId array,
                                TimeNs now) {
  ctl::Node node{life, session, {array}, {}, absl::OkStatus(), false, now};
  for (const MakeBuffer& buffer : make.buffers()) node.shards.push_back(buffer.target().ref().shard());
  nodes_.Add(ticket, std::move(node));
  WorkerOp op;
  *op.mutable_make() = std::move(make);
  dispatcher_.Send(life, std::move(op), session);
}

ArrayId Controller::Impl::Build(SessionId session, SpecPtr spec, std::vector<NewShard> shards, uint64_t user_context,
                                TimeNs now) {
  const ArrayId id = buffers_.NextId();
  const std::vector<DeviceId>& devices = spec->sharding->devices();
  const auto count = static_cast<uint32_t>(shards.size());
  Group* group = nullptr;
  std::vector<ShardRef> refs(count);
  for (uint32_t i = 0; i < count; ++i) {
    NewShard& shard = shards[i];
    if (shard.how == NewShard::How::kAlias) {
      refs[i] = shard.alias;
      continue;
    }
    if (group == nullptr) group = buffers_.NewGroup(id, count, DeviceBytes(spec->dtype, shard.dims).value_or(0));
    refs[i] = {group, i};
    if (shard.how == NewShard::How::kFail) {
      buffers_.MarkFailed(group, i, shard.error);
      continue;
    }
    refs[i]->life = cluster_.LifeOf(devices[i]);
    refs[i]->flags = Shard::kTold;
  }
  buffers_.NewView(id, session, spec, refs);

  // By worker of the destination: what comes from sources, then copies of that.
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < count; ++i) {
    if (shards[i].how == NewShard::How::kMake) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return cluster_.At(devices[a]).slot < cluster_.At(devices[b]).slot;
  });
  struct Part {
    Life* life;
    MakeBuffers make;
    MakeBuffers copies;
  };
  std::vector<Part> makes;
  std::vector<std::pair<Life*, WorkerOp>> publishes;
  for (uint32_t i : order) {
    NewShard& shard = shards[i];
    Life* life = refs[i]->life;
    if (makes.empty() || makes.back().life != life) makes.push_back({life, {}, {}});
    MakeBuffers& op = shard.copy_of ? makes.back().copies : makes.back().make;
    MakeBuffer* buffer = op.add_buffers();
    FillRef({id, i}, buffer->mutable_target()->mutable_ref());
    buffer->mutable_target()->set_device(cluster_.At(devices[i]).ordinal);
    buffer->mutable_target()->set_memory(static_cast<MemoryKindProto>(spec->sharding->memory()));
    buffer->set_dtype(static_cast<int32_t>(spec->dtype));
    buffer->mutable_dims()->Add(shard.dims.begin(), shard.dims.end());
    if (shard.copy_of) {
      Piece* piece = buffer->add_pieces();
      FillRef({id, *shard.copy_of}, piece->mutable_local());
      piece->mutable_source_dims()->Add(shard.dims.begin(), shard.dims.end());
      continue;
    }
    for (NewShard::Source& source : shard.pieces) {
      Piece* piece = buffer->add_pieces();
      const bool whole_source = source.source_box.Covers(source.source_dims);
      if (!whole_source) FillBox(source.source_box, piece->mutable_source_box());
      if (!source.target_box.Covers(shard.dims)) FillBox(source.target_box, piece->mutable_target_box());
      piece->mutable_source_dims()->Add(source.source_dims.begin(), source.source_dims.end());
      Life* from = source.shard->life;
      if (from == life) {
        FillRef(source.shard.ref(), piece->mutable_local());
        continue;
      }
      const TransferId transfer = transfers_.Add({session, from, life, source.shard.ref(), {id, i}, false, false});
      piece->mutable_remote()->set_transfer(transfer.value());
      publishes.emplace_back(from, WorkerOp());
      Publish* publish = publishes.back().second.mutable_publish();
      publish->set_ticket(nodes_.NextTicket().value());
      publish->set_transfer(transfer.value());
      FillRef(source.shard.ref(), publish->mutable_ref());
      publish->mutable_dims()->Add(source.source_dims.begin(), source.source_dims.end());
      publish->set_dtype(static_cast<int32_t>(spec->dtype));
      if (!whole_source) FillBox(source.source_box, publish->mutable_box());
    }
  }
  for (auto& [life, op] : publishes) dispatcher_.Send(life, std::move(op), session);
  for (Part& part : makes) {
    for (MakeBuffers* make : {&part.make, &part.copies}) {
      if (make->buffers_size() == 0) continue;
      const Ticket ticket = nodes_.NextTicket();
      make->set_ticket(ticket.value());
      make->set_session(session.value());
      make->set_user_context(user_context);
      SendMake(part.life, ticket, std::move(*make), session, id, now);
    }
  }
  return id;
}

// Donation to a copy: the array is gone; buffers that the copy does not hold go with it, after the copy has read them.
void Controller::Impl::GiveUp(Array* source, const std::vector<NewShard>& used) {
  const bool aliased = std::any_of(used.begin(), used.end(),
                                   [](const NewShard& shard) { return shard.how == NewShard::How::kAlias; });
  if (!aliased) {
    buffers_.Destroy(source);
    return;
  }
  buffers_.Abandon(source);
}

Controller::Impl::NewShard Controller::Impl::PlanCopy(const Array& source, uint32_t index, DeviceId to,
                                                      MemoryKind memory, CopySemantics semantics) const {
  NewShard result;
  const ShardRef shard = source.at(index);
  const Sharding& sharding = *source.spec->sharding;
  if (semantics != CopySemantics::kAlwaysCopy && sharding.devices()[index] == to && sharding.memory() == memory) {
    result.how = NewShard::How::kAlias;
    result.alias = shard;
    return result;
  }
  result.dims = *sharding.ShardDims(source.spec->dims, index);
  if (shard->Is(Shard::kFailed)) {
    result.how = NewShard::How::kFail;
    result.error = shard->error;
    return result;
  }
  const IndexBox whole = IndexBox::Whole(result.dims);
  result.pieces.push_back({shard, whole, whole, result.dims, 0});
  return result;
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
    LB_ASSIGN_OR_RETURN(Array * array, FindLiving(session, id, "copy"));
    if (semantics == CopySemantics::kDonate && std::find(arrays.begin(), arrays.end(), array) != arrays.end()) {
      return absl::InvalidArgumentError("copy: the same array is donated twice");
    }
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
  std::vector<ArrayId> results;
  for (size_t i = 0; i < arrays.size(); ++i) {
    Array* array = arrays[i];
    if (array->form == Array::Form::kNone) {
      results.push_back(buffers_.NextId());
      buffers_.NewError(results.back(), session, specs[i], array->error);
      if (semantics == CopySemantics::kDonate) buffers_.Abandon(array);
      continue;
    }
    std::vector<NewShard> shards;
    const Sharding& target = *specs[i]->sharding;
    for (uint32_t s = 0; s < array->size(); ++s) {
      shards.push_back(PlanCopy(*array, s, target.devices()[s], target.memory(), semantics));
    }
    if (semantics == CopySemantics::kDonate) {
      const std::vector<NewShard> used = shards;
      results.push_back(Build(session, specs[i], std::move(shards), user_context, now));
      GiveUp(array, used);
    } else {
      results.push_back(Build(session, specs[i], std::move(shards), user_context, now));
    }
  }
  return results;
}

absl::StatusOr<std::vector<ArrayId>> Controller::Impl::Reshard(SessionId session, absl::Span<const ArrayId> ids,
                                                               std::vector<ArraySpec> outputs,
                                                               CopySemantics semantics, uint64_t user_context,
                                                               TimeNs now) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  if (ids.size() != outputs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("reshard: ", ids.size(), " arrays, ", outputs.size(), " targets"));
  }
  std::vector<Array*> arrays;
  std::vector<std::vector<NewShard>> plans(ids.size());
  auto location = [this](DeviceId device) { return cluster_.LocationOf(device); };
  for (size_t i = 0; i < ids.size(); ++i) {
    LB_ASSIGN_OR_RETURN(Array * array, FindLiving(session, ids[i], "reshard"));
    if (semantics == CopySemantics::kDonate && std::find(arrays.begin(), arrays.end(), array) != arrays.end()) {
      return absl::InvalidArgumentError("reshard: the same array is donated twice");
    }
    arrays.push_back(array);
    const ArraySpec& have = *array->spec;
    LB_RETURN_IF_ERROR(CheckSpec(outputs[i]));
    if (have.dtype != outputs[i].dtype || have.dims != outputs[i].dims) {
      return absl::InvalidArgumentError(absl::StrCat("reshard: ", DTypeName(have.dtype), DimsToString(have.dims),
                                                     " cannot become ", DTypeName(outputs[i].dtype),
                                                     DimsToString(outputs[i].dims)));
    }
    if (array->form == Array::Form::kNone) continue;
    const Sharding& target = *outputs[i].sharding;
    if (have.sharding->SamePartitioning(target)) {
      for (uint32_t s = 0; s < array->size(); ++s) {
        plans[i].push_back(PlanCopy(*array, s, target.devices()[s], target.memory(), semantics));
      }
      if (!have.sharding->HasBoxes() ||
          std::all_of(plans[i].begin(), plans[i].end(),
                      [](const NewShard& shard) { return shard.how == NewShard::How::kAlias; })) {
        continue;
      }
      plans[i].clear();
    }
    std::vector<bool> usable(array->size());
    for (uint32_t s = 0; s < array->size(); ++s) usable[s] = !array->at(s)->Is(Shard::kFailed);
    LB_ASSIGN_OR_RETURN(ReshardPlan plan, PlanReshard(have.dims, *have.sharding, target, location, &usable));
    plans[i].resize(plan.targets.size());
    for (ReshardTarget& want : plan.targets) {
      NewShard& shard = plans[i][want.shard];
      shard.dims = want.dims;
      shard.copy_of = want.copy_of;
      if (want.unavailable) {
        shard.how = NewShard::How::kFail;
        shard.error = array->at(*want.unavailable)->error;
        continue;
      }
      // The very shard, where it is: donated, it need not move.
      if (semantics == CopySemantics::kDonate && want.pieces.size() == 1 && !want.copy_of) {
        const ReshardPiece& piece = want.pieces[0];
        const Dims source_dims = *have.sharding->ShardDims(have.dims, piece.source_shard);
        if (have.sharding->devices()[piece.source_shard] == target.devices()[want.shard] &&
            have.sharding->memory() == target.memory() && piece.source_box.Covers(source_dims)) {
          shard.how = NewShard::How::kAlias;
          shard.alias = array->at(piece.source_shard);
          continue;
        }
      }
      for (ReshardPiece& piece : want.pieces) {
        LB_ASSIGN_OR_RETURN(Dims source_dims, have.sharding->ShardDims(have.dims, piece.source_shard));
        shard.pieces.push_back({array->at(piece.source_shard), std::move(piece.source_box),
                                std::move(piece.target_box), std::move(source_dims), 0});
      }
    }
  }
  std::vector<ArrayId> results;
  for (size_t i = 0; i < arrays.size(); ++i) {
    SpecPtr spec = Share(std::move(outputs[i]));
    if (arrays[i]->form == Array::Form::kNone) {
      results.push_back(buffers_.NextId());
      buffers_.NewError(results.back(), session, std::move(spec), arrays[i]->error);
      if (semantics == CopySemantics::kDonate) buffers_.Abandon(arrays[i]);
      continue;
    }
    const std::vector<NewShard> used = semantics == CopySemantics::kDonate ? plans[i] : std::vector<NewShard>();
    results.push_back(Build(session, std::move(spec), std::move(plans[i]), user_context, now));
    if (semantics == CopySemantics::kDonate) GiveUp(arrays[i], used);
  }
  return results;
}

// ---------------------------------------------------------------- transfers

void Controller::Impl::CancelPublication(Life* source, TransferId id) {
  dispatcher_.EditWaiting(source, [id](ctl::ParkedOp* entry, std::vector<ctl::ParkedOp>*) {
    return !(entry->op.has_publish() && entry->op.publish().transfer() == id.value());
  });
  dispatcher_.Recheck(source);
}

void Controller::Impl::EndTransfer(TransferId id) {
  const ctl::Transfer* transfer = transfers_.Find(id);
  if (transfer == nullptr) return;
  Life* from = transfer->from;
  const bool published = transfer->published;
  transfers_.Erase(id);
  if (published) {
    dispatcher_.EndTransfer(from, id);
  } else {
    CancelPublication(from, id);
  }
}

}  // namespace landbridge
