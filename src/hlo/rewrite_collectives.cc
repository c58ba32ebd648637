#include "hlo/rewrite_collectives.h"

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/status.h"
#include "hlo/module_facts.h"

namespace landbridge::hlo {
namespace {

constexpr int32_t kTypedFfi = 4;  // xla.CustomCallApiVersion

absl::Status Inconsistent(const xla::HloInstructionProto& instruction, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the optimised program cannot be read: ", instruction.opcode(), " ", instruction.name(), " ", what));
}

absl::Status Unsupported(const xla::HloInstructionProto& instruction, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat("a program over several workers cannot have ", instruction.opcode(), " ",
                                               instruction.name(), ": ", what));
}

std::optional<CollectiveOp::Kind> KindOf(absl::string_view opcode) {
  if (opcode == "partition-id") return CollectiveOp::PARTITION_ID;
  if (opcode == "replica-id") return CollectiveOp::REPLICA_ID;
  if (opcode == "all-reduce") return CollectiveOp::ALL_REDUCE;
  if (opcode == "all-gather") return CollectiveOp::ALL_GATHER;
  if (opcode == "reduce-scatter") return CollectiveOp::REDUCE_SCATTER;
  if (opcode == "all-to-all") return CollectiveOp::ALL_TO_ALL;
  if (opcode == "collective-permute") return CollectiveOp::COLLECTIVE_PERMUTE;
  return std::nullopt;
}

CollectiveOp::Reduction ReductionOf(absl::string_view opcode) {
  if (opcode == "add") return CollectiveOp::SUM;
  if (opcode == "multiply") return CollectiveOp::PRODUCT;
  if (opcode == "minimum") return CollectiveOp::MINIMUM;
  if (opcode == "maximum") return CollectiveOp::MAXIMUM;
  if (opcode == "and") return CollectiveOp::AND;
  if (opcode == "or") return CollectiveOp::OR;
  if (opcode == "xor") return CollectiveOp::XOR;
  return CollectiveOp::NONE;
}

std::vector<const xla::ShapeProto*> Leaves(const xla::ShapeProto& shape) {
  if (shape.element_type() != xla::TUPLE) return {&shape};
  std::vector<const xla::ShapeProto*> leaves;
  for (const xla::ShapeProto& element : shape.tuple_shapes()) leaves.push_back(&element);
  return leaves;
}

// Dimensions from outermost to innermost in memory, without those that `extent` gives one element: they have no place.
std::vector<int64_t> MemoryOrder(const xla::ShapeProto& shape, const xla::ShapeProto& extent) {
  std::vector<int64_t> order;
  for (int i = shape.layout().minor_to_major_size() - 1; i >= 0; --i) {
    const int64_t dim = shape.layout().minor_to_major(i);
    if (dim >= 0 && dim < extent.dimensions_size() && extent.dimensions(static_cast<int>(dim)) != 1)
      order.push_back(dim);
  }
  return order;
}

// Rewrites one module in place.
class Rewriter {
 public:
  Rewriter(xla::HloModuleProto& module, LogicalDevices devices, CollectiveTable& table)
      : module_(module), devices_(devices), table_(table) {}

  absl::Status Run() {
    table_.set_num_replicas(devices_.replicas);
    table_.set_num_partitions(devices_.partitions);
    for (const xla::HloComputationProto& computation : module_.computations()) by_id_[computation.id()] = &computation;
    if (!by_id_.contains(module_.entry_computation_id())) {
      return absl::InvalidArgumentError("the optimised program cannot be read: it has no entry computation");
    }
    FindFused();
    for (xla::HloComputationProto& computation : *module_.mutable_computations()) {
      LB_RETURN_IF_ERROR(RewriteComputation(computation));
    }
    DropUnreachable();
    module_.clear_schedule();  // a schedule must list every instruction as it is; the compiler makes a new one
    module_.clear_device_assignment();
    return absl::OkStatus();
  }

 private:
  void FindFused() {
    for (const xla::HloComputationProto& computation : module_.computations()) {
      for (const xla::HloInstructionProto& instruction : computation.instructions()) {
        if (instruction.opcode() != "fusion") continue;
        fused_.insert(instruction.called_computation_ids().begin(), instruction.called_computation_ids().end());
      }
    }
  }

  absl::Status RewriteComputation(xla::HloComputationProto& computation) {
    absl::flat_hash_map<int64_t, const xla::ShapeProto*> shapes;
    shapes.reserve(static_cast<size_t>(computation.instructions_size()));
    for (const xla::HloInstructionProto& instruction : computation.instructions()) {
      shapes[instruction.id()] = &instruction.shape();
    }
    for (xla::HloInstructionProto& instruction : *computation.mutable_instructions()) {
      const std::optional<CollectiveOp::Kind> kind = KindOf(instruction.opcode());
      if (!kind.has_value()) {
        if (IsCollective(instruction.opcode())) return Unsupported(instruction, "nothing stands in for it");
        continue;
      }
      if (fused_.contains(computation.id())) return Unsupported(instruction, "it was fused with other operations");
      std::vector<const xla::ShapeProto*> operands;
      for (int64_t id : instruction.operand_ids()) {
        auto found = shapes.find(id);
        if (found == shapes.end()) return Inconsistent(instruction, "has an operand that is not there");
        for (const xla::ShapeProto* leaf : Leaves(*found->second)) operands.push_back(leaf);
      }
      CollectiveOp op;
      op.set_kind(*kind);
      op.set_name(instruction.name());
      LB_RETURN_IF_ERROR(Describe(instruction, operands, op));
      Replace(instruction, table_.ops_size());
      *table_.add_ops() = std::move(op);
    }
    return absl::OkStatus();
  }

  absl::Status Describe(const xla::HloInstructionProto& instruction,
                        const std::vector<const xla::ShapeProto*>& operands, CollectiveOp& op) {
    const std::vector<const xla::ShapeProto*> results = Leaves(instruction.shape());
    for (const xla::ShapeProto* shape : operands)
      LB_RETURN_IF_ERROR(AddTensor(instruction, *shape, *op.add_operands()));
    for (const xla::ShapeProto* shape : results) LB_RETURN_IF_ERROR(AddTensor(instruction, *shape, *op.add_results()));
    switch (op.kind()) {
      case CollectiveOp::PARTITION_ID:
      case CollectiveOp::REPLICA_ID: return DescribeId(instruction, op);
      case CollectiveOp::COLLECTIVE_PERMUTE: return DescribePermute(instruction, operands, results, op);
      default: break;
    }
    LB_ASSIGN_OR_RETURN(const DeviceGroups groups, ReadDeviceGroups(instruction, devices_));
    const auto group_size = static_cast<int64_t>(groups[0].size());
    op.set_groups(GroupsIndex(groups));
    if (op.kind() == CollectiveOp::ALL_REDUCE || op.kind() == CollectiveOp::REDUCE_SCATTER) {
      LB_RETURN_IF_ERROR(DescribeReduction(instruction, op));
    }
    if (op.kind() == CollectiveOp::ALL_TO_ALL) return CheckAllToAll(instruction, operands, results, group_size);
    if (operands.size() != results.size()) return Inconsistent(instruction, "has other results than operands");
    for (size_t i = 0; i < operands.size(); ++i) {
      LB_RETURN_IF_ERROR(CheckPair(instruction, op.kind(), *operands[i], *results[i], group_size));
    }
    return absl::OkStatus();
  }

  absl::Status AddTensor(const xla::HloInstructionProto& instruction, const xla::ShapeProto& shape,
                         CollectiveOp::Tensor& tensor) {
    const std::optional<DType> dtype = DTypeFromXla(static_cast<int32_t>(shape.element_type()));
    if (!dtype.has_value() || DeviceElementBits(*dtype) == 0) {
      return Unsupported(instruction, absl::StrCat("element type number ", static_cast<int>(shape.element_type())));
    }
    int64_t elements = 1;
    for (int64_t dim : shape.dimensions()) {
      if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) return Inconsistent(instruction, "is too large");
    }
    tensor.set_dtype(static_cast<int32_t>(*dtype));
    tensor.set_elements(elements);
    return absl::OkStatus();
  }

  absl::Status DescribeId(const xla::HloInstructionProto& instruction, const CollectiveOp& op) {
    if (op.operands_size() != 0 || op.results_size() != 1 || op.results(0).elements() != 1 ||
        op.results(0).dtype() != static_cast<int32_t>(DType::kU32)) {
      return Inconsistent(instruction, "is no u32[]");
    }
    return absl::OkStatus();
  }

  absl::Status DescribePermute(const xla::HloInstructionProto& instruction,
                               const std::vector<const xla::ShapeProto*>& operands,
                               const std::vector<const xla::ShapeProto*>& results, CollectiveOp& op) {
    if (operands.size() != results.size()) return Unsupported(instruction, "it writes into parts of its operands");
    for (size_t i = 0; i < operands.size(); ++i) LB_RETURN_IF_ERROR(CheckSame(instruction, *operands[i], *results[i]));
    LB_ASSIGN_OR_RETURN(const std::vector<DevicePair> pairs, ReadDevicePairs(instruction, devices_));
    for (const DevicePair& pair : pairs) {
      CollectivePair* out = op.add_pairs();
      out->set_source(pair.source);
      out->set_target(pair.target);
    }
    return absl::OkStatus();
  }

  absl::Status DescribeReduction(const xla::HloInstructionProto& instruction, CollectiveOp& op) {
    auto called = instruction.called_computation_ids_size() == 1 ? by_id_.find(instruction.called_computation_ids(0))
                                                                 : by_id_.end();
    if (called == by_id_.end()) return Inconsistent(instruction, "has no reduction");
    const xla::HloInstructionProto* root = nullptr;
    absl::flat_hash_set<int64_t> parameters;
    for (const xla::HloInstructionProto& step : called->second->instructions()) {
      if (step.id() == called->second->root_id()) root = &step;
      if (step.opcode() == "parameter") parameters.insert(step.id());
    }
    const bool plain = root != nullptr && root->operand_ids_size() == 2 && parameters.size() == 2 &&
                       root->operand_ids(0) != root->operand_ids(1) && parameters.contains(root->operand_ids(0)) &&
                       parameters.contains(root->operand_ids(1));
    if (plain) op.set_reduction(ReductionOf(root->opcode()));
    if (op.reduction() == CollectiveOp::NONE) {
      return Unsupported(instruction, "it does not reduce by sum, product, minimum, maximum, and, or, xor");
    }
    return absl::OkStatus();
  }

  absl::Status CheckPair(const xla::HloInstructionProto& instruction, CollectiveOp::Kind kind,
                         const xla::ShapeProto& operand, const xla::ShapeProto& result, int64_t group_size) {
    if (kind == CollectiveOp::ALL_REDUCE) return CheckSame(instruction, operand, result);
    const bool gather = kind == CollectiveOp::ALL_GATHER;
    const xla::ShapeProto& whole = gather ? result : operand;
    const xla::ShapeProto& piece = gather ? operand : result;
    const int64_t dim = instruction.dimensions_size() == 1 ? instruction.dimensions(0) : -1;
    if (dim < 0 || dim >= whole.dimensions_size() || piece.dimensions_size() != whole.dimensions_size()) {
      return Inconsistent(instruction, "has no dimension to work along");
    }
    for (int i = 0; i < whole.dimensions_size(); ++i) {
      int64_t wanted = piece.dimensions(i);
      if (i == dim && __builtin_mul_overflow(wanted, group_size, &wanted)) wanted = -1;
      if (whole.dimensions(i) != wanted) return Inconsistent(instruction, "has pieces that do not make up the whole");
    }
    return CheckOutermost(instruction, whole, piece, dim);
  }

  // Pieces along `dim` must lie one after the other in the memory of the whole.
  absl::Status CheckOutermost(const xla::HloInstructionProto& instruction, const xla::ShapeProto& whole,
                              const xla::ShapeProto& piece, int64_t dim) {
    const std::vector<int64_t> order = MemoryOrder(whole, whole);
    const bool outermost = order.empty() || order.front() == dim || whole.dimensions(static_cast<int>(dim)) == 1;
    if (!outermost || order != MemoryOrder(piece, whole)) {
      return Unsupported(instruction, "its dimension is not outermost in memory");
    }
    return CheckWholeBytes(instruction, piece);
  }

  // Packed elements of a piece must end at a byte.
  absl::Status CheckWholeBytes(const xla::HloInstructionProto& instruction, const xla::ShapeProto& piece) {
    const std::optional<DType> dtype = DTypeFromXla(static_cast<int32_t>(piece.element_type()));
    int64_t bits = DeviceElementBits(*dtype);
    for (int64_t dim : piece.dimensions()) bits = (bits * (dim % 8)) % 8;
    if (bits % 8 != 0) return Unsupported(instruction, "its pieces end within a byte");
    return absl::OkStatus();
  }

  absl::Status CheckSame(const xla::HloInstructionProto& instruction, const xla::ShapeProto& operand,
                         const xla::ShapeProto& result) {
    bool same =
        operand.element_type() == result.element_type() && operand.dimensions_size() == result.dimensions_size();
    for (int i = 0; same && i < operand.dimensions_size(); ++i) same = operand.dimensions(i) == result.dimensions(i);
    if (!same) return Inconsistent(instruction, "has a result of another shape than its operand");
    if (MemoryOrder(operand, operand) != MemoryOrder(result, result)) {
      return Unsupported(instruction, "its result has another layout than its operand");
    }
    return absl::OkStatus();
  }

  absl::Status CheckAllToAll(const xla::HloInstructionProto& instruction,
                             const std::vector<const xla::ShapeProto*>& operands,
                             const std::vector<const xla::ShapeProto*>& results, int64_t group_size) {
    if (operands.size() != results.size()) return Inconsistent(instruction, "has other results than operands");
    for (size_t i = 0; i < operands.size(); ++i) {
      LB_RETURN_IF_ERROR(CheckSame(instruction, *operands[i], *results[i]));
      LB_RETURN_IF_ERROR(CheckSame(instruction, *operands[0], *operands[i]));
    }
    if (instruction.shape().element_type() == xla::TUPLE) {
      if (static_cast<int64_t>(operands.size()) != group_size)
        return Inconsistent(instruction, "has not one operand a member");
      return absl::OkStatus();
    }
    const int64_t dim = instruction.dimensions_size() == 1 ? instruction.dimensions(0) : -1;
    const xla::ShapeProto& whole = *results[0];
    if (dim < 0 || dim >= whole.dimensions_size() || whole.dimensions(static_cast<int>(dim)) % group_size != 0) {
      return Inconsistent(instruction, "has no dimension that its members share evenly");
    }
    xla::ShapeProto piece = whole;
    piece.set_dimensions(static_cast<int>(dim), whole.dimensions(static_cast<int>(dim)) / group_size);
    return CheckOutermost(instruction, whole, piece, dim);
  }

  int32_t GroupsIndex(const DeviceGroups& groups) {
    auto [found, added] = groups_.try_emplace(groups, table_.groups_size());
    if (added) {
      CollectiveGroups* out = table_.add_groups();
      for (const std::vector<int32_t>& group : groups) {
        out->add_groups()->mutable_members()->Add(group.begin(), group.end());
      }
    }
    return found->second;
  }

  static void Replace(xla::HloInstructionProto& instruction, int op) {
    instruction.set_opcode("custom-call");
    instruction.set_custom_call_target(std::string(kCollectiveTarget));
    instruction.set_custom_call_api_version(kTypedFfi);
    instruction.set_custom_call_has_side_effect(true);  // or equal calls would be merged and unused ones dropped
    instruction.set_backend_config(absl::StrCat("{", kCollectiveOpAttribute, " = ", op, " : i64}"));
    instruction.clear_backend_config_payload();
    instruction.clear_channel_id();
    instruction.clear_use_global_device_ids();
    instruction.clear_replica_groups();
    instruction.clear_collective_device_list();
    instruction.clear_iota_collective_device_list();
    instruction.clear_mesh_axes_replica_group_list();
    instruction.clear_source_target_pairs();
    instruction.clear_dimensions();
    instruction.clear_constrain_layout();
    instruction.clear_called_computation_ids();
  }

  // The reductions' computations are used by nobody now, and the compiler refuses such.
  void DropUnreachable() {
    absl::flat_hash_set<int64_t> reached{module_.entry_computation_id()};
    std::vector<int64_t> todo{module_.entry_computation_id()};
    while (!todo.empty()) {
      auto computation = by_id_.find(todo.back());
      todo.pop_back();
      if (computation == by_id_.end()) continue;
      for (const xla::HloInstructionProto& instruction : computation->second->instructions()) {
        for (int64_t id : instruction.called_computation_ids()) {
          if (reached.insert(id).second) todo.push_back(id);
        }
      }
    }
    google::protobuf::RepeatedPtrField<xla::HloComputationProto> kept;
    for (xla::HloComputationProto& computation : *module_.mutable_computations()) {
      if (reached.contains(computation.id())) *kept.Add() = std::move(computation);
    }
    by_id_.clear();
    module_.mutable_computations()->Swap(&kept);
  }

  xla::HloModuleProto& module_;
  const LogicalDevices devices_;
  CollectiveTable& table_;
  absl::flat_hash_map<int64_t, const xla::HloComputationProto*> by_id_;
  absl::flat_hash_set<int64_t> fused_;
  std::map<DeviceGroups, int32_t> groups_;
};

}  // namespace

absl::StatusOr<SplitModule> RewriteCollectives(absl::string_view program, LogicalDevices devices) {
  LB_ASSIGN_OR_RETURN(xla::HloModuleProto module, ParseModule(program));
  SplitModule split;
  LB_RETURN_IF_ERROR(Rewriter(module, devices, split.table).Run());
  split.shapes = module.host_program_shape();
  if (!module.SerializeToString(&split.program)) {
    return absl::ResourceExhaustedError("the optimised program is too large to be written down");
  }
  return split;
}

}  // namespace landbridge::hlo
