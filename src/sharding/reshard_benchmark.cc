#include <benchmark/benchmark.h>

#include <vector>

#include "sharding/reshard.h"
#include "sharding/reshard_part.h"

namespace landbridge {
namespace {

std::vector<DeviceId> Devices(int first, int count) {
  std::vector<DeviceId> devices;
  for (int i = 0; i < count; ++i) devices.push_back(DeviceId(first + i));
  return devices;
}

xla::OpSharding Tiled(std::vector<int64_t> tiles) {
  xla::OpSharding op;
  op.set_type(xla::OpSharding::OTHER);
  int64_t total = 1;
  for (int64_t tile : tiles) {
    op.add_tile_assignment_dimensions(tile);
    total *= tile;
  }
  op.add_iota_reshape_dims(total);
  op.add_iota_transpose_perm(0);
  return op;
}

// From n slices of rows to n slices of columns on other devices.
void BM_RowsToColumns(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  auto rows = Sharding::FromOpSharding(Devices(0, n), MemoryKind::kDevice, Tiled({n, 1})).value();
  auto columns = Sharding::FromOpSharding(Devices(n, n), MemoryKind::kDevice, Tiled({1, n})).value();
  Dims dims = {1024, 1024};
  auto location = [](DeviceId d) { return DeviceLocation{d.value() / 64, d.value() / 4}; };
  for (auto _ : state) benchmark::DoNotOptimize(PlanReshard(dims, *rows, *columns, location));
  state.SetItemsProcessed(state.iterations() * n * n);
}
BENCHMARK(BM_RowsToColumns)->Arg(1)->Arg(8)->Arg(64)->Arg(256);

// One worker's part of the same, from the message: what a worker does once for each new plan.
void BM_PartOfRowsToColumns(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  auto rows = Sharding::FromOpSharding(Devices(0, n), MemoryKind::kDevice, Tiled({n, 1})).value();
  auto columns = Sharding::FromOpSharding(Devices(n, n), MemoryKind::kDevice, Tiled({1, n})).value();
  std::vector<int64_t> workers;
  auto place = [](DeviceId d) {
    return PlacedDevice{{d.value() / 64, d.value() / 4}, static_cast<uint32_t>(d.value() % 4)};
  };
  const ReshardPlanProto definition = DefineReshard({1024, 1024}, *rows, *columns, place, {}, &workers);
  for (auto _ : state) benchmark::DoNotOptimize(ReshardPart::Make(definition));
}
BENCHMARK(BM_PartOfRowsToColumns)->Arg(4)->Arg(64)->Arg(256);

void BM_Decode(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  auto devices = Devices(0, n);
  auto op = Tiled({n, 1});
  for (auto _ : state) benchmark::DoNotOptimize(Sharding::FromOpSharding(devices, MemoryKind::kDevice, op));
}
BENCHMARK(BM_Decode)->Arg(1)->Arg(8)->Arg(10000);

}  // namespace
}  // namespace landbridge
