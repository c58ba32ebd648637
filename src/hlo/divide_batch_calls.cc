#include "hlo/divide_batch_calls.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace landbridge::hlo {
namespace {

// A batch in parts: tile t (row-major over `tiles`) lies on devices[t * n] ... devices[(t + 1) * n - 1], which are so many
// copies of so many groups that a region around the call leaves to hands already, each with a batch of its own.
struct BatchTiling {
  std::vector<int64_t> tiles;  // of each batch dimension
  std::vector<int64_t> devices;
  int64_t parts = 1;
  int64_t groups = 1;

  int64_t copies() const { return static_cast<int64_t>(devices.size()) / (parts * groups); }
};

std::vector<xla::ShapeProto> LeavesOf(const xla::ShapeProto& shape) {
  if (shape.element_type() != xla::TUPLE) return {shape};
  return {shape.tuple_shapes().begin(), shape.tuple_shapes().end()};
}

bool IsStaticArray(const xla::ShapeProto& shape) {
  if (shape.element_type() == xla::TUPLE || shape.element_type() == xla::TOKEN ||
      shape.element_type() == xla::OPAQUE_TYPE) {
    return false;
  }
  return std::none_of(shape.is_dynamic_dimension().begin(), shape.is_dynamic_dimension().end(),
                      [](bool dynamic) { return dynamic; });
}

// The number of batch dimensions that a call announces; 0: none, or not a number.
int BatchDimsOf(const xla::HloInstructionProto& instruction) {
  if (instruction.opcode() != "custom-call") return 0;
  const auto& attributes = instruction.frontend_attributes().map();
  auto found = attributes.find(std::string(kBatchDimsAttribute));
  int dims = 0;
  if (found == attributes.end() || !absl::SimpleAtoi(found->second, &dims)) return 0;
  return std::max(dims, 0);
}

// Product of `dims`, or 0 if one of them is not positive or the product is larger than `max`.
template <typename Dims>
int64_t BoundedProduct(const Dims& dims, int64_t max) {
  int64_t product = 1;
  for (int64_t dim : dims) {
    if (dim < 1 || dim > max / product) return 0;
    product *= dim;
  }
  return product;
}

// iota(product of shape), reshaped to `shape`, its dimensions permuted, flattened. `permutation` has one entry per
// dimension.
std::vector<int64_t> Transposed(const std::vector<int64_t>& values, const std::vector<int64_t>& shape,
                                const std::vector<int>& permutation) {
  const size_t rank = shape.size();
  std::vector<int64_t> strides(rank, 1);
  for (size_t i = rank; i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  std::vector<int64_t> index(rank, 0);  // of the result
  std::vector<int64_t> out;
  out.reserve(values.size());
  for (size_t n = 0; n < values.size(); ++n) {
    int64_t from = 0;
    for (size_t i = 0; i < rank; ++i) from += index[i] * strides[static_cast<size_t>(permutation[i])];
    out.push_back(values[static_cast<size_t>(from)]);
    for (size_t i = rank; i-- > 0;) {
      if (++index[i] < shape[static_cast<size_t>(permutation[i])]) break;
      index[i] = 0;
    }
  }
  return out;
}

bool IsPermutation(const std::vector<int>& permutation) {
  std::vector<bool> seen(permutation.size(), false);
  for (int i : permutation) {
    if (i < 0 || static_cast<size_t>(i) >= seen.size() || seen[static_cast<size_t>(i)]) return false;
    seen[static_cast<size_t>(i)] = true;
  }
  return true;
}

// The devices of a tiled sharding in the order of its tiles; empty when it does not name each of `num_partitions` once.
std::vector<int64_t> DevicesOf(const xla::OpSharding& sharding, int num_partitions) {
  std::vector<int64_t> devices(sharding.tile_assignment_devices().begin(), sharding.tile_assignment_devices().end());
  if (devices.empty()) {
    const std::vector<int64_t> shape(sharding.iota_reshape_dims().begin(), sharding.iota_reshape_dims().end());
    const std::vector<int> permutation(sharding.iota_transpose_perm().begin(), sharding.iota_transpose_perm().end());
    if (shape.empty() || BoundedProduct(shape, num_partitions) != num_partitions ||
        permutation.size() != shape.size() || !IsPermutation(permutation)) {
      return {};
    }
    for (int64_t d = 0; d < num_partitions; ++d) devices.push_back(d);
    devices = Transposed(devices, shape, permutation);
  }
  absl::flat_hash_set<int64_t> distinct(devices.begin(), devices.end());
  const bool all = devices.size() == static_cast<size_t>(num_partitions) && distinct.size() == devices.size() &&
                   std::all_of(devices.begin(), devices.end(), [&](int64_t d) { return d >= 0 && d < num_partitions; });
  return all ? devices : std::vector<int64_t>();
}

// What a leaf's sharding says: nullopt when it is none that we understand.
struct LeafSharding {
  bool replicated = true;
  std::vector<int64_t> tiles;   // of every dimension, then of copies and groups
  std::vector<bool> is_groups;  // of each of `tiles`: a region around the call leaves it to hands
  std::vector<int64_t> devices;
};

std::optional<LeafSharding> ReadLeaf(const xla::OpSharding* sharding, size_t rank, int num_partitions) {
  LeafSharding leaf;
  if (sharding == nullptr || sharding->type() == xla::OpSharding::REPLICATED) return leaf;
  if (sharding->type() != xla::OpSharding::OTHER || sharding->has_named_sharding()) return std::nullopt;
  leaf.replicated = false;
  leaf.is_groups.assign(rank, false);
  for (int type : sharding->last_tile_dims()) {
    if (type != xla::OpSharding::REPLICATED && type != xla::OpSharding::MANUAL) return std::nullopt;
    leaf.is_groups.push_back(type == xla::OpSharding::MANUAL);
  }
  if (sharding->replicate_on_last_tile_dim()) leaf.is_groups.push_back(false);
  leaf.tiles.assign(sharding->tile_assignment_dimensions().begin(), sharding->tile_assignment_dimensions().end());
  leaf.devices = DevicesOf(*sharding, num_partitions);
  if (leaf.tiles.size() != leaf.is_groups.size() || leaf.devices.empty() ||
      BoundedProduct(leaf.tiles, num_partitions) != num_partitions) {
    return std::nullopt;
  }
  return leaf;
}

// The part of a leaf's sharding that divides the batch evenly; all else becomes copies.
BatchTiling TilingOf(const LeafSharding& leaf, const std::vector<int64_t>& batch) {
  BatchTiling tiling;
  tiling.tiles.assign(batch.size(), 1);
  if (leaf.replicated) return tiling;
  std::vector<int> kept, others, groups;
  for (size_t i = 0; i < leaf.tiles.size(); ++i) {
    const bool keep = i < batch.size() && batch[i] % leaf.tiles[i] == 0;
    (keep ? kept : leaf.is_groups[i] ? groups : others).push_back(static_cast<int>(i));
    if (leaf.is_groups[i]) tiling.groups *= leaf.tiles[i];
    if (!keep) continue;
    tiling.tiles[i] = leaf.tiles[i];
    tiling.parts *= leaf.tiles[i];
  }
  kept.insert(kept.end(), others.begin(), others.end());
  kept.insert(kept.end(), groups.begin(), groups.end());
  tiling.devices = Transposed(leaf.devices, leaf.tiles, kept);
  return tiling;
}

xla::OpSharding Manual() {
  xla::OpSharding sharding;
  sharding.set_type(xla::OpSharding::MANUAL);
  return sharding;
}

// The sharding of a value of `rank` dimensions whose batch lies as `tiling` says.
xla::OpSharding ShardingFor(const BatchTiling& tiling, int rank) {
  const bool divided = tiling.parts > 1 && static_cast<size_t>(rank) >= tiling.tiles.size();
  const int64_t copies = tiling.copies() * (divided ? 1 : tiling.parts);
  xla::OpSharding sharding;
  if (!divided && tiling.groups == 1) {
    sharding.set_type(xla::OpSharding::REPLICATED);
    return sharding;
  }
  sharding.set_type(xla::OpSharding::OTHER);
  for (int i = 0; i < rank; ++i) {
    const auto dim = static_cast<size_t>(i);
    sharding.add_tile_assignment_dimensions(divided && dim < tiling.tiles.size() ? tiling.tiles[dim] : 1);
  }
  if (copies > 1) sharding.add_tile_assignment_dimensions(copies);
  if (tiling.groups > 1) {
    if (copies > 1) sharding.add_last_tile_dims(xla::OpSharding::REPLICATED);
    sharding.add_tile_assignment_dimensions(tiling.groups);
    sharding.add_last_tile_dims(xla::OpSharding::MANUAL);
  } else {
    sharding.set_replicate_on_last_tile_dim(copies > 1);
  }
  for (int64_t device : tiling.devices) sharding.add_tile_assignment_devices(device);
  return sharding;
}

// What one device has of a value.
xla::ShapeProto PartOf(xla::ShapeProto shape, const BatchTiling& tiling) {
  if (static_cast<size_t>(shape.dimensions_size()) < tiling.tiles.size()) return shape;
  for (size_t i = 0; i < tiling.tiles.size(); ++i) {
    int64_t& dim = *shape.mutable_dimensions()->Mutable(static_cast<int>(i));
    dim /= tiling.tiles[i];
  }
  return shape;
}

// Rewrites the calls of one module in place.
class Divider {
 public:
  // Calls of `target` are divided by the parts of their operands; without one, calls of a batch along that.
  Divider(xla::HloModuleProto& module, int num_partitions, absl::string_view target)
      : module_(module), num_partitions_(num_partitions), target_(target) {}

  int Run() {
    for (const xla::HloComputationProto& computation : module_.computations()) {
      for (const xla::HloInstructionProto& instruction : computation.instructions()) {
        largest_id_ = std::max(largest_id_, instruction.id());
        names_.insert(instruction.name());
      }
    }
    int divided = 0;
    for (xla::HloComputationProto& computation : *module_.mutable_computations()) divided += Rewrite(computation);
    return divided;
  }

 private:
  using Instructions = google::protobuf::RepeatedPtrField<xla::HloInstructionProto>;

  int Rewrite(xla::HloComputationProto& computation) {
    const auto& instructions = computation.instructions();
    if (std::none_of(instructions.begin(), instructions.end(), [this](const auto& call) { return IsMeant(call); })) {
      return 0;
    }
    by_id_.clear();
    int64_t largest_here = 0;
    for (const xla::HloInstructionProto& instruction : instructions) {
      by_id_[instruction.id()] = &instruction;
      largest_here = std::max(largest_here, instruction.id());
    }
    // Newer modules number instructions per computation, with the computation's number above bit 32; older ones have
    // one count for the module.
    const bool per_computation = largest_here > std::numeric_limits<uint32_t>::max();
    next_id_ = (per_computation ? largest_here : largest_id_) + 1;

    Instructions out;
    out.Reserve(instructions.size());
    int divided = 0;
    for (const xla::HloInstructionProto& instruction : instructions) {
      if (IsMeant(instruction) &&
          (target_.empty() ? TryDivide(instruction, out) : TryDivideByParts(instruction, out))) {
        ++divided;
      } else {
        *out.Add() = instruction;
      }
    }
    if (divided == 0) return 0;
    if (!per_computation) largest_id_ = next_id_ - 1;
    computation.mutable_instructions()->Swap(&out);
    return divided;
  }

  bool IsMeant(const xla::HloInstructionProto& instruction) const {
    if (target_.empty()) return BatchDimsOf(instruction) > 0;
    return instruction.opcode() == "custom-call" && instruction.custom_call_target() == target_;
  }

  bool TryDivide(const xla::HloInstructionProto& call, Instructions& out) {
    const std::optional<BatchTiling> tiling = TilingOfCall(call);
    if (tiling.has_value()) Divide(call, *tiling, out);
    return tiling.has_value();
  }

  // Puts into `out` the call, of the operands' parts.
  bool TryDivideByParts(const xla::HloInstructionProto& call, Instructions& out) {
    if (call.shape().element_type() != xla::TUPLE || call.shape().tuple_shapes_size() > 0 ||
        call.called_computation_ids_size() > 0 ||
        (call.has_sharding() && call.sharding().type() == xla::OpSharding::MANUAL)) {
      return false;
    }
    std::vector<BatchTiling> tilings;
    for (int64_t id : call.operand_ids()) {
      auto operand = by_id_.find(id);
      if (operand == by_id_.end() || !IsStaticArray(operand->second->shape())) return false;
      const xla::HloInstructionProto& value = *operand->second;
      const std::vector<int64_t> dims(value.shape().dimensions().begin(), value.shape().dimensions().end());
      const std::optional<LeafSharding> leaf =
          ReadLeaf(value.has_sharding() ? &value.sharding() : nullptr, dims.size(), num_partitions_);
      if (!leaf.has_value()) return false;
      tilings.push_back(TilingOf(*leaf, dims));
    }
    xla::HloInstructionProto part = call;
    for (int i = 0; i < call.operand_ids_size(); ++i) {
      const BatchTiling& tiling = tilings[static_cast<size_t>(i)];
      part.set_operand_ids(i, AddPart(out, call, call.operand_ids(i), tiling));
      if (i < part.operand_shapes_with_layout_size()) {
        xla::ShapeProto& shape = *part.mutable_operand_shapes_with_layout(i);
        shape = PartOf(shape, tiling);
      }
    }
    *part.mutable_sharding() = Manual();
    *out.Add() = std::move(part);
    return true;
  }

  // The largest division that a result or operand of the call already has; nullopt: the call stays.
  std::optional<BatchTiling> TilingOfCall(const xla::HloInstructionProto& call) const {
    const auto batch_dims = static_cast<size_t>(BatchDimsOf(call));
    if (batch_dims == 0 || call.custom_call_has_side_effect() || call.called_computation_ids_size() > 0) {
      return std::nullopt;
    }
    const std::vector<xla::ShapeProto> results = LeavesOf(call.shape());
    const bool tuple = call.shape().element_type() == xla::TUPLE;
    if (tuple && call.has_sharding() && static_cast<size_t>(call.sharding().tuple_shardings_size()) != results.size()) {
      return std::nullopt;
    }
    std::vector<int64_t> batch;
    std::optional<BatchTiling> best;
    int64_t groups = 0;  // none seen
    auto take = [&](const xla::ShapeProto& shape, const xla::OpSharding* sharding, bool needs_batch) {
      const auto rank = static_cast<size_t>(shape.dimensions_size());
      if (!IsStaticArray(shape)) return false;
      const std::optional<LeafSharding> leaf = ReadLeaf(sharding, rank, num_partitions_);
      if (!leaf.has_value()) return false;
      if (rank < batch_dims) return !needs_batch;  // an operand that all elements of the batch share
      const std::vector<int64_t> own(shape.dimensions().begin(), shape.dimensions().begin() + BatchDimsOf(call));
      if (batch.empty()) batch = own;
      if (batch != own) return false;
      BatchTiling tiling = TilingOf(*leaf, batch);
      if (groups == 0) groups = tiling.groups;
      if (tiling.groups != groups) return false;  // inside and outside a region
      if (tiling.parts > (best.has_value() ? best->parts : 1)) best = std::move(tiling);
      return true;
    };
    for (size_t i = 0; i < results.size(); ++i) {
      const xla::OpSharding& sharding =
          tuple && call.has_sharding() ? call.sharding().tuple_shardings(static_cast<int>(i)) : call.sharding();
      if (!take(results[i], call.has_sharding() ? &sharding : nullptr, true)) return std::nullopt;
    }
    for (int64_t id : call.operand_ids()) {
      auto operand = by_id_.find(id);
      if (operand == by_id_.end()) return std::nullopt;
      const xla::HloInstructionProto& value = *operand->second;
      if (!take(value.shape(), value.has_sharding() ? &value.sharding() : nullptr, false)) return std::nullopt;
    }
    return best;
  }

  xla::HloInstructionProto& Add(Instructions& out, absl::string_view opcode, absl::string_view base,
                                const xla::ShapeProto& shape, int64_t operand, const xla::OpSharding& sharding) {
    xla::HloInstructionProto& added = *out.Add();
    added.set_opcode(std::string(opcode));
    added.set_name(NewName(base));
    added.set_id(next_id_++);
    *added.mutable_shape() = shape;
    if (operand >= 0) added.add_operand_ids(operand);
    *added.mutable_sharding() = sharding;
    return added;
  }

  int64_t AddCall(Instructions& out, absl::string_view target, absl::string_view base, const xla::ShapeProto& shape,
                  int64_t operand, const xla::OpSharding& sharding) {
    xla::HloInstructionProto& added = Add(out, "custom-call", base, shape, operand, sharding);
    added.set_custom_call_target(std::string(target));
    added.set_custom_call_api_version(kOriginalApi);
    return added.id();
  }

  // Puts into `out`, in the place of `call`: its operands' parts, the call of the parts, and under the call's own id the
  // whole results.
  void Divide(const xla::HloInstructionProto& call, const BatchTiling& tiling, Instructions& out) {
    xla::HloInstructionProto part = call;
    part.set_id(next_id_++);
    part.set_name(NewName(call.name()));
    part.clear_operand_ids();
    for (int64_t id : call.operand_ids()) part.add_operand_ids(AddPart(out, call, id, tiling));
    for (xla::ShapeProto& shape : *part.mutable_operand_shapes_with_layout()) shape = PartOf(shape, tiling);
    const int64_t part_id = part.id();
    if (call.shape().element_type() != xla::TUPLE) {
      *part.mutable_shape() = PartOf(call.shape(), tiling);
      *part.mutable_sharding() = Manual();
      *out.Add() = std::move(part);
      const int64_t whole = AddWhole(out, call, call.shape(), part_id, tiling);
      AddResult(out, "copy", call).add_operand_ids(whole);
      return;
    }
    for (xla::ShapeProto& leaf : *part.mutable_shape()->mutable_tuple_shapes()) leaf = PartOf(leaf, tiling);
    part.mutable_sharding()->Clear();
    part.mutable_sharding()->set_type(xla::OpSharding::TUPLE);
    for (int i = 0; i < part.shape().tuple_shapes_size(); ++i)
      *part.mutable_sharding()->add_tuple_shardings() = Manual();
    *out.Add() = part;
    std::vector<int64_t> wholes;
    for (int i = 0; i < part.shape().tuple_shapes_size(); ++i) {
      xla::HloInstructionProto& leaf =
          Add(out, "get-tuple-element", call.name(), part.shape().tuple_shapes(i), part_id, Manual());
      leaf.set_tuple_index(i);
      wholes.push_back(AddWhole(out, call, call.shape().tuple_shapes(i), leaf.id(), tiling));
    }
    AddResult(out, "tuple", call).mutable_operand_ids()->Add(wholes.begin(), wholes.end());
  }

  // What stands in the call's place for everybody else: its number, name, shape and sharding.
  static xla::HloInstructionProto& AddResult(Instructions& out, absl::string_view opcode,
                                             const xla::HloInstructionProto& call) {
    xla::HloInstructionProto& result = *out.Add();
    result.set_opcode(std::string(opcode));
    result.set_name(call.name());
    result.set_id(call.id());
    *result.mutable_shape() = call.shape();
    if (call.has_sharding()) *result.mutable_sharding() = call.sharding();
    return result;
  }

  // What each device has of an operand of the call.
  int64_t AddPart(Instructions& out, const xla::HloInstructionProto& call, int64_t operand, const BatchTiling& tiling) {
    const xla::ShapeProto& shape = by_id_.at(operand)->shape();
    const xla::OpSharding sharding = ShardingFor(tiling, shape.dimensions_size());
    const int64_t placed = AddCall(out, "Sharding", call.name(), shape, operand, sharding);
    return AddCall(out, "SPMDFullToShardShape", call.name(), PartOf(shape, tiling), placed, Manual());
  }

  // The value of `shape` whose part on every device is `part`.
  int64_t AddWhole(Instructions& out, const xla::HloInstructionProto& call, const xla::ShapeProto& shape, int64_t part,
                   const BatchTiling& tiling) {
    return AddCall(out, "SPMDShardToFullShape", call.name(), shape, part, ShardingFor(tiling, shape.dimensions_size()));
  }

  std::string NewName(absl::string_view base) {
    for (;;) {
      std::string name = absl::StrCat(base, ".batch", ++names_made_);
      if (names_.insert(name).second) return name;
    }
  }

  static constexpr int32_t kOriginalApi = 1;  // xla.CustomCallApiVersion

  xla::HloModuleProto& module_;
  const int num_partitions_;
  const absl::string_view target_;
  absl::flat_hash_map<int64_t, const xla::HloInstructionProto*> by_id_;  // of the computation that is being rewritten
  absl::flat_hash_set<std::string> names_;
  int64_t largest_id_ = 0;  // of the module
  int64_t next_id_ = 0;
  int64_t names_made_ = 0;
};

}  // namespace

int DivideBatchCalls(xla::HloModuleProto& module, int num_partitions) {
  if (num_partitions < 2) return 0;
  return Divider(module, num_partitions, "").Run();
}

int DivideCallsByParts(xla::HloModuleProto& module, int num_partitions, absl::string_view target) {
  if (num_partitions < 2) return 0;
  return Divider(module, num_partitions, target).Run();
}

}  // namespace landbridge::hlo
