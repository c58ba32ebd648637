// What clients serialize: versions, shardings of every kind, specs, statuses, JSON programs.
#include "frontdoor/ifrt_proxy/wire.h"

#include "base/limits.h"
#include "base/log.h"
#include "frontdoor/ifrt_proxy/plugin_program.h"
#include "frontdoor/ifrt_proxy/version.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"

namespace landbridge::fuzz {
namespace {

template <typename Message>
std::string Wrapped(const char* type, const Message& message) {
  xla::ifrt::ShardingProto proto;
  proto.mutable_serialized_sharding()->set_type_name(type);
  proto.mutable_serialized_sharding()->set_data(message.SerializeAsString());
  return proto.SerializeAsString();
}

std::vector<std::string> Shardings() {
  xla::ifrt::HloShardingProto tiled;
  for (int id : {0, 1, 2, 3}) tiled.mutable_devices()->add_device_ids(id);
  tiled.mutable_xla_op_sharding()->set_type(xla::OpSharding::OTHER);
  for (int64_t dim : {2, 1, 2}) tiled.mutable_xla_op_sharding()->add_tile_assignment_dimensions(dim);
  tiled.mutable_xla_op_sharding()->set_replicate_on_last_tile_dim(true);
  tiled.mutable_xla_op_sharding()->add_iota_reshape_dims(4);
  tiled.mutable_xla_op_sharding()->add_iota_transpose_perm(0);
  xla::ifrt::HloShardingProto listed = tiled;
  listed.mutable_xla_op_sharding()->clear_iota_reshape_dims();
  listed.mutable_xla_op_sharding()->clear_iota_transpose_perm();
  for (int64_t id : {3, 1, 0, 2}) listed.mutable_xla_op_sharding()->add_tile_assignment_devices(id);
  listed.set_memory_kind("pinned_host");
  xla::ifrt::SingleDeviceShardingProto single;
  single.set_device_id(3);
  xla::ifrt::ConcreteEvenShardingProto even;
  even.mutable_devices()->add_device_ids(0);
  even.mutable_devices()->add_device_ids(1);
  even.mutable_shape()->add_dims(8);
  even.mutable_shard_shape()->add_dims(4);
  xla::ifrt::ConcreteShardingProto concrete;
  *concrete.mutable_devices() = even.devices();
  *concrete.mutable_shape() = even.shape();
  *concrete.add_shard_shapes() = even.shard_shape();
  *concrete.add_shard_shapes() = even.shard_shape();
  return {Wrapped("xla::ifrt::HloSharding", tiled), Wrapped("xla::ifrt::HloSharding", listed),
          Wrapped("xla::ifrt::SingleDeviceSharding", single), Wrapped("xla::ifrt::ConcreteEvenSharding", even),
          Wrapped("xla::ifrt::ConcreteSharding", concrete)};
}

// What the rest of the door relies on, of every sharding that was taken.
void CheckSpec(const ArraySpec& spec) {
  const Sharding& sharding = *spec.sharding;
  LB_CHECK(sharding.num_shards() >= 1 && sharding.num_shards() <= static_cast<uint32_t>(limits::kDevicesMax));
  int64_t held = 0;
  for (uint32_t i = 0; i < std::min<uint32_t>(sharding.num_shards(), 64); ++i) {
    const absl::StatusOr<Dims> dims = sharding.ShardDims(spec.dims, i);
    LB_CHECK(dims.ok());
    LB_CHECK(sharding.kind() == Sharding::Kind::kConcrete || sharding.kind() == Sharding::Kind::kConcreteEven ||
             dims->size() == spec.dims.size());
    if (!sharding.HasBoxes()) continue;
    const absl::StatusOr<IndexBox> box = sharding.Box(spec.dims, i);
    LB_CHECK(box.ok() && box->dims() == *dims);
    for (size_t d = 0; d < spec.dims.size(); ++d) LB_CHECK(box->start[d] >= 0 && box->limit[d] <= spec.dims[d]);
    held += box->Elements() > 0;
  }
  if (sharding.HasBoxes() && ElementCount(spec.dims).ok() && *ElementCount(spec.dims) > 0) LB_CHECK(held > 0);
  // There and back.
  xla::ifrt::ShardingProto proto;
  wire::SetSharding(sharding, &proto);
  const absl::StatusOr<Sharding::Ptr> again = wire::ParseSharding(proto);
  LB_CHECK(again.ok() && **again == sharding);
  LB_CHECK(!sharding.ToString().empty());
  LB_CHECK(!wire::DefaultLayoutText(spec.dtype, spec.dims.size()).empty());
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const std::string& bytes : Shardings()) {
    xla::ifrt::ArraySpecProto spec;
    spec.mutable_dtype()->set_kind(static_cast<int>(DType::kF32));
    spec.mutable_shape()->add_dims(8);
    LB_CHECK(spec.mutable_sharding()->ParseFromString(bytes));
    if (seeds.size() < 2) spec.mutable_shape()->add_dims(6);
    seeds.push_back(std::string(2, '\0') + WithLength(spec.SerializeAsString()));
  }
  xla::ifrt::proxy::GrpcGetVersionRequest version;
  version.mutable_min_version()->set_protocol_version(16);
  version.mutable_max_version()->set_protocol_version(25);
  version.mutable_max_version()->set_ifrt_serdes_version_number(3);
  seeds.push_back(std::string("\x01\0", 2) + WithLength(version.SerializeAsString()));
  tensorflow::StatusProto status;
  status.set_code(5);
  status.set_message("no");
  (*status.mutable_payload())["type.googleapis.com/ifrt.UserContext"] = "12";
  seeds.push_back(std::string("\x02\0", 2) + WithLength(status.SerializeAsString()));
  seeds.push_back(
      std::string("\x03") +
      R"(__serialized_plugin_program {"reshardRequest":{"donateInput":true,"inSharding":[{"devices":{"device_ids":)"
      R"([0,1]},"memory_kind":"device","xla_hlo_sharding":"CAM="}],"outSharding":[{"devices":{"device_ids":[2]},)"
      R"("xla_hlo_sharding":""}]}})");
  seeds.push_back(std::string(300, '\x03'));
  return seeds;
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker({"xla::ifrt::HloSharding", "device", "pinned_host", "xla::ifrt::SingleDeviceSharding",
                                   "xla::ifrt::ConcreteEvenSharding", "xla::ifrt::ConcreteSharding"});
  Choices choices(input);
  switch (choices.Below(4)) {
    case 0: {
      xla::ifrt::ArraySpecProto proto = Next<xla::ifrt::ArraySpecProto>(choices, maker);
      if (choices.Flag()) {
        const char* type = "xla::ifrt::HloSharding";
        std::string bytes = Next<xla::ifrt::HloShardingProto>(choices, maker).SerializeAsString();
        if (choices.Flag()) {
          type = "xla::ifrt::ConcreteSharding";
          bytes = Next<xla::ifrt::ConcreteShardingProto>(choices, maker).SerializeAsString();
        }
        proto.mutable_sharding()->mutable_serialized_sharding()->set_type_name(type);
        proto.mutable_sharding()->mutable_serialized_sharding()->set_data(bytes);
      }
      const absl::StatusOr<ArraySpec> spec = wire::ParseSpec(proto);
      if (spec.ok()) {
        CheckSpec(*spec);
      } else {
        LB_CHECK(absl::IsInvalidArgument(spec.status()) || absl::IsUnimplemented(spec.status()));
      }
      return;
    }
    case 1: {
      const auto request = Next<xla::ifrt::proxy::GrpcGetVersionRequest>(choices, maker);
      const auto version = NegotiateVersion(request);
      if (version.ok()) LB_CHECK(CheckVersion(*version).ok());
      return;
    }
    case 2: {
      const absl::Status status = wire::FromProto(Next<tensorflow::StatusProto>(choices, maker));
      wire::ToProto(status);
      return;
    }
    default: {
      const absl::StatusOr<PluginProgram> program = ParsePluginProgram(std::string(choices.Rest()));
      if (program.ok()) {
        const auto* reshard = std::get_if<ReshardProgram>(&*program);
        LB_CHECK(reshard == nullptr || (!reshard->in.empty() && reshard->in.size() == reshard->out.size()));
      } else {
        LB_CHECK(absl::IsInvalidArgument(program.status()));
      }
      return;
    }
  }
}

}  // namespace landbridge::fuzz
