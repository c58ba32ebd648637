#include "sharding/sharding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/limits.h"
#include "sharding/sharding_test_util.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

xla::OpSharding Tiles(std::vector<int64_t> tiles, std::vector<int64_t> devices = {}) {
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  for (int64_t tile : tiles) op.add_tile_assignment_dimensions(tile);
  if (devices.empty()) {
    int64_t total = 1;
    for (int64_t tile : tiles) total *= tile;
    op.add_iota_reshape_dims(total);
    op.add_iota_transpose_perm(0);
  }
  for (int64_t device : devices) op.add_tile_assignment_devices(device);
  return op;
}

absl::StatusOr<Sharding::Ptr> Make(int count, const xla::OpSharding& op) {
  return Sharding::FromOpSharding(Devices(count), MemoryKind::kDevice, op);
}

TEST(Shape, CountsAreChecked) {
  EXPECT_EQ(*ElementCount({}), 1);
  EXPECT_EQ(*ElementCount({2, 3, 4}), 24);
  EXPECT_EQ(*ElementCount({2, 0, 4}), 0);
  EXPECT_EQ(ElementCount({2, -1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ElementCount({int64_t{1} << 32, int64_t{1} << 32}).status().code(), absl::StatusCode::kInvalidArgument);
  // A zero does not hide an overflow of the rest.
  EXPECT_FALSE(ElementCount({0, int64_t{1} << 62, int64_t{1} << 62}).ok());
  EXPECT_FALSE(ElementCount(Dims(limits::kRankMax + 1, 1)).ok());
  EXPECT_TRUE(ElementCount(Dims(limits::kRankMax, 1)).ok());
}

TEST(Shape, Bytes) {
  EXPECT_EQ(*HostImageBytes(DType::kF32, {2, 3}), 24);
  EXPECT_EQ(*HostImageBytes(DType::kS4, {3}), 3);
  EXPECT_EQ(*DeviceBytes(DType::kS4, {3}), 2);
  EXPECT_EQ(*DeviceBytes(DType::kC128, {}), 16);
  EXPECT_EQ(*DeviceBytes(DType::kToken, {}), 0);
  EXPECT_FALSE(HostImageBytes(DType::kString, {2}).ok());
  EXPECT_FALSE(HostImageBytes(DType::kU8, {limits::kArrayBytesMax + 1}).ok());
  EXPECT_TRUE(HostImageBytes(DType::kU8, {limits::kArrayBytesMax}).ok());
}

TEST(Shape, StridedImages) {
  EXPECT_EQ(*StridedImageBytes(DType::kF32, {2, 3}, {}), 24);
  EXPECT_EQ(*StridedImageBytes(DType::kF32, {2, 3}, {4, 8}), 24);   // column-major
  EXPECT_EQ(*StridedImageBytes(DType::kF32, {2, 3}, {16, 4}), 28);  // padded rows
  EXPECT_EQ(*StridedImageBytes(DType::kF32, {1, 3}, {-5, 4}), 12);  // a stride that is never walked
  EXPECT_EQ(*StridedImageBytes(DType::kF32, {0, 3}, {4, 4}), 0);
  EXPECT_FALSE(StridedImageBytes(DType::kF32, {2, 3}, {-12, 4}).ok());
  EXPECT_FALSE(StridedImageBytes(DType::kF32, {2, 3}, {0, 4}).ok());
  EXPECT_FALSE(StridedImageBytes(DType::kF32, {2, 3}, {4}).ok());
  EXPECT_FALSE(StridedImageBytes(DType::kF32, {int64_t{1} << 30, 2}, {int64_t{1} << 40, 4}).ok());
}

TEST(Sharding, Replicated) {
  auto sharding = *Make(4, xla::OpSharding());
  EXPECT_TRUE(sharding->IsFullyReplicated());
  EXPECT_EQ(*sharding->ShardDims({6, 4}, 3), (Dims{6, 4}));
  EXPECT_EQ(sharding->Box({6, 4}, 2)->ToString(), "[0:6,0:4]");
  EXPECT_EQ(sharding->ToOpSharding()->type(), xla::OpSharding::REPLICATED);
}

TEST(Sharding, IotaTiles) {
  auto sharding = *Make(4, Tiles({2, 2}));
  EXPECT_FALSE(sharding->IsFullyReplicated());
  EXPECT_EQ(sharding->Box({6, 4}, 0)->ToString(), "[0:3,0:2]");
  EXPECT_EQ(sharding->Box({6, 4}, 1)->ToString(), "[0:3,2:4]");
  EXPECT_EQ(sharding->Box({6, 4}, 2)->ToString(), "[3:6,0:2]");
  EXPECT_EQ(*sharding->ShardDims({6, 4}, 3), (Dims{3, 2}));
}

TEST(Sharding, TransposedIotaEqualsItsList) {
  // Mesh (2,3) used as P(b, a): transpose of [[0,1,2],[3,4,5]] is 0 3 1 4 2 5.
  xla::OpSharding iota;
  iota.set_type(xla::OpSharding::OTHER);
  for (int64_t d : {3, 2}) iota.add_tile_assignment_dimensions(d);
  for (int64_t d : {2, 3}) iota.add_iota_reshape_dims(d);
  for (int p : {1, 0}) iota.add_iota_transpose_perm(p);
  auto a = *Make(6, iota);
  auto b = *Make(6, Tiles({3, 2}, {0, 3, 1, 4, 2, 5}));
  auto c = *Make(6, Tiles({3, 2}));
  for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(*a->Box({3, 4}, i), *b->Box({3, 4}, i)) << i;
  EXPECT_EQ(a->Box({3, 4}, 1)->ToString(), "[1:2,0:2]");
  EXPECT_TRUE(a->SamePartitioning(*b));
  EXPECT_EQ(*a, *b);
  EXPECT_EQ(a->hash(), b->hash());
  EXPECT_FALSE(a->SamePartitioning(*c));
}

TEST(Sharding, ThreeDimensionalTranspose) {
  // reshape (2,2,2), perm (2,0,1), td (2,4): position p = (r2, r0, r1).
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  for (int64_t d : {2, 4}) op.add_tile_assignment_dimensions(d);
  for (int64_t d : {2, 2, 2}) op.add_iota_reshape_dims(d);
  for (int p : {2, 0, 1}) op.add_iota_transpose_perm(p);
  auto sharding = *Make(8, op);
  std::vector<int64_t> order(8);
  int at = 0;
  for (int r2 = 0; r2 < 2; ++r2) {
    for (int r0 = 0; r0 < 2; ++r0) {
      for (int r1 = 0; r1 < 2; ++r1) order[at++] = r0 * 4 + r1 * 2 + r2;
    }
  }
  for (int p = 0; p < 8; ++p) EXPECT_EQ(sharding->TileOf(static_cast<uint32_t>(order[p])), p);
}

TEST(Sharding, ReplicatedSubgroups) {
  xla::OpSharding last = Tiles({2, 2});
  last.set_replicate_on_last_tile_dim(true);
  auto a = *Make(4, last);
  EXPECT_EQ(a->Box({4}, 0)->ToString(), "[0:2]");
  EXPECT_EQ(a->Box({4}, 1)->ToString(), "[0:2]");
  EXPECT_EQ(a->Box({4}, 3)->ToString(), "[2:4]");
  xla::OpSharding types = Tiles({2, 2});
  types.add_last_tile_dims(xla::OpSharding::REPLICATED);
  EXPECT_EQ(*a, **Make(4, types));
  // Only subgroups: the whole array everywhere.
  xla::OpSharding all = Tiles({1, 4});
  all.set_replicate_on_last_tile_dim(true);
  EXPECT_TRUE((*Make(4, all))->IsFullyReplicated());
  EXPECT_EQ(**Make(4, all), **Make(4, xla::OpSharding()));
}

TEST(Sharding, ManualSubgroupsHaveShapesButNoBoxes) {
  xla::OpSharding op = Tiles({2, 2});
  op.add_last_tile_dims(xla::OpSharding::MANUAL);
  auto sharding = *Make(4, op);
  EXPECT_FALSE(sharding->HasBoxes());
  EXPECT_EQ(*sharding->ShardDims({6}, 1), (Dims{3}));
  EXPECT_EQ(sharding->Box({6}, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(sharding->SamePartitioning(**Make(4, *sharding->ToOpSharding())));
}

TEST(Sharding, WholeShapeTypes) {
  for (auto type : {xla::OpSharding::MANUAL, xla::OpSharding::UNREDUCED, xla::OpSharding::UNKNOWN}) {
    xla::OpSharding op;
    op.set_type(type);
    auto sharding = *Make(2, op);
    EXPECT_EQ(*sharding->ShardDims({5}, 1), (Dims{5}));
    EXPECT_FALSE(sharding->IsFullyReplicated());
    EXPECT_EQ(sharding->ToOpSharding()->type(), type);
    EXPECT_TRUE((*Make(1, op))->IsFullyReplicated());  // one device has everything
  }
  xla::OpSharding maximal;
  maximal.set_type(xla::OpSharding::MAXIMAL);
  maximal.add_tile_assignment_devices(1);
  auto sharding = *Make(2, maximal);
  EXPECT_EQ(*sharding->ShardDims({5}, 0), (Dims{5}));
  EXPECT_EQ(sharding->ToOpSharding()->tile_assignment_devices(0), 1);
  maximal.set_tile_assignment_devices(0, 7);
  EXPECT_FALSE(Make(2, maximal).ok());
}

TEST(Sharding, UnevenTilesAreClipped) {
  auto sharding = *Make(4, Tiles({4}));
  EXPECT_EQ(sharding->Box({6}, 2)->ToString(), "[4:6]");
  EXPECT_EQ(sharding->Box({6}, 3)->ToString(), "[6:6]");
  EXPECT_EQ(*sharding->ShardDims({6}, 3), (Dims{0}));
  EXPECT_EQ(sharding->Box({0}, 1)->ToString(), "[0:0]");
}

TEST(Sharding, TheLargestDimensionIsDividedWithoutOverflow) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();  // of strings: no byte count bounds it
  const Sharding::Ptr halves = *Make(2, Tiles({2}));
  EXPECT_EQ((*halves->ShardDims({kMax}, 0))[0], (kMax >> 1) + 1);
  EXPECT_EQ((*halves->ShardDims({kMax}, 1))[0], kMax >> 1);
  EXPECT_EQ(halves->Box({kMax}, 1)->start[0], (kMax >> 1) + 1);
  EXPECT_EQ(halves->Box({kMax}, 1)->limit[0], kMax);
}

TEST(Sharding, RefusesWhatDoesNotFit) {
  EXPECT_FALSE(Sharding::FullyReplicated({}, MemoryKind::kDevice).ok());
  EXPECT_THAT(Sharding::FullyReplicated({DeviceId(3), DeviceId(3)}, MemoryKind::kDevice).status().message(),
              HasSubstr("device 3 is in the device list twice"));
  auto many = Devices(20);
  many.push_back(DeviceId(4));
  EXPECT_FALSE(Sharding::FullyReplicated(many, MemoryKind::kDevice).ok());
  EXPECT_FALSE(Sharding::FullyReplicated(Devices(limits::kDevicesMax + 1), MemoryKind::kDevice).ok());
  EXPECT_FALSE(Make(4, Tiles({2, 3})).ok());
  EXPECT_FALSE(Make(4, Tiles({4}, {0, 1, 2})).ok());
  EXPECT_FALSE(Make(4, Tiles({4}, {0, 1, 2, 2})).ok());
  EXPECT_FALSE(Make(4, Tiles({4}, {0, 1, 2, 4})).ok());
  EXPECT_FALSE(Make(4, Tiles({4}, {0, 1, 2, -1})).ok());
  EXPECT_FALSE(Make(4, Tiles({int64_t{1} << 62, 4}, {0})).ok());
  EXPECT_FALSE(Make(4, Tiles({0, 4}, {0})).ok());
  xla::OpSharding both = Tiles({4}, {0, 1, 2, 3});
  both.add_iota_reshape_dims(4);
  EXPECT_FALSE(Make(4, both).ok());
  xla::OpSharding perm = Tiles({4});
  perm.set_iota_transpose_perm(0, 1);
  EXPECT_FALSE(Make(4, perm).ok());
  xla::OpSharding huge = Tiles({4});
  huge.set_iota_reshape_dims(0, int64_t{1} << 40);
  EXPECT_FALSE(Make(4, huge).ok());
  xla::OpSharding neither = Tiles({4}, {0, 1, 2, 3});
  neither.clear_tile_assignment_devices();
  EXPECT_FALSE(Make(4, neither).ok());
  xla::OpSharding subgroups = Tiles({4});
  for (int i = 0; i < 2; ++i) subgroups.add_last_tile_dims(xla::OpSharding::REPLICATED);
  EXPECT_FALSE(Make(4, subgroups).ok());
  xla::OpSharding tuple;
  tuple.set_type(xla::OpSharding::TUPLE);
  EXPECT_FALSE(Make(1, tuple).ok());
  xla::OpSharding named;
  named.mutable_named_sharding();
  EXPECT_EQ(Make(1, named).status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_FALSE((*Make(4, Tiles({2, 2})))->Validate({4}).ok());
  EXPECT_FALSE((*Make(4, Tiles({2, 2})))->ShardDims({4, 4}, 4).ok());
}

TEST(Sharding, Concrete) {
  auto even = *Sharding::ConcreteEven(Devices(2), MemoryKind::kDevice, {4, 2}, {2, 2}, false);
  EXPECT_EQ(*even->ShardDims({4, 2}, 1), (Dims{2, 2}));
  EXPECT_FALSE(even->Validate({4, 4}).ok());
  EXPECT_FALSE(even->HasBoxes());
  EXPECT_FALSE(even->ToOpSharding().ok());
  auto replicated = *Sharding::ConcreteEven(Devices(2), MemoryKind::kDevice, {4}, {4}, true);
  EXPECT_TRUE(replicated->IsFullyReplicated());
  EXPECT_TRUE(replicated->Box({4}, 1).ok());
  EXPECT_FALSE(Sharding::ConcreteEven(Devices(2), MemoryKind::kDevice, {4}, {2}, true).ok());
  auto ragged = *Sharding::Concrete(Devices(2), MemoryKind::kDevice, {4}, {{1}, {3}});
  EXPECT_EQ(*ragged->ShardDims({4}, 1), (Dims{3}));
  EXPECT_FALSE(Sharding::Concrete(Devices(2), MemoryKind::kDevice, {4}, {{1}}).ok());
  auto also_even = *Sharding::Concrete(Devices(2), MemoryKind::kDevice, {4, 2}, {{2, 2}, {2, 2}});
  EXPECT_TRUE(even->SamePartitioning(*also_even));
  EXPECT_EQ(*even, *also_even);
  EXPECT_EQ(even->hash(), also_even->hash());
}

TEST(Sharding, WithDevicesAndMemory) {
  auto sharding = *Make(4, Tiles({4}, {3, 1, 0, 2}));
  auto moved = *sharding->WithDevices(Devices(4, 10));
  EXPECT_TRUE(moved->SamePartitioning(*sharding));
  EXPECT_FALSE(*moved == *sharding);
  EXPECT_EQ(*moved->Box({8}, 0), *sharding->Box({8}, 0));
  EXPECT_FALSE(sharding->WithDevices(Devices(3)).ok());
  auto pinned = sharding->WithMemory(MemoryKind::kPinnedHost);
  EXPECT_FALSE(*pinned == *sharding);
  EXPECT_THAT(pinned->ToString(), HasSubstr("pinned_host"));
}

TEST(Sharding, RoundTripsThroughTheWire) {
  xla::OpSharding partial = Tiles({2, 1, 2}, {3, 0, 2, 1});
  partial.set_replicate_on_last_tile_dim(true);
  xla::OpSharding iota;
  iota.set_type(xla::OpSharding::OTHER);
  for (int64_t d : {2, 2, 2}) iota.add_tile_assignment_dimensions(d);
  for (int64_t d : {2, 4}) iota.add_iota_reshape_dims(d);
  for (int p : {1, 0}) iota.add_iota_transpose_perm(p);
  struct Case {
    int devices;
    xla::OpSharding op;
  };
  for (const Case& c : {Case{4, partial}, Case{8, iota}, Case{4, Tiles({4})}, Case{1, Tiles({1, 1})}}) {
    auto sharding = *Make(c.devices, c.op);
    auto again = Make(c.devices, *sharding->ToOpSharding());
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*sharding, **again);
  }
}

TEST(Sharding, MemoryKinds) {
  EXPECT_EQ(*ParseMemoryKind(""), MemoryKind::kDevice);
  for (MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinnedHost, MemoryKind::kUnpinnedHost}) {
    EXPECT_EQ(*ParseMemoryKind(MemoryKindName(kind)), kind);
  }
  EXPECT_FALSE(ParseMemoryKind("moon").ok());
}

}  // namespace
}  // namespace landbridge
