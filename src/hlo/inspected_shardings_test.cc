#include "hlo/inspected_shardings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace landbridge::hlo {
namespace {

xla::HloInstructionProto& Add(xla::HloComputationProto& computation, int64_t id, const char* opcode,
                              std::vector<int64_t> operands = {}) {
  auto* instruction = computation.add_instructions();
  instruction->set_id(id);
  instruction->set_opcode(opcode);
  for (int64_t operand : operands) instruction->add_operand_ids(operand);
  return *instruction;
}

void Inspect(xla::HloComputationProto& computation, int64_t id, int64_t operand, const char* name) {
  auto& call = Add(computation, id, "custom-call", {operand});
  call.set_custom_call_target(std::string(kInspectTarget));
  call.set_backend_config(name);
}

TEST(InspectedShardings, AreThoseOfTheOperands) {
  xla::HloModuleProto module;
  auto& body = *module.add_computations();
  Add(body, 0, "parameter").mutable_sharding()->set_type(xla::OpSharding::MANUAL);
  Inspect(body, 1, 0, "in the body");
  auto& entry = *module.add_computations();
  auto& pair = Add(entry, 0, "while");
  pair.mutable_sharding()->set_type(xla::OpSharding::TUPLE);
  pair.mutable_sharding()->add_tuple_shardings()->set_type(xla::OpSharding::REPLICATED);
  pair.mutable_sharding()->add_tuple_shardings()->set_type(xla::OpSharding::MAXIMAL);
  Add(entry, 1, "get-tuple-element", {0}).set_tuple_index(1);
  Inspect(entry, 2, 1, "second of a pair");
  Add(entry, 3, "add", {1, 1});
  Inspect(entry, 4, 3, "nothing said");
  Add(entry, 5, "get-tuple-element", {0}).set_tuple_index(7);
  Inspect(entry, 6, 5, "no such element");
  Add(entry, 7, "custom-call", {0}).set_custom_call_target("another");
  std::vector<std::pair<std::string, xla::OpSharding::Type>> found;
  for (const InspectedSharding& one : InspectedShardings(module)) found.emplace_back(one.name, one.sharding.type());
  EXPECT_THAT(found, testing::ElementsAre(testing::Pair("in the body", xla::OpSharding::MANUAL),
                                          testing::Pair("second of a pair", xla::OpSharding::MAXIMAL),
                                          testing::Pair("nothing said", xla::OpSharding::REPLICATED),
                                          testing::Pair("no such element", xla::OpSharding::REPLICATED)));
}

}  // namespace
}  // namespace landbridge::hlo
