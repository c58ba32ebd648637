// How an array is divided over devices.
//
// Thread-safety: Sharding is immutable; share it freely between threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "proto/xla/xla_data.pb.h"
#include "sharding/memory_kind.h"
#include "sharding/shape.h"

namespace landbridge {

// Immutable. Shard i of an array lives on devices()[i]. Two shardings are equal when devices, memory kind and the
// meaning (not the spelling) of the partitioning agree.
class Sharding {
 public:
  using Ptr = std::shared_ptr<const Sharding>;

  // The form it came in; the meaning is the same for equal shardings of different kinds.
  enum class Kind {
    kSingleDevice,
    kOp,            // xla.OpSharding
    kConcreteEven,  // global and shard shape given, positions unknown (unless replicated)
    kConcrete,      // each shard's shape given, positions unknown
  };

  // All factories: 1..limits::kDevicesMax distinct devices, else INVALID_ARGUMENT; every announced count is
  // compared with the number of devices before anything is allocated for it.
  static Ptr SingleDevice(DeviceId device, MemoryKind memory);
  static absl::StatusOr<Ptr> FullyReplicated(std::vector<DeviceId> devices, MemoryKind memory);
  static absl::StatusOr<Ptr> FromOpSharding(std::vector<DeviceId> devices, MemoryKind memory,
                                            const xla::OpSharding& op);
  static absl::StatusOr<Ptr> ConcreteEven(std::vector<DeviceId> devices, MemoryKind memory, Dims dims, Dims shard_dims,
                                          bool is_fully_replicated);
  static absl::StatusOr<Ptr> Concrete(std::vector<DeviceId> devices, MemoryKind memory, Dims dims,
                                      std::vector<Dims> shard_dims);

  // The same partitioning on other devices (as many) or in another memory.
  absl::StatusOr<Ptr> WithDevices(std::vector<DeviceId> devices) const;
  Ptr WithMemory(MemoryKind memory) const;

  Kind kind() const { return kind_; }
  const std::vector<DeviceId>& devices() const { return devices_; }
  uint32_t num_shards() const { return static_cast<uint32_t>(devices_.size()); }
  MemoryKind memory() const { return memory_; }

  // Every shard is the whole array, with the same content. True for one device.
  bool IsFullyReplicated() const { return form_ == Form::kReplicated; }
  // Box() works: it is known which elements a shard holds, and shards of the same box hold the same values.
  // False for manual, unreduced, maximal and unknown partitionings on several devices, and for concrete ones.
  bool HasBoxes() const { return form_ == Form::kReplicated || form_ == Form::kTiled; }
  bool SamePartitioning(const Sharding& other) const;

  // May an array of that shape be divided so? INVALID_ARGUMENT says what does not fit. The calls below need it.
  absl::Status Validate(absl::Span<const int64_t> dims) const;
  absl::StatusOr<Dims> ShardDims(absl::Span<const int64_t> dims, uint32_t shard) const;
  // FAILED_PRECONDITION when !HasBoxes().
  absl::StatusOr<IndexBox> Box(absl::Span<const int64_t> dims, uint32_t shard) const;

  // Number of tiles in each dimension of the data; empty unless tiled.
  const Dims& tiles() const { return tiles_; }
  // Which tile (row-major number in the grid of tiles()) the shard holds; 0 unless tiled.
  int64_t TileOf(uint32_t shard) const;

  // The wire form. Concrete shardings that are not replicated have none: FAILED_PRECONDITION.
  absl::StatusOr<xla::OpSharding> ToOpSharding() const;
  // For kConcreteEven and kConcrete.
  const Dims& concrete_dims() const { return concrete_dims_; }
  const std::vector<Dims>& concrete_shard_dims() const { return concrete_shard_dims_; }  // one if even

  size_t hash() const { return hash_; }
  std::string ToString() const;
  friend bool operator==(const Sharding& a, const Sharding& b);

 private:
  enum class Form {
    kReplicated,  // whole array everywhere, same content
    kTiled,       // boxes known, replicas alike
    kDistinct,    // shapes known (tiles_ if any, else whole), contents of like boxes differ
    kShapesOnly,  // concrete, positions unknown
  };
  // Order of the devices over the tile grid (data dims first, then subgroups).
  struct Iota {
    Dims reshape;
    absl::InlinedVector<int, 4> perm;
  };

  Sharding() = default;
  static absl::Status CheckDevices(absl::Span<const DeviceId> devices);
  absl::Status InitTiled(const xla::OpSharding& op);
  int64_t PositionOf(uint32_t shard) const;  // in the flattened tile assignment
  void ComputeHash();

  Kind kind_ = Kind::kOp;
  Form form_ = Form::kReplicated;
  MemoryKind memory_ = MemoryKind::kDevice;
  std::vector<DeviceId> devices_;
  xla::OpSharding::Type op_type_ = xla::OpSharding::REPLICATED;  // as it came, if not tiled
  int64_t maximal_device_ = 0;
  // Tiled (also kDistinct with subgroups): all dims of the assignment, of which the first tiles_.size() are data.
  Dims tiles_;
  Dims assignment_;
  std::vector<int> subgroup_types_;  // xla.OpSharding.Type of the trailing dims
  int64_t copies_ = 1;               // product of the trailing dims
  Iota iota_;                        // if reshape is not empty ...
  std::vector<int32_t> positions_;   // ... else shard -> position
  Dims concrete_dims_;
  std::vector<Dims> concrete_shard_dims_;
  size_t hash_ = 0;
};

}  // namespace landbridge
