// Requests that make, copy, read and drop arrays.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "frontdoor/ifrt_proxy/session_core.h"
#include "frontdoor/ifrt_proxy/wire.h"

namespace landbridge {

namespace proxy = xla::ifrt::proxy;

namespace {

std::vector<int64_t> Strides(const xla::ifrt::proto::ByteStrides& proto) {
  return std::vector<int64_t>(proto.strides().begin(), proto.strides().end());
}

absl::StatusOr<int64_t> ImageBytes(DType dtype, absl::Span<const int64_t> dims, absl::Span<const int64_t> strides) {
  if (!strides.empty() && strides.size() != dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(strides.size(), " byte strides for an array of ", dims.size(), " dimensions"));
  }
  return StridedImageBytes(dtype, dims, strides);
}

}  // namespace

// The end of every request that makes arrays: under the client's numbers and answered, or an error under them.
template <typename Handles, typename Set>
void SessionCore::Finish(const Op& op, Entries<ArrayEntry> entries, const Handles& handles, Set set) {
  absl::Status status = entries.status();
  if (status.ok()) {
    Entries<Handle> registered = Register(*std::move(entries), handles);
    status = registered.status();
    if (status.ok()) {
      auto response = NewResponse(op);
      set(response.get(), *registered);
      return Succeed(op, std::move(response));
    }
  }
  Poison(handles, status, op);
  Fail(op, status);
}

namespace {

// For responses with a list of handles.
template <typename Get>
auto SetList(Get get) {
  return [get](xla::ifrt::proxy::IfrtResponse* response, const std::vector<uint64_t>& handles) {
    get(response)->mutable_array_handles()->Assign(handles.begin(), handles.end());
  };
}
template <typename Get>
auto SetOne(Get get) {
  return [get](xla::ifrt::proxy::IfrtResponse* response, const std::vector<uint64_t>& handles) {
    get(response)->set_array_handle(handles[0]);
  };
}

}  // namespace

// ---------------------------------------------------------------- from the client's memory

// Consumes the host buffers, also on failure.
absl::StatusOr<SessionCore::ArrayEntry> SessionCore::FromHost(const HostArray& array, const Op& op, TimeNs now) {
  ArrayEntry entry;
  absl::Status bad;
  std::vector<uint64_t> claimed;
  std::vector<HostShard> shards;
  if (array.spec.dtype == DType::kString) {
    entry.strings = std::make_shared<StringArray>();
    entry.strings->dims = array.spec.dims;
    entry.strings->sharding = array.spec.sharding;
    entry.strings->shards.resize(array.spec.sharding->num_shards());
  }
  for (const HostSource& source : array.sources) {
    if (!bad.ok()) {
      host_->DiscardUpload(source.buffer);
      continue;
    }
    absl::StatusOr<SessionHost::ClaimedUpload> upload = entry.strings != nullptr
                                                            ? host_->ClaimString(source.buffer)
                                                            : host_->ClaimUpload(source.buffer, source.image_bytes);
    if (!upload.ok()) {
      bad = upload.status();
      continue;
    }
    claimed.push_back(upload->key);
    if (entry.strings != nullptr) {
      auto shard = std::make_shared<StringShard>();
      if (upload->bytes != nullptr) {
        shard->ready = true;
        shard->contents = *upload->bytes;
      } else {
        string_keys_.emplace(upload->key, shard);
      }
      for (uint32_t position : source.shards) entry.strings->shards[position] = shard;
      continue;
    }
    HostShard shard;
    shard.shards = source.shards;
    shard.key = upload->key;
    shard.image_bytes = source.image_bytes;
    shard.byte_strides = source.byte_strides;
    shard.bytes = std::move(upload->bytes);
    shards.push_back(std::move(shard));
  }
  if (bad.ok() && entry.strings == nullptr) {
    absl::StatusOr<ArrayId> id =
        controller_->MakeFromHost(options_.session, array.spec, std::move(shards), op.context, now);
    if (id.ok()) {
      entry.id = *id;
      entry.context = op.hold;
      return entry;
    }
    bad = id.status();
  }
  if (bad.ok()) return entry;
  for (uint64_t key : claimed) {
    string_keys_.erase(key);
    host_->DropUpload(key);
  }
  return bad;
}

void SessionCore::MakeArrayFromHostBuffer(Op op, const Request& request, TimeNs now) {
  const auto& make = request.make_array_from_host_buffer_request();
  const Handle buffer = make.host_buffer_handle();
  bool consumed = false;
  auto entries = [&]() -> Entries<ArrayEntry> {
    HostArray array;
    LB_ASSIGN_OR_RETURN(array.spec, wire::MakeSpec(make.dtype(), make.shape(), make.sharding()));
    if (array.spec.sharding->num_shards() != 1 && !array.spec.sharding->IsFullyReplicated()) {
      return absl::InvalidArgumentError("One host buffer makes an array on one device or a fully replicated one");
    }
    HostSource source;
    source.buffer = buffer;
    for (uint32_t i = 0; i < array.spec.sharding->num_shards(); ++i) source.shards.push_back(i);
    source.byte_strides = Strides(make.byte_strides());
    if (array.spec.dtype != DType::kString) {
      LB_ASSIGN_OR_RETURN(source.image_bytes, ImageBytes(array.spec.dtype, array.spec.dims, source.byte_strides));
    }
    array.sources.push_back(std::move(source));
    consumed = true;
    LB_ASSIGN_OR_RETURN(ArrayEntry entry, FromHost(array, op, now));
    std::vector<ArrayEntry> one;
    one.push_back(std::move(entry));
    return one;
  }();
  if (!consumed) host_->DiscardUpload(buffer);
  const Handle handles[1] = {make.array_handle()};
  Finish(op, std::move(entries), absl::MakeConstSpan(handles),
         SetOne([](proxy::IfrtResponse* r) { return r->mutable_make_array_from_host_buffer_response(); }));
}

absl::StatusOr<SessionCore::HostArray> SessionCore::ParseHostArray(
    const proxy::MakeArraysFromHostBufferShardsRequest::HostBufferShardsSpec& proto) {
  HostArray array;
  LB_ASSIGN_OR_RETURN(array.spec, wire::ParseSpec(proto.array_spec()));
  if (proto.addressable_shard_indices_size() != proto.host_buffers_size()) {
    return absl::InvalidArgumentError(absl::StrCat(proto.addressable_shard_indices_size(), " lists of shards for ",
                                                   proto.host_buffers_size(), " host buffers"));
  }
  const uint32_t shards = array.spec.sharding->num_shards();
  std::vector<bool> filled(shards, false);
  uint32_t left = shards;
  for (int i = 0; i < proto.host_buffers_size(); ++i) {
    const auto& buffer = proto.host_buffers(i);
    LB_ASSIGN_OR_RETURN(const DType dtype, wire::ParseDType(buffer.dtype()));
    if (dtype != array.spec.dtype) {
      return absl::InvalidArgumentError(absl::StrCat("A host buffer of type ", DTypeName(dtype),
                                                     " in an array of type ", DTypeName(array.spec.dtype)));
    }
    LB_ASSIGN_OR_RETURN(const Dims dims, wire::ParseDims(buffer.shape()));
    HostSource source;
    source.buffer = buffer.host_buffer_handle();
    for (int64_t index : proto.addressable_shard_indices(i).indices()) {
      if (index < 0 || index >= shards || filled[static_cast<size_t>(index)]) {
        return absl::InvalidArgumentError(
            absl::StrCat("Shard ", index, " of ", shards, " does not exist or is filled twice"));
      }
      filled[static_cast<size_t>(index)] = true;
      --left;
      source.shards.push_back(static_cast<uint32_t>(index));
      LB_ASSIGN_OR_RETURN(const Dims wanted, array.spec.sharding->ShardDims(array.spec.dims, source.shards.back()));
      if (wanted != dims) {
        return absl::InvalidArgumentError(absl::StrCat("A host buffer of shape ", DimsToString(dims), " for shard ",
                                                       index, ", whose shape is ", DimsToString(wanted)));
      }
    }
    if (source.shards.empty()) return absl::InvalidArgumentError("A host buffer fills no shard");
    source.byte_strides = Strides(buffer.byte_strides());
    if (dtype != DType::kString) {
      LB_ASSIGN_OR_RETURN(source.image_bytes, ImageBytes(dtype, dims, source.byte_strides));
    }
    array.sources.push_back(std::move(source));
  }
  if (left != 0) return absl::InvalidArgumentError(absl::StrCat(left, " of ", shards, " shards get no bytes"));
  return array;
}

void SessionCore::MakeArraysFromHostBufferShards(Op op, const Request& request, TimeNs now) {
  const auto& make = request.make_arrays_from_host_buffer_shards_request();
  std::vector<Handle> unused;  // buffers that nobody has taken
  absl::flat_hash_set<Handle> seen;
  for (const auto& spec : make.specs()) {
    for (const auto& buffer : spec.host_buffers()) {
      if (seen.insert(buffer.host_buffer_handle()).second) unused.push_back(buffer.host_buffer_handle());
    }
  }
  auto entries = [&]() -> Entries<ArrayEntry> {
    std::vector<HostArray> arrays;
    size_t buffers = 0;
    for (const auto& spec : make.specs()) {
      LB_ASSIGN_OR_RETURN(HostArray array, ParseHostArray(spec));
      buffers += array.sources.size();
      arrays.push_back(std::move(array));
    }
    if (buffers != seen.size()) return absl::InvalidArgumentError("A host buffer is named twice in one request");
    unused.clear();
    std::vector<ArrayEntry> made;
    absl::Status bad;
    for (const HostArray& array : arrays) {
      if (!bad.ok()) {
        for (const HostSource& source : array.sources) host_->DiscardUpload(source.buffer);
        continue;
      }
      absl::StatusOr<ArrayEntry> entry = FromHost(array, op, now);
      if (entry.ok()) {
        made.push_back(*std::move(entry));
      } else {
        bad = entry.status();
      }
    }
    if (bad.ok()) return made;
    for (ArrayEntry& entry : made) ReleaseEntry(std::move(entry));
    return bad;
  }();
  for (Handle buffer : unused) host_->DiscardUpload(buffer);
  Finish(op, std::move(entries), make.array_handles(),
         SetList([](proxy::IfrtResponse* r) { return r->mutable_make_arrays_from_host_buffer_shards_response(); }));
}

void SessionCore::MakeErrorArrays(Op op, const Request& request) {
  const auto& make = request.make_error_arrays_request();
  auto entries = [&]() -> Entries<ArrayEntry> {
    const absl::Status error = wire::FromProto(make.error());
    if (error.ok()) return absl::InvalidArgumentError("MakeErrorArrays without an error");
    std::vector<ArrayEntry> made;
    for (const auto& proto : make.array_specs()) {
      ArrayEntry entry;
      absl::StatusOr<ArraySpec> spec = wire::ParseSpec(proto);
      if (!spec.ok()) {
        for (ArrayEntry& other : made) ReleaseEntry(std::move(other));
        return spec.status();
      }
      if (spec->dtype == DType::kString) {
        entry.error = error;
      } else {
        absl::StatusOr<ArrayId> id = controller_->MakeError(options_.session, *std::move(spec), error);
        if (!id.ok()) {
          for (ArrayEntry& other : made) ReleaseEntry(std::move(other));
          return id.status();
        }
        entry.id = *id;
      }
      made.push_back(std::move(entry));
    }
    return made;
  }();
  Finish(op, std::move(entries), make.array_handles(),
         SetList([](proxy::IfrtResponse* r) { return r->mutable_make_error_arrays_response(); }));
}

// ---------------------------------------------------------------- from arrays

void SessionCore::Assemble(Op op, const Request& request) {
  const auto& assemble = request.assemble_array_from_single_device_arrays_request();
  auto entries = [&]() -> Entries<ArrayEntry> {
    ArraySpec spec;
    LB_ASSIGN_OR_RETURN(const CopySemantics semantics, wire::ParseSemantics(assemble.copy_semantics()));
    LB_ASSIGN_OR_RETURN(spec.dims, wire::ParseDims(assemble.shape()));
    LB_ASSIGN_OR_RETURN(spec.sharding, wire::ParseSharding(assemble.sharding()));
    LB_RETURN_IF_ERROR(spec.sharding->Validate(spec.dims));
    const auto& singles = assemble.single_device_array_handles();
    if (static_cast<size_t>(singles.size()) != spec.sharding->num_shards()) {
      return absl::InvalidArgumentError(
          absl::StrCat(singles.size(), " arrays for a sharding over ", spec.sharding->num_shards(), " devices"));
    }
    std::vector<ArrayEntry> result(1);
    LB_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<StringArray>> strings, AllStrings(singles));
    if (!strings.empty()) {
      auto array = std::make_shared<StringArray>();
      for (size_t i = 0; i < strings.size(); ++i) {
        if (strings[i]->shards.size() != 1) {
          return absl::InvalidArgumentError("Only arrays on one device can be assembled");
        }
        LB_ASSIGN_OR_RETURN(const Dims dims, spec.sharding->ShardDims(spec.dims, static_cast<uint32_t>(i)));
        if (dims != strings[i]->dims) {
          return absl::InvalidArgumentError(absl::StrCat("Shard ", i, " has shape ", DimsToString(strings[i]->dims),
                                                         " instead of ", DimsToString(dims)));
        }
        array->shards.push_back(strings[i]->shards[0]);
      }
      array->dims = std::move(spec.dims);
      array->sharding = std::move(spec.sharding);
      result[0].strings = std::move(array);
      return result;
    }
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> ids, DeviceArrays(singles));
    if (assemble.has_dtype()) {
      LB_ASSIGN_OR_RETURN(spec.dtype, wire::ParseDType(assemble.dtype()));
    } else {
      const ArraySpec* first = controller_->Spec(options_.session, ids[0]);
      if (first == nullptr) return absl::InvalidArgumentError("The first array is gone");
      spec.dtype = first->dtype;
    }
    LB_ASSIGN_OR_RETURN(result[0].id, controller_->Assemble(options_.session, std::move(spec), ids, semantics));
    return result;
  }();
  const Handle handles[1] = {assemble.result_handle()};
  Finish(op, std::move(entries), absl::MakeConstSpan(handles),
         SetOne([](proxy::IfrtResponse* r) { return r->mutable_assemble_array_from_single_device_arrays_response(); }));
}

void SessionCore::Disassemble(Op op, const Request& request) {
  const auto& disassemble = request.disassemble_into_single_device_arrays_request();
  auto entries = [&]() -> Entries<ArrayEntry> {
    LB_ASSIGN_OR_RETURN(const CopySemantics semantics, wire::ParseSemantics(disassemble.copy_semantics()));
    LB_ASSIGN_OR_RETURN(ArrayEntry * array, Find(disassemble.array_handle()));
    if (!array->error.ok()) return array->error;
    if (array->strings != nullptr) {
      const StringArray& strings = *array->strings;
      if (strings.deleted) return absl::InvalidArgumentError("The array has been deleted");
      std::vector<ArrayEntry> result(strings.shards.size());
      for (uint32_t i = 0; i < result.size(); ++i) {
        auto single = std::make_shared<StringArray>();
        LB_ASSIGN_OR_RETURN(single->dims, strings.sharding->ShardDims(strings.dims, i));
        single->sharding = Sharding::SingleDevice(strings.sharding->devices()[i], strings.sharding->memory());
        single->shards.push_back(strings.shards[i]);
        result[i].strings = std::move(single);
      }
      return result;
    }
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> ids, controller_->Disassemble(options_.session, array->id, semantics));
    return ToEntries(ids, nullptr);
  }();
  Finish(op, std::move(entries), disassemble.result_handles(),
         SetList([](proxy::IfrtResponse* r) { return r->mutable_disassemble_into_single_device_arrays_response(); }));
}

void SessionCore::FullyReplicatedShard(Op op, const Request& request) {
  const auto& shard = request.fully_replicated_shard_request();
  auto entries = [&]() -> Entries<ArrayEntry> {
    LB_ASSIGN_OR_RETURN(const CopySemantics semantics, wire::ParseSemantics(shard.copy_semantics()));
    LB_ASSIGN_OR_RETURN(ArrayEntry * array, Find(shard.array_handle()));
    if (!array->error.ok()) return array->error;
    std::vector<ArrayEntry> result(1);
    if (array->strings != nullptr) {
      const StringArray& strings = *array->strings;
      if (strings.deleted) return absl::InvalidArgumentError("The array has been deleted");
      if (strings.shards.size() != 1 && !strings.sharding->IsFullyReplicated()) {
        return absl::InvalidArgumentError("The array is not fully replicated");
      }
      auto single = std::make_shared<StringArray>();
      single->dims = strings.dims;
      single->sharding = Sharding::SingleDevice(strings.sharding->devices()[0], strings.sharding->memory());
      single->shards.push_back(strings.shards[0]);
      result[0].strings = std::move(single);
      return result;
    }
    LB_ASSIGN_OR_RETURN(result[0].id, controller_->FullyReplicatedShard(options_.session, array->id, semantics));
    return result;
  }();
  const Handle handles[1] = {shard.result_handle()};
  Finish(op, std::move(entries), absl::MakeConstSpan(handles),
         SetOne([](proxy::IfrtResponse* r) { return r->mutable_fully_replicated_shard_response(); }));
}

void SessionCore::CopyArrays(Op op, const Request& request, TimeNs now) {
  const auto& copy = request.copy_arrays_request();
  auto entries = [&]() -> Entries<ArrayEntry> {
    LB_ASSIGN_OR_RETURN(const CopySemantics semantics, wire::ParseSemantics(copy.copy_semantics()));
    std::optional<MemoryKind> memory;
    if (copy.has_memory_kind()) {
      LB_ASSIGN_OR_RETURN(memory, ParseMemoryKind(copy.memory_kind()));
    }
    std::vector<DeviceId> devices;
    if (copy.device_ids_size() > limits::kDevicesMax) return absl::InvalidArgumentError("Too many devices");
    for (int32_t id : copy.device_ids()) devices.push_back(DeviceId(id));
    LB_ASSIGN_OR_RETURN(std::vector<std::shared_ptr<StringArray>> strings, AllStrings(copy.array_handles()));
    if (!strings.empty()) {
      std::vector<ArrayEntry> result(strings.size());
      for (size_t i = 0; i < strings.size(); ++i) {
        auto array = std::make_shared<StringArray>(*strings[i]);
        if (!devices.empty()) {
          LB_ASSIGN_OR_RETURN(array->sharding, array->sharding->WithDevices(devices));
        }
        if (memory.has_value()) array->sharding = array->sharding->WithMemory(*memory);
        result[i].strings = std::move(array);
      }
      if (semantics == CopySemantics::kDonate) {
        for (const auto& source : strings) source->deleted = true;
      }
      return result;
    }
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> ids, DeviceArrays(copy.array_handles()));
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> made,
                        controller_->Copy(options_.session, ids, devices.empty() ? nullptr : &devices,
                                          memory.has_value() ? &*memory : nullptr, semantics, op.context, now));
    return ToEntries(made, op.hold);
  }();
  Finish(op, std::move(entries), copy.result_handles(),
         SetList([](proxy::IfrtResponse* r) { return r->mutable_copy_arrays_response(); }));
}

namespace {

// Shard indices of intervals [start:end:step), checked against the number of shards before any is made.
absl::StatusOr<std::vector<uint32_t>> Expand(const google::protobuf::RepeatedField<int64_t>& start,
                                             const google::protobuf::RepeatedField<int64_t>& end,
                                             const google::protobuf::RepeatedField<int64_t>& step, uint32_t shards) {
  if (start.size() != end.size() || start.size() != step.size()) {
    return absl::InvalidArgumentError("A remap plan's intervals are incomplete");
  }
  std::vector<uint32_t> result;
  for (int i = 0; i < start.size(); ++i) {
    if (start[i] < 0 || end[i] > shards || start[i] > end[i] || step[i] < 1) {
      return absl::InvalidArgumentError(absl::StrCat("A remap plan's interval [", start[i], ":", end[i], ":", step[i],
                                                     "] does not fit ", shards, " shards"));
    }
    for (int64_t at = start[i]; at < end[i];) {
      result.push_back(static_cast<uint32_t>(at));
      if (result.size() > shards) return absl::InvalidArgumentError("A remap plan names a shard twice");
      if (step[i] > end[i] - at) break;
      at += step[i];
    }
  }
  return result;
}

}  // namespace

void SessionCore::RemapArrays(Op op, const Request& request) {
  const auto& remap = request.remap_arrays_request();
  auto entries = [&]() -> Entries<ArrayEntry> {
    LB_ASSIGN_OR_RETURN(const CopySemantics semantics, wire::ParseSemantics(remap.copy_semantics()));
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> ids, DeviceArrays(remap.array_handles()));
    const auto& plan = remap.plan();
    if (static_cast<size_t>(plan.input_specs_size()) != ids.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("A remap plan for ", plan.input_specs_size(), " arrays got ", ids.size()));
    }
    std::vector<uint32_t> in_shards, out_shards;
    for (size_t i = 0; i < ids.size(); ++i) {
      const ArraySpec* actual = controller_->Spec(options_.session, ids[i]);
      if (actual == nullptr) return absl::InvalidArgumentError("An input of the remap is gone");
      LB_ASSIGN_OR_RETURN(const ArraySpec planned, wire::ParseSpec(plan.input_specs(static_cast<int>(i))));
      // The client may spell the sharding anew, but not where the shards are.
      if (planned.sharding->devices() != actual->sharding->devices() ||
          planned.sharding->memory() != actual->sharding->memory() || planned.dtype != actual->dtype) {
        return absl::InvalidArgumentError(absl::StrCat("Input ", i, " of the remap plan is not the array given"));
      }
      in_shards.push_back(actual->sharding->num_shards());
    }
    std::vector<ArraySpec> outputs;
    for (const auto& proto : plan.output_specs()) {
      LB_ASSIGN_OR_RETURN(ArraySpec spec, wire::ParseSpec(proto));
      out_shards.push_back(spec.sharding->num_shards());
      outputs.push_back(std::move(spec));
    }
    std::vector<Controller::RemapStep> steps;
    for (const auto& mapping : plan.mappings()) {
      if (mapping.in_array() < 0 || static_cast<size_t>(mapping.in_array()) >= in_shards.size() ||
          mapping.out_array() < 0 || static_cast<size_t>(mapping.out_array()) >= out_shards.size()) {
        return absl::InvalidArgumentError("A remap plan maps an array that it does not have");
      }
      Controller::RemapStep step;
      step.in_array = mapping.in_array();
      step.out_array = mapping.out_array();
      LB_ASSIGN_OR_RETURN(const std::vector<uint32_t> from,
                          Expand(mapping.from_start(), mapping.from_end(), mapping.from_step(),
                                 in_shards[static_cast<size_t>(step.in_array)]));
      LB_ASSIGN_OR_RETURN(const std::vector<uint32_t> to,
                          Expand(mapping.to_start(), mapping.to_end(), mapping.to_step(),
                                 out_shards[static_cast<size_t>(step.out_array)]));
      if (from.size() != to.size()) {
        return absl::InvalidArgumentError(absl::StrCat("A remap plan maps ", from.size(), " shards to ", to.size()));
      }
      for (size_t i = 0; i < from.size(); ++i) step.shards.emplace_back(from[i], to[i]);
      steps.push_back(std::move(step));
    }
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> made,
                        controller_->Remap(options_.session, ids, std::move(outputs), steps, semantics));
    return ToEntries(made, nullptr);
  }();
  Finish(op, std::move(entries), remap.result_handles(),
         SetList([](proxy::IfrtResponse* r) { return r->mutable_remap_arrays_response(); }));
}

void SessionCore::ReshardArrays(Op op, const Request& request, TimeNs now) {
  const auto& reshard = request.reshard_arrays_request();
  auto entries = [&]() -> Entries<ArrayEntry> {
    LB_ASSIGN_OR_RETURN(const CopySemantics semantics, wire::ParseSemantics(reshard.copy_semantics()));
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> ids, DeviceArrays(reshard.array_handles()));
    if (static_cast<size_t>(reshard.array_specs_size()) != ids.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(reshard.array_specs_size(), " specs for ", ids.size(), " arrays to reshard"));
    }
    std::vector<ArraySpec> outputs;
    for (const auto& proto : reshard.array_specs()) {
      LB_ASSIGN_OR_RETURN(ArraySpec spec, wire::ParseSpec(proto));
      outputs.push_back(std::move(spec));
    }
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> made,
                        controller_->Reshard(options_.session, ids, std::move(outputs), semantics, op.context, now));
    return ToEntries(made, op.hold);
  }();
  Finish(op, std::move(entries), reshard.result_handles(),
         SetList([](proxy::IfrtResponse* r) { return r->mutable_reshard_arrays_response(); }));
}

// ---------------------------------------------------------------- reading

void SessionCore::CopyToHostBuffer(Op op, const Request& request) {
  const auto& copy = request.copy_to_host_buffer_request();
  const Handle buffer = copy.host_buffer_handle();
  absl::StatusOr<ArrayEntry*> array = Find(copy.array_handle());
  if (!array.ok()) return Fail(op, array.status());
  if (!(*array)->error.ok()) return Fail(op, (*array)->error);
  if ((*array)->strings != nullptr) {
    const std::shared_ptr<StringArray> strings = (*array)->strings;
    if (strings->shards.size() != 1 && !strings->sharding->IsFullyReplicated()) {
      return Fail(op,
                  absl::InvalidArgumentError("Only arrays on one device or fully replicated ones can be read whole"));
    }
    const Handle handles[1] = {copy.array_handle()};
    return WhenAllReady(handles, [this, op = std::move(op), strings, buffer](absl::Status status) {
      if (status.ok()) {
        ReadResult result;
        result.data = strings->shards[0]->contents;
        result.bytes = static_cast<int64_t>(result.data.size());
        status = host_->PutResult(buffer, RequestId(), std::move(result));
      }
      if (!status.ok()) return Fail(op, status);
      auto response = NewResponse(op);
      response->mutable_copy_to_host_buffer_response();
      Succeed(op, std::move(response));
    });
  }
  const ArraySpec* spec = controller_->Spec(options_.session, (*array)->id);
  if (spec == nullptr) return Fail(op, absl::InvalidArgumentError("The array is gone"));
  if (spec->sharding->num_shards() != 1 && !spec->sharding->IsFullyReplicated()) {
    return Fail(op, absl::InvalidArgumentError("Only arrays on one device or fully replicated ones can be read whole"));
  }
  std::vector<int64_t> strides = Strides(copy.byte_strides());
  const absl::StatusOr<int64_t> bytes = ImageBytes(spec->dtype, spec->dims, strides);
  if (!bytes.ok()) return Fail(op, bytes.status());
  const RequestId id = host_->NewRequestId();
  reads_.emplace(id, PendingRead{std::move(op), buffer});
  controller_->ReadArray(options_.session, id, (*array)->id, std::move(strides), *bytes);
}

void SessionCore::OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result) {
  if (auto question = memory_questions_.find(request); question != memory_questions_.end()) {
    PendingQuestion pending = std::move(question->second);
    memory_questions_.erase(question);
    return AnswerQuestion(std::move(pending), MemoryText(std::move(result)));
  }
  auto it = reads_.find(request);
  if (it == reads_.end()) return;
  const PendingRead read = std::move(it->second);
  reads_.erase(it);
  absl::Status status = result.status();
  if (status.ok()) {
    const bool remote = result->remote;
    status = host_->PutResult(read.buffer, request, *std::move(result));
    if (!status.ok() || !remote) controller_->ReleaseRead(request);
  }
  if (!status.ok()) return Fail(read.op, status);
  auto response = NewResponse(read.op);
  response->mutable_copy_to_host_buffer_response();
  Succeed(read.op, std::move(response));
}

void SessionCore::GetDefaultLayout(Op op, const Request& request) {
  const auto& get = request.get_default_layout_request();
  const absl::StatusOr<DType> dtype = wire::ParseDType(get.dtype());
  if (!dtype.ok()) return Fail(op, dtype.status());
  if (get.dims_size() > limits::kRankMax) return Fail(op, absl::InvalidArgumentError("Too many dimensions"));
  auto response = NewResponse(op);
  response->mutable_get_default_layout_response()->set_serialized_pjrt_layout(
      wire::DefaultLayoutText(*dtype, static_cast<size_t>(get.dims_size())));
  Succeed(op, std::move(response));
}

// ---------------------------------------------------------------- dropping

void SessionCore::DeleteArray(Op op, const Request& request) {
  Future future;
  future.done = true;
  future.deletion = true;
  for (Handle handle : request.delete_array_request().array_handle()) {
    absl::StatusOr<ArrayEntry*> entry = Find(handle);
    absl::Status status = entry.status();
    if (entry.ok() && (*entry)->strings != nullptr) {
      (*entry)->strings->deleted = true;
    } else if (entry.ok() && (*entry)->id.valid()) {
      status = controller_->Delete(options_.session, (*entry)->id);
    }
    if (future.status.ok()) future.status = status;
  }
  auto response = NewResponse(op);
  response->mutable_delete_array_response()->set_deletion_future_handle(AddFuture(0, std::move(future)));
  Succeed(op, std::move(response));
}

void SessionCore::IsArrayDeleted(Op op, const Request& request) {
  absl::StatusOr<ArrayEntry*> entry = Find(request.is_array_deleted_request().array_handle());
  if (!entry.ok()) return Fail(op, entry.status());
  bool deleted = false;
  if ((*entry)->strings != nullptr) {
    deleted = (*entry)->strings->deleted;
  } else if ((*entry)->id.valid()) {
    const absl::StatusOr<bool> answer = controller_->IsDeleted(options_.session, (*entry)->id);
    if (!answer.ok()) return Fail(op, answer.status());
    deleted = *answer;
  }
  auto response = NewResponse(op);
  response->mutable_is_array_deleted_response()->set_deleted(deleted);
  Succeed(op, std::move(response));
}

void SessionCore::DestructArray(Op op, const Request& request) {
  absl::Status status;
  for (Handle handle : request.destruct_array_request().array_handle()) {
    auto it = arrays_.find(handle);
    if (it == arrays_.end()) {
      status = absl::InvalidArgumentError(absl::StrCat("Unknown array handle: ", handle));
      continue;
    }
    ArrayEntry entry = std::move(it->second);
    arrays_.erase(it);
    ReleaseEntry(std::move(entry));
  }
  if (!status.ok()) return Fail(op, status);
  auto response = NewResponse(op);
  response->mutable_destruct_array_response();
  Succeed(op, std::move(response));
}

}  // namespace landbridge
