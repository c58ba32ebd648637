// The controller of large clusters: hosts of 8 devices, each a slice, whose workers end everything at once. No sockets; the
// messages are made and serialized as for sockets. Arguments are numbers of hosts; the fits are over them.
#include <benchmark/benchmark.h>
#include <malloc.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "controller/benchmark_test_util.h"
#include "controller/controller.h"

namespace landbridge {
namespace {

constexpr int kDevicesPerHost = 8;
constexpr int kParameters = 4, kOutputs = 2;

size_t HeapBytes() { return mallinfo2().uordblks; }

// Serializes what is sent, and remembers what each worker has to report as ended.
class WorkersSink : public QuietSink {
 public:
  explicit WorkersSink(size_t workers) : ended_(workers) {}
  void SendToWorker(Incarnation worker, WorkerOp op) override {
    buffer_.clear();
    op.AppendToString(&buffer_);
    bytes += buffer_.size();
    ++messages;
    std::vector<uint64_t>& ended = ended_[worker.value() % ended_.size()];
    if (op.has_launch()) ended.push_back(op.launch().ticket());
    if (op.has_upload()) ended.push_back(op.upload().ticket());
  }

  std::vector<uint64_t> Take(size_t worker) { return std::exchange(ended_[worker], {}); }
  uint64_t bytes = 0, messages = 0;

 private:
  std::vector<std::vector<uint64_t>> ended_;
  std::string buffer_;
};

// Worker h of life l is Incarnation(h + l * hosts): the sink finds it by the remainder.
struct Fleet {
  explicit Fleet(int host_count)
      : hosts(host_count),
        lives(static_cast<size_t>(host_count), 1),
        sink(static_cast<size_t>(host_count)),
        controller({.space = 1, .scheduling = {}}, &sink) {}

  void Register() {
    std::vector<VirtualDevice> devices;
    for (int h = 0; h < hosts; ++h) {
      for (int d = 0; d < kDevicesPerHost; ++d) {
        devices.push_back({DeviceId(h * kDevicesPerHost + d), Slot(h), static_cast<uint32_t>(d)});
      }
    }
    controller.DeclareDevices(std::move(devices));
    for (int h = 0; h < hosts; ++h) Up(h);
    controller.OpenSession(SessionId(1));
  }
  static SlotId Slot(int host) { return {SliceId(host), 0}; }
  Incarnation LifeOf(int host) const {
    return Incarnation(static_cast<uint64_t>(host) + lives[static_cast<size_t>(host)] * static_cast<uint64_t>(hosts));
  }
  void Up(int host) {
    controller.OnWorkerUp(Slot(host), LifeOf(host), absl::StrCat("tcp:10.0.0.", host, ":40000"),
                          absl::StrCat("slice", host, "/0 (worker w", host, " on h", host, ", pid 1)"), 0);
  }
  void AddPrograms() {
    const auto program = SmallProgram(kDevicesPerHost, kParameters, kOutputs);
    for (int h = 0; h < hosts; ++h) {
      std::vector<DeviceId> ids;
      for (int d = 0; d < kDevicesPerHost; ++d) ids.push_back(DeviceId(h * kDevicesPerHost + d));
      specs.push_back({DType::kF32, {8}, Sharding::FullyReplicated(ids, MemoryKind::kDevice).value()});
      executables.push_back(controller.AddExecutable(SessionId(1), program, std::move(ids)).value());
      ReportLoad(h);
    }
  }
  void ReportLoad(int host) {
    WorkerReport report;
    report.mutable_load_done()->set_executable(executables[static_cast<size_t>(host)].value());
    controller.OnReport(LifeOf(host), report, 0);
  }
  ArrayId Upload(int host) {
    return controller
        .MakeFromHost(SessionId(1), specs[static_cast<size_t>(host)], {SmallUpload(kDevicesPerHost, ++key)}, 0, 0)
        .value();
  }
  void UploadArguments() {
    arguments.resize(static_cast<size_t>(hosts));
    for (int h = 0; h < hosts; ++h) {
      for (int i = 0; i < kParameters; ++i) arguments[static_cast<size_t>(h)].push_back(Upload(h));
      EndAll(h);
    }
  }
  // outputs = f(4 arguments) on one host; the outputs are released.
  void Launch(int host) {
    ExecuteArgs args;
    args.executable = executables[static_cast<size_t>(host)];
    args.args = arguments[static_cast<size_t>(host)];
    ExecuteResult result = controller.Execute(SessionId(1), args, 5, 0).value();
    for (ArrayId output : result.outputs) controller.Release(SessionId(1), output);
  }
  void EndAll(int host) {
    const std::vector<uint64_t> ended = sink.Take(static_cast<size_t>(host));
    if (ended.empty()) return;
    WorkerReport report;
    for (uint64_t ticket : ended) report.mutable_progress()->add_tickets(ticket);
    controller.OnReport(LifeOf(host), report, 0);
  }

  const int hosts;
  std::vector<uint64_t> lives;
  WorkersSink sink;
  Controller controller;
  std::vector<ExecutableId> executables;
  std::vector<ArraySpec> specs;
  std::vector<std::vector<ArrayId>> arguments;
  uint64_t key = 0;
};

// A step: one launch on every host, 4 arguments and 2 outputs of 8 shards each, and the workers' reports of it.
void BM_Step(benchmark::State& state) {
  Fleet fleet(static_cast<int>(state.range(0)));
  fleet.Register();
  fleet.AddPrograms();
  fleet.UploadArguments();
  const uint64_t bytes = fleet.sink.bytes, messages = fleet.sink.messages;
  for (auto _ : state) {
    for (int h = 0; h < fleet.hosts; ++h) fleet.Launch(h);
    for (int h = 0; h < fleet.hosts; ++h) fleet.EndAll(h);
  }
  const double launches = static_cast<double>(state.iterations()) * fleet.hosts;
  state.SetItemsProcessed(static_cast<int64_t>(launches));
  state.SetComplexityN(state.range(0));
  state.counters["devices"] = fleet.hosts * kDevicesPerHost;
  state.counters["us_per_launch"] =
      benchmark::Counter(launches / 1e6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["bytes_per_launch"] = static_cast<double>(fleet.sink.bytes - bytes) / launches;
  state.counters["messages_per_launch"] = static_cast<double>(fleet.sink.messages - messages) / launches;
}
BENCHMARK(BM_Step)
    ->Arg(16)
    ->Arg(64)
    ->Arg(128)
    ->Arg(512)
    ->Arg(1280)
    ->Unit(benchmark::kMicrosecond)
    ->Complexity(benchmark::oN);

// Devices declared, all workers up.
void BM_Register(benchmark::State& state) {
  for (auto _ : state) {
    const size_t before = HeapBytes();
    auto fleet = std::make_unique<Fleet>(static_cast<int>(state.range(0)));
    fleet->Register();
    state.counters["bytes_per_device"] =
        static_cast<double>(HeapBytes() - before) / static_cast<double>(fleet->hosts * kDevicesPerHost);
    state.PauseTiming();
    fleet.reset();
    state.ResumeTiming();
  }
  state.SetComplexityN(state.range(0));
}
BENCHMARK(BM_Register)
    ->Arg(64)
    ->Arg(128)
    ->Arg(512)
    ->Arg(1280)
    ->Unit(benchmark::kMillisecond)
    ->Complexity(benchmark::oN);

// One of the hosts is lost, with 100 arrays and 8 unfinished launches there. (Its next life and arrays are not timed.)
void BM_LoseHost(benchmark::State& state) {
  Fleet fleet(static_cast<int>(state.range(0)));
  fleet.Register();
  fleet.AddPrograms();
  fleet.UploadArguments();
  int host = 0;
  for (auto _ : state) {
    state.PauseTiming();
    host = (host + 17) % fleet.hosts;
    std::vector<ArrayId>& arguments = fleet.arguments[static_cast<size_t>(host)];
    for (ArrayId array : arguments) fleet.controller.Release(SessionId(1), array);
    arguments.clear();
    std::vector<ArrayId> held;
    for (int i = 0; i < 100; ++i) held.push_back(fleet.Upload(host));
    fleet.EndAll(host);
    arguments.assign(held.begin(), held.begin() + kParameters);
    for (int i = 0; i < 8; ++i) fleet.Launch(host);
    const Incarnation life = fleet.LifeOf(host);
    state.ResumeTiming();
    fleet.controller.OnWorkerLost(life, absl::DataLossError("slice lost its worker"), 0);
    state.PauseTiming();
    fleet.sink.Take(static_cast<size_t>(host));
    for (ArrayId array : held) fleet.controller.Release(SessionId(1), array);
    ++fleet.lives[static_cast<size_t>(host)];
    fleet.Up(host);
    arguments.clear();
    for (int i = 0; i < kParameters; ++i) arguments.push_back(fleet.Upload(host));
    fleet.EndAll(host);
    state.ResumeTiming();
  }
  state.SetComplexityN(state.range(0));
  state.counters["devices"] = fleet.hosts * kDevicesPerHost;
}
BENCHMARK(BM_LoseHost)->Arg(64)->Arg(128)->Arg(512)->Arg(1280)->Unit(benchmark::kMicrosecond)->Iterations(200);

// A million live arrays of 8 shards, spread over the hosts; then all are released.
void BM_MillionArrays(benchmark::State& state) {
  for (auto _ : state) {
    Fleet fleet(static_cast<int>(state.range(0)));
    fleet.Register();
    fleet.AddPrograms();
    const size_t before = HeapBytes();
    std::vector<ArrayId> held;
    held.reserve(1'000'000);
    const size_t own = HeapBytes() - before;
    for (int i = 0; i < 1'000'000; ++i) {
      const int host = i % fleet.hosts;
      held.push_back(fleet.Upload(host));
      if (i / fleet.hosts % 64 == 63) fleet.EndAll(host);
    }
    for (int h = 0; h < fleet.hosts; ++h) fleet.EndAll(h);
    state.counters["bytes_per_array"] = static_cast<double>(HeapBytes() - before - own) / 1e6;
    for (ArrayId array : held) fleet.controller.Release(SessionId(1), array);
    fleet.controller.OnTime(0);
    for (int h = 0; h < fleet.hosts; ++h) fleet.EndAll(h);
    state.counters["bytes_left"] = static_cast<double>(HeapBytes() - before - own);
  }
}
BENCHMARK(BM_MillionArrays)->Arg(128)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace landbridge

BENCHMARK_MAIN();
