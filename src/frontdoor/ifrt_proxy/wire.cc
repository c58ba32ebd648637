#include "frontdoor/ifrt_proxy/wire.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/status.h"
#include "frontdoor/ifrt_proxy/user_contexts.h"

namespace landbridge::wire {
namespace {

template <typename Message>
absl::Status Decode(const xla::ifrt::Serialized& serialized, Message* message) {
  if (message->ParseFromString(serialized.data())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("Cannot decode a ", serialized.type_name()));
}

template <typename Message>
absl::StatusOr<MemoryKind> Memory(const Message& message) {
  if (!message.has_memory_kind()) return MemoryKind::kDevice;
  return ParseMemoryKind(message.memory_kind());
}

}  // namespace

tensorflow::StatusProto ToProto(const absl::Status& status) {
  tensorflow::StatusProto proto;
  proto.set_code(static_cast<int32_t>(status.code()));
  if (status.ok()) return proto;
  proto.set_message(std::string(status.message()));
  if (auto context = status.GetPayload(kUserContextPayload)) {
    (*proto.mutable_payload())[kUserContextPayload] = std::string(*context);
  }
  return proto;
}

absl::Status FromProto(const tensorflow::StatusProto& proto) {
  if (proto.code() == 0) return absl::OkStatus();
  const bool known = proto.code() > 0 && proto.code() <= 16;
  absl::Status status(known ? static_cast<absl::StatusCode>(proto.code()) : absl::StatusCode::kUnknown,
                      proto.message());
  for (const auto& [url, value] : proto.payload()) status.SetPayload(url, absl::Cord(value));
  return status;
}

absl::StatusOr<DType> ParseDType(const xla::ifrt::DTypeProto& proto) {
  std::optional<DType> dtype = DTypeFromIfrtKind(proto.kind());
  if (!dtype.has_value() || *dtype == DType::kInvalid) {
    return absl::InvalidArgumentError(absl::StrCat("Unknown element type number ", proto.kind()));
  }
  return *dtype;
}

absl::StatusOr<Dims> ParseDims(const xla::ifrt::ShapeProto& proto) {
  const auto& dims = proto.dims();
  absl::Span<const int64_t> view(dims.data(), static_cast<size_t>(dims.size()));
  LB_RETURN_IF_ERROR(CheckDims(view));
  return Dims(view.begin(), view.end());
}

absl::StatusOr<std::vector<DeviceId>> ParseDevices(const xla::ifrt::DeviceListProto& proto) {
  if (proto.device_ids_size() > limits::kDevicesMax) {
    return absl::InvalidArgumentError(absl::StrCat(proto.device_ids_size(), " devices in a list"));
  }
  std::vector<DeviceId> devices;
  devices.reserve(static_cast<size_t>(proto.device_ids_size()));
  for (int32_t id : proto.device_ids()) devices.push_back(DeviceId(id));
  return devices;
}

absl::StatusOr<Sharding::Ptr> ParseSharding(const xla::ifrt::ShardingProto& proto) {
  const xla::ifrt::Serialized& serialized = proto.serialized_sharding();
  const std::string& type = serialized.type_name();
  if (type == "xla::ifrt::HloSharding") {
    xla::ifrt::HloShardingProto message;
    LB_RETURN_IF_ERROR(Decode(serialized, &message));
    LB_ASSIGN_OR_RETURN(std::vector<DeviceId> devices, ParseDevices(message.devices()));
    LB_ASSIGN_OR_RETURN(const MemoryKind memory, Memory(message));
    return Sharding::FromOpSharding(std::move(devices), memory, message.xla_op_sharding());
  }
  if (type == "xla::ifrt::SingleDeviceSharding") {
    xla::ifrt::SingleDeviceShardingProto message;
    LB_RETURN_IF_ERROR(Decode(serialized, &message));
    LB_ASSIGN_OR_RETURN(const MemoryKind memory, Memory(message));
    return Sharding::SingleDevice(DeviceId(message.device_id()), memory);
  }
  if (type == "xla::ifrt::ConcreteEvenSharding") {
    xla::ifrt::ConcreteEvenShardingProto message;
    LB_RETURN_IF_ERROR(Decode(serialized, &message));
    LB_ASSIGN_OR_RETURN(std::vector<DeviceId> devices, ParseDevices(message.devices()));
    LB_ASSIGN_OR_RETURN(const MemoryKind memory, Memory(message));
    LB_ASSIGN_OR_RETURN(Dims dims, ParseDims(message.shape()));
    LB_ASSIGN_OR_RETURN(Dims shard_dims, ParseDims(message.shard_shape()));
    return Sharding::ConcreteEven(std::move(devices), memory, std::move(dims), std::move(shard_dims),
                                  message.is_fully_replicated());
  }
  if (type == "xla::ifrt::ConcreteSharding") {
    xla::ifrt::ConcreteShardingProto message;
    LB_RETURN_IF_ERROR(Decode(serialized, &message));
    if (!message.has_shape()) return absl::UnimplementedError("Arrays with dynamic shapes are not supported");
    LB_ASSIGN_OR_RETURN(std::vector<DeviceId> devices, ParseDevices(message.devices()));
    LB_ASSIGN_OR_RETURN(const MemoryKind memory, Memory(message));
    LB_ASSIGN_OR_RETURN(Dims dims, ParseDims(message.shape()));
    if (static_cast<size_t>(message.shard_shapes_size()) != devices.size()) {
      return absl::InvalidArgumentError(absl::StrCat("A sharding over ", devices.size(), " devices lists ",
                                                     message.shard_shapes_size(), " shard shapes"));
    }
    std::vector<Dims> shards;
    for (const auto& shape : message.shard_shapes()) {
      LB_ASSIGN_OR_RETURN(Dims shard, ParseDims(shape));
      shards.push_back(std::move(shard));
    }
    return Sharding::Concrete(std::move(devices), memory, std::move(dims), std::move(shards));
  }
  if (type == "xla::ifrt::OpaqueSharding" || type == "xla::ifrt::ShardingParamSharding") {
    return absl::UnimplementedError(
        absl::StrCat("Shardings of type ", type, " are not supported; use a NamedSharding"));
  }
  return absl::InvalidArgumentError(absl::StrCat("Unknown sharding type '", type.substr(0, 100), "'"));
}

absl::StatusOr<CopySemantics> ParseSemantics(xla::ifrt::proto::ArrayCopySemantics semantics) {
  switch (semantics) {
    case xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY: return CopySemantics::kAlwaysCopy;
    case xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT: return CopySemantics::kReuse;
    case xla::ifrt::proto::ARRAY_COPY_SEMANTICS_DONATE_INPUT: return CopySemantics::kDonate;
    default: break;
  }
  return absl::InvalidArgumentError(absl::StrCat("Unknown copy semantics ", static_cast<int>(semantics)));
}

absl::StatusOr<ArraySpec> MakeSpec(const xla::ifrt::DTypeProto& dtype, const xla::ifrt::ShapeProto& shape,
                                   const xla::ifrt::ShardingProto& sharding) {
  ArraySpec spec;
  LB_ASSIGN_OR_RETURN(spec.dtype, ParseDType(dtype));
  LB_ASSIGN_OR_RETURN(spec.dims, ParseDims(shape));
  LB_ASSIGN_OR_RETURN(spec.sharding, ParseSharding(sharding));
  LB_RETURN_IF_ERROR(spec.sharding->Validate(spec.dims));
  if (HostElementBytes(spec.dtype) > 0) LB_RETURN_IF_ERROR(HostImageBytes(spec.dtype, spec.dims).status());
  return spec;
}

absl::StatusOr<ArraySpec> ParseSpec(const xla::ifrt::ArraySpecProto& proto) {
  return MakeSpec(proto.dtype(), proto.shape(), proto.sharding());
}

void SetDType(DType dtype, xla::ifrt::DTypeProto* proto) { proto->set_kind(static_cast<int32_t>(dtype)); }

void SetDims(absl::Span<const int64_t> dims, xla::ifrt::ShapeProto* proto) {
  proto->mutable_dims()->Assign(dims.begin(), dims.end());
}

void SetSharding(const Sharding& sharding, xla::ifrt::ShardingProto* proto) {
  xla::ifrt::Serialized* out = proto->mutable_serialized_sharding();
  const std::string memory(MemoryKindName(sharding.memory()));
  auto set_devices = [&sharding](xla::ifrt::DeviceListProto* list) {
    for (DeviceId device : sharding.devices()) list->add_device_ids(device.value());
  };
  absl::StatusOr<xla::OpSharding> op = sharding.ToOpSharding();
  if (op.ok()) {
    xla::ifrt::HloShardingProto message;
    set_devices(message.mutable_devices());
    *message.mutable_xla_op_sharding() = *std::move(op);
    message.set_memory_kind(memory);
    out->set_type_name("xla::ifrt::HloSharding");
    out->set_data(message.SerializeAsString());
    return;
  }
  if (sharding.concrete_shard_dims().size() == 1) {
    xla::ifrt::ConcreteEvenShardingProto message;
    set_devices(message.mutable_devices());
    SetDims(sharding.concrete_dims(), message.mutable_shape());
    SetDims(sharding.concrete_shard_dims()[0], message.mutable_shard_shape());
    message.set_memory_kind(memory);
    message.set_is_fully_replicated(sharding.IsFullyReplicated());
    out->set_type_name("xla::ifrt::ConcreteEvenSharding");
    out->set_data(message.SerializeAsString());
    return;
  }
  xla::ifrt::ConcreteShardingProto message;
  set_devices(message.mutable_devices());
  SetDims(sharding.concrete_dims(), message.mutable_shape());
  for (const Dims& dims : sharding.concrete_shard_dims()) SetDims(dims, message.add_shard_shapes());
  message.set_memory_kind(memory);
  out->set_type_name("xla::ifrt::ConcreteSharding");
  out->set_data(message.SerializeAsString());
}

std::string DefaultLayoutText(DType dtype, size_t rank) {
  std::vector<size_t> minor_to_major;
  for (size_t i = rank; i > 0; --i) minor_to_major.push_back(i - 1);
  std::string text = absl::StrCat("{", absl::StrJoin(minor_to_major, ","));
  if (IsSubByte(dtype)) absl::StrAppend(&text, ":E(", DeviceElementBits(dtype), ")");
  return absl::StrCat(text, "}");
}

void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, absl::string_view value) {
  (*map->mutable_attributes())[key].set_string_value(std::string(value));
}
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, const char* value) {
  (*map->mutable_attributes())[key].set_string_value(value);
}
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, bool value) {
  (*map->mutable_attributes())[key].set_bool_value(value);
}
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, int64_t value) {
  (*map->mutable_attributes())[key].set_int64_value(value);
}
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, absl::Span<const int64_t> values) {
  (*map->mutable_attributes())[key].mutable_int64_list_value()->mutable_elements()->Assign(values.begin(),
                                                                                           values.end());
}
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, float value) {
  (*map->mutable_attributes())[key].set_float_value(value);
}

}  // namespace landbridge::wire
