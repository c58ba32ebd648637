// Arrays from host bytes, views of arrays, deleting.
#include <algorithm>
#include <utility>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {
namespace {

absl::Status Unknown(ArrayId id) {
  return absl::InvalidArgumentError(absl::StrCat("array ", id.ToString(), " is not known"));
}

}  // namespace

absl::Status Controller::Impl::CheckSpec(const ArraySpec& spec) const {
  if (spec.sharding == nullptr) return absl::InvalidArgumentError("an array without sharding");
  if (spec.dtype == DType::kString || spec.dtype == DType::kOpaque || spec.dtype == DType::kInvalid) {
    return absl::InvalidArgumentError(absl::StrCat("dtype ", DTypeName(spec.dtype), " cannot be on a device"));
  }
  LB_RETURN_IF_ERROR(spec.sharding->Validate(spec.dims));
  LB_RETURN_IF_ERROR(cluster_.CheckDevices(*spec.sharding));
  return HostImageBytes(spec.dtype, spec.dims).status();
}

Controller::Impl::SpecPtr Controller::Impl::Share(ArraySpec spec) {
  const size_t hash = absl::HashOf(static_cast<int>(spec.dtype), spec.dims, spec.sharding->hash());
  SpecPtr& slot = specs_[hash % specs_.size()];
  if (slot != nullptr && slot->dtype == spec.dtype && slot->dims == spec.dims &&
      (slot->sharding == spec.sharding ||
       (slot->sharding->kind() == spec.sharding->kind() && *slot->sharding == *spec.sharding))) {
    return slot;
  }
  slot = std::make_shared<const ArraySpec>(std::move(spec));
  return slot;
}

Controller::Impl::SpecPtr Controller::Impl::SingleSpec(const ArraySpec& spec, uint32_t shard, Dims shard_dims) {
  return Share(ArraySpec{spec.dtype, std::move(shard_dims),
                         Sharding::SingleDevice(spec.sharding->devices()[shard], spec.sharding->memory())});
}

absl::StatusOr<Controller::Impl::Array*> Controller::Impl::FindLiving(SessionId session, ArrayId id,
                                                                      absl::string_view what) const {
  Array* array = buffers_.Find(session, id);
  if (array == nullptr) return Unknown(id);
  if (buffers_.Deleted(*array)) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": Array has been deleted (", id.ToString(), ", ",
                                                   DTypeName(array->spec->dtype), DimsToString(array->spec->dims),
                                                   "); it was donated, or delete() was called on it or an alias"));
  }
  return array;
}

absl::Status Controller::Impl::ValidateHostShards(const ArraySpec& spec, const std::vector<HostShard>& shards) const {
  const uint32_t count = spec.sharding->num_shards();
  std::vector<bool> seen(count, false);
  uint32_t filled = 0;
  absl::flat_hash_set<uint64_t> keys;
  for (const HostShard& host : shards) {
    if (!keys.insert(host.key).second || uploads_.Contains(host.key)) {
      return absl::InvalidArgumentError(absl::StrCat("host buffer ", host.key, " is used twice"));
    }
    if (host.shards.empty()) return absl::InvalidArgumentError("a host buffer that fills no shard");
    Dims first;
    for (size_t i = 0; i < host.shards.size(); ++i) {
      const uint32_t shard = host.shards[i];
      if (shard >= count || seen[shard]) {
        return absl::InvalidArgumentError(
            absl::StrCat("shard ", shard, " of ", count, " is filled twice or does not exist"));
      }
      seen[shard] = true;
      ++filled;
      LB_ASSIGN_OR_RETURN(Dims dims, spec.sharding->ShardDims(spec.dims, shard));
      if (i == 0) {
        first = std::move(dims);
      } else if (dims != first) {
        return absl::InvalidArgumentError("one host buffer for shards of different shapes");
      }
    }
    LB_ASSIGN_OR_RETURN(int64_t bytes, StridedImageBytes(spec.dtype, first, host.byte_strides));
    if (bytes != host.image_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("host buffer of ", host.image_bytes, " bytes for a shard ",
                                                     DTypeName(spec.dtype), DimsToString(first), " of ", bytes,
                                                     " bytes"));
    }
    if (host.bytes != nullptr && static_cast<int64_t>(host.bytes->size()) != host.image_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("host buffer has ", host.bytes->size(), " bytes, not the announced ", host.image_bytes));
    }
  }
  if (filled != count) {
    return absl::InvalidArgumentError(absl::StrCat("host buffers for ", filled, " of ", count, " shards"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ArrayId> Controller::Impl::MakeFromHost(SessionId session, ArraySpec spec_in,
                                                       std::vector<HostShard> shards, uint64_t user_context,
                                                       TimeNs now) {
  absl::Status status = CheckSession(session);
  if (status.ok()) status = CheckSpec(spec_in);
  if (status.ok()) status = ValidateHostShards(spec_in, shards);
  if (!status.ok()) {
    for (const HostShard& host : shards) {
      if (!uploads_.Contains(host.key)) sink_->DropHostBuffer(host.key);
    }
    return ctl::WithOrigin(std::move(status), user_context, Ticket());
  }
  const SpecPtr spec = Share(std::move(spec_in));
  const ArrayId id = buffers_.NextId();
  const std::vector<DeviceId>& devices = spec->sharding->devices();
  Group* group = nullptr;
  for (HostShard& host : shards) {
    LB_ASSIGN_OR_RETURN(const Dims dims, spec->sharding->ShardDims(spec->dims, host.shards[0]));
    if (group == nullptr) {
      group = buffers_.NewGroup(id, static_cast<uint32_t>(devices.size()), DeviceBytes(spec->dtype, dims).value_or(0));
      buffers_.NewWhole(id, session, spec, group);
    }
    const bool pulled = host.image_bytes > static_cast<int64_t>(limits::kInlineBytesMax);
    uploads_.Add(host.key, session, pulled, std::move(host.bytes));
    // One operation per worker that has some of the shards.
    std::stable_sort(host.shards.begin(), host.shards.end(), [&](uint32_t a, uint32_t b) {
      return cluster_.At(devices[a]).slot < cluster_.At(devices[b]).slot;
    });
    std::vector<std::pair<Life*, WorkerOp>> ops;
    for (uint32_t shard : host.shards) {
      Life* life = cluster_.LifeOf(devices[shard]);
      if (ops.empty() || ops.back().first != life) {
        ops.emplace_back(life, WorkerOp());
        Upload* upload = ops.back().second.mutable_upload();
        const Ticket ticket = nodes_.NextTicket();
        upload->set_ticket(ticket.value());
        upload->set_session(session.value());
        upload->set_dtype(static_cast<int32_t>(spec->dtype));
        upload->mutable_dims()->Add(dims.begin(), dims.end());
        upload->mutable_byte_strides()->Add(host.byte_strides.begin(), host.byte_strides.end());
        upload->set_image_bytes(host.image_bytes);
        upload->set_key(host.key);
        upload->set_pulled(pulled);
        upload->set_user_context(user_context);
        nodes_.AddArray(nodes_.Add(ticket, life, session, now), id);
        uploads_.AddTarget(host.key, life, id);
      }
      Shard& at = group->at(shard);
      at.life = life;
      at.flags = Shard::kTold;
      Target* target = ops.back().second.mutable_upload()->add_targets();
      target->mutable_ref()->set_array(id.value());
      target->mutable_ref()->set_shard(shard);
      target->set_device(cluster_.At(devices[shard]).ordinal);
      target->set_memory(static_cast<MemoryKindProto>(spec->sharding->memory()));
      if (devices.size() > 1) nodes_.Find(Ticket(ops.back().second.upload().ticket()))->shards.push_back(shard);
    }
    for (auto& [life, op] : ops) dispatcher_.Send(life, std::move(op), session);
    uploads_.Start(host.key);
  }
  return id;
}

void Controller::Impl::OnHostBytes(uint64_t key, absl::StatusOr<std::string> bytes) {
  const absl::Status error = bytes.status();
  for (const ctl::HostUploads::Failed& failed : uploads_.OnBytes(key, std::move(bytes), &dispatcher_)) {
    Group* group = buffers_.FindGroup(failed.array);
    if (group == nullptr) continue;
    // Of an array from several host buffers only the shards that this one fills; the worker knows which and reports
    // them. Without a worker nobody can, and nobody else will.
    if (failed.life->up) continue;
    dispatcher_.EditWaiting(failed.life, [&](ctl::ParkedOp* entry, std::vector<ctl::ParkedOp>*) {
      if (entry->op.has_upload() && entry->op.upload().key() == key) {
        for (const Target& target : entry->op.upload().targets()) {
          buffers_.MarkFailed(group, target.ref().shard(), error);
        }
      }
      return true;
    });
    PoisonWaiting(failed.life, {});
  }
  Settle();
}

absl::StatusOr<ArrayId> Controller::Impl::MakeError(SessionId session, ArraySpec spec, const absl::Status& error) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  if (spec.sharding == nullptr) return absl::InvalidArgumentError("an array without sharding");
  if (error.ok()) return absl::InvalidArgumentError("an error array needs an error");
  const ArrayId id = buffers_.NextId();
  buffers_.NewError(id, session, Share(std::move(spec)), error);
  return id;
}

// ---------------------------------------------------------------- views

absl::StatusOr<ArrayId> Controller::Impl::Assemble(SessionId session, ArraySpec spec_in,
                                                   absl::Span<const ArrayId> singles, CopySemantics semantics) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  LB_RETURN_IF_ERROR(CheckSpec(spec_in));
  const SpecPtr spec = Share(std::move(spec_in));
  const Sharding& sharding = *spec->sharding;
  if (singles.size() != sharding.num_shards()) {
    return absl::InvalidArgumentError(
        absl::StrCat("assemble: ", singles.size(), " arrays for a sharding over ", sharding.num_shards(), " devices"));
  }
  std::vector<Array*> arrays;
  bool any_error = false;
  for (uint32_t i = 0; i < singles.size(); ++i) {
    LB_ASSIGN_OR_RETURN(Array * array, FindLiving(session, singles[i], "assemble"));
    const ArraySpec& have = *array->spec;
    if (have.sharding->num_shards() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("assemble: array ", i, " is ", have.sharding->ToString(), "; arrays of one device are needed"));
    }
    if (have.sharding->devices()[0] != sharding.devices()[i] || have.sharding->memory() != sharding.memory()) {
      return absl::InvalidArgumentError(absl::StrCat("assemble: array ", i, " is ", have.sharding->ToString(),
                                                     ", but shard ", i, " belongs to ", sharding.ToString()));
    }
    LB_ASSIGN_OR_RETURN(Dims dims, sharding.ShardDims(spec->dims, i));
    // A token carries nothing: JAX puts those of all devices together as if they were empty rows.
    if (have.dtype != spec->dtype || (have.dims != dims && have.dtype != DType::kToken)) {
      return absl::InvalidArgumentError(absl::StrCat("assemble: array ", i, " is ", DTypeName(have.dtype),
                                                     DimsToString(have.dims), ", but ", DTypeName(spec->dtype),
                                                     DimsToString(dims), " is needed"));
    }
    any_error |= array->form == Array::Form::kNone;
    arrays.push_back(array);
  }
  const ArrayId id = buffers_.NextId();
  Group* errors = nullptr;  // shards that were never there
  if (any_error) errors = buffers_.NewGroup(id, sharding.num_shards(), 0);
  std::vector<ShardRef> shards;
  for (uint32_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i]->form != Array::Form::kNone) {
      shards.push_back(arrays[i]->at(0));
      continue;
    }
    buffers_.MarkFailed(errors, i, arrays[i]->error);
    shards.push_back({errors, i});
  }
  buffers_.NewView(id, session, spec, std::move(shards));
  if (semantics == CopySemantics::kDonate) {
    for (Array* array : arrays) buffers_.Abandon(array);
  }
  return id;
}

absl::StatusOr<std::vector<ArrayId>> Controller::Impl::Disassemble(SessionId session, ArrayId id,
                                                                   CopySemantics semantics) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  LB_ASSIGN_OR_RETURN(Array * array, FindLiving(session, id, "disassemble"));
  const SpecPtr spec = array->spec;
  std::vector<SpecPtr> specs;
  for (uint32_t i = 0; i < spec->sharding->num_shards(); ++i) {
    LB_ASSIGN_OR_RETURN(Dims dims, spec->sharding->ShardDims(spec->dims, i));
    specs.push_back(SingleSpec(*spec, i, std::move(dims)));
  }
  std::vector<ArrayId> ids;
  ids.reserve(specs.size());
  for (uint32_t i = 0; i < specs.size(); ++i) {
    ids.push_back(buffers_.NextId());
    if (array->form == Array::Form::kNone) {
      buffers_.NewError(ids.back(), session, std::move(specs[i]), array->error);
    } else {
      buffers_.NewOf(ids.back(), session, std::move(specs[i]), array->at(i));
    }
  }
  if (semantics == CopySemantics::kDonate) buffers_.Abandon(buffers_.Find(session, id));
  return ids;
}

absl::StatusOr<ArrayId> Controller::Impl::FullyReplicatedShard(SessionId session, ArrayId id, CopySemantics semantics) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  LB_ASSIGN_OR_RETURN(Array * array, FindLiving(session, id, "fully replicated shard"));
  const SpecPtr spec = array->spec;
  if (!spec->sharding->IsFullyReplicated()) {
    return absl::InvalidArgumentError(
        absl::StrCat("array ", id.ToString(), " is ", spec->sharding->ToString(), ", not fully replicated"));
  }
  const ArrayId result = buffers_.NextId();
  if (array->form == Array::Form::kNone) {
    buffers_.NewError(result, session, SingleSpec(*spec, 0, spec->dims), array->error);
  } else {
    // The client thinks that it is on the first device. If that is lost, any other has the same.
    uint32_t shard = 0;
    for (uint32_t i = 0; i < array->size(); ++i) {
      if (array->at(i)->Is(Shard::kFailed)) continue;
      shard = i;
      break;
    }
    buffers_.NewOf(result, session, SingleSpec(*spec, shard, spec->dims), array->at(shard));
  }
  if (semantics == CopySemantics::kDonate) buffers_.Abandon(buffers_.Find(session, id));
  return result;
}

absl::StatusOr<std::vector<ArrayId>> Controller::Impl::Remap(SessionId session, absl::Span<const ArrayId> ids,
                                                             std::vector<ArraySpec> outputs,
                                                             absl::Span<const RemapStep> steps,
                                                             CopySemantics semantics) {
  LB_RETURN_IF_ERROR(CheckSession(session));
  std::vector<Array*> arrays;
  for (ArrayId id : ids) {
    LB_ASSIGN_OR_RETURN(Array * array, FindLiving(session, id, "remap"));
    if (semantics == CopySemantics::kDonate && std::find(arrays.begin(), arrays.end(), array) != arrays.end()) {
      return absl::InvalidArgumentError("remap: the same array is donated twice");
    }
    arrays.push_back(array);
  }
  std::vector<std::vector<bool>> used(arrays.size());
  for (size_t i = 0; i < arrays.size(); ++i) used[i].resize(arrays[i]->spec->sharding->num_shards(), false);
  struct From {
    int array = -1;
    uint32_t shard = 0;
  };
  std::vector<std::vector<From>> from(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    LB_RETURN_IF_ERROR(CheckSpec(outputs[i]));
    from[i].resize(outputs[i].sharding->num_shards());
  }
  for (const RemapStep& step : steps) {
    if (step.in_array < 0 || static_cast<size_t>(step.in_array) >= arrays.size() || step.out_array < 0 ||
        static_cast<size_t>(step.out_array) >= outputs.size()) {
      return absl::InvalidArgumentError("remap: a mapping names an array that is not there");
    }
    const auto in = static_cast<size_t>(step.in_array);
    const auto out = static_cast<size_t>(step.out_array);
    const ArraySpec& have = *arrays[in]->spec;
    const ArraySpec& want = outputs[out];
    if (have.dtype != want.dtype || have.sharding->memory() != want.sharding->memory()) {
      return absl::InvalidArgumentError("remap: input and output differ in dtype or memory kind");
    }
    for (const auto& [source, target] : step.shards) {
      if (source >= used[in].size() || target >= from[out].size()) {
        return absl::InvalidArgumentError("remap: a mapping names a shard that is not there");
      }
      if (used[in][source] || from[out][target].array >= 0) {
        return absl::InvalidArgumentError("remap: a shard is mapped twice");
      }
      if (have.sharding->devices()[source] != want.sharding->devices()[target]) {
        return absl::InvalidArgumentError(absl::StrCat("remap: shard ", source, " is on ",
                                                       have.sharding->devices()[source].ToString(), ", but goes to ",
                                                       want.sharding->devices()[target].ToString()));
      }
      LB_ASSIGN_OR_RETURN(Dims source_dims, have.sharding->ShardDims(have.dims, source));
      LB_ASSIGN_OR_RETURN(Dims target_dims, want.sharding->ShardDims(want.dims, target));
      if (source_dims != target_dims) {
        return absl::InvalidArgumentError(
            absl::StrCat("remap: shard shape ", DimsToString(source_dims), " becomes ", DimsToString(target_dims)));
      }
      used[in][source] = true;
      from[out][target] = {step.in_array, source};
    }
  }
  for (const auto& shards : from) {
    for (const From& source : shards) {
      if (source.array < 0) return absl::InvalidArgumentError("remap: an output shard is not filled");
    }
  }
  std::vector<ArrayId> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const ArrayId id = buffers_.NextId();
    Group* errors = nullptr;
    std::vector<ShardRef> shards;
    for (uint32_t s = 0; s < from[i].size(); ++s) {
      const Array& source = *arrays[static_cast<size_t>(from[i][s].array)];
      if (source.form != Array::Form::kNone) {
        shards.push_back(source.at(from[i][s].shard));
        continue;
      }
      if (errors == nullptr) errors = buffers_.NewGroup(id, outputs[i].sharding->num_shards(), 0);
      buffers_.MarkFailed(errors, s, source.error);
      shards.push_back({errors, s});
    }
    buffers_.NewView(id, session, Share(std::move(outputs[i])), std::move(shards));
    results.push_back(id);
  }
  if (semantics == CopySemantics::kDonate) {
    for (Array* array : arrays) buffers_.Abandon(array);
  }
  return results;
}

// ---------------------------------------------------------------- deleting

absl::Status Controller::Impl::Delete(SessionId session, ArrayId id) {
  Array* array = buffers_.Find(session, id);
  if (array == nullptr) return Unknown(id);
  buffers_.Destroy(array);
  dispatcher_.FlushAll();
  return absl::OkStatus();
}

absl::StatusOr<bool> Controller::Impl::IsDeleted(SessionId session, ArrayId id) const {
  const Array* array = buffers_.Find(session, id);
  if (array == nullptr) return Unknown(id);
  return array->deleted || (array->size() > 0 && array->at(0)->Is(Shard::kDead));
}

const ArraySpec* Controller::Impl::Spec(SessionId session, ArrayId id) const {
  const Array* array = buffers_.Find(session, id);
  return array == nullptr ? nullptr : array->spec.get();
}

}  // namespace landbridge
