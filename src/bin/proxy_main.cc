// landbridge-proxy: serves stock JAX clients (IFRT proxy protocol) and drives the workers of its slices.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/limits.h"
#include "base/ffi_libraries.h"
#include "base/log.h"
#include "bin/compile_cache_flag.h"
#include "bin/flags.h"
#include "bin/plugin_flag.h"
#include "bin/spin_flag.h"
#include "cluster/grant.h"
#include "env/connection.h"
#include "env/file.h"
#include "env/process_tuning.h"
#include "pjrt/client_options.h"
#include "proxy/proxy_process.h"

namespace landbridge {
namespace {

constexpr const char* kUsage =
    "landbridge-proxy serves JAX clients (JAX_PLATFORMS=proxy JAX_BACKEND_TARGET=grpc://HOST:PORT) and drives the\n"
    "workers of the slices that the resource manager grants it. Start it before or after the resource manager and\n"
    "the workers: they find each other. When clients may come it logs \"IFRT proxy server started with status OK\".";

constexpr int64_t kActivationBudgetDefault = 4;
constexpr size_t kCompileTargetBytesMax = 64 << 10;  // travels on a command line

absl::Status SetScheduling(const std::string& policy, int64_t activation_budget, const std::string& dispatch,
                           ProxyOptions* options) {
  if (policy == "client_order") {
    options->scheduling.set_policy(POLICY_CLIENT_ORDER);
  } else if (policy == "proportional_share") {
    options->scheduling.set_policy(POLICY_PROPORTIONAL_SHARE);
  } else if (policy == "priority") {
    options->scheduling.set_policy(POLICY_PRIORITY);
  } else if (policy == "backward_first") {
    options->scheduling.set_policy(POLICY_BACKWARD_FIRST);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--scheduling_policy=", policy, ": client_order, proportional_share, priority or backward_first"));
  }
  if (activation_budget < 1 || activation_budget > limits::kActivationBudgetMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("--activation_budget=", activation_budget, ": from 1 to ", limits::kActivationBudgetMax));
  }
  options->scheduling.set_activation_budget(static_cast<uint32_t>(activation_budget));
  if (dispatch != "parallel" && dispatch != "sequential") {
    return absl::InvalidArgumentError(absl::StrCat("--dispatch=", dispatch, ": parallel or sequential"));
  }
  options->sequential_dispatch = dispatch == "sequential";
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  InitLog("landbridge-proxy");
  TuneProcess();
  ProxyOptions options;
  std::string resource_manager, listen_host = "127.0.0.1", plugin, ffi_library;
  int64_t server_port = 29000, lease_ms = 0, heartbeat_ms = 0, spin_us = 0, compile_timeout_ms = 0, compile_memory = 0,
          compile_children = 2, compile_cache_bytes = limits::kDiskCacheBytesDefault,
          activation_budget = kActivationBudgetDefault;
  std::string policy = "client_order", dispatch = "parallel", scratch, compile_cache;
  bool insecure_network = false, test_faults = false;
  std::vector<std::string> xla_flags, plugin_options;
  std::string compile_topology, compile_target;
  const char* shared = std::getenv("IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY");
  if (shared == nullptr) shared = std::getenv("IFRT_PROXY_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY");
  if (shared != nullptr) options.shared_directory = shared;

  Flags flags("landbridge-proxy", kUsage);
  flags.Add("server_port", &server_port, "Port for clients; 0: any free one (see --port_file).");
  flags.Add("resource_manager_address", &resource_manager,
            "host:port of landbridge-server --node_type=resource_manager.");
  flags.Add("virtual_slices", &options.virtual_slices,
            "Types of the slices wanted, e.g. cpu:4,cpu:4. Empty: every slice of the resource manager.");
  flags.Add("pjrt_plugin", &plugin,
            "PJRT plugin for the compiler processes. Empty: $LANDBRIDGE_PJRT_PLUGIN, or the CPU plugin of the python3 "
            "on PATH.");
  flags.Add(
      "compile_topology", &compile_topology,
      "What to compile for on a machine without devices: a topology's name as the plugin knows it (TPU: v6e:4x4).");
  flags.Add(
      "compile_target", &compile_target,
      "CUDA: a file with the GPU to compile for on a machine without one, as XLA writes it (GpuTargetConfigProto).");
  flags.AddPrefix(kPluginOptionPrefix, &plugin_options, absl::StrCat("Compiler processes: ", kPluginOptionHelp));
  flags.Add(
      "ffi_library", &ffi_library,
      "Libraries with custom-call handlers for jax.ffi, as given to the workers: PATH[:TARGET=SYMBOL]...[,PATH...].");
  flags.Add("listen_address", &listen_host, "Address to listen on. Beyond loopback it needs --insecure_network.");
  flags.Add("insecure_network", &insecure_network,
            "Listen beyond loopback without encryption: whoever reaches the port can run programs.");
  flags.Add("port_file", &options.port_file,
            "Write host:port there when clients may come (and host:port for status to FILE.admin).");
  flags.Add("shared_transfer_directory", &options.shared_directory,
            "Take large uploads from files that clients write there (protocol 17 and later). Empty: refused.");
  flags.Add(
      "scheduling_policy", &policy,
      "What runs first of what is ready on a device: client_order, proportional_share (of the sessions' weights), "
      "priority, or backward_first (of a pipeline's programs, within --activation_budget).");
  flags.Add("activation_budget", &activation_budget,
            "backward_first: micro-batches whose activations a device may hold for one session.");
  flags.Add(
      "dispatch", &dispatch,
      "parallel: everything a launch needs is prepared before its inputs exist. sequential: a launch is dispatched "
      "when its producers have finished, to compare with.");
  flags.Add("compile_timeout_ms", &compile_timeout_ms, "End a compile after this long. 0: ten minutes.");
  flags.Add("compile_memory_limit", &compile_memory, "Bytes of data memory of one compiler process. 0: no limit.");
  flags.Add("compile_processes", &compile_children, "Compiler processes, i.e. compiles at one time.");
  flags.Add("lease_ms", &lease_ms, "Lease: a silent worker (or proxy) is given up after this long. 0: 2400.");
  flags.Add("heartbeat_ms", &heartbeat_ms, "Pause between heartbeats. 0: 250.");
  AddSpinFlag(&flags, &spin_us);
  flags.Add(
      "gcs_scratch_location", &scratch,
      "A local folder, as a path or file:///PATH: the compile cache is kept below it. State is not suspended there.");
  flags.Add(
      "compile_cache", &compile_cache,
      "Folder where compiled programs are kept for later servers and other proxies; off: in memory only. Empty: "
      "$LANDBRIDGE_COMPILE_CACHE, or below a local --gcs_scratch_location, or ~/.cache/landbridge/compile_cache.");
  flags.Add("compile_cache_bytes", &compile_cache_bytes, "Size of that folder; the least recently used programs go.");
  flags.AddIgnored("num_elastic_slices", "slices may be missing at any time: what needs one waits for it");
  flags.AddIgnored("enable_metrics_collection", "metrics are always on");
  flags.Add("enable_test_faults", &test_faults, "Lets tests make the compiler process crash, loop or eat memory.");
  flags.AddIgnored("use_insecure_credentials", "they are the only kind that open clients have");
  flags.AddIgnored("sidecar_name", "colocated Python runs in the client for now");
  flags.AddIgnored("enable_gcs_olm", "there is no bucket to set a lifecycle rule on");
  flags.AddIgnored("vmodule", "use LANDBRIDGE_LOG_LEVEL=debug");
  flags.AddPrefix("xla_", &xla_flags, "Given to the compiler processes in XLA_FLAGS.");
  if (const std::optional<int> code = flags.ParseOrExplain(argc, argv); code.has_value()) return *code;
  flags.LogStart(argc, argv);
  auto fail = [](absl::string_view text) {
    LogError(text);
    return 1;
  };
  if (resource_manager.empty()) return fail("--resource_manager_address=HOST:PORT is missing");
  options.resource_manager_address = resource_manager;
  if (listen_host != "127.0.0.1" && listen_host != "localhost" && listen_host != "::1") {
    if (!insecure_network) {
      return fail(absl::StrCat("--listen_address=", listen_host,
                               " is reachable from other machines and the connection is not encrypted: add "
                               "--insecure_network if the network is trusted"));
    }
    LogWarning("listening beyond loopback without encryption: whoever reaches the port can run programs here");
  }
  if (server_port < 0 || server_port > 65535) return fail(absl::StrCat("--server_port=", server_port, ": not a port"));
  const std::string shown =
      listen_host.find(':') == std::string::npos ? listen_host : absl::StrCat("[", listen_host, "]");
  options.listen_address = absl::StrCat(shown, ":", server_port);
  options.admin_address = absl::StrCat(shown, ":0");
  if (lease_ms > 0) options.times.lease = lease_ms * kMillisecond;
  if (heartbeat_ms > 0) options.times.heartbeat = heartbeat_ms * kMillisecond;
  if (absl::Status status = options.times.Validate(); !status.ok()) return fail(std::string(status.message()));
  absl::StatusOr<DurationNs> spin = SpinOf(spin_us);
  if (!spin.ok()) return fail(std::string(spin.status().message()));
  options.spin = *spin;
  if (absl::Status status = SetScheduling(policy, activation_budget, dispatch, &options); !status.ok()) {
    return fail(std::string(status.message()));
  }
  absl::StatusOr<std::string> found = FindPlugin(plugin);
  if (!found.ok()) return fail(std::string(found.status().message()));
  plugin = *found;
  options.cluster_secret = TakeClusterSecret();
  options.compile.plugin_path = plugin;
  if (auto parsed = pjrt::ParsePluginOptions(PluginOptions(plugin_options)); !parsed.ok()) {
    return fail(std::string(parsed.status().message()));
  }
  options.compile.plugin_flags = plugin_options;
  if (!compile_topology.empty()) {
    options.compile.plugin_flags.push_back(absl::StrCat("--compile_topology=", compile_topology));
  }
  if (!compile_target.empty()) {
    absl::StatusOr<std::string> text = ReadFile(compile_target, kCompileTargetBytesMax);
    if (!text.ok()) return fail(absl::StrCat("--compile_target=", compile_target, ": ", text.status().message()));
    options.compile.plugin_flags.push_back(absl::StrCat("--compile_target=", *text));
  }
  absl::StatusOr<std::string> libraries = AbsoluteFfiLibraries(ffi_library);
  if (!libraries.ok()) return fail(std::string(libraries.status().message()));
  options.compile.ffi_libraries = *std::move(libraries);
  options.compile.child_count = static_cast<int>(compile_children);
  options.compile.enable_test_faults = test_faults;
  if (compile_timeout_ms > 0) options.compile.time_limit = compile_timeout_ms * kMillisecond;
  options.compile.memory_limit_bytes = compile_memory;
  std::string xla = absl::StrJoin(xla_flags, " ");
  if (const char* inherited = std::getenv("XLA_FLAGS")) xla = absl::StrCat(inherited, xla.empty() ? "" : " ", xla);
  if (!xla.empty()) options.compile.environment.push_back("XLA_FLAGS=" + xla);
  absl::StatusOr<CompileCachePlace> place = PlaceCompileCache(compile_cache, scratch, xla);
  if (!place.ok()) return fail(std::string(place.status().message()));
  for (const std::string& notice : place->notices) LogWarning(notice);
  options.compile.disk_cache_folder = place->folder;
  if (compile_cache_bytes < static_cast<int64_t>(limits::kDiskCacheBytesMin)) {
    return fail(absl::StrCat("--compile_cache_bytes=", compile_cache_bytes, ": at least ", limits::kDiskCacheBytesMin,
                             "; --compile_cache=off turns it off"));
  }
  options.compile.disk_cache_bytes_max = static_cast<uint64_t>(compile_cache_bytes);
  ProxyProcess proxy(std::move(options));
  absl::Status status = proxy.Run();
  if (!status.ok()) return fail(std::string(status.message()));
  return 0;
}

}  // namespace
}  // namespace landbridge

int main(int argc, char** argv) { return landbridge::Main(argc, argv); }
