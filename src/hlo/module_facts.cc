#include "hlo/module_facts.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace landbridge::hlo {
namespace {

// Opcodes of HLO's own that move data between devices; asynchronous forms carry a suffix.
constexpr absl::string_view kCollectives[] = {
    "all-reduce",         "all-gather",           "reduce-scatter", "all-to-all", "ragged-all-to-all",
    "collective-permute", "collective-broadcast", "send",           "recv",
};

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the optimised program cannot be read: ", what));
}

void Flatten(const xla::ShapeProto& shape, std::vector<xla::ShapeProto>& out) {
  if (shape.element_type() != xla::TUPLE) {
    out.push_back(shape);
    return;
  }
  for (const xla::ShapeProto& element : shape.tuple_shapes()) Flatten(element, out);
}

// One sharding per flattened result. A tuple's sharding lists the leaves; a plain one holds for all of them.
std::vector<std::optional<xla::OpSharding>> SpreadShardings(const xla::OpSharding& sharding, size_t count) {
  std::vector<std::optional<xla::OpSharding>> result(count);
  if (sharding.type() == xla::OpSharding::TUPLE) {
    if (static_cast<size_t>(sharding.tuple_shardings_size()) == count) {
      for (size_t i = 0; i < count; ++i) result[i] = sharding.tuple_shardings(static_cast<int>(i));
    }
  } else {
    for (auto& entry : result) entry = sharding;
  }
  return result;
}

double DotFlops(const xla::HloInstructionProto& dot,
                const absl::flat_hash_map<int64_t, const xla::HloInstructionProto*>& by_id) {
  double flops = 2;
  for (int64_t dim : dot.shape().dimensions()) flops *= static_cast<double>(dim);
  if (dot.operand_ids_size() == 0) return flops;
  auto lhs = by_id.find(dot.operand_ids(0));
  if (lhs == by_id.end()) return flops;
  const xla::ShapeProto& shape = lhs->second->shape();
  for (int64_t dim : dot.dot_dimension_numbers().lhs_contracting_dimensions()) {
    if (dim >= 0 && dim < shape.dimensions_size())
      flops *= static_cast<double>(shape.dimensions(static_cast<int>(dim)));
  }
  return flops;
}

// XLA counts one operation per element for these, whatever else it counts.
double ElementwiseFlops(const xla::HloInstructionProto& instruction) {
  constexpr absl::string_view kCounted[] = {"add", "subtract", "multiply", "divide", "maximum", "minimum"};
  if (std::find(std::begin(kCounted), std::end(kCounted), instruction.opcode()) == std::end(kCounted)) return 0;
  double elements = 1;
  for (int64_t dim : instruction.shape().dimensions()) elements *= static_cast<double>(dim);
  return elements;
}

bool ActsOutside(const xla::HloInstructionProto& instruction) {
  const std::string& opcode = instruction.opcode();
  if (opcode == "custom-call") return instruction.custom_call_has_side_effect();
  return opcode == "infeed" || opcode == "outfeed" || opcode == "send" || opcode == "recv";
}

}  // namespace

bool IsCollective(absl::string_view opcode) {
  for (absl::string_view base : kCollectives) {
    if (opcode == base) return true;
    if (absl::StartsWith(opcode, base)) {
      absl::string_view rest = opcode.substr(base.size());
      if (rest == "-start" || rest == "-done") return true;
    }
  }
  return false;
}

absl::StatusOr<std::vector<int64_t>> GlobalDims(absl::Span<const int64_t> device_dims,
                                                const std::optional<xla::OpSharding>& sharding) {
  std::vector<int64_t> dims(device_dims.begin(), device_dims.end());
  if (!sharding.has_value() || sharding->type() != xla::OpSharding::OTHER) return dims;
  const auto& tiles = sharding->tile_assignment_dimensions();
  for (int i = 0; i < tiles.size() && static_cast<size_t>(i) < dims.size(); ++i) {
    int64_t& dim = dims[static_cast<size_t>(i)];
    if (dim < 0 || tiles.Get(i) < 1 || __builtin_mul_overflow(dim, tiles.Get(i), &dim)) {
      return Bad(absl::StrCat("dimension ", i, " of ", device_dims[static_cast<size_t>(i)], " elements in ",
                              tiles.Get(i), " tiles"));
    }
  }
  return dims;
}

absl::StatusOr<xla::HloModuleProto> ParseModule(absl::string_view program) {
  // Both messages parse from the same bytes by accident at times, so judge by content: a module has computations.
  xla::HloModuleProtoWithConfig with_config;
  if (with_config.ParseFromArray(program.data(), static_cast<int>(program.size())) &&
      with_config.hlo_module().computations_size() > 0) {
    return std::move(*with_config.mutable_hlo_module());
  }
  xla::HloModuleProto module;
  if (!module.ParseFromArray(program.data(), static_cast<int>(program.size()))) return Bad("it is no HLO module");
  return module;
}

absl::StatusOr<ModuleFacts> ReadModule(absl::string_view program) {
  LB_ASSIGN_OR_RETURN(const xla::HloModuleProto module, ParseModule(program));
  return ReadModule(module);
}

absl::StatusOr<ModuleFacts> ReadModule(const xla::HloModuleProto& module) {
  const xla::HloComputationProto* entry = nullptr;
  for (const xla::HloComputationProto& computation : module.computations()) {
    if (computation.id() == module.entry_computation_id()) entry = &computation;
  }
  if (entry == nullptr) return Bad("it has no entry computation");
  ModuleFacts facts;
  facts.name = module.name();

  const xla::ProgramShapeProto& shape =
      module.has_host_program_shape() ? module.host_program_shape() : entry->program_shape();
  for (const xla::ShapeProto& parameter : shape.parameters()) {
    if (parameter.element_type() == xla::TUPLE) return Bad("it has a parameter that is a tuple");
    facts.parameters.push_back(parameter);
  }
  Flatten(shape.result(), facts.results);

  facts.parameter_shardings.resize(facts.parameters.size());
  if (static_cast<size_t>(module.spmd_parameters_shardings_size()) == facts.parameters.size()) {
    for (size_t i = 0; i < facts.parameters.size(); ++i) {
      facts.parameter_shardings[i] = module.spmd_parameters_shardings(static_cast<int>(i));
    }
  }
  facts.result_shardings.resize(facts.results.size());
  if (module.has_spmd_output_sharding()) {
    facts.result_shardings = SpreadShardings(module.spmd_output_sharding(), facts.results.size());
  }

  std::set<int32_t> donated;
  for (const auto& alias : module.input_output_alias().entries()) {
    if (alias.parameter_number() < 0 || alias.parameter_number() >= static_cast<int64_t>(facts.parameters.size())) {
      return Bad(absl::StrCat("it aliases parameter ", alias.parameter_number(), " of ", facts.parameters.size()));
    }
    donated.insert(static_cast<int32_t>(alias.parameter_number()));
  }
  facts.donated_parameters.assign(donated.begin(), donated.end());

  std::set<std::string> targets;
  std::set<std::string> collectives;
  bool has_branches = false;  // XLA counts one of them
  for (const xla::HloComputationProto& computation : module.computations()) {
    absl::flat_hash_map<int64_t, const xla::HloInstructionProto*> by_id;
    by_id.reserve(static_cast<size_t>(computation.instructions_size()));
    for (const xla::HloInstructionProto& instruction : computation.instructions())
      by_id[instruction.id()] = &instruction;
    for (const xla::HloInstructionProto& instruction : computation.instructions()) {
      if (instruction.opcode() == "custom-call") targets.insert(instruction.custom_call_target());
      if (ActsOutside(instruction)) facts.has_side_effects = true;
      if (instruction.opcode() == "while") facts.has_loops = true;
      if (instruction.opcode() == "conditional") has_branches = true;
      facts.flops_at_least += ElementwiseFlops(instruction);
      if (IsCollective(instruction.opcode())) collectives.insert(instruction.opcode());
      if (instruction.opcode() == "dot") facts.dot_flops += DotFlops(instruction, by_id);
    }
  }
  facts.flops_at_least = has_branches ? 0 : facts.flops_at_least + facts.dot_flops;
  facts.custom_call_targets.assign(targets.begin(), targets.end());
  facts.collectives.assign(collectives.begin(), collectives.end());
  return facts;
}

}  // namespace landbridge::hlo
