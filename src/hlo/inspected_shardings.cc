#include "hlo/inspected_shardings.h"

#include <cstdint>

#include "absl/container/flat_hash_map.h"

namespace landbridge::hlo {
namespace {

using Instructions = absl::flat_hash_map<int64_t, const xla::HloInstructionProto*>;

xla::OpSharding ShardingOf(const Instructions& instructions, int64_t id) {
  const xla::OpSharding replicated;
  auto find = [&](int64_t wanted) -> const xla::HloInstructionProto* {
    auto found = instructions.find(wanted);
    return found == instructions.end() ? nullptr : found->second;
  };
  const xla::HloInstructionProto* value = find(id);
  if (value == nullptr || value->has_sharding()) return value == nullptr ? replicated : value->sharding();
  if (value->opcode() != "get-tuple-element" || value->operand_ids_size() != 1) return replicated;
  const xla::HloInstructionProto* tuple = find(value->operand_ids(0));
  const int64_t index = value->tuple_index();
  if (tuple == nullptr || index < 0 || index >= tuple->sharding().tuple_shardings_size()) return replicated;
  return tuple->sharding().tuple_shardings(static_cast<int>(index));
}

}  // namespace

std::vector<InspectedSharding> InspectedShardings(const xla::HloModuleProto& module) {
  std::vector<InspectedSharding> shardings;
  for (const auto& computation : module.computations()) {
    Instructions instructions;
    for (const auto& instruction : computation.instructions()) instructions[instruction.id()] = &instruction;
    for (const auto& instruction : computation.instructions()) {
      if (instruction.opcode() != "custom-call" || instruction.custom_call_target() != kInspectTarget ||
          instruction.operand_ids_size() != 1) {
        continue;
      }
      shardings.push_back({instruction.backend_config(), ShardingOf(instructions, instruction.operand_ids(0))});
    }
  }
  return shardings;
}

}  // namespace landbridge::hlo
