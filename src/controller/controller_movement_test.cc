// Copies, reshards, plans, remaps.
#include "controller/controller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/limits.h"
#include "controller/controller_fixture_test_util.h"
#include "controller/plan_table.h"
#include "nlohmann/json.hpp"
#include "sharding/reshard_limits.h"

namespace landbridge {
namespace {

TEST_F(ControllerTest, CopiesBetweenWorkers) {
  world.Start(0);
  world.Start(1);
  const ArraySpec spec = world.Rows(world.Devices(0), {4});
  ArrayId a = Up(spec, Range(4));
  const std::vector<DeviceId> there = world.Devices(1);
  ArrayId b = controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).value()[0];
  controller().Release(kSession, a);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(4));
  EXPECT_TRUE(world.At(0).buffers.empty());
  EXPECT_TRUE(world.At(0).publications.empty());
  EXPECT_EQ(controller().counts().transfers, 0u);
  // Donated, the source goes; on the same device nothing moves.
  ArrayId c = controller().Copy(kSession, {b}, nullptr, nullptr, CopySemantics::kDonate, 0, 0).value()[0];
  EXPECT_TRUE(*controller().IsDeleted(kSession, b));
  const std::vector<DeviceId> here = world.Devices(0);
  ArrayId d = controller().Copy(kSession, {c}, &here, nullptr, CopySemantics::kDonate, 0, 0).value()[0];
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, d), Range(4));
  EXPECT_TRUE(world.At(1).buffers.empty());
  // Always copy: deleting one leaves the other.
  ArrayId e = controller().Copy(kSession, {d}, nullptr, nullptr, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
  ASSERT_TRUE(controller().Delete(kSession, d).ok());
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, e), Range(4));
  const MemoryKind pinned = MemoryKind::kPinnedHost;
  ArrayId f = controller().Copy(kSession, {e}, nullptr, &pinned, CopySemantics::kReuse, 0, 0).value()[0];
  EXPECT_EQ(controller().Spec(kSession, f)->sharding->memory(), pinned);
  EXPECT_EQ(*world.ReadWhole(kSession, f), Range(4));
  Close();
}

TEST_F(ControllerTest, AddressesTravelOncePerPair) {
  world.Start(0);
  world.Start(1);
  ArrayId a = Up(world.Single(0, {2}), {1, 2});
  const std::vector<DeviceId> there = {DeviceId(2)};
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).ok());
  }
  int addresses = 0, makes = 0;
  for (const WorkerOp& op : world.At(1).inbox) {
    if (!op.has_reshard_receive()) continue;
    ++makes;
    addresses += !op.reshard_receive().edges(0).data_address().empty();
  }
  EXPECT_EQ(makes, 3);
  EXPECT_EQ(addresses, 1);
  Close();
}

TEST_F(ControllerTest, Reshards) {
  world.Start(0);
  world.Start(1);
  const ArraySpec rows = world.Rows(world.Devices(0), {4, 2});
  ArrayId a = Up(rows, Range(8));
  ArraySpec everywhere = world.Replicated(world.Devices(1), {4, 2});
  ArrayId b = controller().Reshard(kSession, {a}, {everywhere}, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(8));
  std::vector<DeviceId> mixed = {DeviceId(3), DeviceId(0), DeviceId(1), DeviceId(2)};
  ArrayId c = controller().Reshard(kSession, {b}, {world.Rows(mixed, {4, 2})}, CopySemantics::kDonate, 0, 0).value()[0];
  EXPECT_TRUE(*controller().IsDeleted(kSession, b));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, c), Range(8));
  controller().Release(kSession, a);
  controller().Release(kSession, c);
  world.RunAll();
  EXPECT_TRUE(world.At(0).buffers.empty());
  EXPECT_TRUE(world.At(1).buffers.empty());
  EXPECT_FALSE(controller().Reshard(kSession, {a}, {}, CopySemantics::kAlwaysCopy, 0, 0).ok());
  Close();
}

TEST_F(ControllerTest, OneHostBufferForSeveralWorkers) {
  world.Start(0);
  world.Start(1);
  const auto put = [&](uint64_t key) {
    const Values values = Range(10'000);  // too large to ride along
    world.host[key] = ToBytes(values);
    HostShard shard;
    shard.shards = {0, 1};
    shard.key = key;
    shard.image_bytes = static_cast<int64_t>(world.host[key].size());
    const ArraySpec spec = world.Replicated({DeviceId(0), DeviceId(2)}, {10'000});
    ArrayId a = controller().MakeFromHost(kSession, spec, {std::move(shard)}, 0, 0).value();
    return std::make_pair(a, values);
  };
  // The door hears at once how many will pull it, and then who.
  const auto [a, values] = put(900);
  const Incarnation none;
  using Calls = std::vector<std::vector<Incarnation>>;
  EXPECT_EQ(world.serve_calls[900], (Calls{{world.slots.at(0), none}, {world.slots.at(1)}}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, a), values);
  EXPECT_TRUE(world.dropped.contains(900));
  // One of them comes later.
  world.Kill(1);
  const auto [b, more] = put(901);
  EXPECT_EQ(world.serve_calls[901], (Calls{{world.slots.at(0), none}}));
  world.RunAll();
  EXPECT_FALSE(world.dropped.contains(901));
  world.Start(1);
  EXPECT_EQ(world.serve_calls[901], (Calls{{world.slots.at(0), none}, {world.slots.at(1)}}));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), more);
  EXPECT_TRUE(world.dropped.contains(901));
  Close();
}

TEST_F(ControllerTest, PlansAreToldOncePerWorker) {
  world.Start(0);
  world.Start(1);
  const ArraySpec rows = world.Rows(world.Devices(0), {4, 2});
  const ArraySpec there = world.Replicated(world.Devices(1), {4, 2});
  for (int round = 0; round < 3; ++round) {
    ArrayId a = Up(rows, Range(8));
    world.RunAll();
    ArrayId b = controller().Reshard(kSession, {a}, {there}, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
    ASSERT_EQ(world.At(0).inbox.size(), 1u);
    ASSERT_EQ(world.At(1).inbox.size(), 1u);
    EXPECT_EQ(world.At(0).inbox[0].reshard_send().plan().has_definition(), round == 0);
    EXPECT_EQ(world.At(1).inbox[0].reshard_receive().plan().has_definition(), round == 0);
    EXPECT_EQ(world.At(1).inbox[0].reshard_receive().edges_size(), 1);
    world.RunAll();
    EXPECT_EQ(*world.ReadWhole(kSession, b), Range(8));
  }
  // A new life of the worker knows nothing.
  world.Kill(1);
  world.Start(1);
  ArrayId a = Up(rows, Range(8));
  world.RunAll();
  ArrayId b = controller().Reshard(kSession, {a}, {there}, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
  EXPECT_FALSE(world.At(0).inbox[0].reshard_send().plan().has_definition());
  EXPECT_TRUE(world.At(1).inbox[0].reshard_receive().plan().has_definition());
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(8));
  Close();
}

TEST_F(ControllerTest, PlansAreKeptWithinABound) {
  world.Start(0);
  world.Start(1);
  ctl::PlansTold told;
  ctl::Plan plan;
  plan.workers.emplace_back();
  std::set<uint64_t> known;
  for (uint64_t id = 1; id <= 3 * limits::kReshardPlansMax; ++id) {
    plan.id = id;
    plan.plan.pieces = id % 7;
    ReshardPlanRef ref;
    told.Name(plan, 0, &ref);
    EXPECT_TRUE(ref.has_definition());
    for (uint64_t old : ref.forget()) EXPECT_EQ(known.erase(old), 1u);
    known.insert(id);
    EXPECT_LE(known.size(), limits::kReshardPlansMax);
    ReshardPlanRef again;
    told.Name(plan, 0, &again);
    EXPECT_FALSE(again.has_definition());
  }
  EXPECT_EQ(known.size(), limits::kReshardPlansMax);
  plan.id = 1u << 20;
  plan.plan.pieces = limits::kReshardPlanPiecesMax + 1;  // too large beside others: all of those go
  ReshardPlanRef ref;
  told.Name(plan, 0, &ref);
  EXPECT_EQ(static_cast<size_t>(ref.forget_size()), known.size());

  // The controller's own: what was not asked for lately is worked out anew.
  auto made = [&] { return nlohmann::json::parse(controller().StatusJson(0))["reshard_plans"]; };
  const std::vector<DeviceId> there = {DeviceId(2)};
  auto copy = [&](int64_t elements) {
    ArrayId a = Up(world.Single(0, {elements}), Range(elements));
    ArrayId b = controller().Copy(kSession, {a}, &there, nullptr, CopySemantics::kReuse, 0, 0).value()[0];
    controller().Release(kSession, a);
    controller().Release(kSession, b);
    world.RunAll();
  };
  const auto count = static_cast<int64_t>(limits::kReshardPlansMax);
  for (int64_t n = 1; n <= count + 1; ++n) copy(n);
  EXPECT_EQ(made()["made"], count + 1);
  EXPECT_EQ(made()["kept"], count);
  copy(count + 1);
  EXPECT_EQ(made()["made"], count + 1);
  copy(1);
  EXPECT_EQ(made()["made"], count + 2);
  Close();
}

TEST_F(ControllerTest, AReplicaServesForOneThatIsLost) {
  world.Start(0);
  world.Start(1);
  // Devices 0 and 2 are of two workers.
  ArrayId a = Up(world.Replicated({DeviceId(0), DeviceId(2)}, {4}), Range(4));
  world.Kill(0);
  world.Start(0);
  ArrayId b =
      controller()
          .Reshard(kSession, {a}, {world.Rows({DeviceId(1), DeviceId(3)}, {4})}, CopySemantics::kAlwaysCopy, 0, 0)
          .value()[0];
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(4));
  Close();
}

TEST_F(ControllerTest, DonationKeepsWhatIsInPlace) {
  world.Start(0);
  world.Start(1);
  ArrayId a = Up(world.Rows({DeviceId(0), DeviceId(1)}, {4}), Range(4));
  world.RunAll();
  // Shard 0 stays where it is, shard 1 moves.
  ArrayId b = controller()
                  .Reshard(kSession, {a}, {world.Rows({DeviceId(0), DeviceId(2)}, {4})}, CopySemantics::kDonate, 0, 0)
                  .value()[0];
  EXPECT_TRUE(*controller().IsDeleted(kSession, a));
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, b), Range(4));
  EXPECT_EQ(world.At(0).buffers.size(), 1u);
  EXPECT_EQ(world.At(1).buffers.size(), 1u);
  controller().Release(kSession, b);
  controller().Release(kSession, a);
  world.RunAll();
  EXPECT_TRUE(world.At(0).buffers.empty());
  EXPECT_TRUE(world.At(1).buffers.empty());
  Close();
}

TEST_F(ControllerTest, Remaps) {
  world.Start(0);
  const ArraySpec rows = world.Rows(world.Devices(0), {4});
  ArrayId a = Up(rows, Range(4));
  // The same shards in the other order of devices.
  ArraySpec swapped = rows;
  swapped.sharding = Sharding::ConcreteEven({DeviceId(1), DeviceId(0)}, MemoryKind::kDevice, {4}, {2}, false).value();
  Controller::RemapStep step{0, 0, {{0, 1}, {1, 0}}};
  ArrayId b = controller().Remap(kSession, {a}, {swapped}, {step}, CopySemantics::kReuse).value()[0];
  std::vector<ArrayId> parts = controller().Disassemble(kSession, b, CopySemantics::kReuse).value();
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, parts[0]), (Values{3, 4}));
  Controller::RemapStep wrong{0, 0, {{0, 0}, {1, 1}}};
  EXPECT_FALSE(controller().Remap(kSession, {a}, {swapped}, {wrong}, CopySemantics::kReuse).ok());
  Controller::RemapStep half{0, 0, {{0, 1}}};
  EXPECT_FALSE(controller().Remap(kSession, {a}, {swapped}, {half}, CopySemantics::kReuse).ok());
  Controller::RemapStep twice{0, 0, {{0, 1}, {0, 1}}};
  EXPECT_FALSE(controller().Remap(kSession, {a}, {swapped}, {twice}, CopySemantics::kReuse).ok());
  // Several arrays at once, as a tree that is split by a mesh axis.
  ArrayId c = Up(rows, Range(4, 9));
  Controller::RemapStep second{1, 1, {{0, 1}, {1, 0}}};
  std::vector<ArrayId> both =
      controller().Remap(kSession, {a, c}, {swapped, swapped}, {step, second}, CopySemantics::kReuse).value();
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, c), Range(4, 9));
  parts = controller().Disassemble(kSession, both[1], CopySemantics::kReuse).value();
  EXPECT_EQ(*world.ReadWhole(kSession, parts[0]), (Values{11, 12}));
  EXPECT_FALSE(controller().Remap(kSession, {a, a}, {swapped}, {step}, CopySemantics::kDonate).ok());
  Close();
}

}  // namespace
}  // namespace landbridge
