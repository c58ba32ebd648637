#include "collectives/collective_program.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "collectives/reduce.h"

namespace landbridge {
namespace {

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the program's table of collectives is damaged: ", what));
}

absl::StatusOr<CollectiveTensor> ReadTensor(const CollectiveOp::Tensor& tensor) {
  const std::optional<DType> dtype = DTypeFromIfrtKind(tensor.dtype());
  const int bits = dtype.has_value() ? DeviceElementBits(*dtype) : 0;
  if (bits == 0) return Bad(absl::StrCat("element type ", tensor.dtype()));
  if (tensor.elements() < 0 || tensor.elements() > limits::kArrayBytesMax / ((bits + 7) / 8)) {
    return Bad(absl::StrCat(tensor.elements(), " elements"));
  }
  return CollectiveTensor{*dtype, tensor.elements(), BytesOfElements(*dtype, tensor.elements())};
}

bool IsId(CollectiveOp::Kind kind) { return kind == CollectiveOp::PARTITION_ID || kind == CollectiveOp::REPLICA_ID; }

bool Same(const CollectiveTensor& a, const CollectiveTensor& b) {
  return a.dtype == b.dtype && a.elements == b.elements;
}

// `whole` is `piece`, `count` times over.
bool Multiple(const CollectiveTensor& whole, const CollectiveTensor& piece, int64_t count) {
  return whole.dtype == piece.dtype && whole.elements == piece.elements * count && whole.bytes == piece.bytes * count;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const CollectiveProgram>> CollectiveProgram::Make(const CollectiveTable& table) {
  auto program = std::shared_ptr<CollectiveProgram>(new CollectiveProgram());
  const int64_t devices = int64_t{table.num_replicas()} * table.num_partitions();
  if (table.num_replicas() < 1 || table.num_partitions() < 1) return Bad("it is for no device");
  if (devices > kCollectiveRanksMax || table.ops_size() > kCollectiveOpsMax) {
    return absl::ResourceExhaustedError(absl::StrCat("a program over several workers may have ", kCollectiveRanksMax,
                                                     " devices and ", kCollectiveOpsMax, " collectives; this one has ",
                                                     devices, " and ", table.ops_size()));
  }
  program->num_replicas_ = table.num_replicas();
  program->num_partitions_ = table.num_partitions();
  for (const CollectiveGroups& groups : table.groups()) LB_RETURN_IF_ERROR(program->AddGroups(groups));
  for (const CollectiveOp& op : table.ops()) LB_RETURN_IF_ERROR(program->AddStep(op));
  program->ChoosePushed();
  return std::shared_ptr<const CollectiveProgram>(std::move(program));
}

absl::Status CollectiveProgram::AddGroups(const CollectiveGroups& groups) {
  Groups& out = groups_.emplace_back();
  out.place_of_device.resize(static_cast<size_t>(num_devices()));
  for (const CollectiveGroup& group : groups.groups()) {
    const auto index = static_cast<int32_t>(out.groups.size());
    if (group.members_size() == 0) return Bad("an empty group");
    if (group.members_size() != groups.groups(0).members_size()) out.equal = false;
    Group& members = out.groups.emplace_back();
    for (int32_t device : group.members()) {
      if (device < 0 || device >= num_devices()) return Bad(absl::StrCat("device ", device, " of ", num_devices()));
      Place& place = out.place_of_device[static_cast<size_t>(device)];
      if (place.group >= 0) return Bad(absl::StrCat("device ", device, " in two groups"));
      place = {index, static_cast<int32_t>(members.size())};
      members.push_back(device);
    }
  }
  if (out.groups.empty()) return Bad("no group");
  return absl::OkStatus();
}

int CollectiveProgram::EverybodyIndex() {
  if (everybody_ < 0) {
    everybody_ = static_cast<int>(groups_.size());
    Groups& all = groups_.emplace_back();
    all.groups.emplace_back(static_cast<size_t>(num_devices()));
    std::iota(all.groups[0].begin(), all.groups[0].end(), 0);
    for (int32_t device : all.groups[0]) all.place_of_device.push_back({0, device});
  }
  return everybody_;
}

absl::Status CollectiveProgram::AddStep(const CollectiveOp& op) {
  CollectiveStep step;
  step.kind = op.kind();
  step.reduction = op.reduction();
  step.name = op.name();
  if (op.operands_size() > kCollectiveOperandsMax || op.results_size() > kCollectiveOperandsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(op.name(), " has more than ", kCollectiveOperandsMax, " operands"));
  }
  for (const auto& tensor : op.operands()) {
    LB_ASSIGN_OR_RETURN(CollectiveTensor read, ReadTensor(tensor));
    if (__builtin_add_overflow(step.operand_bytes, read.bytes, &step.operand_bytes)) return Bad("too many bytes");
    step.operands.push_back(read);
  }
  for (const auto& tensor : op.results()) {
    LB_ASSIGN_OR_RETURN(CollectiveTensor read, ReadTensor(tensor));
    step.results.push_back(read);
  }
  if (step.kind == CollectiveOp::COLLECTIVE_PERMUTE) {
    LB_RETURN_IF_ERROR(AddPairs(op, step));
  } else if (!IsId(step.kind)) {
    const int own_groups = everybody_ < 0 ? static_cast<int>(groups_.size()) : everybody_;
    if (op.groups() < 0 || op.groups() >= own_groups) return Bad(absl::StrCat("groups number ", op.groups()));
    step.groups = op.groups();
  }
  LB_RETURN_IF_ERROR(CheckShapes(step));
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

// The same on all workers, since it is the program's.
void CollectiveProgram::ChoosePushed() {
  int64_t bytes = 0;
  for (CollectiveStep& step : steps_) {
    const bool mutual = step.kind == CollectiveOp::ALL_REDUCE || step.kind == CollectiveOp::REDUCE_SCATTER ||
                        step.kind == CollectiveOp::ALL_GATHER || step.kind == CollectiveOp::ALL_TO_ALL;
    if (!mutual || step.operand_bytes == 0) continue;
    int64_t each = 0;
    for (const CollectiveTensor& operand : step.operands) each += AlignedOperand(operand.bytes);
    size_t members = 0;
    for (const Group& group : groups_[static_cast<size_t>(step.groups)].groups)
      members = std::max(members, group.size());
    const int64_t all = each * static_cast<int64_t>(members);
    if (each > kCollectivePushBytesMax || bytes + all > kCollectivePushedBytesMax) continue;
    bytes += all;
    step.pushed = true;
  }
}

absl::Status CollectiveProgram::AddPairs(const CollectiveOp& op, CollectiveStep& step) {
  step.groups = EverybodyIndex();
  step.target_of.assign(static_cast<size_t>(num_devices()), -1);
  step.source_of.assign(static_cast<size_t>(num_devices()), -1);
  for (const CollectivePair& pair : op.pairs()) {
    if (pair.source() < 0 || pair.source() >= num_devices() || pair.target() < 0 || pair.target() >= num_devices()) {
      return Bad("a permute names a device that is not there");
    }
    int32_t& target = step.target_of[static_cast<size_t>(pair.source())];
    int32_t& source = step.source_of[static_cast<size_t>(pair.target())];
    if (target >= 0 || source >= 0) return Bad("a permute names a source or a target twice");
    target = pair.target();
    source = pair.source();
  }
  return absl::OkStatus();
}

absl::Status CollectiveProgram::CheckShapes(const CollectiveStep& step) const {
  const auto mismatch = [&] { return Bad(absl::StrCat("operands and results of ", step.name, " do not fit")); };
  if (IsId(step.kind)) {
    const bool fits = step.operands.empty() && step.results.size() == 1 && step.results[0].elements == 1 &&
                      step.results[0].dtype == DType::kU32;
    return fits ? absl::OkStatus() : mismatch();
  }
  if (step.operands.empty() || step.operands.size() != step.results.size()) return mismatch();
  const Groups& groups = groups_[static_cast<size_t>(step.groups)];
  if (!groups.equal && step.kind != CollectiveOp::ALL_REDUCE) {
    return Bad(absl::StrCat("groups of unequal size of ", step.name));
  }
  const auto members = static_cast<int64_t>(groups.groups[0].size());
  for (size_t i = 0; i < step.operands.size(); ++i) {
    const CollectiveTensor& operand = step.operands[i];
    const CollectiveTensor& result = step.results[i];
    switch (step.kind) {
      case CollectiveOp::ALL_REDUCE:
        LB_RETURN_IF_ERROR(CheckReduction(operand.dtype, step.reduction));
        if (!Same(operand, result)) return mismatch();
        break;
      case CollectiveOp::REDUCE_SCATTER:
        LB_RETURN_IF_ERROR(CheckReduction(operand.dtype, step.reduction));
        if (!Multiple(operand, result, members)) return mismatch();
        break;
      case CollectiveOp::ALL_GATHER:
        if (!Multiple(result, operand, members)) return mismatch();
        break;
      case CollectiveOp::ALL_TO_ALL: {
        if (!Same(operand, result) || !Same(operand, step.operands[0])) return mismatch();
        const auto count = static_cast<int64_t>(step.operands.size());
        if (members > kCollectiveOperandsMax) {
          return absl::ResourceExhaustedError(
              absl::StrCat(step.name, " has more than ", kCollectiveOperandsMax, " members"));
        }
        if (count != members && (count != 1 || operand.elements % members != 0 || operand.bytes % members != 0)) {
          return mismatch();
        }
        break;
      }
      case CollectiveOp::COLLECTIVE_PERMUTE:
        if (!Same(operand, result)) return mismatch();
        break;
      default: return Bad(absl::StrCat("kind ", static_cast<int>(step.kind)));
    }
  }
  return absl::OkStatus();
}

}  // namespace landbridge
