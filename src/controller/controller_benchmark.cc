// The controller alone: what one call costs the proxy's loop thread, and what an array costs in memory.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <deque>
#include <memory>
#include <vector>

#include "controller/cluster_table.h"
#include "controller/benchmark_test_util.h"
#include "controller/controller.h"
#include "controller/plan_table.h"

namespace landbridge {
namespace {

// Ends every node at once, as a worker would that is always faster.
class NullSink : public QuietSink {
 public:
  void SendToWorker(Incarnation, WorkerOp op) override {
    if (op.has_launch()) ended.push_back(op.launch().ticket());
    if (op.has_upload()) ended.push_back(op.upload().ticket());
    if (op.has_reshard_receive()) {
      ended.push_back(op.reshard_receive().ticket());
      for (const ReshardEdgeProto& edge : op.reshard_receive().edges()) transfers.push_back(edge.transfer());
    }
  }
  std::vector<uint64_t> ended;
  std::vector<uint64_t> transfers;
};

struct Bench {
  explicit Bench(int devices, int parameters) : controller({.space = 1, .scheduling = {}}, &sink) {
    std::vector<VirtualDevice> all;
    for (int i = 0; i < devices; ++i) {
      all.push_back({DeviceId(i), SlotId{SliceId(0), 0}, static_cast<uint32_t>(i)});
      ids.push_back(DeviceId(i));
    }
    controller.DeclareDevices(std::move(all));
    controller.OnWorkerUp(SlotId{SliceId(0), 0}, Incarnation(7), "address", "worker", 0);
    controller.OpenSession(SessionId(1));
    const auto program = SmallProgram(devices, parameters, 1);
    executable = controller.AddExecutable(SessionId(1), program, ids).value();
    spec.dtype = DType::kF32;
    spec.dims = {8};
    spec.sharding = Sharding::FullyReplicated(ids, MemoryKind::kDevice).value();
  }
  ArrayId Upload() {
    return controller.MakeFromHost(SessionId(1), spec, {SmallUpload(static_cast<uint32_t>(ids.size()), ++key)}, 0, 0)
        .value();
  }
  void EndAll() {
    WorkerReport report;
    for (uint64_t ticket : sink.ended) report.mutable_progress()->add_tickets(ticket);
    sink.ended.clear();
    controller.OnReport(Incarnation(7), report, 0);
  }
  NullSink sink;
  Controller controller;
  std::vector<DeviceId> ids;
  ExecutableId executable;
  ArraySpec spec;
  uint64_t key = 0;
};

// out = f(out, b, c, d); the old one is released. Reports come in batches of 64.
void BM_ChainedExecute(benchmark::State& state) {
  Bench bench(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  ExecuteArgs args;
  args.executable = bench.executable;
  for (int i = 0; i < state.range(1); ++i) args.args.push_back(bench.Upload());
  bench.EndAll();
  for (auto _ : state) {
    ExecuteResult result = bench.controller.Execute(SessionId(1), args, 5, 0).value();
    bench.controller.Release(SessionId(1), args.args[0]);
    args.args[0] = result.outputs[0];
    if (bench.sink.ended.size() >= 64) bench.EndAll();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_ChainedExecute)->Args({1, 1})->Args({1, 4})->Args({4, 4})->Args({8, 100});

// The same amid 200,000 other arrays.
void BM_ExecuteAmidMany(benchmark::State& state) {
  Bench bench(1, 4);
  const size_t before = mallinfo2().uordblks;
  std::vector<ArrayId> held;
  for (int i = 0; i < 200'000; ++i) {
    held.push_back(bench.Upload());
    if (bench.sink.ended.size() >= 64) bench.EndAll();
  }
  bench.EndAll();
  state.counters["bytes_per_array"] = static_cast<double>(mallinfo2().uordblks - before) / 200'000 - 8;
  ExecuteArgs args;
  args.executable = bench.executable;
  size_t next = 0;
  args.args = {held[0], held[1], held[2], held[3]};
  for (auto _ : state) {
    for (ArrayId& arg : args.args) arg = held[(next += 7919) % held.size()];
    ExecuteResult result = bench.controller.Execute(SessionId(1), args, 5, 0).value();
    bench.controller.Release(SessionId(1), result.outputs[0]);
    if (bench.sink.ended.size() >= 64) bench.EndAll();
  }
}
BENCHMARK(BM_ExecuteAmidMany);

// Rows over one worker of n devices to columns over another: the plan is kept.
void BM_Reshard(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  NullSink sink;
  Controller controller({.space = 1}, &sink);
  std::vector<VirtualDevice> all;
  for (int i = 0; i < 2 * n; ++i) {
    all.push_back({DeviceId(i), SlotId{SliceId(i / n), 0}, static_cast<uint32_t>(i % n)});
  }
  controller.DeclareDevices(std::move(all));
  for (int s = 0; s < 2; ++s) {
    controller.OnWorkerUp(SlotId{SliceId(s), 0}, Incarnation(static_cast<uint64_t>(7 + s)), "address", "worker", 0);
  }
  controller.OpenSession(SessionId(1));
  auto spec = [n](int first, bool columns) { return ArraySpec{DType::kF32, {1024, 1024}, Stripes(first, n, columns)}; };
  const ArraySpec columns = spec(n, true);
  std::vector<HostShard> shards;
  for (int i = 0; i < n; ++i) {
    HostShard& shard = shards.emplace_back();
    shard.shards = {static_cast<uint32_t>(i)};
    shard.key = static_cast<uint64_t>(i) + 1;
    shard.image_bytes = 4 * 1024 * 1024 / n;
  }
  const ArrayId source = controller.MakeFromHost(SessionId(1), spec(0, false), std::move(shards), 0, 0).value();
  for (auto _ : state) {
    const std::vector<ArrayId> ids =
        controller.Reshard(SessionId(1), {source}, {columns}, CopySemantics::kAlwaysCopy, 0, 0).value();
    controller.Release(SessionId(1), ids[0]);
    if (sink.ended.size() < 64) continue;
    WorkerReport report, transfers;
    for (uint64_t ticket : sink.ended) report.mutable_progress()->add_tickets(ticket);
    for (uint64_t transfer : sink.transfers) transfers.mutable_transfers_done()->add_transfers(transfer);
    sink.ended.clear();
    sink.transfers.clear();
    controller.OnReport(Incarnation(8), transfers, 0);
    controller.OnReport(Incarnation(8), report, 0);
  }
}
BENCHMARK(BM_Reshard)->Arg(4)->Arg(8);

// The plan alone, from rows on `n` workers of one device to columns on `n` others: asked for the first time, and again.
void BM_Plan(benchmark::State& state) {
  const int n = static_cast<int>(state.range(0));
  const bool again = state.range(1) != 0;
  ctl::ClusterTable cluster;
  std::vector<VirtualDevice> all;
  for (int i = 0; i < 2 * n; ++i) all.push_back({DeviceId(i), SlotId{SliceId(i), 0}, 0});
  cluster.Declare(std::move(all));
  const Sharding::Ptr rows = Stripes(0, n, false), columns = Stripes(n, n, true);
  ctl::PlanTable plans(&cluster);
  int64_t question = 0;
  for (auto _ : state) {
    const Dims dims = {4096, again ? 4096 : 4096 + 64 * question++};
    benchmark::DoNotOptimize(plans.Get(dims, rows, columns, false, nullptr));
  }
  if (plans.made() != static_cast<uint64_t>(again ? 1 : state.iterations())) state.SkipWithError("not what it says");
}
BENCHMARK(BM_Plan)->ArgNames({"workers", "again"})->ArgsProduct({{4, 8, 64}, {0, 1}});

}  // namespace
}  // namespace landbridge

BENCHMARK_MAIN();
