#include "hlo/divide_batch_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"

namespace landbridge::hlo {
namespace {

using testing::ElementsAre;

constexpr int kPartitions = 8;
constexpr int64_t kComputation = int64_t{3} << 32;  // how newer modules number instructions

xla::OpSharding Tiled(std::vector<int64_t> tiles, bool copies, std::vector<int64_t> devices = {}) {
  xla::OpSharding sharding;
  sharding.set_type(xla::OpSharding::OTHER);
  for (int64_t tile : tiles) sharding.add_tile_assignment_dimensions(tile);
  sharding.set_replicate_on_last_tile_dim(copies);
  if (devices.empty()) {
    sharding.add_iota_reshape_dims(kPartitions);
    sharding.add_iota_transpose_perm(0);
  }
  for (int64_t device : devices) sharding.add_tile_assignment_devices(device);
  return sharding;
}

// A module of parameters and one call of them that gives two results: [8,6,4] in columns, and [8].
class DivideBatchCallsTest : public testing::Test {
 protected:
  DivideBatchCallsTest() {
    module_.set_entry_computation_id(3);
    auto* computation = module_.add_computations();
    computation->set_id(3);
    Add("parameter", {8, 6, 4});
    xla::HloInstructionProto& made = Add("custom-call", {});
    made.set_custom_call_target("lapack_spotrf_ffi");
    made.set_custom_call_api_version(4);
    (*made.mutable_frontend_attributes()->mutable_map())["num_batch_dims"] = "1";
    made.add_operand_ids(kComputation);
    made.mutable_shape()->set_element_type(xla::TUPLE);
    SetShape(*made.mutable_shape()->add_tuple_shapes(), {8, 6, 4}, {1, 2, 0});
    SetShape(*made.mutable_shape()->add_tuple_shapes(), {8}, {0});
    SetShape(*made.add_operand_shapes_with_layout(), {8, 6, 4}, {1, 2, 0});
    made.mutable_sharding()->set_type(xla::OpSharding::TUPLE);
    *made.mutable_sharding()->add_tuple_shardings() = Tiled({4, 1, 1, 2}, true);
    *made.mutable_sharding()->add_tuple_shardings() = Tiled({4, 2}, true);
  }

  xla::HloInstructionProto& Add(const char* opcode, const std::vector<int64_t>& dims) {
    auto* computation = module_.mutable_computations(0);
    const int64_t number = computation->instructions_size();
    auto* instruction = computation->add_instructions();
    instruction->set_opcode(opcode);
    instruction->set_id(kComputation + number);
    instruction->set_name(absl::StrCat(opcode, ".", number));
    computation->set_root_id(instruction->id());
    SetShape(*instruction->mutable_shape(), dims, {});
    return *instruction;
  }

  static void SetShape(xla::ShapeProto& shape, const std::vector<int64_t>& dims, std::vector<int64_t> layout) {
    shape.set_element_type(xla::F32);
    for (size_t i = 0; i < dims.size(); ++i) {
      shape.add_dimensions(dims[i]);
      shape.add_is_dynamic_dimension(false);
      shape.mutable_layout()->add_minor_to_major(layout.empty() ? static_cast<int64_t>(dims.size() - 1 - i)
                                                                : layout[i]);
    }
  }

  xla::HloInstructionProto& parameter() { return *module_.mutable_computations(0)->mutable_instructions(0); }
  xla::HloInstructionProto& call() { return *module_.mutable_computations(0)->mutable_instructions(1); }
  const xla::HloInstructionProto& at(int i) const { return module_.computations(0).instructions(i); }

  void ExpectUntouched() {
    const std::string before = module_.SerializeAsString();
    EXPECT_EQ(DivideBatchCalls(module_, kPartitions), 0);
    EXPECT_EQ(module_.SerializeAsString(), before);
  }

  xla::HloModuleProto module_;
};

TEST_F(DivideBatchCallsTest, EachDeviceCallsWithItsPart) {
  const xla::HloInstructionProto original = call();
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  const auto& instructions = module_.computations(0).instructions();
  std::vector<std::string> kinds;
  std::set<int64_t> ids;
  std::set<std::string> names;
  for (const auto& instruction : instructions) {
    kinds.push_back(instruction.opcode() == "custom-call" ? instruction.custom_call_target() : instruction.opcode());
    for (int64_t operand : instruction.operand_ids()) EXPECT_TRUE(ids.contains(operand)) << instruction.name();
    EXPECT_TRUE(ids.insert(instruction.id()).second);
    EXPECT_TRUE(names.insert(instruction.name()).second);
    EXPECT_EQ(instruction.id() >> 32, 3);
  }
  EXPECT_THAT(kinds,
              ElementsAre("parameter", "Sharding", "SPMDFullToShardShape", "lapack_spotrf_ffi", "get-tuple-element",
                          "SPMDShardToFullShape", "get-tuple-element", "SPMDShardToFullShape", "tuple"));

  const xla::OpSharding& placed = at(1).sharding();
  EXPECT_THAT(at(1).operand_ids(), ElementsAre(kComputation));
  EXPECT_THAT(at(1).shape().dimensions(), ElementsAre(8, 6, 4));
  EXPECT_THAT(placed.tile_assignment_dimensions(), ElementsAre(4, 1, 1, 2));
  EXPECT_TRUE(placed.replicate_on_last_tile_dim());
  EXPECT_THAT(placed.tile_assignment_devices(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));

  EXPECT_THAT(at(2).shape().dimensions(), ElementsAre(2, 6, 4));
  EXPECT_EQ(at(2).sharding().type(), xla::OpSharding::MANUAL);

  EXPECT_THAT(at(3).operand_ids(), ElementsAre(at(2).id()));
  EXPECT_THAT(at(3).shape().tuple_shapes(0).dimensions(), ElementsAre(2, 6, 4));
  EXPECT_THAT(at(3).shape().tuple_shapes(0).layout().minor_to_major(), ElementsAre(1, 2, 0));
  EXPECT_THAT(at(3).shape().tuple_shapes(1).dimensions(), ElementsAre(2));
  EXPECT_THAT(at(3).operand_shapes_with_layout(0).dimensions(), ElementsAre(2, 6, 4));
  EXPECT_EQ(at(3).sharding().tuple_shardings(1).type(), xla::OpSharding::MANUAL);
  EXPECT_EQ(at(3).custom_call_api_version(), 4);

  EXPECT_THAT(at(7).shape().dimensions(), ElementsAre(8));
  EXPECT_THAT(at(7).sharding().tile_assignment_dimensions(), ElementsAre(4, 2));
  EXPECT_EQ(at(6).tuple_index(), 1);

  // For everybody else the call is still there.
  EXPECT_EQ(at(8).id(), original.id());
  EXPECT_EQ(at(8).name(), original.name());
  EXPECT_EQ(at(8).shape().SerializeAsString(), original.shape().SerializeAsString());
  EXPECT_EQ(at(8).sharding().SerializeAsString(), original.sharding().SerializeAsString());
  EXPECT_THAT(at(8).operand_ids(), ElementsAre(at(5).id(), at(7).id()));
}

TEST_F(DivideBatchCallsTest, TheOperandsDivisionIsTakenWhereResultsHaveNone) {
  call().mutable_sharding()->mutable_tuple_shardings(0)->Clear();
  call().mutable_sharding()->mutable_tuple_shardings(1)->Clear();
  ExpectUntouched();
  *parameter().mutable_sharding() = Tiled({8, 1, 1}, false);
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  EXPECT_THAT(at(3).shape().tuple_shapes(0).dimensions(), ElementsAre(1, 6, 4));
  EXPECT_THAT(at(5).sharding().tile_assignment_dimensions(), ElementsAre(8, 1, 1));
  EXPECT_FALSE(at(5).sharding().replicate_on_last_tile_dim());
  EXPECT_EQ(at(8).sharding().tuple_shardings(0).type(), xla::OpSharding::REPLICATED);
}

TEST_F(DivideBatchCallsTest, OnlyTheBatchStaysDivided) {
  // Rows in two parts, the batch in four: the device of (batch part b, row part r) is 4 * r + b.
  *call().mutable_sharding()->mutable_tuple_shardings(0) = Tiled({4, 2, 1}, false, {0, 4, 1, 5, 2, 6, 3, 7});
  *call().mutable_sharding()->mutable_tuple_shardings(1) = xla::OpSharding();
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  EXPECT_THAT(at(1).sharding().tile_assignment_dimensions(), ElementsAre(4, 1, 1, 2));
  EXPECT_THAT(at(1).sharding().tile_assignment_devices(), ElementsAre(0, 4, 1, 5, 2, 6, 3, 7));
}

TEST_F(DivideBatchCallsTest, DevicesFollowTheBatch) {
  // Tiles [2,2,1] with two copies, of devices 0..7 seen as [2,2,2] and turned to (2,0,1).
  xla::OpSharding sharding = Tiled({2, 2, 1, 2}, true);
  sharding.clear_iota_reshape_dims();
  sharding.clear_iota_transpose_perm();
  for (int64_t dim : {2, 2, 2}) sharding.add_iota_reshape_dims(dim);
  for (int dim : {2, 0, 1}) sharding.add_iota_transpose_perm(dim);
  *call().mutable_sharding()->mutable_tuple_shardings(0) = sharding;
  *call().mutable_sharding()->mutable_tuple_shardings(1) = xla::OpSharding();
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  EXPECT_THAT(at(1).sharding().tile_assignment_dimensions(), ElementsAre(2, 1, 1, 4));
  // The batch's half is the last axis of the [2,2,2]: even devices first.
  EXPECT_THAT(at(1).sharding().tile_assignment_devices(), ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
}

TEST_F(DivideBatchCallsTest, OperandsThatAllShareAreWholeEverywhere) {
  xla::HloInstructionProto shared;
  shared.set_opcode("parameter");
  shared.set_id(kComputation + 50);
  shared.set_name("scale");
  shared.mutable_shape()->set_element_type(xla::F32);
  auto* instructions = module_.mutable_computations(0)->mutable_instructions();
  *instructions->Add() = shared;
  instructions->SwapElements(1, 2);
  instructions->at(2).add_operand_ids(shared.id());
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  EXPECT_THAT(at(4).operand_ids(), ElementsAre(shared.id()));
  EXPECT_EQ(at(4).sharding().type(), xla::OpSharding::REPLICATED);
  EXPECT_EQ(at(5).shape().dimensions_size(), 0);
  EXPECT_THAT(at(6).operand_ids(), ElementsAre(at(3).id(), at(5).id()));
}

TEST_F(DivideBatchCallsTest, OneResultKeepsItsSharding) {
  const xla::OpSharding sharding = Tiled({2, 4, 1}, false);
  *call().mutable_shape() = parameter().shape();
  *call().mutable_sharding() = sharding;
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  ASSERT_EQ(module_.computations(0).instructions_size(), 6);
  EXPECT_THAT(at(3).shape().dimensions(), ElementsAre(4, 6, 4));
  EXPECT_THAT(at(4).sharding().tile_assignment_dimensions(), ElementsAre(2, 1, 1, 4));
  EXPECT_EQ(at(5).opcode(), "copy");
  EXPECT_EQ(at(5).id(), module_.computations(0).root_id());
  EXPECT_EQ(at(5).sharding().SerializeAsString(), sharding.SerializeAsString());
}

TEST_F(DivideBatchCallsTest, WhatDoesNotDivideEvenlyStaysWhole) {
  (*call().mutable_frontend_attributes()->mutable_map())["num_batch_dims"] = "2";
  *call().mutable_shape() = parameter().shape();
  *call().mutable_sharding() = Tiled({2, 4, 1}, false);  // 6 rows are no multiple of 4
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  EXPECT_THAT(at(3).shape().dimensions(), ElementsAre(4, 6, 4));
  EXPECT_THAT(at(1).sharding().tile_assignment_dimensions(), ElementsAre(2, 1, 1, 4));
}

TEST_F(DivideBatchCallsTest, OlderModulesHaveOneCountOfInstructions) {
  module_.mutable_computations(0)->set_root_id(2);
  parameter().set_id(1);
  call().set_id(2);
  call().set_operand_ids(0, 1);
  auto* other = module_.add_computations()->add_instructions();
  other->set_id(70);
  other->set_opcode("parameter");
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  for (int i = 1; i < 8; ++i) EXPECT_GT(at(i).id(), 70);
  EXPECT_EQ(at(8).id(), 2);
}

// In a region that leaves two groups of devices to hands: each has a batch of its own, divided over its four devices.
TEST_F(DivideBatchCallsTest, InARegionOfGroupsEachDividesItsBatch) {
  auto in_groups = [](std::vector<int64_t> tiles, bool copies) {
    xla::OpSharding sharding = Tiled(std::move(tiles), false);
    if (copies) sharding.add_last_tile_dims(xla::OpSharding::REPLICATED);
    sharding.add_last_tile_dims(xla::OpSharding::MANUAL);
    return sharding;
  };
  *parameter().mutable_sharding() = in_groups({4, 1, 1, 2}, false);
  *call().mutable_sharding()->mutable_tuple_shardings(0) = in_groups({4, 1, 1, 2}, false);
  *call().mutable_sharding()->mutable_tuple_shardings(1) = in_groups({2, 2, 2}, true);
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  EXPECT_EQ(at(1).custom_call_target(), "Sharding");
  EXPECT_THAT(at(1).sharding().tile_assignment_dimensions(), ElementsAre(4, 1, 1, 2));
  EXPECT_THAT(at(1).sharding().last_tile_dims(), ElementsAre(xla::OpSharding::MANUAL));
  EXPECT_THAT(at(1).sharding().tile_assignment_devices(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(at(2).custom_call_target(), "SPMDFullToShardShape");
  EXPECT_EQ(at(2).sharding().type(), xla::OpSharding::MANUAL);
  EXPECT_THAT(at(2).shape().dimensions(), ElementsAre(2, 6, 4));
  EXPECT_THAT(at(3).shape().tuple_shapes(1).dimensions(), ElementsAre(2));
  EXPECT_EQ(at(7).custom_call_target(), "SPMDShardToFullShape");
  EXPECT_THAT(at(7).sharding().tile_assignment_dimensions(), ElementsAre(4, 2));
  EXPECT_THAT(at(7).sharding().last_tile_dims(), ElementsAre(xla::OpSharding::MANUAL));
}

TEST_F(DivideBatchCallsTest, InARegionOfGroupsCopiesStayBesideThem) {
  xla::OpSharding sharding = Tiled({2, 1, 1, 2, 2}, false);
  sharding.add_last_tile_dims(xla::OpSharding::MANUAL);
  sharding.add_last_tile_dims(xla::OpSharding::REPLICATED);
  *parameter().mutable_sharding() = sharding;
  call().clear_sharding();
  ExpectUntouched();  // results of a call without a sharding are outside of any region
  *call().mutable_shape() = parameter().shape();
  *call().mutable_sharding() = sharding;
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  // Devices of one tile: two copies of two groups; they are told apart by the last dimension now.
  EXPECT_THAT(at(1).sharding().tile_assignment_dimensions(), ElementsAre(2, 1, 1, 2, 2));
  EXPECT_THAT(at(1).sharding().last_tile_dims(), ElementsAre(xla::OpSharding::REPLICATED, xla::OpSharding::MANUAL));
  EXPECT_THAT(at(1).sharding().tile_assignment_devices(), ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  EXPECT_THAT(at(2).shape().dimensions(), ElementsAre(4, 6, 4));
}

// A call that gives nothing, of the parameter and another value.
class DivideCallsByPartsTest : public DivideBatchCallsTest {
 protected:
  DivideCallsByPartsTest() {
    *parameter().mutable_sharding() = Tiled({4, 2, 1}, false);
    const int64_t first = parameter().id();
    module_.mutable_computations(0)->mutable_instructions()->RemoveLast();
    xla::HloInstructionProto& other = Add("parameter", {8});
    *other.mutable_sharding() = Tiled({2, 4}, true);
    const int64_t second = other.id();
    xla::HloInstructionProto& made = Add("custom-call", {});
    made.set_custom_call_target("tell");
    made.set_custom_call_has_side_effect(true);
    made.add_operand_ids(first);
    made.add_operand_ids(second);
    made.mutable_shape()->Clear();
    made.mutable_shape()->set_element_type(xla::TUPLE);
    *made.add_operand_shapes_with_layout() = at(0).shape();
    *made.add_operand_shapes_with_layout() = at(1).shape();
  }
  xla::HloInstructionProto& tell() { return *module_.mutable_computations(0)->mutable_instructions(2); }
  xla::HloInstructionProto& second() { return *module_.mutable_computations(0)->mutable_instructions(1); }
  void ExpectStays() {
    const std::string before = module_.SerializeAsString();
    EXPECT_EQ(DivideCallsByParts(module_, kPartitions, "tell"), 0);
    EXPECT_EQ(module_.SerializeAsString(), before);
  }
};

TEST_F(DivideCallsByPartsTest, EachDeviceCallsWithWhatItHas) {
  const xla::HloInstructionProto original = tell();
  ASSERT_EQ(DivideCallsByParts(module_, kPartitions, "tell"), 1);
  ASSERT_EQ(module_.computations(0).instructions_size(), 7);
  EXPECT_EQ(at(2).custom_call_target(), "Sharding");
  EXPECT_THAT(at(2).sharding().tile_assignment_dimensions(), ElementsAre(4, 2, 1));
  EXPECT_EQ(at(3).custom_call_target(), "SPMDFullToShardShape");
  EXPECT_THAT(at(3).shape().dimensions(), ElementsAre(2, 3, 4));
  EXPECT_THAT(at(4).sharding().tile_assignment_dimensions(), ElementsAre(2, 4));
  EXPECT_TRUE(at(4).sharding().replicate_on_last_tile_dim());
  EXPECT_THAT(at(5).shape().dimensions(), ElementsAre(4));
  EXPECT_EQ(at(6).id(), original.id());
  EXPECT_EQ(at(6).custom_call_target(), "tell");
  EXPECT_TRUE(at(6).custom_call_has_side_effect());
  EXPECT_EQ(at(6).sharding().type(), xla::OpSharding::MANUAL);
  EXPECT_THAT(at(6).operand_ids(), ElementsAre(at(3).id(), at(5).id()));
  EXPECT_THAT(at(6).operand_shapes_with_layout(0).dimensions(), ElementsAre(2, 3, 4));
  EXPECT_THAT(at(6).operand_shapes_with_layout(1).dimensions(), ElementsAre(4));
}

TEST_F(DivideCallsByPartsTest, CopiesAndUnevenDimensionsAreWholeEverywhere) {
  *parameter().mutable_sharding() = Tiled({1, 4, 2}, false);  // 6 rows are no multiple of 4
  second().clear_sharding();
  ASSERT_EQ(DivideCallsByParts(module_, kPartitions, "tell"), 1);
  EXPECT_THAT(at(2).sharding().tile_assignment_dimensions(), ElementsAre(1, 1, 2, 4));
  EXPECT_THAT(at(3).shape().dimensions(), ElementsAre(8, 6, 2));
  EXPECT_EQ(at(4).sharding().type(), xla::OpSharding::REPLICATED);
  EXPECT_THAT(at(5).shape().dimensions(), ElementsAre(8));
}

TEST_F(DivideCallsByPartsTest, OthersStay) {
  EXPECT_EQ(DivideCallsByParts(module_, kPartitions, "other"), 0);
  EXPECT_EQ(DivideCallsByParts(module_, 1, "tell"), 0);
  tell().mutable_sharding()->set_type(xla::OpSharding::MANUAL);
  ExpectStays();
  tell().clear_sharding();
  second().mutable_sharding()->Clear();
  second().mutable_sharding()->set_type(xla::OpSharding::MAXIMAL);
  ExpectStays();
  second().clear_sharding();
  SetShape(*tell().mutable_shape()->add_tuple_shapes(), {8}, {0});  // nobody could put the results together
  ExpectStays();
}

TEST_F(DivideBatchCallsTest, ReplicatedCallsStay) {
  *call().mutable_sharding()->mutable_tuple_shardings(0) = Tiled({1, 4, 1, 2}, true);
  *call().mutable_sharding()->mutable_tuple_shardings(1) = xla::OpSharding();
  ExpectUntouched();
}

TEST_F(DivideBatchCallsTest, CallsThatSayNothingStay) {
  auto& attribute = (*call().mutable_frontend_attributes()->mutable_map())["num_batch_dims"];
  for (const char* value : {"", "0", "-1", "one", "99999999999999999999"}) {
    attribute = value;
    ExpectUntouched();
  }
  attribute = "4";  // more than there are
  ExpectUntouched();
  call().clear_frontend_attributes();
  ExpectUntouched();
}

TEST_F(DivideBatchCallsTest, CallsWithoutABatchInCommonStay) {
  parameter().mutable_shape()->set_dimensions(0, 4);
  ExpectUntouched();
}

TEST_F(DivideBatchCallsTest, CallsThatActOutsideStay) {
  call().set_custom_call_has_side_effect(true);
  ExpectUntouched();
}

// Nothing said how the shardings of such a call's results follow from its operands'.
TEST_F(DivideBatchCallsTest, ACallWithoutShardingIsDividedAsItsOperandIs) {
  call().clear_sharding();
  ExpectUntouched();
  *parameter().mutable_sharding() = Tiled({8, 1, 1}, false);
  ASSERT_EQ(DivideBatchCalls(module_, kPartitions), 1);
  EXPECT_THAT(at(3).shape().tuple_shapes(0).dimensions(), ElementsAre(1, 6, 4));
  EXPECT_EQ(at(3).sharding().tuple_shardings_size(), 2);
  EXPECT_EQ(at(3).sharding().tuple_shardings(1).type(), xla::OpSharding::MANUAL);
  EXPECT_FALSE(at(8).has_sharding());
}

TEST_F(DivideBatchCallsTest, ShardingsThatWeDoNotUnderstandStay) {
  auto& sharding = *call().mutable_sharding()->mutable_tuple_shardings(0);
  const xla::OpSharding good = sharding;
  for (auto type : {xla::OpSharding::MANUAL, xla::OpSharding::MAXIMAL, xla::OpSharding::UNKNOWN}) {
    sharding.set_type(type);
    ExpectUntouched();
  }
  sharding = good;
  sharding.clear_replicate_on_last_tile_dim();
  sharding.add_last_tile_dims(xla::OpSharding::MANUAL);
  ExpectUntouched();
  sharding = Tiled({4, 1, 1}, false);  // four of eight devices
  ExpectUntouched();
  sharding = Tiled({4, 1, 1, 2}, true, {0, 1, 2, 3, 4, 5, 6, 6});
  ExpectUntouched();
  sharding = Tiled({4, 1, 1, 2}, true, {0, 1, 2, 3, 4, 5, 6, 8});
  ExpectUntouched();
  sharding = Tiled({0, 1, 1, 2}, true);
  ExpectUntouched();
  sharding = Tiled({int64_t{1} << 62, int64_t{1} << 62, 1, 8}, true);
  ExpectUntouched();
  sharding = good;
  sharding.set_iota_transpose_perm(0, 1);
  ExpectUntouched();
  sharding = good;
  call().mutable_sharding()->mutable_tuple_shardings()->RemoveLast();
  ExpectUntouched();
}

TEST_F(DivideBatchCallsTest, OneDeviceHasNothingToDivide) { EXPECT_EQ(DivideBatchCalls(module_, 1), 0); }

}  // namespace
}  // namespace landbridge::hlo
