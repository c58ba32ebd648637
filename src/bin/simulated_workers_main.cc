// landbridge-simulated-workers: many workers without devices in one process, for clusters of thousands of devices on one
// machine. A program of its own, so that no server of a real cluster can ever make up results.
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "bin/flags.h"
#include "bin/spin_flag.h"
#include "cluster/grant.h"
#include "env/process_tuning.h"
#include "worker/simulated/simulated_host.h"

namespace landbridge {
namespace {

constexpr const char* kUsage =
    "landbridge-simulated-workers stands in for many workers: each registers with the resource manager, is leased, "
    "and\n"
    "takes a proxy's programs, arrays and moves, but has no devices. Launches are timers; arrays have sizes, and "
    "values\n"
    "only if they were uploaded in shards of at most 64 KiB. For what a large cluster costs resource manager, proxy "
    "and client:\n"
    "  landbridge-server --node_type=resource_manager --instance_type=cpu:8 --instance_count=512\n"
    "  landbridge-simulated-workers --resource_manager_address=HOST:29001 --workers=512 --devices=8\n"
    "  landbridge-proxy --resource_manager_address=HOST:29001\n"
    "or `landbridge up --simulated --slices 512 --devices-per-worker 8`.";

struct SimulatedFlags {
  std::string resource_manager_address, port_file, platform = "cpu";
  int64_t workers = 1, first_worker = 0, devices = 4, launch_us = 0, device_memory_limit = int64_t{16} << 30,
          lease_ms = 0, heartbeat_ms = 0, spin_us = 0;
};

void Declare(Flags* flags, SimulatedFlags* f) {
  flags->Add("resource_manager_address", &f->resource_manager_address, "host:port of the resource manager.");
  flags->Add("workers", &f->workers, "Number of workers to simulate.");
  flags->Add("first_worker", &f->first_worker,
             "Number of the first one: workers of several processes in one cluster must have different ones.");
  flags->Add("devices", &f->devices, "Devices of each.");
  flags->Add("platform", &f->platform, "What they say that these are: cpu, cuda, tpu.");
  flags->Add("launch_us", &f->launch_us, "How long every launch takes on its devices, in microseconds.");
  flags->Add("device_memory_limit", &f->device_memory_limit, "Bytes of each device; nothing is allocated.");
  flags->Add("port_file", &f->port_file, "Write host:port there, for questions, when all workers listen.");
  flags->Add("lease_ms", &f->lease_ms, "Lease: a silent holder is fenced after this long. 0: 2400.");
  flags->Add("heartbeat_ms", &f->heartbeat_ms, "Pause between heartbeats. 0: 250.");
  AddSpinFlag(flags, &f->spin_us);
}

int Main(int argc, char** argv) {
  InitLog("landbridge-simulated-workers");
  TuneProcess();
  SimulatedFlags values;
  Flags flags("landbridge-simulated-workers", kUsage);
  Declare(&flags, &values);
  if (const std::optional<int> code = flags.ParseOrExplain(argc, argv); code.has_value()) return *code;
  flags.LogStart(argc, argv);
  auto fail = [](absl::string_view text) {
    LogError(text);
    return kExitUsage;
  };
  if (values.resource_manager_address.empty()) return fail("--resource_manager_address=HOST:PORT is missing");
  if (values.launch_us < 0 || values.launch_us > 3'600'000'000) {
    return fail(absl::StrCat("--launch_us=", values.launch_us, " must lie between 0 and an hour"));
  }
  if (values.device_memory_limit < 1) return fail("--device_memory_limit must be positive");
  SimulatedHostOptions options;
  options.worker.resource_manager_address = values.resource_manager_address;
  options.worker.device_memory_limit = values.device_memory_limit;
  options.worker.platform = values.platform;
  if (values.lease_ms > 0) options.worker.times.lease = values.lease_ms * kMillisecond;
  if (values.heartbeat_ms > 0) options.worker.times.heartbeat = values.heartbeat_ms * kMillisecond;
  if (absl::Status status = options.worker.times.Validate(); !status.ok()) return fail(status.message());
  // Out of range is said below, also for what does not fit into an int.
  options.workers = static_cast<int>(std::min<int64_t>(std::max<int64_t>(values.workers, 0), INT32_MAX));
  options.first = static_cast<int>(std::min<int64_t>(std::max<int64_t>(values.first_worker, -1), INT32_MAX));
  options.worker.devices = static_cast<int>(std::min<int64_t>(std::max<int64_t>(values.devices, 0), INT32_MAX));
  options.launch_time = values.launch_us * kMicrosecond;
  options.port_file = values.port_file;

  absl::StatusOr<DurationNs> spin = SpinOf(values.spin_us);
  if (!spin.ok()) return fail(std::string(spin.status().message()));

  Loop loop;
  loop.SetSpin(*spin);
  for (int signal : {SIGTERM, SIGINT}) {
    if (absl::Status status = loop.OnSignal(signal, [&] { loop.Stop(); }); !status.ok()) LogWarning(status.message());
  }
  absl::StatusOr<std::unique_ptr<SimulatedHost>> host = SimulatedHost::Start(&loop, std::move(options));
  if (!host.ok()) {
    LogError(host.status().message());
    return absl::IsInvalidArgument(host.status()) ? kExitUsage : 1;
  }
  loop.Run();
  (*host)->Leave();
  host->reset();
  LogInfo("stopped");
  return 0;
}

}  // namespace
}  // namespace landbridge

int main(int argc, char** argv) { return landbridge::Main(argc, argv); }
