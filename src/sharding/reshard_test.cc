#include "sharding/reshard.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/limits.h"

namespace landbridge {
namespace {

std::vector<DeviceId> Devices(int count, int first = 0) {
  std::vector<DeviceId> devices;
  for (int i = 0; i < count; ++i) devices.push_back(DeviceId(first + i));
  return devices;
}

// Four devices to a worker, two workers to a slice.
DeviceLocation Location(DeviceId device) { return {device.value() / 8, device.value() / 4}; }

Sharding::Ptr Tiled(std::vector<DeviceId> devices, std::vector<int64_t> td, int copies_dims = 0) {
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  int64_t total = 1;
  for (int64_t tile : td) {
    op.add_tile_assignment_dimensions(tile);
    total *= tile;
  }
  for (int i = 0; i < copies_dims; ++i) op.add_last_tile_dims(xla::OpSharding::REPLICATED);
  op.add_iota_reshape_dims(total);
  op.add_iota_transpose_perm(0);
  return Sharding::FromOpSharding(std::move(devices), MemoryKind::kDevice, op).value();
}

TEST(Reshard, SameShardingStaysWhereItIs) {
  auto sharding = Tiled(Devices(4), {4});
  ReshardPlan plan = *PlanReshard({8}, *sharding, *sharding, Location);
  EXPECT_EQ(plan.elements_same_device, 8);
  EXPECT_EQ(plan.elements_between_slices + plan.elements_same_slice + plan.elements_same_worker, 0);
  for (uint32_t i = 0; i < 4; ++i) {
    ASSERT_EQ(plan.targets[i].pieces.size(), 1u);
    EXPECT_EQ(plan.targets[i].pieces[0].source_shard, i);
  }
}

TEST(Reshard, PrefersNearReplicas) {
  // Replicas on workers 0 (d0), 1 (d4), 2 (d8, another slice).
  auto source = *Sharding::FullyReplicated({DeviceId(8), DeviceId(4), DeviceId(0)}, MemoryKind::kDevice);
  auto target = *Sharding::FullyReplicated({DeviceId(0), DeviceId(1), DeviceId(5), DeviceId(9)}, MemoryKind::kDevice);
  ReshardPlan plan = *PlanReshard({3}, *source, *target, Location);
  EXPECT_EQ(plan.targets[0].pieces[0].source_shard, 2u);  // d0 -> d0
  EXPECT_EQ(plan.targets[1].pieces[0].source_shard, 2u);  // d0 -> d1
  EXPECT_EQ(plan.targets[2].pieces[0].source_shard, 1u);  // d4 -> d5
  EXPECT_EQ(plan.targets[3].pieces[0].source_shard, 0u);  // d8 -> d9
  EXPECT_EQ(plan.elements_same_device, 3);
  EXPECT_EQ(plan.elements_same_worker, 9);
  auto near = *Sharding::FullyReplicated({DeviceId(8), DeviceId(4)}, MemoryKind::kDevice);
  auto first = Sharding::SingleDevice(DeviceId(0), MemoryKind::kDevice);
  EXPECT_EQ(PlanReshard({3}, *near, *first, Location)->targets[0].pieces[0].source_shard, 1u);
}

TEST(Reshard, FetchesOncePerWorkerAndSpreadsTheLoad) {
  // Eight replicas on slice 0 to sixteen devices (four workers) of slices 1 and 2.
  auto source = *Sharding::FullyReplicated(Devices(8), MemoryKind::kDevice);
  auto target = *Sharding::FullyReplicated(Devices(16, 8), MemoryKind::kDevice);
  ReshardPlan plan = *PlanReshard({10}, *source, *target, Location);
  std::map<uint32_t, int> load;
  int copies = 0;
  for (const ReshardTarget& t : plan.targets) {
    copies += t.copy_of.has_value();
    if (t.copy_of) {
      EXPECT_EQ(Location(target->devices()[*t.copy_of]).worker, Location(target->devices()[t.shard]).worker);
      EXPECT_LT(*t.copy_of, t.shard);
    }
    for (const ReshardPiece& p : t.pieces) ++load[p.source_shard];
  }
  EXPECT_EQ(copies, 12);
  EXPECT_EQ(load.size(), 4u);  // four fetches from four different replicas
  EXPECT_EQ(plan.elements_between_slices, 40);
  EXPECT_EQ(plan.elements_same_worker, 120);
}

TEST(Reshard, LostShards) {
  auto source = Tiled(Devices(4), {2, 2}, 1);  // two tiles of two replicas
  auto target = Tiled(Devices(2, 8), {2});
  std::vector<bool> usable = {false, true, false, false};
  ReshardPlan plan = *PlanReshard({4}, *source, *target, Location, &usable);
  EXPECT_EQ(plan.targets[0].pieces[0].source_shard, 1u);
  EXPECT_FALSE(plan.targets[0].unavailable);
  ASSERT_TRUE(plan.targets[1].unavailable);
  EXPECT_GE(*plan.targets[1].unavailable, 2u);
  EXPECT_TRUE(plan.targets[1].pieces.empty());
}

TEST(Reshard, ShardByShardWherePositionsAreUnknown) {
  auto source = *Sharding::ConcreteEven(Devices(2), MemoryKind::kDevice, {4}, {2}, false);
  auto same = *source->WithDevices(Devices(2, 4));
  ReshardPlan plan = *PlanReshard({4}, *source, *same, Location);
  EXPECT_EQ(plan.targets[1].pieces[0].source_shard, 1u);
  EXPECT_EQ(PlanReshard({4}, *source, *Tiled(Devices(2), {2}), Location).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(Reshard, RefusesWhatDoesNotFit) {
  auto two = Tiled(Devices(4), {2, 2});
  EXPECT_FALSE(PlanReshard({4}, *two, *Tiled(Devices(4), {4}), Location).ok());
}

TEST(Reshard, TooManyPieces) {
  // Rows to columns over n devices needs n * n pieces.
  const int n = 1001;
  auto rows = Tiled(Devices(n), {n, 1});
  auto columns = Tiled(Devices(n), {1, n});
  auto far = [](DeviceId d) { return DeviceLocation{d.value(), d.value()}; };
  auto plan = PlanReshard({n, n}, *rows, *columns, far);
  ASSERT_GT(static_cast<size_t>(n) * n, limits::kReshardPiecesMax);
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted);
}

// ---------------------------------------------------------------- against brute force

class Oracle {
 public:
  explicit Oracle(uint64_t seed) : random_(seed) {}

  int64_t Between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random_); }

  // Random divisors of a random device count over the dims, some replicas, random order of devices.
  Sharding::Ptr RandomSharding(size_t rank) {
    std::vector<int64_t> td(rank, 1);
    int64_t total = 1;
    for (int64_t& tile : td) {
      tile = Between(1, 3);
      total *= tile;
    }
    const int64_t copies = Between(1, 3);
    total *= copies;
    std::vector<int64_t> order(total);
    for (int64_t i = 0; i < total; ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    xla::OpSharding op;
    op.set_type(xla::OpSharding::OTHER);
    for (int64_t tile : td) op.add_tile_assignment_dimensions(tile);
    op.add_tile_assignment_dimensions(copies);
    op.set_replicate_on_last_tile_dim(true);
    for (int64_t i : order) op.add_tile_assignment_devices(i);
    std::vector<DeviceId> pool = Devices(96);
    std::shuffle(pool.begin(), pool.end(), random_);
    pool.resize(total);
    return Sharding::FromOpSharding(pool, MemoryKind::kDevice, op).value();
  }

  std::mt19937_64 random_;
};

// Visits the coordinates of a box in row-major order.
template <typename Fn>
void ForEach(const IndexBox& box, Fn fn) {
  if (box.Elements() == 0) return;
  Dims at = box.start;
  while (true) {
    fn(at);
    size_t i = at.size();
    while (i-- > 0) {
      if (++at[i] < box.limit[i]) break;
      at[i] = box.start[i];
    }
    if (i == static_cast<size_t>(-1)) return;
  }
}

int64_t Flat(const Dims& at, const Dims& dims) {
  int64_t flat = 0;
  for (size_t i = 0; i < dims.size(); ++i) flat = flat * dims[i] + at[i];
  return flat;
}

// The values of a shard cut out of the global array, whose element at a coordinate is its flat number.
std::vector<int64_t> Cut(const Dims& dims, const IndexBox& box) {
  std::vector<int64_t> values;
  ForEach(box, [&](const Dims& at) { values.push_back(Flat(at, dims)); });
  return values;
}

TEST(Reshard, RandomShardingsAgreeWithBruteForce) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Oracle oracle(seed);
    Dims dims(static_cast<size_t>(oracle.Between(0, 3)));
    for (int64_t& dim : dims) dim = oracle.Between(0, 7);  // uneven and empty ones too
    auto source = oracle.RandomSharding(dims.size());
    auto target = oracle.RandomSharding(dims.size());
    std::vector<bool> usable(source->num_shards());
    for (size_t i = 0; i < usable.size(); ++i) usable[i] = oracle.Between(0, 9) != 0;
    std::vector<std::vector<int64_t>> shards;
    for (uint32_t i = 0; i < source->num_shards(); ++i) shards.push_back(Cut(dims, *source->Box(dims, i)));

    ReshardPlan plan = PlanReshard(dims, *source, *target, Location, &usable).value();
    ASSERT_EQ(plan.targets.size(), target->num_shards());
    std::vector<std::vector<int64_t>> made(plan.targets.size());
    int64_t moved = 0;
    for (uint32_t i = 0; i < plan.targets.size(); ++i) {
      const ReshardTarget& out = plan.targets[i];
      const IndexBox box = *target->Box(dims, i);
      ASSERT_EQ(out.shard, i);
      ASSERT_EQ(out.dims, box.dims());
      if (out.unavailable) {
        ASSERT_FALSE(usable[*out.unavailable]);
        ASSERT_GT(source->Box(dims, *out.unavailable)->Intersect(box).Elements(), 0);
        continue;
      }
      if (out.copy_of) {
        ASSERT_LT(*out.copy_of, i);
        made[i] = made[*out.copy_of];
        moved += static_cast<int64_t>(made[i].size());
      } else {
        made[i].assign(static_cast<size_t>(box.Elements()), -1);
        for (const ReshardPiece& piece : out.pieces) {
          ASSERT_TRUE(usable[piece.source_shard]);
          ASSERT_EQ(piece.source_box.dims(), piece.target_box.dims());
          const Dims source_dims = *source->ShardDims(dims, piece.source_shard);
          ASSERT_EQ(piece.source_box.Intersect(IndexBox::Whole(source_dims)), piece.source_box);
          std::vector<int64_t> values;
          ForEach(piece.source_box,
                  [&](const Dims& at) { values.push_back(shards[piece.source_shard][Flat(at, source_dims)]); });
          size_t next = 0;
          ForEach(piece.target_box, [&](const Dims& at) {
            int64_t& element = made[i][Flat(at, out.dims)];
            ASSERT_EQ(element, -1) << "covered twice";
            element = values[next++];
          });
          moved += piece.source_box.Elements();
        }
      }
      ASSERT_EQ(made[i], Cut(dims, box));
    }
    EXPECT_EQ(moved, plan.elements_same_device + plan.elements_same_worker + plan.elements_same_slice +
                         plan.elements_between_slices);
  }
}

}  // namespace
}  // namespace landbridge
