// What the benchmarks of controllers share.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "controller/controller.h"

namespace landbridge {

// Lets everything pass but what workers are sent.
class QuietSink : public ControllerSink {
 public:
  void Resolve(RequestId, const absl::Status&) override {}
  void ResolveRead(RequestId, absl::StatusOr<ReadResult>) override {}
  void ResolveExplain(RequestId, std::string) override {}
  void ServeHostBuffer(uint64_t, std::vector<Incarnation>) override {}
  void WantHostBytes(uint64_t) override {}
  void DropHostBuffer(uint64_t) override {}
  void ServeExecutable(Incarnation, ExecutableId, std::shared_ptr<const std::string>) override {}
  void StopServingExecutable(Incarnation, ExecutableId) override {}
  void PauseSession(SessionId, bool) override {}
};

// On so many devices; parameters and outputs are replicated, f32[8].
inline std::shared_ptr<ProgramImage> SmallProgram(int devices, int parameters, int outputs) {
  auto program = std::make_shared<ProgramImage>();
  program->envelope = std::make_shared<const std::string>("bytes");
  program->info.set_num_devices(devices);
  auto tensor = [&](TensorInfo* info) {
    info->set_dtype(static_cast<int>(DType::kF32));
    info->add_device_dims(8);
    info->add_global_dims(8);
    info->set_device_bytes(32);
    info->mutable_sharding()->set_type(xla::OpSharding::REPLICATED);
  };
  for (int i = 0; i < parameters; ++i) tensor(program->info.add_parameters());
  for (int i = 0; i < outputs; ++i) tensor(program->info.add_outputs());
  return program;
}

// f32[8], replicated over `shards` devices.
inline HostShard SmallUpload(uint32_t shards, uint64_t key) {
  HostShard shard;
  for (uint32_t i = 0; i < shards; ++i) shard.shards.push_back(i);
  shard.key = key;
  shard.image_bytes = 32;
  shard.bytes = std::make_shared<const std::string>(32, 'x');
  return shard;
}

// A matrix cut along its rows or its columns, over `count` devices from `first` on.
inline std::shared_ptr<const Sharding> Stripes(int first, int count, bool columns) {
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  op.add_tile_assignment_dimensions(columns ? 1 : count);
  op.add_tile_assignment_dimensions(columns ? count : 1);
  op.add_iota_reshape_dims(count);
  op.add_iota_transpose_perm(0);
  std::vector<DeviceId> ids;
  for (int i = 0; i < count; ++i) ids.push_back(DeviceId(first + i));
  return Sharding::FromOpSharding(std::move(ids), MemoryKind::kDevice, op).value();
}

}  // namespace landbridge
