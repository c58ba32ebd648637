// landbridge-server: the resource manager (--node_type=resource_manager), else a worker.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/ffi_libraries.h"
#include "base/log.h"
#include "bin/flags.h"
#include "bin/plugin_flag.h"
#include "bin/spin_flag.h"
#include "cluster/admin.h"
#include "cluster/grant.h"
#include "env/clock.h"
#include "env/connection.h"
#include "env/file.h"
#include "env/process_tuning.h"
#include "pjrt/client_options.h"
#include "pjrt/plugin.h"
#include "resource_manager/server.h"
#include "worker/shell/worker_process.h"

namespace landbridge {
namespace {

constexpr const char* kUsage =
    "landbridge-server is both roles of a cluster beside the proxy:\n"
    "  landbridge-server --node_type=resource_manager --instance_type=cpu:4 --instance_count=2\n"
    "      owns the cluster's slices (here two, each one worker of 4 CPU devices) and leases them to proxies;\n"
    "  landbridge-server --resource_manager_address=HOST:29001\n"
    "      is a worker, one per accelerator host: it runs compiled programs with a PJRT plugin.\n"
    "Start them in any order: they find each other, and say in the log what they wait for.";

constexpr int kExitRestart = 75;  // a new life is needed: the launcher should start this worker again
constexpr int kDevicesDefault = 4;
constexpr DurationNs kAskTimeout = 2 * kSecond;
constexpr DurationNs kAskPause = 200 * kMillisecond;
constexpr DurationNs kAskSayEvery = 10 * kSecond;

struct ServerFlags {
  std::string node_type;
  int64_t server_port = -1;
  std::string resource_manager_address, listen_address = "127.0.0.1", bind_address, port_file;
  bool insecure_network = false;
  int64_t lease_ms = 0, heartbeat_ms = 0, spin_us = 0;
  // Resource manager.
  std::string instance_type = "cpu:4";
  int64_t instance_count = 1;
  // Worker.
  std::string plugin, worker_name, ffi_library, python;
  int64_t devices = 0, device_memory_limit = 0, drain_grace_ms = 30'000, slice_hint = -1;
  bool unsafe_unordered_launches = false;
  std::vector<std::string> xla_flags, plugin_options;
};

void Declare(Flags* flags, ServerFlags* f) {
  flags->Add("node_type", &f->node_type, "resource_manager, or worker (the default).");
  flags->Add(
      "server_port", &f->server_port,
      "Port to listen on; 0: any free one (see --port_file). Default: 29001 as resource manager, 29005 as worker.");
  flags->Add("resource_manager_address", &f->resource_manager_address, "Worker: host:port of the resource manager.");
  flags->Add("listen_address", &f->listen_address,
             "Address to listen on. Beyond loopback it needs --insecure_network.");
  flags->Add("bind_address", &f->bind_address, "Another name of --listen_address.");
  flags->Add("insecure_network", &f->insecure_network,
             "Listen beyond loopback without encryption: whoever reaches the port can run programs.");
  flags->Add("port_file", &f->port_file, "Write host:port there when the port is open.");
  flags->Add("lease_ms", &f->lease_ms, "Lease: a silent holder is fenced after this long. 0: 2400.");
  flags->Add("heartbeat_ms", &f->heartbeat_ms, "Pause between heartbeats. 0: 250.");
  AddSpinFlag(flags, &f->spin_us);
  flags->Add("instance_type", &f->instance_type,
             "Resource manager: a slice, TYPE:DEVICES or TYPE:WORKERSxDEVICES, e.g. cpu:4, cuda:2x8, tpuv6e:4x4.");
  flags->Add("instance_count", &f->instance_count, "Resource manager: number of slices.");
  flags->Add("pjrt_plugin", &f->plugin,
             "Worker: the PJRT plugin. Empty: $LANDBRIDGE_PJRT_PLUGIN, or the CPU plugin of the python3 on PATH.");
  flags->Add(
      "ffi_library", &f->ffi_library,
      "Worker: libraries with custom-call handlers for jax.ffi: PATH[:TARGET=SYMBOL]...[,PATH...]. A PATH alone: "
      "each target is the symbol of its name. Give the proxy the same.");
  flags->Add(
      "python", &f->python,
      "Worker: the Python whose jaxlib has the handlers of linear algebra; started at the first program that needs "
      "them. Empty: $LANDBRIDGE_PYTHON, the plugin's environment, $VIRTUAL_ENV, python3 on PATH.");
  flags->Add(
      "devices", &f->devices,
      "Worker: number of CPU devices. 0: what the resource manager wants, else 4. Leave it out on other platforms.");
  flags->Add(
      "device_memory_limit", &f->device_memory_limit,
      "Worker: bytes of each device. 0: what the plugin says, or 80 % of the host's memory, divided by the devices.");
  flags->Add("worker_name", &f->worker_name,
             "Worker: a name that stays when it is started again, so that the new life takes the old one's place. "
             "Empty: host and port.");
  flags->Add("slice_hint", &f->slice_hint, "Worker: the slice it would like to be in. The resource manager decides.");
  flags->Add("drain_grace_ms", &f->drain_grace_ms, "Worker: after SIGTERM the holder has this long to leave.");
  flags->Add(
      "unsafe_unordered_launches", &f->unsafe_unordered_launches,
      "Worker, in tests only: launches over several workers start in no common order, so that they may wait for each "
      "other for ever.");
  flags->AddIgnored("gcs_scratch_location", "only the proxy keeps something there: its compile cache");
  flags->AddIgnored("enable_metrics_collection", "metrics are always on");
  flags->AddIgnored("tpu_premapped_buffer_size", "host memory is taken as it is needed");
  flags->AddIgnored("tpu_pinned_host_allocation_recycle", "host memory is always re-used");
  flags->AddIgnored("cloud_pathways_sidecar_shm_directory", "colocated Python runs in the client for now");
  flags->AddIgnored("enable_gcs_olm", "there is no bucket to set a lifecycle rule on");
  flags->AddIgnored("vmodule", "use LANDBRIDGE_LOG_LEVEL=debug");
  for (const char* name :
       {"megascale_num_slices", "megascale_slice_id", "megascale_port", "megascale_coordinator_address",
        "megascale_grpc_enable_xor_tracer", "megascale_transport_type", "megascale_debug_port"}) {
    flags->AddIgnored(name, "the data plane is Landbridge's own");
  }
  flags->AddPrefix(kPluginOptionPrefix, &f->plugin_options, absl::StrCat("Worker: ", kPluginOptionHelp));
  flags->AddPrefix("xla_", &f->xla_flags, "Worker: added to XLA_FLAGS before the plugin is loaded.");
}

// The shape of a slice.
struct SliceShape {
  int workers = 1;
  int devices_per_worker = kDevicesDefault;
};

// What a resource manager answers, or why whoever is there is none.
absl::StatusOr<SliceShape> ShapeOf(const std::string& resource_manager) {
  auto answer = AskAdmin(resource_manager, {{"what", "status"}}, kAskTimeout);
  if (!answer.ok()) return answer.status();
  if (!answer->is_object() || answer->value("role", "") != "resource_manager") {
    return absl::UnavailableError("another process of Landbridge listens there, no resource manager");
  }
  SliceShape shape;
  if (const int64_t count = answer->value("devices_per_worker", int64_t{0}); count > 0) {
    shape.devices_per_worker = static_cast<int>(count);
  }
  if (const int64_t count = answer->value("workers_per_slice", int64_t{0}); count > 0) {
    shape.workers = static_cast<int>(count);
  }
  return shape;
}

// Asks the resource manager, for as long as it takes.
SliceShape AskShape(const std::string& resource_manager) {
  Clock& clock = MonotonicClock();
  for (TimeNs said = 0;; ::usleep(static_cast<useconds_t>(kAskPause / kMicrosecond))) {
    absl::StatusOr<SliceShape> shape = ShapeOf(resource_manager);
    if (shape.ok()) return *shape;
    if (said != 0 && clock.Now() - said < kAskSayEvery) continue;
    said = clock.Now();
    LogInfo("waiting for the resource manager at ", resource_manager, " to say what a slice is made of (",
            shape.status().message(), ")");
  }
}

int RunWorker(const ServerFlags& flags, WorkerOptions options, DurationNs spin) {
  if (flags.resource_manager_address.empty()) {
    LogError("--resource_manager_address=HOST:PORT is missing (or --node_type=resource_manager to be one)");
    return kExitUsage;
  }
  options.resource_manager_address = flags.resource_manager_address;
  options.name = flags.worker_name;
  options.slice_hint = static_cast<int>(flags.slice_hint);
  options.device_memory_limit = flags.device_memory_limit;
  options.drain_grace = flags.drain_grace_ms * kMillisecond;
  options.unordered_launches = flags.unsafe_unordered_launches;
  if (options.unordered_launches) {
    LogWarning("--unsafe_unordered_launches: launches over several workers may wait for each other for ever here");
  }
  absl::StatusOr<std::string> plugin = FindPlugin(flags.plugin);
  if (!plugin.ok()) {
    LogError(plugin.status().message());
    return 1;
  }
  options.plugin_path = *plugin;
  auto plugin_options = pjrt::ParsePluginOptions(PluginOptions(flags.plugin_options));
  if (!plugin_options.ok()) {
    LogError(plugin_options.status().message());
    return kExitUsage;
  }
  options.plugin_options = *std::move(plugin_options);
  auto libraries = ParseFfiLibraries(flags.ffi_library);
  if (!libraries.ok()) {
    LogError(libraries.status().message());
    return kExitUsage;
  }
  options.custom_calls.libraries = *std::move(libraries);
  options.custom_calls.python = flags.python;
  const SliceShape shape = flags.devices > 0 ? SliceShape() : AskShape(flags.resource_manager_address);
  options.devices = flags.devices > 0 ? static_cast<int>(flags.devices) : shape.devices_per_worker;
  options.workers_per_slice = shape.workers;
  const char* inherited = std::getenv("XLA_FLAGS");
  std::string xla_flags = absl::StrCat(inherited == nullptr ? "" : inherited, " ", absl::StrJoin(flags.xla_flags, " "));
  // As in plain JAX: large kernels use all cores, whatever their device.
  if (!absl::StrContains(xla_flags, "xla_cpu_multi_thread_eigen")) xla_flags += " --xla_cpu_multi_thread_eigen=true";
  ::setenv("XLA_FLAGS", std::string(absl::StripAsciiWhitespace(xla_flags)).c_str(), 1);
  ::setenv("TF_CPP_MIN_LOG_LEVEL", "1", /*overwrite=*/0);  // the plugin logs its options otherwise
  pjrt::PreparePluginEnvironment(options.devices);

  Loop loop;
  loop.SetSpin(spin);
  int code = 0;
  auto worker = WorkerProcess::Start(&loop, std::move(options), [&](const absl::Status& why) {
    if (!why.ok()) {
      LogError(why.message(), "; leaving with exit code ", kExitRestart);
      code = kExitRestart;
    }
    loop.Stop();
  });
  if (!worker.ok()) {
    LogError(worker.status().message());
    return 1;
  }
  int signals = 0;
  for (int signal : {SIGTERM, SIGINT}) {
    absl::Status status = loop.OnSignal(signal, [&] {
      if (++signals > 1) {
        LogWarning("asked to stop again: leaving now");
        loop.Stop();
      } else {
        (*worker)->Drain("asked to stop by a signal");
      }
    });
    if (!status.ok()) LogWarning(status.message());
  }
  loop.Run();
  if (!(*worker)->Shutdown(code == 0 ? 5 * kSecond : 0)) {
    ::_exit(code == 0 ? 1 : code);  // plugin threads still run a launch: nothing can be destroyed
  }
  LogInfo("stopped");
  return code;
}

int Main(int argc, char** argv) {
  bool is_resource_manager = false;
  for (int i = 1; i < argc; ++i)
    is_resource_manager |= absl::StrContains(argv[i], "resource_manager") && absl::StrContains(argv[i], "node_type");
  InitLog(is_resource_manager ? "landbridge-rm" : "landbridge-worker");
  TuneProcess();
  ServerFlags values;
  Flags flags("landbridge-server", kUsage);
  Declare(&flags, &values);
  if (const std::optional<int> code = flags.ParseOrExplain(argc, argv); code.has_value()) return *code;
  flags.LogStart(argc, argv);
  auto fail = [](absl::string_view text) {
    LogError(text);
    return kExitUsage;
  };
  if (!values.node_type.empty() && values.node_type != "resource_manager" && values.node_type != "worker") {
    return fail(absl::StrCat("--node_type=", values.node_type, ": resource_manager or worker"));
  }
  is_resource_manager = values.node_type == "resource_manager";
  const std::string host = values.bind_address.empty() ? values.listen_address : values.bind_address;
  if (host != "127.0.0.1" && host != "localhost" && host != "::1") {
    if (!values.insecure_network) {
      return fail(absl::StrCat("--listen_address=", host,
                               " is reachable from other machines and the connection is not "
                               "encrypted: add --insecure_network if the network is trusted"));
    }
    LogWarning("listening beyond loopback without encryption: whoever reaches the port can run programs here");
  }
  const int64_t port = values.server_port >= 0 ? values.server_port : is_resource_manager ? 29001 : 29005;
  if (port > 65535) return fail(absl::StrCat("--server_port=", port, ": not a port"));
  LeaseTimes times;
  if (values.lease_ms > 0) times.lease = values.lease_ms * kMillisecond;
  if (values.heartbeat_ms > 0) times.heartbeat = values.heartbeat_ms * kMillisecond;
  if (absl::Status status = times.Validate(); !status.ok()) return fail(status.message());

  absl::StatusOr<DurationNs> spin = SpinOf(values.spin_us);
  if (!spin.ok()) return fail(spin.status().message());
  if (*spin > 0 && is_resource_manager) LogWarning("--spin_us does nothing here: nobody waits for this process");

  if (!is_resource_manager) {
    WorkerOptions options;
    options.listen_host = host;
    options.port = static_cast<int>(port);
    options.port_file = values.port_file;
    options.times = times;
    options.cluster_secret = TakeClusterSecret();
    return RunWorker(values, std::move(options), *spin);
  }
  ResourceManagerServerOptions options;
  const std::string shown = host.find(':') == std::string::npos ? host : absl::StrCat("[", host, "]");
  options.listen_address = absl::StrCat(shown, ":", port);
  auto type = ParseInstanceType(values.instance_type);
  if (!type.ok()) return fail(type.status().message());
  options.type = *type;
  if (values.instance_count < 1) return fail(absl::StrCat("--instance_count=", values.instance_count, ": at least 1"));
  options.slice_count = static_cast<int>(values.instance_count);
  options.times = times;
  options.cluster_secret = TakeClusterSecret();
  return RunResourceManager(options, [&](int open_port) {
    if (values.port_file.empty()) return;
    absl::Status status = WriteFileAtomically(values.port_file, absl::StrCat(shown, ":", open_port, "\n"));
    if (!status.ok()) LogError(status.message());
  });
}

}  // namespace
}  // namespace landbridge

int main(int argc, char** argv) { return landbridge::Main(argc, argv); }
