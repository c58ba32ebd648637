#include "hlo/rewrite_collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/dtype.h"

namespace landbridge::hlo {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Builds a module: an entry computation (id 1) and a sum of two (id 2).
class Builder {
 public:
  Builder() {
    module_.set_name("jit_f");
    module_.set_entry_computation_id(1);
    module_.add_computations()->set_id(1);
    auto* sum = module_.add_computations();
    sum->set_id(2);
    Add(1, "parameter", {}).set_id(21);
    Add(1, "parameter", {}).set_id(22);
    auto& root = Add(1, "add", {21, 22});
    root.set_id(23);
    sum->set_root_id(23);
  }

  xla::HloInstructionProto& Add(int computation, const char* opcode, std::vector<int64_t> operands,
                                std::vector<int64_t> dims = {}, xla::PrimitiveType type = xla::F32) {
    auto* instruction = module_.mutable_computations(computation)->add_instructions();
    instruction->set_id(++next_id_);
    instruction->set_name(absl::StrCat(opcode, ".", next_id_));
    instruction->set_opcode(opcode);
    SetShape(*instruction->mutable_shape(), dims, type);
    for (int64_t id : operands) instruction->add_operand_ids(id);
    return *instruction;
  }

  static void SetShape(xla::ShapeProto& shape, const std::vector<int64_t>& dims, xla::PrimitiveType type = xla::F32) {
    shape.set_element_type(type);
    shape.clear_dimensions();
    shape.clear_layout();
    for (size_t i = 0; i < dims.size(); ++i) {
      shape.add_dimensions(dims[i]);
      shape.mutable_layout()->add_minor_to_major(static_cast<int64_t>(dims.size() - 1 - i));
    }
  }

  absl::StatusOr<SplitModule> Rewrite(LogicalDevices devices) {
    xla::HloModuleProtoWithConfig with_config;
    *with_config.mutable_hlo_module() = module_;
    return RewriteCollectives(with_config.SerializeAsString(), devices);
  }

  xla::HloModuleProto module_;
  int64_t next_id_ = 100;
};

xla::HloModuleProto Parse(const SplitModule& split) {
  xla::HloModuleProto module;
  EXPECT_TRUE(module.ParseFromString(split.program));
  return module;
}

TEST(RewriteCollectives, EachBecomesACallThatNamesItsNumber) {
  Builder b;
  b.module_.mutable_schedule();
  b.module_.mutable_device_assignment();
  const int64_t x = b.Add(0, "parameter", {}, {4, 8}).id();
  auto& reduce = b.Add(0, "all-reduce", {x}, {4, 8});
  reduce.set_channel_id(1);
  reduce.set_use_global_device_ids(true);
  reduce.add_called_computation_ids(2);
  const int64_t reduced = reduce.id();
  auto& gather = b.Add(0, "all-gather", {reduced}, {8, 8});
  gather.set_channel_id(2);
  gather.set_use_global_device_ids(true);
  gather.add_dimensions(0);
  b.Add(0, "partition-id", {}, {}, xla::U32);
  auto split = b.Rewrite({1, 2});
  ASSERT_TRUE(split.ok()) << split.status();

  const CollectiveTable& table = split->table;
  EXPECT_EQ(table.num_partitions(), 2);
  ASSERT_EQ(table.groups_size(), 1);  // both use the same
  EXPECT_THAT(table.groups(0).groups(0).members(), ElementsAre(0, 1));
  ASSERT_EQ(table.ops_size(), 3);
  EXPECT_EQ(table.ops(0).kind(), CollectiveOp::ALL_REDUCE);
  EXPECT_EQ(table.ops(0).reduction(), CollectiveOp::SUM);
  EXPECT_EQ(table.ops(0).operands(0).elements(), 32);
  EXPECT_EQ(table.ops(1).kind(), CollectiveOp::ALL_GATHER);
  EXPECT_EQ(table.ops(1).results(0).elements(), 64);
  EXPECT_EQ(table.ops(2).kind(), CollectiveOp::PARTITION_ID);
  EXPECT_EQ(table.ops(2).results(0).dtype(), static_cast<int32_t>(DType::kU32));

  const xla::HloModuleProto module = Parse(*split);
  ASSERT_EQ(module.computations_size(), 1);  // the sum has no user any more
  EXPECT_FALSE(module.has_schedule());
  EXPECT_FALSE(module.has_device_assignment());
  const xla::HloInstructionProto& call = module.computations(0).instructions(1);
  EXPECT_EQ(call.opcode(), "custom-call");
  EXPECT_EQ(call.custom_call_target(), "landbridge.collective");
  EXPECT_EQ(call.custom_call_api_version(), 4);
  EXPECT_TRUE(call.custom_call_has_side_effect());
  EXPECT_EQ(call.backend_config(), "{op = 0 : i64}");
  EXPECT_EQ(call.channel_id(), 0);
  EXPECT_EQ(call.id(), reduced);
  EXPECT_THAT(call.operand_ids(), ElementsAre(x));
  EXPECT_EQ(call.called_computation_ids_size(), 0);
  EXPECT_EQ(module.computations(0).instructions(2).backend_config(), "{op = 1 : i64}");
}

TEST(RewriteCollectives, VariadicReductionsAndExchanges) {
  Builder b;
  const int64_t x = b.Add(0, "parameter", {}, {6}).id();
  const int64_t y = b.Add(0, "parameter", {}, {6}).id();
  auto& reduce = b.Add(0, "all-reduce", {x, y});
  reduce.set_channel_id(1);
  reduce.set_use_global_device_ids(true);
  reduce.add_called_computation_ids(2);
  reduce.mutable_shape()->set_element_type(xla::TUPLE);
  for (int i = 0; i < 2; ++i) Builder::SetShape(*reduce.mutable_shape()->add_tuple_shapes(), {6});
  auto& exchange = b.Add(0, "all-to-all", {x, y});
  exchange.set_channel_id(2);
  *exchange.mutable_shape() = reduce.shape();
  auto& permute = b.Add(0, "collective-permute", {x}, {6});
  permute.set_channel_id(3);
  auto* pair = permute.add_source_target_pairs();
  pair->set_source(1);
  pair->set_target(0);
  auto split = b.Rewrite({1, 2});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->table.ops(0).operands_size(), 2);
  EXPECT_EQ(split->table.ops(1).kind(), CollectiveOp::ALL_TO_ALL);
  EXPECT_EQ(split->table.ops(1).results_size(), 2);
  ASSERT_EQ(split->table.ops(2).pairs_size(), 1);
  EXPECT_EQ(split->table.ops(2).pairs(0).source(), 1);
}

TEST(RewriteCollectives, LoopBodiesToo) {
  Builder b;
  auto* body = b.module_.add_computations();
  body->set_id(3);
  const int64_t x = b.Add(2, "parameter", {}, {2}).id();
  auto& reduce = b.Add(2, "all-reduce", {x}, {2});
  reduce.add_called_computation_ids(2);
  b.Add(0, "while", {}).add_called_computation_ids(3);
  auto split = b.Rewrite({2, 1});
  ASSERT_TRUE(split.ok()) << split.status();
  const xla::HloModuleProto module = Parse(*split);
  ASSERT_EQ(module.computations_size(), 2);
  EXPECT_EQ(module.computations(1).instructions(1).opcode(), "custom-call");
}

TEST(RewriteCollectives, RefusesWhatItCannotDo) {
  auto expect = [](Builder& b, absl::StatusCode code, const char* text) {
    auto split = b.Rewrite({1, 2});
    EXPECT_EQ(split.status().code(), code) << split.status();
    EXPECT_THAT(std::string(split.status().message()), HasSubstr(text));
  };
  {
    Builder b;
    b.Add(0, "all-reduce-start", {});
    expect(b, absl::StatusCode::kUnimplemented, "all-reduce-start");
  }
  {
    Builder b;  // a reduction that is no plain one
    const int64_t x = b.Add(0, "parameter", {}, {2}).id();
    b.module_.mutable_computations(1)->mutable_instructions(2)->set_opcode("subtract");
    b.Add(0, "all-reduce", {x}, {2}).add_called_computation_ids(2);
    expect(b, absl::StatusCode::kUnimplemented, "does not reduce by");
  }
  {
    Builder b;  // the gathered dimension is the inner one in memory
    const int64_t x = b.Add(0, "parameter", {}, {4, 2}).id();
    auto& gather = b.Add(0, "all-gather", {x}, {4, 4});
    gather.set_channel_id(1);
    gather.set_use_global_device_ids(true);
    gather.add_dimensions(1);
    expect(b, absl::StatusCode::kUnimplemented, "outermost");
    // Laid out the other way round it is fine.
    for (int i : {0, 1}) {
      auto* layout = b.module_.mutable_computations(0)->mutable_instructions(i)->mutable_shape()->mutable_layout();
      layout->set_minor_to_major(0, 0);
      layout->set_minor_to_major(1, 1);
    }
    EXPECT_TRUE(b.Rewrite({1, 2}).ok());
  }
  {
    Builder b;
    const int64_t x = b.Add(0, "parameter", {}, {3}, xla::S4).id();
    auto& gather = b.Add(0, "all-gather", {x}, {6}, xla::S4);
    gather.set_channel_id(1);
    gather.set_use_global_device_ids(true);
    gather.add_dimensions(0);
    expect(b, absl::StatusCode::kUnimplemented, "within a byte");
  }
  {
    Builder b;  // an all-reduce inside a fusion
    b.Add(0, "fusion", {}).add_called_computation_ids(3);
    b.module_.add_computations()->set_id(3);
    b.Add(2, "all-reduce", {}).add_called_computation_ids(2);
    expect(b, absl::StatusCode::kUnimplemented, "fused");
  }
  {
    Builder b;
    b.Add(0, "all-reduce", {77}, {2}).add_called_computation_ids(2);
    expect(b, absl::StatusCode::kInvalidArgument, "operand that is not there");
  }
  EXPECT_EQ(RewriteCollectives("\xff\xff", {1, 2}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace landbridge::hlo
