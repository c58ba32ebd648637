#include "hlo/device_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace landbridge::hlo {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

xla::HloInstructionProto Instruction(const char* opcode, int64_t channel, bool global) {
  xla::HloInstructionProto instruction;
  instruction.set_name("op.1");
  instruction.set_opcode(opcode);
  instruction.set_channel_id(channel);
  instruction.set_use_global_device_ids(global);
  return instruction;
}

void AddGroup(xla::HloInstructionProto& instruction, std::vector<int64_t> ids) {
  auto* group = instruction.mutable_collective_device_list()->add_replica_groups();
  for (int64_t id : ids) group->add_replica_ids(id);
}

DeviceGroups Read(const xla::HloInstructionProto& instruction, LogicalDevices devices) {
  auto groups = ReadDeviceGroups(instruction, devices);
  EXPECT_TRUE(groups.ok()) << groups.status();
  return groups.ok() ? *groups : DeviceGroups{};
}

TEST(DeviceGroups, ListsOfDevicesKeepTheirOrderAsRanks) {
  auto instruction = Instruction("all-reduce", 1, true);
  AddGroup(instruction, {2, 0});
  AddGroup(instruction, {1, 3});
  EXPECT_THAT(Read(instruction, {1, 4}), ElementsAre(ElementsAre(2, 0), ElementsAre(1, 3)));
}

TEST(DeviceGroups, GroupsOfAnAllReduceNeedNotBeEqual) {
  auto instruction = Instruction("all-reduce", 1, true);
  AddGroup(instruction, {1, 0});
  AddGroup(instruction, {2, 3, 5, 4});
  EXPECT_THAT(Read(instruction, {1, 6}), ElementsAre(ElementsAre(1, 0), ElementsAre(2, 3, 5, 4)));
}

TEST(DeviceGroups, OldListsAreReadToo) {
  auto instruction = Instruction("all-gather", 1, true);
  instruction.add_replica_groups()->add_replica_ids(1);
  instruction.mutable_replica_groups(0)->add_replica_ids(0);
  EXPECT_THAT(Read(instruction, {1, 2}), ElementsAre(ElementsAre(1, 0)));
}

TEST(DeviceGroups, NoListMeansEverybody) {
  EXPECT_THAT(Read(Instruction("all-reduce", 1, true), {1, 3}), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(Read(Instruction("all-reduce", 0, false), {2, 2}), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(DeviceGroups, NumberingFollowsChannelAndGlobalIds) {
  auto replicas = Instruction("all-reduce", 0, false);
  AddGroup(replicas, {1, 0});
  EXPECT_THAT(Read(replicas, {2, 3}), ElementsAre(ElementsAre(3, 0), ElementsAre(4, 1), ElementsAre(5, 2)));
  auto both = Instruction("all-reduce", 7, false);
  AddGroup(both, {1, 0});
  EXPECT_THAT(Read(both, {2, 2}), ElementsAre(ElementsAre(2, 3, 0, 1)));
  auto partitions = Instruction("all-to-all", 7, false);
  AddGroup(partitions, {1, 0});
  EXPECT_THAT(Read(partitions, {2, 2}), ElementsAre(ElementsAre(1, 0), ElementsAre(3, 2)));
}

TEST(DeviceGroups, PermutedRange) {
  auto instruction = Instruction("all-reduce", 1, true);
  auto* iota = instruction.mutable_iota_collective_device_list();
  iota->set_num_replica_groups(4);
  iota->set_num_devices_per_group(2);
  iota->add_iota_reshape_dims(2);
  iota->add_iota_reshape_dims(4);
  iota->add_iota_transpose_perm(1);
  iota->add_iota_transpose_perm(0);
  EXPECT_THAT(Read(instruction, {1, 8}),
              ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
}

xla::MeshAxesReplicaGroupListProto* Mesh(xla::HloInstructionProto& instruction, std::vector<int64_t> sizes) {
  auto* list = instruction.mutable_mesh_axes_replica_group_list();
  for (int64_t size : sizes) list->mutable_mesh()->add_axes()->set_size(size);
  return list;
}

TEST(DeviceGroups, MeshAxesInListedOrder) {
  auto instruction = Instruction("all-reduce", 1, true);
  auto* list = Mesh(instruction, {2, 2, 2});
  list->add_axes()->set_mesh_axis_index(2);
  list->add_axes()->set_mesh_axis_index(0);
  // Ranks: axis 2 is the outer one, axis 0 the inner one; axis 1 tells the groups apart.
  EXPECT_THAT(Read(instruction, {1, 8}), ElementsAre(ElementsAre(0, 4, 1, 5), ElementsAre(2, 6, 3, 7)));
}

TEST(DeviceGroups, MeshOfPermutedDevices) {
  auto instruction = Instruction("all-gather", 1, true);
  auto* list = Mesh(instruction, {2, 2});
  for (int64_t id : {3, 1, 0, 2}) list->mutable_mesh()->add_device_ids(id);
  list->add_axes()->set_mesh_axis_index(1);
  EXPECT_THAT(Read(instruction, {1, 4}), ElementsAre(ElementsAre(3, 1), ElementsAre(0, 2)));

  list->mutable_mesh()->clear_device_ids();
  list->mutable_mesh()->mutable_iota_transform()->add_reshape_dims(2);
  list->mutable_mesh()->mutable_iota_transform()->add_reshape_dims(2);
  list->mutable_mesh()->mutable_iota_transform()->add_transpose_perm(1);
  list->mutable_mesh()->mutable_iota_transform()->add_transpose_perm(0);
  EXPECT_THAT(Read(instruction, {1, 4}), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(DeviceGroups, PartsOfAMeshAxis) {
  auto instruction = Instruction("all-reduce", 1, true);
  auto* list = Mesh(instruction, {8});
  auto* axis = list->add_axes();
  axis->set_mesh_axis_index(0);
  axis->mutable_sub_axis_info()->set_pre_size(2);
  axis->mutable_sub_axis_info()->set_size(2);
  EXPECT_THAT(Read(instruction, {1, 8}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4, 6), ElementsAre(5, 7)));
  auto* outer = list->add_axes();
  outer->set_mesh_axis_index(0);
  outer->mutable_sub_axis_info()->set_pre_size(1);
  outer->mutable_sub_axis_info()->set_size(2);
  EXPECT_THAT(Read(instruction, {1, 8}), ElementsAre(ElementsAre(0, 4, 2, 6), ElementsAre(1, 5, 3, 7)));
}

TEST(DeviceGroups, WhatDoesNotFitIsNamed) {
  auto expect_bad = [](const xla::HloInstructionProto& instruction, const char* text) {
    auto groups = ReadDeviceGroups(instruction, {1, 4});
    EXPECT_EQ(groups.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(groups.status().message()), testing::AllOf(HasSubstr("op.1"), HasSubstr(text)));
  };
  auto instruction = Instruction("all-reduce", 1, true);
  AddGroup(instruction, {0, 4});
  expect_bad(instruction, "number 4 of 4");
  instruction = Instruction("all-gather", 1, true);
  AddGroup(instruction, {0, 1});
  AddGroup(instruction, {2});
  expect_bad(instruction, "unequal size");
  instruction = Instruction("all-reduce", 1, true);
  AddGroup(instruction, {0, 1});
  AddGroup(instruction, {});
  expect_bad(instruction, "empty group");
  instruction = Instruction("all-reduce", 1, true);
  AddGroup(instruction, {0, 0});
  expect_bad(instruction, "number 0 twice");
  instruction = Instruction("all-reduce", 1, true);
  instruction.mutable_iota_collective_device_list()->set_num_replica_groups(int64_t{1} << 40);
  instruction.mutable_iota_collective_device_list()->set_num_devices_per_group(int64_t{1} << 40);
  expect_bad(instruction, "permuted range");
  instruction = Instruction("all-reduce", 1, true);
  Mesh(instruction, {4})->add_axes()->set_mesh_axis_index(1);
  expect_bad(instruction, "axis 1 of a mesh that has 1");
  instruction = Instruction("all-reduce", 1, true);
  auto* axis = Mesh(instruction, {4})->add_axes();
  axis->mutable_sub_axis_info()->set_pre_size(3);
  axis->mutable_sub_axis_info()->set_size(2);
  expect_bad(instruction, "does not divide");
}

TEST(DevicePairs, OfPartitionsForEachReplica) {
  auto instruction = Instruction("collective-permute", 1, false);
  for (auto [source, target] : {std::pair{0, 1}, std::pair{1, 0}}) {
    auto* pair = instruction.add_source_target_pairs();
    pair->set_source(source);
    pair->set_target(target);
  }
  auto pairs = ReadDevicePairs(instruction, {2, 2});
  ASSERT_TRUE(pairs.ok()) << pairs.status();
  EXPECT_THAT(*pairs, ElementsAre(DevicePair{0, 1}, DevicePair{2, 3}, DevicePair{1, 0}, DevicePair{3, 2}));
  instruction.mutable_source_target_pairs(1)->set_target(1);
  EXPECT_EQ(ReadDevicePairs(instruction, {2, 2}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace landbridge::hlo
