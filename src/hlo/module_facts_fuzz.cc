// Optimised HLO as a plugin gives it, or as anything else.
#include "hlo/divide_batch_calls.h"
#include "hlo/module_facts.h"
#include "hlo/rewrite_collectives.h"

#include "base/log.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"

namespace landbridge::fuzz {

std::vector<std::string> FuzzSeeds() {
  xla::HloModuleProto module;
  module.set_name("jit_f");
  module.set_entry_computation_id(7);
  auto* entry = module.add_computations();
  entry->set_id(7);
  for (int64_t id : {10, 11}) {
    auto* parameter = entry->add_instructions();
    parameter->set_id(id);
    parameter->set_opcode("parameter");
    parameter->mutable_shape()->set_element_type(xla::F32);
    parameter->mutable_shape()->add_dimensions(4);
    *entry->mutable_program_shape()->add_parameters() = parameter->shape();
  }
  auto* dot = entry->add_instructions();
  dot->set_id(12);
  dot->set_opcode("dot");
  *dot->mutable_shape() = entry->instructions(0).shape();
  dot->add_operand_ids(10);
  dot->mutable_dot_dimension_numbers()->add_lhs_contracting_dimensions(0);
  entry->add_instructions()->set_opcode("all-reduce-start");
  auto* call = entry->add_instructions();
  call->set_opcode("custom-call");
  call->set_custom_call_target("target");
  auto* result = entry->mutable_program_shape()->mutable_result();
  result->set_element_type(xla::TUPLE);
  *result->add_tuple_shapes() = dot->shape();
  module.mutable_spmd_output_sharding()->set_type(xla::OpSharding::TUPLE);
  module.mutable_spmd_output_sharding()->add_tuple_shardings()->add_tile_assignment_dimensions(2);
  module.add_spmd_parameters_shardings()->set_type(xla::OpSharding::REPLICATED);
  module.add_spmd_parameters_shardings()->set_type(xla::OpSharding::MANUAL);
  module.mutable_input_output_alias()->add_entries()->set_parameter_number(1);
  xla::HloModuleProtoWithConfig with_config;
  *with_config.mutable_hlo_module() = module;
  return {"1" + module.SerializeAsString(), "1" + with_config.SerializeAsString(),
          std::string("0") + std::string(300, '\x05')};
}

// Either nothing is left that one device alone cannot do, or the module is refused.
void CheckRewriting(const std::string& program) {
  auto split = hlo::RewriteCollectives(program, {2, 4});
  if (!split.ok()) {
    LB_CHECK(absl::IsInvalidArgument(split.status()) || absl::IsUnimplemented(split.status()));
    return;
  }
  auto facts = hlo::ReadModule(absl::string_view(split->program));
  LB_CHECK(!facts.ok() || facts->collectives.empty());
  for (const CollectiveOp& op : split->table.ops()) {
    LB_CHECK(op.kind() != CollectiveOp::KIND_UNSPECIFIED);
    LB_CHECK(op.groups() == 0 || op.groups() < split->table.groups_size());
  }
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker({"parameter", "dot", "custom-call", "all-reduce", "all-gather-start", "x",
                                   "all-to-all", "collective-permute", "partition-id", "add", "num_batch_dims", "1"});
  Choices choices(input);
  absl::StatusOr<hlo::ModuleFacts> facts;
  if (choices.Flag()) {
    facts = hlo::ReadModule(choices.Rest());
  } else {
    xla::HloModuleProto module;
    maker.Fill(choices, &module);
    facts = hlo::ReadModule(module);
    CheckRewriting(module.SerializeAsString());
    hlo::DivideBatchCalls(module, 4);
  }
  if (!facts.ok()) {
    LB_CHECK(absl::IsInvalidArgument(facts.status()));
    return;
  }
  LB_CHECK(facts->parameter_shardings.size() == facts->parameters.size());
  LB_CHECK(facts->result_shardings.size() == facts->results.size());
  for (int32_t donated : facts->donated_parameters) {
    LB_CHECK(donated >= 0 && static_cast<size_t>(donated) < facts->parameters.size());
  }
  for (size_t i = 0; i < facts->results.size(); ++i) {
    const auto& dims = facts->results[i].dimensions();
    hlo::GlobalDims({dims.data(), static_cast<size_t>(dims.size())}, facts->result_shardings[i]).IgnoreError();
  }
}

}  // namespace landbridge::fuzz
