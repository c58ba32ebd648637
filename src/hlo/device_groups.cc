#include "hlo/device_groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace landbridge::hlo {
namespace {

using Groups = std::vector<std::vector<int64_t>>;  // as the instruction numbers them

// Numbers 0..n-1 in an array of these dimensions, read with its dimensions permuted.
std::vector<int64_t> TransposedIota(absl::Span<const int64_t> dims, absl::Span<const int32_t> permutation) {
  const size_t rank = dims.size();
  std::vector<int64_t> strides(rank, 1);
  for (size_t i = rank; i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  std::vector<int64_t> out{0};
  for (size_t i = 0; i < rank; ++i) {
    const auto axis = static_cast<size_t>(permutation[i]);
    std::vector<int64_t> next;
    next.reserve(out.size() * static_cast<size_t>(dims[axis]));
    for (int64_t base : out) {
      for (int64_t k = 0; k < dims[axis]; ++k) next.push_back(base + k * strides[axis]);
    }
    out = std::move(next);
  }
  return out;
}

bool IsPermutation(absl::Span<const int32_t> permutation, size_t rank) {
  if (permutation.size() != rank) return false;
  std::vector<bool> seen(rank, false);
  for (int32_t i : permutation) {
    if (i < 0 || static_cast<size_t>(i) >= rank || seen[static_cast<size_t>(i)]) return false;
    seen[static_cast<size_t>(i)] = true;
  }
  return true;
}

// The product, or -1 if a factor is below 1 or it passes `count_max`.
int64_t BoundedProduct(absl::Span<const int64_t> dims, int64_t count_max) {
  int64_t product = 1;
  for (int64_t dim : dims) {
    if (dim < 1 || dim > count_max || product > count_max / dim) return -1;
    product *= dim;
  }
  return product;
}

std::vector<int32_t> Identity(size_t rank) {
  std::vector<int32_t> permutation(rank);
  std::iota(permutation.begin(), permutation.end(), 0);
  return permutation;
}

// Reads the groups of one instruction. `id_count`: how many ids its numbering has.
class GroupReader {
 public:
  GroupReader(const xla::HloInstructionProto& instruction, int64_t id_count)
      : instruction_(instruction), id_count_(id_count) {}

  absl::StatusOr<Groups> Read() const {
    if (instruction_.has_mesh_axes_replica_group_list()) return ReadMesh(instruction_.mesh_axes_replica_group_list());
    if (instruction_.has_iota_collective_device_list()) return ReadIota(instruction_.iota_collective_device_list());
    if (instruction_.has_collective_device_list()) {
      return ReadLists(instruction_.collective_device_list().replica_groups());
    }
    return ReadLists(instruction_.replica_groups());
  }

  absl::Status Bad(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("the optimised program cannot be read: the participants of ", instruction_.name(), " ", what));
  }

 private:
  template <typename Lists>
  absl::StatusOr<Groups> ReadLists(const Lists& lists) const {
    Groups groups;
    for (const xla::ReplicaGroup& list : lists)
      groups.emplace_back(list.replica_ids().begin(), list.replica_ids().end());
    if (groups.empty() || (groups.size() == 1 && groups[0].empty())) {
      groups.assign(1, std::vector<int64_t>(static_cast<size_t>(id_count_)));
      std::iota(groups[0].begin(), groups[0].end(), 0);
    }
    return groups;
  }

  absl::StatusOr<Groups> ReadIota(const xla::IotaReplicaGroupListProto& list) const {
    const std::vector<int64_t> dims(list.iota_reshape_dims().begin(), list.iota_reshape_dims().end());
    std::vector<int32_t> permutation(list.iota_transpose_perm().begin(), list.iota_transpose_perm().end());
    if (permutation.empty()) permutation = Identity(dims.size());
    const int64_t total = BoundedProduct({list.num_replica_groups(), list.num_devices_per_group()}, id_count_);
    if (total < 0 || BoundedProduct(dims, id_count_) != total || !IsPermutation(permutation, dims.size())) {
      return Bad("are no permuted range of the program's devices");
    }
    return Cut(TransposedIota(dims, permutation), list.num_devices_per_group());
  }

  // The mesh gives every device a place. The listed axes, in their order, make the ranks; the others the groups.
  absl::StatusOr<Groups> ReadMesh(const xla::MeshAxesReplicaGroupListProto& list) const {
    LB_ASSIGN_OR_RETURN(const std::vector<int64_t> devices, MeshDevices(list.mesh()));
    // Axes that are listed in part are cut into three first; `listed` names positions in `dims`.
    std::vector<std::vector<std::pair<int64_t, int64_t>>> cuts(static_cast<size_t>(list.mesh().axes_size()));
    for (const xla::AxisRefProto& axis : list.axes()) {
      if (axis.mesh_axis_index() < 0 || axis.mesh_axis_index() >= list.mesh().axes_size()) {
        return Bad(absl::StrCat("name axis ", axis.mesh_axis_index(), " of a mesh that has ", list.mesh().axes_size()));
      }
      const int64_t size = list.mesh().axes(static_cast<int>(axis.mesh_axis_index())).size();
      const int64_t before = axis.has_sub_axis_info() ? axis.sub_axis_info().pre_size() : 1;
      const int64_t length = axis.has_sub_axis_info() ? axis.sub_axis_info().size() : size;
      if (before < 1 || length < 1 || before > size || length > size / before || size % (before * length) != 0) {
        return Bad("name a part of an axis that does not divide it");
      }
      cuts[static_cast<size_t>(axis.mesh_axis_index())].emplace_back(before, length);
    }
    std::vector<int64_t> dims;
    std::vector<std::vector<size_t>> place(cuts.size());  // of each listed part, by axis and in ascending order
    for (size_t a = 0; a < cuts.size(); ++a) {
      std::sort(cuts[a].begin(), cuts[a].end());
      const int64_t size = list.mesh().axes(static_cast<int>(a)).size();
      int64_t done = 1;
      for (const auto& [before, length] : cuts[a]) {
        if (before % done != 0 || before < done) return Bad("name overlapping parts of an axis");
        if (before / done > 1) dims.push_back(before / done);
        place[a].push_back(dims.size());
        dims.push_back(length);
        done = before * length;
      }
      if (size % done != 0) return Bad("name overlapping parts of an axis");
      if (size / done > 1) dims.push_back(size / done);
    }
    std::vector<int32_t> ranks;
    int64_t group_size = 1;
    for (const xla::AxisRefProto& axis : list.axes()) {
      const auto a = static_cast<size_t>(axis.mesh_axis_index());
      const int64_t size = list.mesh().axes(static_cast<int>(a)).size();
      const std::pair<int64_t, int64_t> cut =
          axis.has_sub_axis_info() ? std::pair{axis.sub_axis_info().pre_size(), axis.sub_axis_info().size()}
                                   : std::pair{int64_t{1}, size};
      const auto i = static_cast<size_t>(std::find(cuts[a].begin(), cuts[a].end(), cut) - cuts[a].begin());
      ranks.push_back(static_cast<int32_t>(place[a][i]));
      group_size *= cut.second;
    }
    std::vector<bool> listed(dims.size(), false);
    for (int32_t d : ranks) listed[static_cast<size_t>(d)] = true;
    std::vector<int32_t> permutation;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (!listed[d]) permutation.push_back(static_cast<int32_t>(d));
    }
    permutation.insert(permutation.end(), ranks.begin(), ranks.end());
    if (!IsPermutation(permutation, dims.size())) return Bad("name an axis twice");
    std::vector<int64_t> order = TransposedIota(dims, permutation);
    for (int64_t& place_in_mesh : order) place_in_mesh = devices[static_cast<size_t>(place_in_mesh)];
    return Cut(order, group_size);
  }

  // The mesh's device ids in row-major order of its axes.
  absl::StatusOr<std::vector<int64_t>> MeshDevices(const xla::MeshProto& mesh) const {
    std::vector<int64_t> sizes;
    for (const auto& axis : mesh.axes()) sizes.push_back(axis.size());
    const int64_t total = BoundedProduct(sizes, id_count_);
    if (total < 0) return Bad("name a mesh that is larger than the program");
    if (mesh.device_ids_size() > 0) {
      if (mesh.device_ids_size() != total) return Bad("name a mesh whose devices are not as many as its axes say");
      return std::vector<int64_t>(mesh.device_ids().begin(), mesh.device_ids().end());
    }
    if (mesh.has_iota_transform() && mesh.iota_transform().reshape_dims_size() > 0) {
      const auto& iota = mesh.iota_transform();
      const std::vector<int64_t> dims(iota.reshape_dims().begin(), iota.reshape_dims().end());
      std::vector<int32_t> permutation(iota.transpose_perm().begin(), iota.transpose_perm().end());
      if (permutation.empty()) permutation = Identity(dims.size());
      if (BoundedProduct(dims, id_count_) != total || !IsPermutation(permutation, dims.size())) {
        return Bad("name a mesh that is no permuted range");
      }
      return TransposedIota(dims, permutation);
    }
    std::vector<int64_t> ids(static_cast<size_t>(total));
    std::iota(ids.begin(), ids.end(), 0);
    return ids;
  }

  static Groups Cut(const std::vector<int64_t>& order, int64_t group_size) {
    Groups groups;
    for (size_t i = 0; i < order.size(); i += static_cast<size_t>(group_size)) {
      groups.emplace_back(order.begin() + static_cast<int64_t>(i),
                          order.begin() + static_cast<int64_t>(i) + group_size);
    }
    return groups;
  }

  const xla::HloInstructionProto& instruction_;
  const int64_t id_count_;
};

enum class Numbering { kReplicas, kPartitions, kReplicasAllPartitions, kDevices };

Numbering NumberingOf(const xla::HloInstructionProto& instruction) {
  const bool channel = instruction.channel_id() > 0;
  if (instruction.opcode() == "all-to-all" || instruction.opcode() == "collective-permute") {
    return channel ? Numbering::kPartitions : Numbering::kReplicas;
  }
  if (!channel) return Numbering::kReplicas;
  return instruction.use_global_device_ids() ? Numbering::kDevices : Numbering::kReplicasAllPartitions;
}

int64_t IdCount(Numbering numbering, LogicalDevices devices) {
  switch (numbering) {
    case Numbering::kReplicas:
    case Numbering::kReplicasAllPartitions: return devices.replicas;
    case Numbering::kPartitions: return devices.partitions;
    case Numbering::kDevices: return devices.count();
  }
  return 0;
}

// Every group of ids becomes one of devices, or one for each replica or partition.
DeviceGroups ToDevices(const Groups& groups, Numbering numbering, LogicalDevices devices) {
  DeviceGroups out;
  auto add = [&](const std::vector<int64_t>& ids, int64_t factor, int64_t offset) {
    std::vector<int32_t>& group = out.emplace_back();
    for (int64_t id : ids) group.push_back(static_cast<int32_t>(id * factor + offset));
  };
  for (const std::vector<int64_t>& ids : groups) {
    switch (numbering) {
      case Numbering::kDevices: add(ids, 1, 0); break;
      case Numbering::kReplicas:
        for (int p = 0; p < devices.partitions; ++p) add(ids, devices.partitions, p);
        break;
      case Numbering::kPartitions:
        for (int r = 0; r < devices.replicas; ++r) add(ids, 1, static_cast<int64_t>(r) * devices.partitions);
        break;
      case Numbering::kReplicasAllPartitions: {
        std::vector<int32_t>& group = out.emplace_back();
        for (int64_t id : ids) {
          for (int p = 0; p < devices.partitions; ++p)
            group.push_back(static_cast<int32_t>(id * devices.partitions + p));
        }
        break;
      }
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<DeviceGroups> ReadDeviceGroups(const xla::HloInstructionProto& instruction, LogicalDevices devices) {
  const Numbering numbering = NumberingOf(instruction);
  const int64_t id_count = IdCount(numbering, devices);
  const GroupReader reader(instruction, id_count);
  LB_ASSIGN_OR_RETURN(const Groups groups, reader.Read());
  std::vector<bool> seen(static_cast<size_t>(id_count), false);
  const bool any_size = instruction.opcode() == "all-reduce";  // the others' shapes depend on the size
  for (const std::vector<int64_t>& group : groups) {
    if (group.empty()) return reader.Bad("form an empty group");
    if (!any_size && group.size() != groups[0].size()) return reader.Bad("form groups of unequal size");
    for (int64_t id : group) {
      if (id < 0 || id >= id_count) return reader.Bad(absl::StrCat("name number ", id, " of ", id_count));
      if (seen[static_cast<size_t>(id)]) return reader.Bad(absl::StrCat("name number ", id, " twice"));
      seen[static_cast<size_t>(id)] = true;
    }
  }
  return ToDevices(groups, numbering, devices);
}

absl::StatusOr<std::vector<DevicePair>> ReadDevicePairs(const xla::HloInstructionProto& instruction,
                                                        LogicalDevices devices) {
  const Numbering numbering = NumberingOf(instruction);
  const int64_t id_count = IdCount(numbering, devices);
  const GroupReader reader(instruction, id_count);
  std::vector<char> sends(static_cast<size_t>(id_count), 0), receives(static_cast<size_t>(id_count), 0);
  std::vector<DevicePair> pairs;
  for (const xla::SourceTarget& pair : instruction.source_target_pairs()) {
    for (int64_t id : {pair.source(), pair.target()}) {
      if (id < 0 || id >= id_count) return reader.Bad(absl::StrCat("name number ", id, " of ", id_count));
    }
    if (std::exchange(sends[static_cast<size_t>(pair.source())], 1) ||
        std::exchange(receives[static_cast<size_t>(pair.target())], 1)) {
      return reader.Bad("name a source or a target twice");
    }
    const bool partitions = numbering == Numbering::kPartitions;
    for (int other = 0; other < (partitions ? devices.replicas : devices.partitions); ++other) {
      auto device = [&](int64_t id) {
        return static_cast<int32_t>(partitions ? int64_t{other} * devices.partitions + id
                                               : id * devices.partitions + other);
      };
      pairs.push_back({device(pair.source()), device(pair.target())});
    }
  }
  return pairs;
}

}  // namespace landbridge::hlo
