// Workers that are lost, and come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "controller/fake_world_test_util.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

class LossTest : public ::testing::Test {
 protected:
  static constexpr SessionId kSession{1};

  LossTest() {
    world.Declare(3, 2);
    world.controller.OpenSession(kSession);
    for (int slot = 0; slot < 3; ++slot) world.Start(slot);
  }
  ArrayId Up(const ArraySpec& spec, const Values& values) { return world.Put(kSession, spec, values).value(); }
  ArrayId CopyTo(ArrayId array, std::vector<DeviceId> devices) {
    return world.controller.Copy(kSession, {array}, &devices, nullptr, CopySemantics::kReuse, 0, world.now).value()[0];
  }
  void Close() {
    world.controller.CloseSession(kSession, absl::FailedPreconditionError("closed"));
    world.RunAll();
    world.ExpectEmpty();
  }
  void ExpectLost(const absl::Status& status, int slot) {
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("slice " + std::to_string(slot)));
  }
  FakeWorld world;
};

// In a large cluster a loss is news for few.
TEST_F(LossTest, WhoHasExchangedBytesWithALostWorkerIsTold) {
  ArrayId here = Up(world.Single(0, {2}), {1, 2});
  CopyTo(here, {DeviceId(2)});  // 1 pulls from 0
  world.RunAll();
  const uint64_t lost = world.slots.at(0).value();
  world.Kill(0);
  world.RunAll();
  EXPECT_TRUE(world.At(1).lost_peers.contains(lost));
  EXPECT_FALSE(world.At(2).lost_peers.contains(lost));
  ArrayId there = Up(world.Single(4, {2}), {3, 4});
  CopyTo(there, {DeviceId(2)});  // 2 is pulled from by 1
  world.RunAll();
  const uint64_t puller = world.slots.at(1).value();
  world.Kill(1);
  world.RunAll();
  EXPECT_TRUE(world.At(2).lost_peers.contains(puller));
}

TEST_F(LossTest, ExactlyTheShardsThereAreLost) {
  ArrayId lost = Up(world.Single(0, {2}), {1, 2});
  ArrayId kept = Up(world.Single(2, {2}), {3, 4});
  std::vector<DeviceId> both = {DeviceId(1), DeviceId(3)};
  ArrayId half = Up(world.Rows(both, {4}), {5, 6, 7, 8});
  ArrayId all = Up(world.Replicated(both, {2}), {9, 10});
  world.RunAll();
  RequestId ready = world.Wait(kSession, {lost, kept, half});
  EXPECT_TRUE(world.resolved.at(ready).ok());
  world.Kill(0);
  ExpectLost(world.ReadWhole(kSession, lost).status(), 0);
  EXPECT_EQ(*world.ReadWhole(kSession, kept), (Values{3, 4}));
  std::vector<ArrayId> parts = world.controller.Disassemble(kSession, half, CopySemantics::kReuse).value();
  ExpectLost(world.ReadWhole(kSession, parts[0]).status(), 0);
  EXPECT_EQ(*world.ReadWhole(kSession, parts[1]), (Values{7, 8}));
  ExpectLost(world.resolved.at(world.Wait(kSession, {half})), 0);
  EXPECT_TRUE(world.resolved.at(world.Wait(kSession, {parts[1]})).ok());
  // A replica that is left has the bytes.
  RequestId read = world.ReadBack(kSession, all);
  world.RunAll();
  EXPECT_EQ(FromBytes(world.reads.at(read)->data), (Values{9, 10}));
  // What is left can be resharded; what is gone stays an error, per shard.
  ArrayId moved =
      world.controller.Reshard(kSession, {half}, {world.Rows(world.Devices(2), {4})}, CopySemantics::kAlwaysCopy, 0, 0)
          .value()[0];
  std::vector<ArrayId> ends = world.controller.Disassemble(kSession, moved, CopySemantics::kReuse).value();
  ExpectLost(world.ReadWhole(kSession, ends[0]).status(), 0);
  EXPECT_EQ(*world.ReadWhole(kSession, ends[1]), (Values{7, 8}));
  // Deleting what is lost is fine.
  EXPECT_TRUE(world.controller.Delete(kSession, lost).ok());
  world.controller.Release(kSession, lost);
  Close();
}

TEST_F(LossTest, WaitsReadsAndLaunchesEndOnce) {
  const ArraySpec spec = world.Single(0, {2});
  ExecutableId f = world.controller.AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  ArrayId a = Up(spec, {1, 2});
  ExecuteResult result = world.controller.Execute(kSession, {f, {a}, {}, {}, 0, ""}, 3, 0).value();
  ArrayId other = Up(world.Single(2, {2}), {3, 4});
  RequestId wait = world.Wait(kSession, {result.outputs[0], other}), read = world.ReadBack(kSession, a);
  const RequestId done(500);
  world.controller.WhenDone(kSession, done, result.ticket);
  world.Kill(0);
  ExpectLost(world.resolved.at(done), 0);
  ExpectLost(world.reads.at(read).status(), 0);
  EXPECT_FALSE(world.resolved.contains(wait));  // the other one is not there yet
  world.RunAll();
  ExpectLost(world.resolved.at(wait), 0);
  EXPECT_EQ(world.controller.counts().launches_unfinished, 0u);
  Close();
}

TEST_F(LossTest, ANewLifeServesNewArraysUnderTheSameDevices) {
  const ArraySpec spec = world.Single(0, {2});
  ExecutableId f = world.controller.AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(0)}).value();
  ArrayId old = Up(spec, {1, 2});
  world.RunAll();
  world.Kill(0);
  ArrayId fresh = Up(spec, {5, 6});  // waits
  auto launch = [&](ArrayId arg) {
    return world.controller.Execute(kSession, {f, {arg}, {}, {}, 0, ""}, 0, 0).value().outputs[0];
  };
  ArrayId doomed = launch(old), fine = launch(fresh);
  ExpectLost(world.resolved.at(world.Wait(kSession, {doomed})), 0);
  world.controller.Release(kSession, old);
  world.Start(0);
  world.RunAll();  // the new worker hears nothing of what died: it would complain
  EXPECT_EQ(*world.ReadWhole(kSession, fine), (Values{Compute({5}, 0), Compute({6}, 0)}));
  EXPECT_EQ(world.At(0).programs.size(), 1u);
  Close();
}

// Found by landbridge-sim: a shard that was poisoned while its worker was away, beside one that was not, was freed twice:
// with the whole array and by itself.
TEST_F(LossTest, APoisonedShardBesideALivingOneIsFreedOnce) {
  ArrayId source = Up(world.Single(0, {2}), {1, 2});
  world.RunAll();
  world.Kill(1);
  // Shard 0 is pulled from slot 0, shard 1 is a copy of it; both wait for slot 1.
  ArrayId copy = world.controller
                     .Reshard(kSession, {source}, {world.Replicated({DeviceId(2), DeviceId(3)}, {2})},
                              CopySemantics::kAlwaysCopy, 0, 0)
                     .value()[0];
  world.Kill(0);
  world.Start(1);
  world.RunAll();
  ExpectLost(world.resolved.at(world.Wait(kSession, {copy})), 0);
  world.controller.Release(kSession, copy);
  world.RunAll();
  Close();
}

TEST_F(LossTest, SourcesThatGoWhileTheirCopyIsPulled) {
  ArrayId a = Up(world.Single(0, {2}), {1, 2});
  ArrayId b = CopyTo(a, {DeviceId(2)});
  const ArraySpec spec = world.Single(2, {2});
  ExecutableId f = world.controller.AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(2)}).value();
  ArrayId c = world.controller.Execute(kSession, {f, {b}, {}, {}, 0, ""}, 0, 0).value().outputs[0];
  RequestId wait = world.Wait(kSession, {c});
  world.Kill(0);
  world.RunAll();
  ExpectLost(world.resolved.at(wait), 0);
  EXPECT_EQ(world.controller.counts().transfers, 0u);
  Close();
}

TEST_F(LossTest, DestinationsThatGoUnpinTheSource) {
  ArrayId a = Up(world.Single(0, {2}), {1, 2});
  ArrayId b = CopyTo(a, {DeviceId(2)});
  while (world.At(0).publications.empty()) ASSERT_TRUE(world.Step());
  world.Kill(1);
  world.RunAll();
  ExpectLost(world.resolved.at(world.Wait(kSession, {b})), 1);
  EXPECT_TRUE(world.At(0).publications.empty());
  EXPECT_EQ(*world.ReadWhole(kSession, a), (Values{1, 2}));
  Close();
}

TEST_F(LossTest, ErrorsTravelAlongWhatWaitsForAbsentWorkers) {
  // 0 -> 1 -> 2, with no worker at 1 and 2; then 0 goes too.
  world.Kill(1);
  world.Kill(2);
  ArrayId a = Up(world.Single(0, {2}), {1, 2});
  ArrayId b = CopyTo(a, {DeviceId(2)});
  const ArraySpec spec = world.Single(2, {2});
  ExecutableId f = world.controller.AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(2)}).value();
  ArrayId c = world.controller.Execute(kSession, {f, {b}, {}, {}, 0, ""}, 0, 0).value().outputs[0];
  ArrayId d = CopyTo(c, {DeviceId(4)});
  ArrayId own = Up(world.Single(4, {2}), {7, 8});
  RequestId wait = world.Wait(kSession, {d}), wait_b = world.Wait(kSession, {b}), read = world.ReadBack(kSession, c);
  EXPECT_TRUE(world.resolved.empty());
  world.Kill(0);
  ExpectLost(world.resolved.at(wait), 0);
  ExpectLost(world.resolved.at(wait_b), 0);
  ExpectLost(world.reads.at(read).status(), 0);
  world.Start(1);
  world.Start(2);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, own), (Values{7, 8}));
  ExpectLost(world.ReadWhole(kSession, d).status(), 0);
  for (ArrayId id : {a, b, c, d, own}) world.controller.Release(kSession, id);
  world.RunAll();
  EXPECT_TRUE(world.At(1).buffers.empty());
  EXPECT_TRUE(world.At(2).buffers.empty());
  Close();
}

TEST_F(LossTest, BlockedWorkAtALiveWorkerIsPoisonedAtOnce) {
  world.Kill(0);
  ArrayId a = Up(world.Single(0, {2}), {1, 2});  // waits for a worker at 0
  ArrayId b = CopyTo(a, {DeviceId(2)});          // blocked at 1
  const ArraySpec spec = world.Single(2, {2});
  ExecutableId f = world.controller.AddExecutable(kSession, world.Program(spec, 1, 1), {DeviceId(2)}).value();
  ArrayId c = world.controller.Execute(kSession, {f, {b}, {}, {}, 0, ""}, 0, 0).value().outputs[0];
  RequestId wait = world.Wait(kSession, {c});
  world.RunAll();
  EXPECT_FALSE(world.resolved.contains(wait));
  world.Start(0);
  world.Kill(0);  // comes and goes before it did anything
  world.RunAll();
  ExpectLost(world.resolved.at(wait), 0);
  EXPECT_EQ(world.controller.counts().ops_parked, 0u);
  Close();
}

TEST_F(LossTest, AReplacementMeansALoss) {
  ArrayId a = Up(world.Single(0, {2}), {1, 2});
  world.RunAll();
  const Incarnation old = world.slots.at(0);
  world.workers.erase(old);
  world.Start(0);
  EXPECT_EQ(world.ReadWhole(kSession, a).status().code(), absl::StatusCode::kDataLoss);
  WorkerReport late;
  late.mutable_progress()->add_tickets(1);
  world.controller.OnReport(old, late, 0);
  world.controller.OnWorkerLost(old, absl::DataLossError("late news"), 0);
  ArrayId b = Up(world.Single(0, {2}), {3, 4});
  EXPECT_EQ(*world.ReadWhole(kSession, b), (Values{3, 4}));
  Close();
}

TEST_F(LossTest, HostBuffersOfTheLostAreDropped) {
  world.bytes_at_once = false;
  Up(world.Single(0, {2}), {1, 2});
  const int64_t n = 10'000;
  Up(world.Single(0, {n}), Values(static_cast<size_t>(n), 3));
  world.Kill(0);
  EXPECT_EQ(world.dropped.size(), 2u);
  EXPECT_EQ(world.controller.counts().host_buffers, 0u);
  Close();
}

// Found by landbridge-sim: what waited for an absent peer got no credit when the peer came, since younger nodes had it,
// and those waited for what waited.
TEST(CreditTest, TheOldestNodeNeedsNoCredit) {
  constexpr SessionId kSession(1);
  FakeWorld world(1, /*launches_max=*/1);
  world.Declare(3, 1);
  world.controller.OpenSession(kSession);
  world.Start(0);
  world.Start(2);
  auto copy = [&](ArrayId array, int slot) {
    std::vector<DeviceId> devices = {DeviceId(slot)};
    return world.controller.Copy(kSession, {array}, &devices, nullptr, CopySemantics::kAlwaysCopy, 0, 0).value()[0];
  };
  ArrayId source = world.Put(kSession, world.Single(1, {2}), {1, 2}).value();
  ArrayId first = copy(source, 0);  // blocked: slot 1 is not there
  ArrayId there = copy(first, 2);   // takes slot 2's credit, waits for the first
  ArrayId back = copy(there, 0);    // takes slot 0's credit, waits for that
  world.RunAll();
  EXPECT_FALSE(world.resolved.contains(world.Wait(kSession, {back})));
  world.Start(1);
  world.RunAll();
  EXPECT_EQ(*world.ReadWhole(kSession, back), (Values{1, 2}));
  EXPECT_EQ(world.controller.counts().ops_parked, 0u);
  world.controller.CloseSession(kSession, absl::FailedPreconditionError("closed"));
  world.RunAll();
  world.ExpectEmpty();
}

}  // namespace
}  // namespace landbridge
