#include "sharding/sharding.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge {
namespace {

absl::Status Bad(absl::string_view what) { return absl::InvalidArgumentError(absl::StrCat("sharding: ", what)); }

// Product of positive factors; nothing if one is not positive or the product is above `max`.
template <typename Container>
std::optional<int64_t> BoundedProduct(const Container& factors, int64_t max) {
  int64_t product = 1;
  for (int64_t factor : factors) {
    if (factor <= 0 || factor > max / product) return std::nullopt;
    product *= factor;
  }
  return product;
}

absl::string_view TypeName(int type) {
  switch (type) {
    case xla::OpSharding::REPLICATED: return "replicated";
    case xla::OpSharding::MAXIMAL: return "maximal";
    case xla::OpSharding::TUPLE: return "tuple";
    case xla::OpSharding::OTHER: return "tiled";
    case xla::OpSharding::MANUAL: return "manual";
    case xla::OpSharding::UNREDUCED: return "unreduced";
    default: return "unknown";
  }
}

}  // namespace

absl::StatusOr<MemoryKind> ParseMemoryKind(absl::string_view name) {
  if (name.empty() || name == "device") return MemoryKind::kDevice;
  if (name == "pinned_host") return MemoryKind::kPinnedHost;
  if (name == "unpinned_host") return MemoryKind::kUnpinnedHost;
  return absl::InvalidArgumentError(
      absl::StrCat("memory kind '", name.substr(0, 64), "' is not one of device, pinned_host, unpinned_host"));
}

absl::string_view MemoryKindName(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kPinnedHost: return "pinned_host";
    case MemoryKind::kUnpinnedHost: return "unpinned_host";
    default: return "device";
  }
}

absl::Status Sharding::CheckDevices(absl::Span<const DeviceId> devices) {
  if (devices.empty()) return Bad("the device list is empty");
  if (devices.size() > static_cast<size_t>(limits::kDevicesMax)) {
    return Bad(absl::StrCat(devices.size(), " devices; at most ", limits::kDevicesMax, " are possible"));
  }
  auto twice = [](DeviceId device) {
    return Bad(absl::StrCat("device ", device.value(), " is in the device list twice"));
  };
  if (devices.size() <= 16) {  // no allocation for the usual sizes
    for (size_t i = 1; i < devices.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (devices[i] == devices[j]) return twice(devices[i]);
      }
    }
    return absl::OkStatus();
  }
  absl::flat_hash_set<DeviceId> seen;
  seen.reserve(devices.size());
  for (DeviceId device : devices) {
    if (!seen.insert(device).second) return twice(device);
  }
  return absl::OkStatus();
}

Sharding::Ptr Sharding::SingleDevice(DeviceId device, MemoryKind memory) {
  auto result = std::shared_ptr<Sharding>(new Sharding());
  result->kind_ = Kind::kSingleDevice;
  result->memory_ = memory;
  result->devices_ = {device};
  result->ComputeHash();
  return result;
}

absl::StatusOr<Sharding::Ptr> Sharding::FullyReplicated(std::vector<DeviceId> devices, MemoryKind memory) {
  return FromOpSharding(std::move(devices), memory, xla::OpSharding());
}

absl::StatusOr<Sharding::Ptr> Sharding::FromOpSharding(std::vector<DeviceId> devices, MemoryKind memory,
                                                       const xla::OpSharding& op) {
  LB_RETURN_IF_ERROR(CheckDevices(devices));
  auto result = std::shared_ptr<Sharding>(new Sharding());
  result->memory_ = memory;
  result->devices_ = std::move(devices);
  const auto count = static_cast<int64_t>(result->devices_.size());
  if (op.has_named_sharding()) {
    return absl::UnimplementedError(
        "sharding: the named form (XLA flag xla_enable_hlo_sharding_v3) is not supported; unset that flag");
  }
  switch (op.type()) {
    case xla::OpSharding::REPLICATED: break;
    case xla::OpSharding::MAXIMAL: {
      if (op.tile_assignment_devices_size() > 1) return Bad("maximal, but with more than one device");
      int64_t device = op.tile_assignment_devices_size() == 1 ? op.tile_assignment_devices(0) : 0;
      if (count > 1 && (device < 0 || device >= count)) {
        return Bad(absl::StrCat("maximal on position ", device, " of ", count, " devices"));
      }
      result->op_type_ = op.type();
      result->maximal_device_ = device;
      result->form_ = Form::kDistinct;
      break;
    }
    case xla::OpSharding::MANUAL:
    case xla::OpSharding::UNKNOWN:
    case xla::OpSharding::UNREDUCED:
      result->op_type_ = op.type();
      result->form_ = Form::kDistinct;
      break;
    case xla::OpSharding::OTHER: LB_RETURN_IF_ERROR(result->InitTiled(op)); break;
    case xla::OpSharding::TUPLE: return Bad("a tuple of shardings where that of one array is needed");
    default: return Bad(absl::StrCat("type ", static_cast<int>(op.type()), " is not known"));
  }
  if (count == 1) result->form_ = Form::kReplicated;  // whatever it was called, the one device has everything
  if (result->form_ == Form::kReplicated) {           // one spelling for all that mean it
    result->op_type_ = xla::OpSharding::REPLICATED;
    result->tiles_.clear();
    result->assignment_.clear();
    result->positions_.clear();
    result->iota_.reshape.clear();
    result->iota_.perm.clear();
    result->copies_ = 1;
    result->subgroup_types_.clear();
  }
  result->ComputeHash();
  return Ptr(std::move(result));
}

absl::Status Sharding::InitTiled(const xla::OpSharding& op) {
  const auto count = static_cast<int64_t>(devices_.size());
  const int rank = op.tile_assignment_dimensions_size();
  if (rank > 2 * limits::kRankMax) return Bad(absl::StrCat("tile assignment of rank ", rank));
  int subgroups = 0;
  if (op.replicate_on_last_tile_dim()) {
    if (op.last_tile_dims_size() != 0) return Bad("both replicate_on_last_tile_dim and last_tile_dims are set");
    subgroups = 1;
  } else {
    subgroups = op.last_tile_dims_size();
  }
  if (subgroups > rank) return Bad(absl::StrCat(subgroups, " subgroups in a tile assignment of rank ", rank));
  const auto& td = op.tile_assignment_dimensions();
  std::optional<int64_t> total = BoundedProduct(td, limits::kDevicesMax);
  if (!total || *total != count) {
    return Bad(absl::StrCat("tile assignment [", absl::StrJoin(td, ","), "] does not have ", count,
                            " entries, the number of devices"));
  }
  assignment_.assign(td.begin(), td.end());
  tiles_.assign(td.begin(), td.end() - subgroups);
  bool distinct = false;
  for (int i = 0; i < subgroups; ++i) {
    const int type =
        op.replicate_on_last_tile_dim() ? xla::OpSharding::REPLICATED : static_cast<int>(op.last_tile_dims(i));
    if (type != xla::OpSharding::REPLICATED && type != xla::OpSharding::MANUAL && type != xla::OpSharding::UNREDUCED) {
      return Bad(absl::StrCat("subgroup of type ", TypeName(type)));
    }
    const int64_t size = assignment_[static_cast<size_t>(rank - subgroups + i)];
    if (type != xla::OpSharding::REPLICATED && size > 1) distinct = true;
    subgroup_types_.push_back(type);
    copies_ *= size;
  }
  op_type_ = xla::OpSharding::OTHER;

  const auto& reshape = op.iota_reshape_dims();
  const auto& perm = op.iota_transpose_perm();
  const auto& list = op.tile_assignment_devices();
  if (!reshape.empty()) {
    if (!list.empty()) return Bad("both an iota and a list of devices are given");
    if (reshape.size() > 2 * limits::kRankMax) return Bad(absl::StrCat("iota of rank ", reshape.size()));
    std::optional<int64_t> product = BoundedProduct(reshape, limits::kDevicesMax);
    if (!product || *product != count) {
      return Bad(absl::StrCat("iota [", absl::StrJoin(reshape, ","), "] does not have ", count, " entries"));
    }
    // The reference writes the permutation only where it changes something.
    if (!perm.empty() && perm.size() != reshape.size()) {
      return Bad(absl::StrCat("permutation of ", perm.size(), " for an iota of rank ", reshape.size()));
    }
    std::vector<bool> seen(static_cast<size_t>(reshape.size()), false);
    for (int i = 0; i < reshape.size(); ++i) {
      const int axis = perm.empty() ? i : perm.Get(i);
      if (axis < 0 || axis >= reshape.size() || seen[static_cast<size_t>(axis)]) {
        return Bad(absl::StrCat("[", absl::StrJoin(perm, ","), "] is no permutation"));
      }
      seen[static_cast<size_t>(axis)] = true;
      iota_.perm.push_back(axis);
      iota_.reshape.push_back(reshape.Get(i));
    }
  } else if (list.empty() && count == 1) {
    positions_ = {0};
  } else {
    if (list.size() != count) {
      return Bad(absl::StrCat("tile assignment lists ", list.size(), " devices of ", count));
    }
    positions_.assign(static_cast<size_t>(count), -1);
    for (int i = 0; i < list.size(); ++i) {
      const int64_t shard = list.Get(i);
      if (shard < 0 || shard >= count || positions_[static_cast<size_t>(shard)] != -1) {
        return Bad(
            absl::StrCat("tile assignment entry ", shard, " is not one of 0..", count - 1, " or is there twice"));
      }
      positions_[static_cast<size_t>(shard)] = i;
    }
  }
  if (distinct) {
    form_ = Form::kDistinct;
  } else {
    const bool one_tile = std::all_of(tiles_.begin(), tiles_.end(), [](int64_t t) { return t == 1; });
    form_ = one_tile ? Form::kReplicated : Form::kTiled;
  }
  return absl::OkStatus();
}

absl::StatusOr<Sharding::Ptr> Sharding::ConcreteEven(std::vector<DeviceId> devices, MemoryKind memory, Dims dims,
                                                     Dims shard_dims, bool is_fully_replicated) {
  LB_RETURN_IF_ERROR(CheckDevices(devices));
  LB_RETURN_IF_ERROR(CheckDims(dims));
  LB_RETURN_IF_ERROR(CheckDims(shard_dims));
  if (is_fully_replicated && shard_dims != dims) {
    return Bad(
        absl::StrCat("fully replicated, but shape ", DimsToString(dims), " with shards ", DimsToString(shard_dims)));
  }
  auto result = std::shared_ptr<Sharding>(new Sharding());
  result->kind_ = Kind::kConcreteEven;
  result->memory_ = memory;
  result->devices_ = std::move(devices);
  const bool whole = result->devices_.size() == 1 && shard_dims == dims;
  result->form_ = is_fully_replicated || whole ? Form::kReplicated : Form::kShapesOnly;
  result->concrete_dims_ = std::move(dims);
  result->concrete_shard_dims_ = {std::move(shard_dims)};
  result->ComputeHash();
  return Ptr(std::move(result));
}

absl::StatusOr<Sharding::Ptr> Sharding::Concrete(std::vector<DeviceId> devices, MemoryKind memory, Dims dims,
                                                 std::vector<Dims> shard_dims) {
  LB_RETURN_IF_ERROR(CheckDevices(devices));
  LB_RETURN_IF_ERROR(CheckDims(dims));
  if (shard_dims.size() != devices.size()) {
    return Bad(absl::StrCat(shard_dims.size(), " shard shapes for ", devices.size(), " devices"));
  }
  for (const Dims& shard : shard_dims) LB_RETURN_IF_ERROR(CheckDims(shard));
  auto result = std::shared_ptr<Sharding>(new Sharding());
  result->kind_ = Kind::kConcrete;
  result->memory_ = memory;
  result->devices_ = std::move(devices);
  const bool whole = result->devices_.size() == 1 && shard_dims[0] == dims;
  result->form_ = whole ? Form::kReplicated : Form::kShapesOnly;
  result->concrete_dims_ = std::move(dims);
  result->concrete_shard_dims_ = std::move(shard_dims);
  result->ComputeHash();
  return Ptr(std::move(result));
}

absl::StatusOr<Sharding::Ptr> Sharding::WithDevices(std::vector<DeviceId> devices) const {
  if (devices.size() != devices_.size()) {
    return Bad(absl::StrCat(devices.size(), " devices in place of ", devices_.size()));
  }
  LB_RETURN_IF_ERROR(CheckDevices(devices));
  auto result = std::shared_ptr<Sharding>(new Sharding(*this));
  result->devices_ = std::move(devices);
  result->ComputeHash();
  return Ptr(std::move(result));
}

Sharding::Ptr Sharding::WithMemory(MemoryKind memory) const {
  auto result = std::shared_ptr<Sharding>(new Sharding(*this));
  result->memory_ = memory;
  result->ComputeHash();
  return result;
}

int64_t Sharding::PositionOf(uint32_t shard) const {
  if (iota_.reshape.empty()) return positions_[shard];
  // shard is the value; its coordinates in the reshaped iota, permuted, are those of the position.
  const size_t rank = iota_.reshape.size();
  Dims coordinate(rank);
  int64_t rest = shard;
  for (size_t i = rank; i-- > 0;) {
    coordinate[i] = rest % iota_.reshape[i];
    rest /= iota_.reshape[i];
  }
  int64_t position = 0;
  for (int axis : iota_.perm) {
    position = position * iota_.reshape[static_cast<size_t>(axis)] + coordinate[static_cast<size_t>(axis)];
  }
  return position;
}

int64_t Sharding::TileOf(uint32_t shard) const {
  LB_CHECK(shard < devices_.size());
  if (form_ != Form::kTiled && !(form_ == Form::kDistinct && !tiles_.empty())) return 0;
  return PositionOf(shard) / copies_;
}

bool Sharding::SamePartitioning(const Sharding& other) const {
  if (this == &other) return true;
  if (form_ != other.form_ || devices_.size() != other.devices_.size()) return false;
  switch (form_) {
    case Form::kReplicated: return true;
    case Form::kShapesOnly: {
      if (concrete_dims_ != other.concrete_dims_) return false;
      for (size_t i = 0; i < devices_.size(); ++i) {
        auto shard = [i](const Sharding& s) -> const Dims& {
          return s.concrete_shard_dims_[s.kind_ == Kind::kConcreteEven ? 0 : i];
        };
        if (shard(*this) != shard(other)) return false;
        if (kind_ == Kind::kConcreteEven && other.kind_ == Kind::kConcreteEven) break;
      }
      return true;
    }
    case Form::kTiled: {
      if (tiles_ != other.tiles_) return false;
      if (iota_.reshape == other.iota_.reshape && iota_.perm == other.iota_.perm && positions_ == other.positions_ &&
          copies_ == other.copies_) {
        return true;
      }
      for (uint32_t i = 0; i < num_shards(); ++i) {
        if (TileOf(i) != other.TileOf(i)) return false;
      }
      return true;
    }
    case Form::kDistinct: {
      if (op_type_ != other.op_type_ || assignment_ != other.assignment_ || tiles_ != other.tiles_ ||
          subgroup_types_ != other.subgroup_types_ || maximal_device_ != other.maximal_device_) {
        return false;
      }
      if (assignment_.empty()) return true;
      for (uint32_t i = 0; i < num_shards(); ++i) {
        if (PositionOf(i) != other.PositionOf(i)) return false;
      }
      return true;
    }
  }
  return false;
}

bool operator==(const Sharding& a, const Sharding& b) {
  if (&a == &b) return true;
  return a.hash_ == b.hash_ && a.memory_ == b.memory_ && a.devices_ == b.devices_ && a.SamePartitioning(b);
}

void Sharding::ComputeHash() {
  // Only of what is the same in every spelling.
  hash_ = absl::HashOf(static_cast<int>(form_), static_cast<int>(memory_), devices_, tiles_);
}

absl::Status Sharding::Validate(absl::Span<const int64_t> dims) const {
  LB_RETURN_IF_ERROR(CheckDims(dims));
  if (kind_ == Kind::kConcrete || kind_ == Kind::kConcreteEven) {
    if (absl::MakeConstSpan(concrete_dims_) != dims) {
      return Bad(absl::StrCat("made for shape ", DimsToString(concrete_dims_), ", not ", DimsToString(dims)));
    }
    return absl::OkStatus();
  }
  const bool tiled = form_ == Form::kTiled || (form_ == Form::kDistinct && op_type_ == xla::OpSharding::OTHER);
  if (tiled && tiles_.size() != dims.size()) {
    return Bad(absl::StrCat("tiles [", absl::StrJoin(tiles_, ","), "] do not fit shape ", DimsToString(dims)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Dims> Sharding::ShardDims(absl::Span<const int64_t> dims, uint32_t shard) const {
  LB_RETURN_IF_ERROR(Validate(dims));
  if (shard >= devices_.size()) return Bad(absl::StrCat("no shard ", shard, " of ", devices_.size()));
  if (form_ == Form::kShapesOnly) {
    return concrete_shard_dims_[kind_ == Kind::kConcreteEven ? 0 : shard];
  }
  if (tiles_.empty() || form_ == Form::kReplicated) return Dims(dims.begin(), dims.end());
  Dims result(dims.size());
  int64_t tile = TileOf(shard);
  for (size_t i = dims.size(); i-- > 0;) {
    const int64_t size = CeilDivide(dims[i], tiles_[i]);
    const int64_t start = std::min(dims[i], (tile % tiles_[i]) * size);
    result[i] = std::min(size, dims[i] - start);
    tile /= tiles_[i];
  }
  return result;
}

absl::StatusOr<IndexBox> Sharding::Box(absl::Span<const int64_t> dims, uint32_t shard) const {
  LB_RETURN_IF_ERROR(Validate(dims));
  if (shard >= devices_.size()) return Bad(absl::StrCat("no shard ", shard, " of ", devices_.size()));
  if (!HasBoxes()) {
    return absl::FailedPreconditionError(
        absl::StrCat("sharding ", ToString(), " does not say which elements a shard holds"));
  }
  IndexBox box = IndexBox::Whole(dims);
  if (form_ == Form::kReplicated) return box;
  int64_t tile = TileOf(shard);
  for (size_t i = dims.size(); i-- > 0;) {
    const int64_t size = CeilDivide(dims[i], tiles_[i]);
    box.start[i] = std::min(dims[i], (tile % tiles_[i]) * size);
    box.limit[i] = box.start[i] + std::min(size, dims[i] - box.start[i]);  // their sum may be beyond the largest number
    tile /= tiles_[i];
  }
  return box;
}

absl::StatusOr<xla::OpSharding> Sharding::ToOpSharding() const {
  xla::OpSharding op;
  switch (form_) {
    case Form::kReplicated: op.set_type(xla::OpSharding::REPLICATED); return op;
    case Form::kShapesOnly:
      return absl::FailedPreconditionError(absl::StrCat("sharding ", ToString(), " has no OpSharding form"));
    case Form::kTiled:
    case Form::kDistinct: break;
  }
  op.set_type(op_type_);
  if (op_type_ == xla::OpSharding::MAXIMAL) {
    op.add_tile_assignment_dimensions(1);
    op.add_tile_assignment_devices(maximal_device_);
    return op;
  }
  if (op_type_ != xla::OpSharding::OTHER) return op;
  for (int64_t dim : assignment_) op.add_tile_assignment_dimensions(dim);
  if (subgroup_types_.size() == 1 && subgroup_types_[0] == xla::OpSharding::REPLICATED) {
    op.set_replicate_on_last_tile_dim(true);
  } else {
    for (int type : subgroup_types_) op.add_last_tile_dims(static_cast<xla::OpSharding::Type>(type));
  }
  if (!iota_.reshape.empty()) {
    for (int64_t dim : iota_.reshape) op.add_iota_reshape_dims(dim);
    for (int axis : iota_.perm) op.add_iota_transpose_perm(axis);
  } else {
    std::vector<int64_t> list(positions_.size());
    for (size_t shard = 0; shard < positions_.size(); ++shard) {
      list[static_cast<size_t>(positions_[shard])] = static_cast<int64_t>(shard);
    }
    op.mutable_tile_assignment_devices()->Add(list.begin(), list.end());
  }
  return op;
}

std::string Sharding::ToString() const {
  std::string text;
  switch (form_) {
    case Form::kReplicated: text = "replicated"; break;
    case Form::kTiled: text = absl::StrCat("tiles[", absl::StrJoin(tiles_, ","), "]"); break;
    case Form::kDistinct:
      text = op_type_ == xla::OpSharding::OTHER ? absl::StrCat("subgroups[", absl::StrJoin(assignment_, ","), "]")
                                                : std::string(TypeName(op_type_));
      break;
    case Form::kShapesOnly: text = absl::StrCat("shards of ", DimsToString(concrete_dims_)); break;
  }
  absl::StrAppend(&text, " on ");
  if (devices_.size() > 8) {
    absl::StrAppend(&text, devices_.size(), " devices d", devices_.front().value(), "...d", devices_.back().value());
  } else {
    for (size_t i = 0; i < devices_.size(); ++i) absl::StrAppend(&text, i == 0 ? "d" : ",d", devices_[i].value());
  }
  if (memory_ != MemoryKind::kDevice) absl::StrAppend(&text, " in ", MemoryKindName(memory_));
  return text;
}

}  // namespace landbridge
