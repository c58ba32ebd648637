#include "hlo/module_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace landbridge::hlo {
namespace {

using testing::ElementsAre;

xla::HloInstructionProto* Add(xla::HloComputationProto* computation, int64_t id, const char* opcode,
                              std::vector<int64_t> dims = {}) {
  auto* instruction = computation->add_instructions();
  instruction->set_id(id);
  instruction->set_opcode(opcode);
  instruction->mutable_shape()->set_element_type(xla::F32);
  for (int64_t dim : dims) instruction->mutable_shape()->add_dimensions(dim);
  return instruction;
}

xla::HloModuleProto Module() {
  xla::HloModuleProto module;
  module.set_name("jit_f");
  module.set_entry_computation_id(7);
  auto* body = module.add_computations();
  body->set_id(3);
  Add(body, 1, "all-reduce");
  auto* call = Add(body, 2, "custom-call");
  call->set_custom_call_target("zz_target");
  auto* entry = module.add_computations();
  entry->set_id(7);
  Add(entry, 10, "parameter", {4, 8});
  Add(entry, 11, "parameter", {8, 16});
  auto* dot = Add(entry, 12, "dot", {4, 16});
  dot->add_operand_ids(10);
  dot->add_operand_ids(11);
  dot->mutable_dot_dimension_numbers()->add_lhs_contracting_dimensions(1);
  Add(entry, 13, "all-gather-start");
  Add(entry, 14, "partition-id");
  Add(entry, 15, "custom-call")->set_custom_call_target("aa_target");
  Add(entry, 16, "custom-call")->set_custom_call_target("aa_target");
  auto* shape = module.mutable_host_program_shape();
  for (int i = 0; i < 2; ++i) shape->add_parameters()->set_element_type(xla::F32);
  shape->mutable_result()->set_element_type(xla::TUPLE);
  shape->mutable_result()->add_tuple_shapes()->set_element_type(xla::F32);
  auto* nested = shape->mutable_result()->add_tuple_shapes();
  nested->set_element_type(xla::TUPLE);
  nested->add_tuple_shapes()->set_element_type(xla::S32);
  for (int64_t parameter : {1, 1, 0}) {
    module.mutable_input_output_alias()->add_entries()->set_parameter_number(parameter);
  }
  return module;
}

TEST(ModuleFacts, ReadsAll) {
  auto facts = ReadModule(Module());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->name, "jit_f");
  EXPECT_EQ(facts->parameters.size(), 2u);
  ASSERT_EQ(facts->results.size(), 2u);
  EXPECT_EQ(facts->results[1].element_type(), xla::S32);
  EXPECT_THAT(facts->donated_parameters, ElementsAre(0, 1));
  EXPECT_THAT(facts->custom_call_targets, ElementsAre("aa_target", "zz_target"));
  EXPECT_FALSE(facts->has_side_effects);
  EXPECT_FALSE(facts->has_loops);
  EXPECT_THAT(facts->collectives, ElementsAre("all-gather-start", "all-reduce"));
  EXPECT_EQ(facts->dot_flops, 2.0 * 4 * 16 * 8);
  EXPECT_FALSE(facts->parameter_shardings[0].has_value());
  EXPECT_FALSE(facts->result_shardings[0].has_value());
}

TEST(ModuleFacts, SideEffectsAreWhatTheProgramSays) {
  for (const char* opcode : {"infeed", "outfeed", "send", "recv"}) {
    xla::HloModuleProto module = Module();
    Add(module.mutable_computations(0), 5, opcode);
    auto facts = ReadModule(module);
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_TRUE(facts->has_side_effects) << opcode;
  }
  xla::HloModuleProto module = Module();
  module.mutable_computations(0)->mutable_instructions(1)->set_custom_call_has_side_effect(true);
  auto facts = ReadModule(module);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_TRUE(facts->has_side_effects);
}

TEST(ModuleFacts, FindsLoops) {
  xla::HloModuleProto module = Module();
  Add(module.mutable_computations(1), 17, "while");
  auto facts = ReadModule(module);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_TRUE(facts->has_loops);
}

TEST(ModuleFacts, CountsWhatXlaSurelyCounts) {
  xla::HloModuleProto module = Module();
  Add(module.mutable_computations(0), 4, "add", {7, 100});
  Add(module.mutable_computations(1), 17, "maximum");
  Add(module.mutable_computations(1), 18, "broadcast", {1 << 20});
  auto facts = ReadModule(module);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->flops_at_least, 700 + 1 + facts->dot_flops);
  Add(module.mutable_computations(1), 19, "conditional", {7, 100});
  EXPECT_EQ(ReadModule(module)->flops_at_least, 0);
}

TEST(ModuleFacts, ReadsBytesOfBothMessages) {
  xla::HloModuleProtoWithConfig with_config;
  *with_config.mutable_hlo_module() = Module();
  for (const std::string& bytes : {with_config.SerializeAsString(), Module().SerializeAsString()}) {
    auto facts = ReadModule(absl::string_view(bytes));
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->name, "jit_f");
  }
}

TEST(ModuleFacts, Shardings) {
  xla::HloModuleProto module = Module();
  auto* tuple = module.mutable_spmd_output_sharding();
  tuple->set_type(xla::OpSharding::TUPLE);
  tuple->add_tuple_shardings()->set_type(xla::OpSharding::REPLICATED);
  auto* tiled = tuple->add_tuple_shardings();
  tiled->set_type(xla::OpSharding::OTHER);
  tiled->add_tile_assignment_dimensions(4);
  module.add_spmd_parameters_shardings()->set_type(xla::OpSharding::MAXIMAL);
  module.add_spmd_parameters_shardings()->set_type(xla::OpSharding::REPLICATED);
  auto facts = ReadModule(module);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->result_shardings[1]->type(), xla::OpSharding::OTHER);
  EXPECT_EQ(facts->parameter_shardings[0]->type(), xla::OpSharding::MAXIMAL);
  // A plain sharding of a tuple holds for each leaf.
  module.mutable_spmd_output_sharding()->Clear();
  module.mutable_spmd_output_sharding()->set_type(xla::OpSharding::MANUAL);
  facts = ReadModule(module);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->result_shardings[0]->type(), xla::OpSharding::MANUAL);
  EXPECT_EQ(facts->result_shardings[1]->type(), xla::OpSharding::MANUAL);
}

TEST(ModuleFacts, Refusals) {
  EXPECT_EQ(ReadModule(absl::string_view("\xff\xff\xff")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReadModule(xla::HloModuleProto()).status().code(), absl::StatusCode::kInvalidArgument);
  xla::HloModuleProto module = Module();
  module.mutable_input_output_alias()->mutable_entries(0)->set_parameter_number(2);
  EXPECT_EQ(ReadModule(module).status().code(), absl::StatusCode::kInvalidArgument);
  module.mutable_input_output_alias()->mutable_entries(0)->set_parameter_number(-1);
  EXPECT_EQ(ReadModule(module).status().code(), absl::StatusCode::kInvalidArgument);
  module = Module();
  module.mutable_host_program_shape()->mutable_parameters(0)->set_element_type(xla::TUPLE);
  EXPECT_EQ(ReadModule(module).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ModuleFacts, GlobalDims) {
  xla::OpSharding sharding;
  EXPECT_THAT(*GlobalDims({4, 8}, std::nullopt), ElementsAre(4, 8));
  EXPECT_THAT(*GlobalDims({4, 8}, sharding), ElementsAre(4, 8));  // replicated
  sharding.set_type(xla::OpSharding::OTHER);
  for (int64_t dim : {2, 1, 4}) sharding.add_tile_assignment_dimensions(dim);
  sharding.set_replicate_on_last_tile_dim(true);
  EXPECT_THAT(*GlobalDims({4, 8}, sharding), ElementsAre(8, 8));
  EXPECT_FALSE(GlobalDims({int64_t{1} << 62, 8}, sharding).ok());
  EXPECT_FALSE(GlobalDims({-4, 8}, sharding).ok());
  sharding.set_tile_assignment_dimensions(0, 0);
  EXPECT_FALSE(GlobalDims({4, 8}, sharding).ok());
}

TEST(ModuleFacts, CollectiveNames) {
  EXPECT_TRUE(IsCollective("all-reduce"));
  EXPECT_TRUE(IsCollective("all-reduce-done"));
  EXPECT_TRUE(IsCollective("collective-permute"));
  EXPECT_FALSE(IsCollective("all-reducer"));
  EXPECT_FALSE(IsCollective("partition-id"));
  EXPECT_FALSE(IsCollective("reduce"));
}

}  // namespace
}  // namespace landbridge::hlo
