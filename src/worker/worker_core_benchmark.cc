// Launches per second through the core alone: arrival, placing, handing over, completion, delete, progress.
#include <benchmark/benchmark.h>

#include <deque>
#include <vector>

#include "worker/core_test_util.h"
#include "worker/worker_core.h"

namespace landbridge {
namespace {

using namespace landbridge::testing;  // NOLINT: the short op builders

class CountingSink : public WorkerSink {
 public:
  std::deque<Ticket> running;
  uint64_t reports = 0, frees = 0;

  void Report(WorkerReport) override { ++reports; }
  void Load(const LoadExecutable&) override {}
  void Unload(ExecutableId) override {}
  void HandOver(std::shared_ptr<const Launch> launch, uint64_t) override { running.emplace_back(launch->ticket()); }
  void StartUpload(std::shared_ptr<const Upload>) override {}
  void UploadBytes(uint64_t, std::string) override {}
  void CancelUpload(uint64_t, const absl::Status&) override {}
  void StartMake(std::shared_ptr<const MakeBuffers>, int) override {}
  void CancelMake(Ticket, int, const absl::Status&) override {}
  void StartPublish(const Publish&) override {}
  void FailPublish(TransferId, const absl::Status&) override {}
  void StopPublish(TransferId, const absl::Status&) override {}
  void StartRead(const Read&, bool) override {}
  void SnapshotPublish(TransferId) override {}
  void SnapshotRead(uint64_t) override {}
  void StopRead(uint64_t) override {}
  void Free(BufferRef) override { ++frees; }
  void PeerLost(Incarnation, const absl::Status&) override {}
  void AbortLaunch(Ticket, const absl::Status&) override {}
};

// A chain of launches with `args` arguments, `ahead` of them queued before the first one ends; each makes one array
// that replaces an argument, which is deleted.
void Chain(benchmark::State& state, bool donate) {
  const size_t args = static_cast<size_t>(state.range(0));
  const size_t ahead = static_cast<size_t>(state.range(1));
  CountingSink sink;
  WorkerLimits limits;
  limits.device_bytes = {int64_t{1} << 40};
  WorkerCore core(Incarnation(1), limits, &sink);
  ProgramSpec spec;
  spec.params.assign(args, 64);
  spec.outputs = {64};
  core.OnOp(LoadOp(1, spec), 0);
  core.OnLoadDone(ExecutableId(1), absl::OkStatus(), 0);
  uint64_t ticket = 0;
  std::vector<uint64_t> inputs;
  for (size_t i = 0; i < args; ++i) {
    ++ticket;
    core.OnOp(UploadOp(ticket, ticket, 64), 0);
    inputs.push_back(ticket);
    core.OnUploadDone(ticket, absl::OkStatus(), 0);
  }
  uint64_t array = ticket;
  TimeNs now = 0;
  std::vector<uint32_t> donated;
  if (donate) donated.push_back(0);
  std::vector<WorkerOp> ops;
  for (auto _ : state) {
    state.PauseTiming();
    ops.clear();
    for (size_t i = 0; i < ahead; ++i) {
      const uint64_t old = inputs[0];
      ops.push_back(LaunchOp(++ticket, 1, inputs, {++array}, {0}, donated));
      inputs[0] = array;
      if (!donate) ops.push_back(DeleteOp({old}));
    }
    state.ResumeTiming();
    for (WorkerOp& op : ops) core.OnOp(std::move(op), ++now);
    while (!sink.running.empty()) {
      const Ticket done = sink.running.front();
      sink.running.pop_front();
      core.OnLaunchDone(done, absl::OkStatus(), 10 * kMicrosecond, ++now);
    }
    core.Flush();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ahead));
  if (core.counts().launches != 0 || core.counts().buffers != args) state.SkipWithError("launches are left");
}
void BM_Chain(benchmark::State& state) { Chain(state, false); }
void BM_DonatingChain(benchmark::State& state) { Chain(state, true); }
BENCHMARK(BM_Chain)->Args({4, 1})->Args({4, 64})->Args({4, 4000})->Args({1000, 4000});
BENCHMARK(BM_DonatingChain)->Args({4, 64})->Args({1000, 64});

// A chain of programs of several devices, 64 queued before the first one ends.
void BM_WideChain(benchmark::State& state) {
  const auto devices = static_cast<size_t>(state.range(0));
  const uint64_t ahead = 64;
  CountingSink sink;
  WorkerLimits limits;
  limits.device_bytes.assign(devices, int64_t{1} << 40);
  WorkerCore core(Incarnation(1), limits, &sink);
  std::vector<uint32_t> all(devices);
  for (uint32_t d = 0; d < devices; ++d) all[d] = d;
  core.OnOp(LoadOp(1, {{}, {64}, all}), 0);
  core.OnOp(LoadOp(2, {{64}, {64}, all}), 0);
  for (uint64_t program : {1, 2}) core.OnLoadDone(ExecutableId(program), absl::OkStatus(), 0);
  TimeNs now = 0;
  auto end_all = [&] {
    while (!sink.running.empty()) {
      const Ticket done = sink.running.front();
      sink.running.pop_front();
      core.OnLaunchDone(done, absl::OkStatus(), 10 * kMicrosecond, ++now);
    }
    core.Flush();
  };
  uint64_t ticket = 1;
  core.OnOp(LaunchOp(ticket, 1, {}, {ticket}, all), 0);
  end_all();
  std::vector<WorkerOp> ops;
  for (auto _ : state) {
    state.PauseTiming();
    ops.clear();
    for (uint64_t i = 0; i < ahead; ++i) {
      ops.push_back(LaunchOp(ticket + 1, 2, {ticket}, {ticket + 1}, all));
      ops.push_back(DeleteOp({ticket}));
      ++ticket;
    }
    state.ResumeTiming();
    for (WorkerOp& op : ops) core.OnOp(std::move(op), ++now);
    end_all();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(ahead));
  if (core.counts().launches != 0 || core.counts().buffers != devices) state.SkipWithError("launches are left");
}
BENCHMARK(BM_WideChain)->Arg(1)->Arg(2)->Arg(8)->Arg(64);

// Independent launches, all runnable: the sequencer has many candidates.
void BM_ManyCandidates(benchmark::State& state) {
  CountingSink sink;
  WorkerLimits limits;
  limits.device_bytes = {int64_t{1} << 40};
  WorkerCore core(Incarnation(1), limits, &sink);
  core.OnOp(LoadOp(1, {{}, {64}}), 0);
  core.OnLoadDone(ExecutableId(1), absl::OkStatus(), 0);
  uint64_t ticket = 0;
  TimeNs now = 0;
  const uint64_t count = 4000;
  std::vector<WorkerOp> ops;
  for (auto _ : state) {
    state.PauseTiming();
    ops.clear();
    for (uint64_t i = 0; i < count; ++i) {
      ++ticket;
      ops.push_back(LaunchOp(ticket, 1, {}, {ticket}));
      ops.push_back(DeleteOp({ticket}));
    }
    state.ResumeTiming();
    for (WorkerOp& op : ops) core.OnOp(std::move(op), ++now);
    while (!sink.running.empty()) {
      const Ticket done = sink.running.front();
      sink.running.pop_front();
      core.OnLaunchDone(done, absl::OkStatus(), 10 * kMicrosecond, ++now);
    }
    core.Flush();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(count));
  if (core.counts().buffers != 0) state.SkipWithError("buffers are left");
}
BENCHMARK(BM_ManyCandidates);

}  // namespace
}  // namespace landbridge

BENCHMARK_MAIN();
