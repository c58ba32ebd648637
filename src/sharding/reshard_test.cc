#include "sharding/reshard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "base/limits.h"
#include "sharding/reshard_part.h"
#include "sharding/sharding_test_util.h"

namespace landbridge {
namespace {

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
    EXPECT_EQ(plan.targets[i].pieces[0].shard, i);
  }
}

TEST(Reshard, PrefersNearReplicas) {
  // Replicas on workers 0 (d0), 1 (d4), 2 (d8, another slice).
  auto source = *Sharding::FullyReplicated({DeviceId(8), DeviceId(4), DeviceId(0)}, MemoryKind::kDevice);
  auto target = *Sharding::FullyReplicated({DeviceId(0), DeviceId(1), DeviceId(5), DeviceId(9)}, MemoryKind::kDevice);
  ReshardPlan plan = *PlanReshard({3}, *source, *target, Location);
  EXPECT_EQ(plan.targets[0].pieces[0].shard, 2u);  // d0 -> d0
  EXPECT_EQ(plan.targets[1].pieces[0].shard, 2u);  // d0 -> d1
  EXPECT_EQ(plan.targets[2].pieces[0].shard, 1u);  // d4 -> d5
  EXPECT_EQ(plan.targets[3].pieces[0].shard, 0u);  // d8 -> d9
  EXPECT_EQ(plan.elements_same_device, 3);
  EXPECT_EQ(plan.elements_same_worker, 9);
  auto near = *Sharding::FullyReplicated({DeviceId(8), DeviceId(4)}, MemoryKind::kDevice);
  auto first = Sharding::SingleDevice(DeviceId(0), MemoryKind::kDevice);
  EXPECT_EQ(PlanReshard({3}, *near, *first, Location)->targets[0].pieces[0].shard, 1u);
}

int64_t Elements(const ReshardPlan& plan, const ReshardEdge& edge) {
  int64_t sum = 0;
  for (const ReshardEdge::Piece& at : edge.pieces) {
    sum += plan.targets[at.target].pieces[at.piece].target_box.Elements();
  }
  return sum;
}

TEST(Reshard, ComesIntoASliceOnceAndSpreadsTheLoad) {
  // Eight replicas on slice 0 (two workers) to sixteen devices of slices 1 and 2 (two workers each).
  auto source = *Sharding::FullyReplicated(Devices(8), MemoryKind::kDevice);
  auto target = *Sharding::FullyReplicated(Devices(16, 8), MemoryKind::kDevice);
  ReshardPlan plan = *PlanReshard({10}, *source, *target, Location);
  EXPECT_EQ(plan.elements_between_slices, 20);
  EXPECT_EQ(plan.elements_same_slice, 20);
  EXPECT_EQ(plan.elements_same_worker, 120);
  ASSERT_EQ(plan.edges.size(), 4u);
  std::set<int64_t> senders;
  for (const ReshardEdge& edge : plan.edges) {
    EXPECT_EQ(Elements(plan, edge), 10);
    EXPECT_EQ(edge.passed_on, edge.from >= 2) << edge.from;
    EXPECT_TRUE(senders.insert(edge.from).second);  // both workers of slice 0, one of each other slice
  }
}

TEST(Reshard, SpreadsInsideASliceAsATree) {
  // One device to seven other workers of its slice: everybody who has it sends it.
  auto at = [](DeviceId d) { return DeviceLocation{0, d.value()}; };
  auto source = Sharding::SingleDevice(DeviceId(0), MemoryKind::kDevice);
  auto target = *Sharding::FullyReplicated(Devices(7, 1), MemoryKind::kDevice);
  ReshardPlan plan = *PlanReshard({10}, *source, *target, at);
  std::map<int64_t, int> sends, depth;
  for (const ReshardTarget& t : plan.targets) {
    ASSERT_EQ(t.pieces.size(), 1u);
    const int64_t from = t.pieces[0].of_target ? 1 + t.pieces[0].shard : 0;
    ++sends[from];
    depth[1 + t.shard] = depth[from] + 1;
  }
  for (auto [worker, count] : sends) EXPECT_LE(count, 3) << worker;  // log2(8)
  for (auto [worker, count] : depth) EXPECT_LE(count, 3) << worker;
}

TEST(Reshard, LoadFollowsBytes) {
  // Two replicas, each on a worker of its own, to four single devices elsewhere: two each.
  auto at = [](DeviceId d) { return DeviceLocation{d.value(), d.value()}; };
  auto source = *Sharding::FullyReplicated(Devices(2), MemoryKind::kDevice);
  ReshardPlan plan = *PlanReshard({8}, *source, *Tiled(Devices(4, 2), {4}), at);
  std::map<int64_t, int64_t> sent;
  for (const ReshardEdge& edge : plan.edges) sent[edge.from] += Elements(plan, edge);
  EXPECT_EQ(sent, (std::map<int64_t, int64_t>{{0, 4}, {1, 4}}));
}

TEST(Reshard, KeepsInPlaceOnlyWhatMayStay) {
  auto rows = Tiled(Devices(4), {4});
  auto swapped = Tiled({DeviceId(0), DeviceId(2), DeviceId(1), DeviceId(3)}, {4});
  ReshardPlan plan = *PlanReshard({8}, *rows, *swapped, Location, {nullptr, true});
  EXPECT_EQ(plan.targets[0].kept, 0u);
  EXPECT_EQ(plan.targets[3].kept, 3u);
  EXPECT_FALSE(plan.targets[1].kept || plan.targets[2].kept);
  EXPECT_EQ(plan.elements_same_device, 4);
  auto pinned = rows->WithMemory(MemoryKind::kPinnedHost);
  plan = *PlanReshard({8}, *rows, *pinned, Location, {nullptr, true});
  for (const ReshardTarget& t : plan.targets) EXPECT_FALSE(t.kept);
  const std::vector<bool> usable = {false, true, true, true};
  EXPECT_EQ(PlanReshard({8}, *rows, *rows, Location, {&usable, true})->targets[0].unavailable, 0u);
}

TEST(Reshard, LostShards) {
  auto source = Tiled(Devices(4), {2, 2}, 1);  // two tiles of two replicas
  auto target = Tiled(Devices(2, 8), {2});
  std::vector<bool> usable = {false, true, false, false};
  ReshardPlan plan = *PlanReshard({4}, *source, *target, Location, {&usable, false});
  EXPECT_EQ(plan.targets[0].pieces[0].shard, 1u);
  EXPECT_FALSE(plan.targets[0].unavailable);
  ASSERT_TRUE(plan.targets[1].unavailable);
  EXPECT_GE(*plan.targets[1].unavailable, 2u);
  EXPECT_TRUE(plan.targets[1].pieces.empty());
}

TEST(Reshard, ShardByShardWherePositionsAreUnknown) {
  auto source = *Sharding::ConcreteEven(Devices(2), MemoryKind::kDevice, {4}, {2}, false);
  auto same = *source->WithDevices(Devices(2, 4));
  ReshardPlan plan = *PlanReshard({4}, *source, *same, Location);
  EXPECT_EQ(plan.targets[1].pieces[0].shard, 1u);
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
  Sharding::Ptr RandomSharding(size_t rank, int pool_size) {
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
    std::vector<DeviceId> pool = Devices(std::max<int>(pool_size, static_cast<int>(total)));
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

// What the workers do with their parts of a plan that reached them as a message: each makes what the plan says from
// what it has and what others offer, and the bytes are exactly those that nobody could do without.
class Workers {
 public:
  Workers(const Dims& dims, const Sharding::Ptr& source, const Sharding::Ptr& target, const ReshardOptions& options)
      : dims_(dims), source_(source), target_(target), usable_(*options.usable) {
    std::vector<int64_t> workers;
    auto place = [](DeviceId d) { return PlacedDevice{Location(d), static_cast<uint32_t>(d.value() % 4)}; };
    ReshardPlanProto definition = DefineReshard(dims, *source, *target, place, options, &workers);
    plan_ = PlanReshard(dims, *source, *target, Location, options).value();
    for (size_t i = 0; i < workers.size(); ++i) {
      definition.set_self(static_cast<uint32_t>(i));
      ReshardPlanProto read;
      EXPECT_TRUE(read.ParseFromString(definition.SerializeAsString()));
      auto part = ReshardPart::Make(read);
      EXPECT_TRUE(part.ok()) << part.status();
      parts_[workers[i]] = *part;
    }
    for (uint32_t i = 0; i < source->num_shards(); ++i) {
      buffers_[{1, i}] = usable_[i] ? Cut(dims, *source->Box(dims, i)) : std::vector<int64_t>();
    }
  }

  void Run() {
    std::vector<uint64_t> first;
    uint64_t next = 100;
    for (const ReshardEdge& edge : plan_.edges) {
      first.push_back(next);
      next += edge.pieces.size();
    }
    for (uint32_t e = 0; e < plan_.edges.size(); ++e) {
      ReshardSend send;
      send.set_transfer(first[e]);
      send.set_edge(e);
      send.set_target(2);
      NameSource(plan_.edges[e].from, send.mutable_source());
      auto offers = parts_.at(plan_.edges[e].from)->Expand(send);
      ASSERT_TRUE(offers.ok()) << offers.status();
      for (const Publish& offer : *offers) ASSERT_TRUE(offers_.emplace(offer.transfer(), offer).second);
    }
    std::vector<MakeBuffer> open;
    for (const auto& [worker, part] : parts_) {
      ReshardReceive receive;
      receive.set_target(2);
      NameSource(worker, receive.mutable_source());
      for (uint32_t e = 0; e < plan_.edges.size(); ++e) {
        if (plan_.edges[e].to == worker) receive.add_edges()->set_transfer(first[e]);
      }
      auto make = part->Expand(receive);
      ASSERT_TRUE(make.ok()) << make.status();
      for (const MakeBuffer& buffer : make->buffers()) {
        const uint32_t shard = buffer.target().ref().shard();
        ASSERT_EQ(Location(target_->devices()[shard]).worker, worker);
        ASSERT_EQ(buffer.target().device(), static_cast<uint32_t>(target_->devices()[shard].value() % 4));
        open.push_back(buffer);
      }
    }
    // In any order in which sources are there: no cycles.
    while (!open.empty()) {
      const size_t before = open.size();
      std::erase_if(open, [&](const MakeBuffer& buffer) { return TryMake(buffer); });
      ASSERT_LT(open.size(), before) << "a cycle";
    }
    EXPECT_EQ(taken_.size(), offers_.size());
    CheckValues();
    CheckBytes();
  }

 private:
  using Ref = std::pair<uint64_t, uint32_t>;

  // Half of the arrays are listed shard by shard.
  void NameSource(int64_t worker, ReshardSource* proto) const {
    if (dims_.size() % 2 == 0) return proto->set_array(1);
    for (uint32_t i = 0; i < source_->num_shards(); ++i) {
      if (Location(source_->devices()[i]).worker != worker) continue;
      BufferRefProto* ref = proto->add_shards();
      ref->set_array(1);
      ref->set_shard(i);
    }
  }
  static IndexBox BoxOf(const Box& box, const Dims& whole) {
    if (box.start_size() == 0) return IndexBox::Whole(whole);
    return {Dims(box.start().begin(), box.start().end()), Dims(box.limit().begin(), box.limit().end())};
  }
  static int64_t WorkerOf(const Sharding& sharding, uint32_t shard) {
    return Location(sharding.devices()[shard]).worker;
  }

  bool TryMake(const MakeBuffer& buffer) {
    const Dims dims(buffer.dims().begin(), buffer.dims().end());
    const Ref target{2, buffer.target().ref().shard()};
    const int64_t here = WorkerOf(*target_, target.second);
    auto ref_of = [&](const Piece& piece) {
      const BufferRefProto& ref = piece.has_local() ? piece.local() : offers_.at(piece.remote().transfer()).ref();
      return Ref{ref.array(), ref.shard()};
    };
    for (const Piece& piece : buffer.pieces()) {
      if (!buffers_.contains(ref_of(piece))) return false;
    }
    std::vector<int64_t> values(static_cast<size_t>(IndexBox::Whole(dims).Elements()), -1);
    for (const Piece& piece : buffer.pieces()) {
      const Ref ref = ref_of(piece);
      const Dims from(piece.source_dims().begin(), piece.source_dims().end());
      IndexBox box = BoxOf(piece.source_box(), from);
      const int64_t there = WorkerOf(ref.first == 1 ? *source_ : *target_, ref.second);
      if (piece.has_remote()) {
        const Publish& offer = offers_.at(piece.remote().transfer());
        EXPECT_EQ(BoxOf(offer.box(), from), box);
        EXPECT_TRUE(taken_.insert(piece.remote().transfer()).second);
        EXPECT_NE(there, here);
        into_worker_[here] += box.Elements();
        const int from_slice = static_cast<int>(there / 2), to_slice = static_cast<int>(here / 2);
        if (from_slice != to_slice) into_slice_[to_slice] += box.Elements();
      } else {
        EXPECT_EQ(there, here);
      }
      std::vector<int64_t> part;
      ForEach(box, [&](const Dims& at) { part.push_back(buffers_.at(ref)[static_cast<size_t>(Flat(at, from))]); });
      size_t next = 0;
      ForEach(BoxOf(piece.target_box(), dims), [&](const Dims& at) {
        int64_t& element = values[static_cast<size_t>(Flat(at, dims))];
        EXPECT_EQ(element, -1) << "covered twice";
        element = part.at(next++);
      });
    }
    buffers_[target] = std::move(values);
    return true;
  }

  void CheckValues() {
    for (const ReshardTarget& target : plan_.targets) {
      const IndexBox box = *target_->Box(dims_, target.shard);
      if (target.unavailable) {
        EXPECT_FALSE(usable_[*target.unavailable]);
        EXPECT_GT(source_->Box(dims_, *target.unavailable)->Intersect(box).Elements(), 0);
        // Nobody has all of it.
        std::vector<bool> held(static_cast<size_t>(box.Elements()), false);
        for (uint32_t i = 0; i < source_->num_shards(); ++i) {
          if (!usable_[i]) continue;
          ForEach(source_->Box(dims_, i)->Intersect(box).RelativeTo(box.start),
                  [&](const Dims& at) { held[static_cast<size_t>(Flat(at, target.dims))] = true; });
        }
        EXPECT_TRUE(std::find(held.begin(), held.end(), false) != held.end());
      } else if (target.kept) {
        EXPECT_EQ(source_->devices()[*target.kept], target_->devices()[target.shard]);
        EXPECT_EQ((buffers_.at({1, *target.kept})), Cut(dims_, box));
      } else {
        EXPECT_EQ((buffers_.at({2, target.shard})), Cut(dims_, box));
      }
    }
  }

  // Element by element: what a worker (a slice) needs and does not hold.
  void CheckBytes() {
    std::map<int64_t, std::set<int64_t>> needs, holds;
    auto add = [&](std::map<int64_t, std::set<int64_t>>* to, const Sharding& sharding, uint32_t shard) {
      for (int64_t element : Cut(dims_, *sharding.Box(dims_, shard))) {
        (*to)[WorkerOf(sharding, shard)].insert(element);
        (*to)[-1 - Location(sharding.devices()[shard]).slice].insert(element);  // and its slice
      }
    };
    for (const ReshardTarget& target : plan_.targets) {
      if (!target.unavailable) add(&needs, *target_, target.shard);
    }
    for (uint32_t i = 0; i < source_->num_shards(); ++i) {
      if (usable_[i]) add(&holds, *source_, i);
    }
    for (const auto& [where, elements] : needs) {
      int64_t lacks = 0;
      for (int64_t element : elements) lacks += holds[where].contains(element) ? 0 : 1;
      EXPECT_EQ(where >= 0 ? into_worker_[where] : into_slice_[static_cast<int>(-1 - where)], lacks) << where;
    }
  }

  const Dims dims_;
  const Sharding::Ptr source_, target_;
  const std::vector<bool> usable_;
  ReshardPlan plan_;
  std::map<int64_t, std::shared_ptr<const ReshardPart>> parts_;
  std::map<Ref, std::vector<int64_t>> buffers_;
  std::map<uint64_t, Publish> offers_;
  std::set<uint64_t> taken_;
  std::map<int64_t, int64_t> into_worker_;
  std::map<int, int64_t> into_slice_;
};

TEST(Reshard, RandomShardingsMoveExactlyWhatIsLacking) {
  for (uint64_t seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    Oracle oracle(seed);
    Dims dims(static_cast<size_t>(oracle.Between(0, 3)));
    for (int64_t& dim : dims) dim = oracle.Between(0, 7);                    // uneven and empty ones too
    const int pool = static_cast<int>(oracle.Between(0, 1) == 0 ? 28 : 96);  // near each other, or all over the place
    auto source = oracle.RandomSharding(dims.size(), pool);
    auto target = oracle.RandomSharding(dims.size(), pool);
    std::vector<bool> usable(source->num_shards(), true);
    if (seed % 2 == 0) {
      for (size_t i = 0; i < usable.size(); ++i) usable[i] = oracle.Between(0, 9) != 0;
    }
    Workers(dims, source, target, {&usable, oracle.Between(0, 1) == 0}).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(ReshardPart, ConcreteShardingsTravelToo) {
  auto source = *Sharding::Concrete(Devices(2), MemoryKind::kDevice, {5}, {{2}, {3}});
  auto target = *source->WithDevices({DeviceId(8), DeviceId(1)});
  std::vector<int64_t> workers;
  ReshardPlanProto definition = DefineReshard(
      {5}, *source, *target,
      [](DeviceId d) {
        return PlacedDevice{Location(d), 7};
      },
      {}, &workers);
  ASSERT_EQ(workers, (std::vector<int64_t>{0, 2}));
  definition.set_self(1);
  ReshardReceive receive;
  receive.set_target(2);
  receive.add_edges()->set_transfer(50);
  MakeBuffers make = (*ReshardPart::Make(definition))->Expand(receive).value();
  ASSERT_EQ(make.buffers_size(), 1);
  EXPECT_EQ(make.buffers(0).dims(0), 2);
  EXPECT_EQ(make.buffers(0).target().device(), 7u);
  EXPECT_EQ(make.buffers(0).pieces(0).remote().transfer(), 50u);
}

TEST(ReshardPart, MessagesThatMakeNoSenseAreRefused) {
  auto rows = Tiled(Devices(4), {4});
  auto other = Tiled(Devices(4, 8), {4});
  std::vector<int64_t> workers;
  const ReshardPlanProto good = DefineReshard(
      {8}, *rows, *other,
      [](DeviceId d) {
        return PlacedDevice{Location(d), 0};
      },
      {}, &workers);
  auto refused = [&](auto change) {
    ReshardPlanProto bad = good;
    change(&bad);
    return ReshardPart::Make(bad).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->set_self(2); }));
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->mutable_devices(0)->set_worker(9); }));
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->mutable_source()->set_devices(0, 99); }));
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->mutable_source()->set_devices(0, 1); }));  // twice
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->mutable_target()->clear_devices(); }));
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->set_dims(0, -1); }));
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->add_dims(2); }));
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->add_unusable(4); }));
  EXPECT_TRUE(refused([](ReshardPlanProto* p) { p->mutable_source()->clear_partitioning(); }));
  auto part = ReshardPart::Make(good).value();
  EXPECT_FALSE(part->Expand(ReshardReceive()).value().buffers_size());  // worker 0 makes nothing
  ReshardSend send;
  send.set_edge(5);
  EXPECT_FALSE(part->Expand(send).ok());
  send.set_edge(0);
  EXPECT_EQ(part->Expand(send).value().size(), 4u);
  send.mutable_source()->add_shards();
  EXPECT_FALSE(part->Expand(send).ok());
}

}  // namespace
}  // namespace landbridge
