// dispatch_driver: the figures of the controller interface, over a running cluster and without a front door. Joins as a proxy
// does, so the cluster must have no other holder of its slices; bench/controller.py starts such clusters.
//
//   dispatch_driver --resource_manager_address=HOST:PORT [--modes=OpByOp,Sync,...] [--compiled] > results.jsonl
//
// One JSON line per mode, of medians over the rounds; modes take turns. An operation is a launch on each of the gangs; a gang
// is the devices of one worker, or with --span those of all workers. CPU time is that of whole processes.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status.h"
#include "bin/flags.h"
#include "bin/plugin_flag.h"
#include "compiler/compile_service.h"
#include "driver/control_client.h"
#include "driver/cpu_time.h"
#include "driver/modes.h"
#include "driver/programs.h"
#include "driver/scale.h"
#include "env/process_tuning.h"
#include "nlohmann/json.hpp"

namespace landbridge {
namespace {

using nlohmann::json;

constexpr const char* kUsage =
    "dispatch_driver drives launches through the controller interface of a cluster without a proxy, and prints a JSON "
    "line\n"
    "per mode: OpByOp, Sync (a client thread waits), SyncLoop (the controller's loop itself waits), Chained, Fused, "
    "Scale.";

struct Values {
  std::string resource_manager, plugin, compiler_binary, label;
  std::vector<std::string> modes = {"OpByOp", "Sync", "SyncLoop", "Chained", "Fused"}, count;
  int64_t time_ms = 1000, rounds = 5, spin_us = 0, step_us = 0, chain = 128, operations = 0, lease_ms = 0,
          heartbeat_ms = 0;
  bool compiled = false, span = false;
};

void Declare(Flags* flags, Values* v) {
  flags->Add("resource_manager_address", &v->resource_manager, "host:port of the resource manager.");
  flags->Add("modes", &v->modes, "Some of OpByOp, Sync, SyncLoop, Chained, Fused, Scale.");
  flags->Add("compiled", &v->compiled,
             "Programs are compiled, and their values checked. Else workers must be simulated.");
  flags->Add("span", &v->span, "Each launch spans all workers. Else there is one for each.");
  flags->Add("time_ms", &v->time_ms, "How long a mode runs in a round.");
  flags->Add("operations", &v->operations, "Ends a mode before that; Scale: dispatches. 0: no such end.");
  flags->Add("rounds", &v->rounds, "Rounds; one more before them is not counted.");
  flags->Add("chain", &v->chain, "Launches of a call of Chained, additions of Fused.");
  flags->Add("step_us", &v->step_us, "Virtual compute in each launch, in microseconds (with --compiled).");
  flags->Add("spin_us", &v->spin_us, "The driver's loop polls for so long before it blocks.");
  flags->Add("count", &v->count, "NAME:PID of processes whose CPU time counts, besides the workers and this one.");
  flags->Add("pjrt_plugin", &v->plugin, "With --compiled: as landbridge-proxy.");
  flags->Add("compiler_binary", &v->compiler_binary,
             "With --compiled: landbridge-compiler. Empty: beside this program.");
  flags->Add("label", &v->label, "Copied into the results.");
  flags->Add("lease_ms", &v->lease_ms, "As landbridge-proxy.");
  flags->Add("heartbeat_ms", &v->heartbeat_ms, "As landbridge-proxy.");
}

// This process, what was named, and the workers as the cluster knows them (those of one process count once).
std::map<std::string, pid_t> Processes(ControlClient& client, const std::vector<std::string>& named) {
  std::map<std::string, pid_t> processes = {{"driver", ::getpid()}};
  for (const std::string& text : named) {
    const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
    int pid = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[1], &pid)) processes[parts[0]] = pid;
  }
  std::map<pid_t, std::string> workers;
  const json status = client.Status();
  for (const json& slice : status["slices"]) {
    for (const json& worker : slice["workers"]) workers.try_emplace(worker["pid"], worker["name"]);
  }
  for (const auto& [pid, name] : workers) processes[absl::StrCat("worker ", name, " ", pid)] = pid;
  return processes;
}

template <typename T>
T Quantile(std::vector<T> values, double q) {
  if (values.empty()) return T{};
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * static_cast<double>(values.size())))];
}

// A mode's rounds.
struct Collected {
  std::vector<double> operations_per_s, launches_per_s, cpu_us;
  std::vector<int64_t> latencies_ns;
  json cpu_by_process;  // of the last
  int64_t operations = 0;
};

class Driver {
 public:
  explicit Driver(Values values) : values_(std::move(values)) {}

  absl::Status Run() {
    LB_RETURN_IF_ERROR(Connect());
    if (values_.modes == std::vector<std::string>{"Scale"}) return RunScale();
    LB_RETURN_IF_ERROR(Prepare());
    CpuMeter meter(Processes(*client_, values_.count));
    std::map<std::string, Collected> collected;
    for (int64_t round = 0; round <= values_.rounds; ++round) {
      for (const std::string& mode : values_.modes) {
        meter.Start();
        LB_ASSIGN_OR_RETURN(ModeResult result, RunMode(mode));
        if (round == 0) continue;
        Note(result, meter, &collected[mode]);
      }
    }
    for (const std::string& mode : values_.modes) Print(mode, collected[mode]);
    return absl::OkStatus();
  }

 private:
  absl::Status Connect() {
    ControlClient::Options options;
    options.host.resource_manager_address = values_.resource_manager;
    if (values_.lease_ms > 0) options.host.times.lease = values_.lease_ms * kMillisecond;
    if (values_.heartbeat_ms > 0) options.host.times.heartbeat = values_.heartbeat_ms * kMillisecond;
    LB_RETURN_IF_ERROR(options.host.times.Validate());
    const char* secret = std::getenv("LANDBRIDGE_CLUSTER_SECRET");
    if (secret != nullptr) options.host.cluster_secret = secret;
    options.spin = values_.spin_us * kMicrosecond;
    LB_ASSIGN_OR_RETURN(client_, ControlClient::Connect(std::move(options)));
    std::vector<DeviceId> all;
    for (int w = 0; w < client_->workers(); ++w) {
      programs_.gangs.push_back(client_->DevicesOf(w));
      all.insert(all.end(), programs_.gangs.back().begin(), programs_.gangs.back().end());
    }
    if (values_.span) programs_.gangs = {std::move(all)};
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const ProgramImage>> MakeProgram(const ProgramShape& shape) {
    if (!values_.compiled) return NullProgram(shape);
    if (compiler_ == nullptr) {
      CompileServiceOptions options;
      options.compiler_binary = values_.compiler_binary;
      LB_ASSIGN_OR_RETURN(options.plugin_path, FindPlugin(values_.plugin));
      options.child_count = 1;
      LB_ASSIGN_OR_RETURN(compiler_, CompileService::Start(std::move(options)));
    }
    return CompileProgram(*compiler_, shape);
  }

  absl::Status Prepare() {
    ProgramShape shape;
    shape.devices = static_cast<int>(programs_.gangs[0].size());
    shape.step_us = values_.step_us;
    LB_ASSIGN_OR_RETURN(shape.split, client_->SpansWorkers(programs_.gangs[0]));
    LB_ASSIGN_OR_RETURN(const auto one, MakeProgram(shape));
    LB_ASSIGN_OR_RETURN(programs_.one, client_->AddProgram(one, programs_.gangs));
    shape.adds = static_cast<int>(values_.chain);
    LB_ASSIGN_OR_RETURN(const auto fused, MakeProgram(shape));
    LB_ASSIGN_OR_RETURN(programs_.fused, client_->AddProgram(fused, programs_.gangs));
    compiler_.reset();  // its processes share the machine
    return absl::OkStatus();
  }

  absl::StatusOr<ModeResult> RunMode(const std::string& mode) {
    ModeOptions options;
    options.time = values_.time_ms * kMillisecond;
    if (values_.operations > 0) options.operations_max = values_.operations;
    options.check_values = values_.compiled;
    options.chain = static_cast<int>(values_.chain);
    if (mode == "OpByOp") return RunOpByOp(*client_, programs_, options);
    if (mode == "Sync") return RunSync(*client_, programs_, options, /*on_loop=*/false);
    if (mode == "SyncLoop") return RunSync(*client_, programs_, options, /*on_loop=*/true);
    if (mode == "Chained") return RunChained(*client_, programs_, options);
    if (mode == "Fused") return RunFused(*client_, programs_, options);
    return absl::InvalidArgumentError(
        absl::StrCat("--modes=", mode, ": OpByOp, Sync, SyncLoop, Chained, Fused, or Scale alone"));
  }

  absl::Status RunScale() {
    for (int64_t round = 0; round < values_.rounds; ++round) {
      for (const bool everywhere : {false, true}) {
        const int64_t all = values_.operations > 0 ? values_.operations : 10'000;
        CpuMeter meter(Processes(*client_, values_.count));
        meter.Start();
        LB_ASSIGN_OR_RETURN(
            const ScaleResult result,
            RunScaleDispatches(*client_, everywhere ? std::max<int64_t>(all / 10, 1) : all, everywhere));
        json line = Head("Scale");
        line["dispatch_to"] = everywhere ? "a launch on every host" : "one host, in turns";
        line["dispatches"] = result.dispatches;
        line["launches"] = result.launches;
        line["us_per_dispatch"] = result.us_per_dispatch;
        line["done_us_per_dispatch"] = result.done_us_per_dispatch;
        line["delete_us_per_dispatch"] = result.delete_us_per_dispatch;
        line["cpu_us_per_dispatch"] = Summed(meter.PerOperation(static_cast<double>(result.dispatches)));
        std::printf("%s\n", line.dump().c_str());
        std::fflush(stdout);
      }
    }
    return absl::OkStatus();
  }

  // The driver, and all the workers together.
  static json Summed(const json& by_process) {
    double workers = 0;
    json out;
    for (const auto& [name, used] : by_process.items()) {
      if (name.rfind("worker", 0) == 0) {
        workers += used.get<double>();
      } else {
        out[name] = used;
      }
    }
    out["workers"] = workers;
    return out;
  }

  static void Note(const ModeResult& result, const CpuMeter& meter, Collected* all) {
    const double seconds = static_cast<double>(result.elapsed) / 1e9;
    all->operations_per_s.push_back(static_cast<double>(result.operations) / seconds);
    all->launches_per_s.push_back(static_cast<double>(result.launches) / seconds);
    all->latencies_ns.insert(all->latencies_ns.end(), result.latencies_ns.begin(), result.latencies_ns.end());
    all->cpu_by_process = Summed(meter.PerOperation(static_cast<double>(result.operations)));
    all->cpu_us.push_back(all->cpu_by_process["all"].get<double>());
    all->operations += result.operations;
  }

  json Head(const std::string& mode) const {
    double load = 0;
    static_cast<void>(::getloadavg(&load, 1));
    json line = {{"bench", "controller_interface"},
                 {"mode", mode},
                 {"workers", client_->workers()},
                 {"devices_per_worker", client_->fleet().devices_per_worker},
                 {"engine", values_.compiled ? "plugin" : "null"},
                 {"wake", values_.spin_us > 0 ? absl::StrCat("driver spins ", values_.spin_us, " us") : "block"},
                 {"load", load}};
    if (values_.span) line["span"] = true;
    if (values_.step_us > 0) line["step_us"] = values_.step_us;
    if (!values_.label.empty()) line["label"] = values_.label;
    return line;
  }

  void Print(const std::string& mode, const Collected& all) const {
    json line = Head(mode);
    line["rounds"] = values_.rounds;
    line["operations"] = all.operations;
    line["ops_per_s"] = Quantile(all.operations_per_s, 0.5);
    line["ops_per_s_best"] = Quantile(all.operations_per_s, 1);
    line["launches_per_s"] = Quantile(all.launches_per_s, 0.5);
    line["cpu_us_per_op"] = Quantile(all.cpu_us, 0.5);
    line["cpu_us_per_op_by_process"] = all.cpu_by_process;
    line["values_checked"] = values_.compiled;
    if (mode == "Chained") line["captured"] = false;
    if (mode == "Fused") line["calls_per_s"] = Quantile(all.operations_per_s, 0.5) / static_cast<double>(values_.chain);
    if (!all.latencies_ns.empty()) {
      line["p50_us"] = static_cast<double>(Quantile(all.latencies_ns, 0.5)) / 1e3;
      line["p99_us"] = static_cast<double>(Quantile(all.latencies_ns, 0.99)) / 1e3;
    }
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  const Values values_;
  std::unique_ptr<CompileService> compiler_;
  std::unique_ptr<ControlClient> client_;
  ModePrograms programs_;
};

int Main(int argc, char** argv) {
  ::setenv("LANDBRIDGE_LOG_LEVEL", "warning", /*overwrite=*/0);
  InitLog("dispatch-driver");
  TuneProcess();
  Values values;
  Flags flags("dispatch_driver", kUsage);
  Declare(&flags, &values);
  if (const std::optional<int> code = flags.ParseOrExplain(argc, argv); code.has_value()) return *code;
  if (values.resource_manager.empty() || values.rounds < 1 || values.chain < 1 || values.time_ms < 1) {
    LogError("needs --resource_manager_address=HOST:PORT, and positive --rounds, --chain and --time_ms");
    return kExitUsage;
  }
  Driver driver(std::move(values));
  if (absl::Status status = driver.Run(); !status.ok()) {
    LogError(status.ToString());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace landbridge

int main(int argc, char** argv) { return landbridge::Main(argc, argv); }
