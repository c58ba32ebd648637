#include "cli/cluster_options.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace landbridge::cli {
namespace {

absl::Status CheckRange(absl::string_view option, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(option, " is ", value, ", but must lie between ", min, " and ", max));
}

ServerSpec MakeSpec(const std::string& name, Role role, const std::string& binary, const std::string& bin_dir,
                    const std::string& state_dir) {
  ServerSpec spec;
  spec.name = name;
  spec.role = role;
  spec.log_path = LogPath(state_dir, name);
  spec.port_path = PortPath(state_dir, name);
  spec.argv = {absl::StrCat(bin_dir, "/", binary)};
  return spec;
}

void Append(std::vector<std::string>& argv, const std::vector<std::string>& more) {
  argv.insert(argv.end(), more.begin(), more.end());
}

void AppendNetwork(std::vector<std::string>& argv, const ClusterOptions& options) {
  if (!options.listen_address.empty()) argv.push_back(absl::StrCat("--listen_address=", options.listen_address));
  if (options.insecure_network) argv.push_back("--insecure_network");
}

void AppendFfiLibrary(std::vector<std::string>& argv, const ClusterOptions& options) {
  if (!options.ffi_library.empty()) argv.push_back(absl::StrCat("--ffi_library=", options.ffi_library));
}

std::string InstanceType(const ClusterOptions& options) {
  if (options.workers_per_slice == 1) return absl::StrCat(options.platform, ":", options.devices_per_worker);
  return absl::StrCat(options.platform, ":", options.workers_per_slice, "x", options.devices_per_worker);
}

}  // namespace

absl::Status Validate(const ClusterOptions& options) {
  const int workers_max = options.simulated ? kSimulatedWorkersMax : kLocalProcessesMax;
  LB_RETURN_IF_ERROR(CheckRange("--slices", options.slices, 1, workers_max));
  LB_RETURN_IF_ERROR(CheckRange("--workers-per-slice", options.workers_per_slice, 1, kLocalProcessesMax));
  LB_RETURN_IF_ERROR(CheckRange("--devices-per-worker", options.devices_per_worker, 1, kDevicesPerWorkerMax));
  LB_RETURN_IF_ERROR(CheckRange("--port", options.proxy_port, 0, 65535));
  LB_RETURN_IF_ERROR(CheckRange("--start-timeout", options.start_timeout_s, 1, 3600));
  if (options.simulated && options.one_process) {
    return absl::InvalidArgumentError("--simulated and --one-process exclude each other");
  }
  if (options.workers() > workers_max) {
    return absl::InvalidArgumentError(absl::StrCat("--slices ", options.slices, " times --workers-per-slice ",
                                                   options.workers_per_slice, " would start ", options.workers(),
                                                   " workers; one machine takes at most ", workers_max));
  }
  return absl::OkStatus();
}

std::string LogPath(const std::string& state_dir, const std::string& name) {
  return absl::StrCat(state_dir, "/logs/", name, ".log");
}

std::string PortPath(const std::string& state_dir, const std::string& name) {
  return absl::StrCat(state_dir, "/ports/", name);
}

ServerSpec ResourceManagerSpec(const ClusterOptions& options, const std::string& bin_dir,
                               const std::string& state_dir) {
  ServerSpec spec = MakeSpec("resource-manager", Role::kResourceManager, "landbridge-server", bin_dir, state_dir);
  Append(spec.argv,
         {"--node_type=resource_manager", "--server_port=0", absl::StrCat("--port_file=", spec.port_path),
          absl::StrCat("--instance_type=", InstanceType(options)), absl::StrCat("--instance_count=", options.slices)});
  AppendNetwork(spec.argv, options);
  Append(spec.argv, options.resource_manager_flags);
  return spec;
}

ServerSpec WorkerSpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir,
                      const std::string& resource_manager, int slice, int index) {
  ServerSpec spec =
      MakeSpec(absl::StrCat("worker-", slice, "-", index), Role::kWorker, "landbridge-server", bin_dir, state_dir);
  Append(spec.argv, {absl::StrCat("--resource_manager_address=", resource_manager), "--server_port=0",
                     absl::StrCat("--port_file=", spec.port_path), absl::StrCat("--pjrt_plugin=", options.plugin),
                     // The name stays when it is started again, so the new life takes the old one's place.
                     absl::StrCat("--worker_name=", spec.name), absl::StrCat("--slice_hint=", slice)});
  AppendNetwork(spec.argv, options);
  AppendFfiLibrary(spec.argv, options);
  Append(spec.argv, options.worker_flags);
  return spec;
}

ServerSpec SimulatedWorkersSpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir,
                                const std::string& resource_manager) {
  ServerSpec spec = MakeSpec("simulated-workers", Role::kWorker, "landbridge-simulated-workers", bin_dir, state_dir);
  Append(spec.argv,
         {absl::StrCat("--resource_manager_address=", resource_manager), absl::StrCat("--workers=", options.workers()),
          absl::StrCat("--devices=", options.devices_per_worker), absl::StrCat("--port_file=", spec.port_path)});
  if (options.platform != "cpu") spec.argv.push_back(absl::StrCat("--platform=", options.platform));
  Append(spec.argv, options.worker_flags);
  return spec;
}

ServerSpec ProxySpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir,
                     const std::string& resource_manager) {
  ServerSpec spec = MakeSpec("proxy", Role::kProxy, "landbridge-proxy", bin_dir, state_dir);
  Append(spec.argv, {absl::StrCat("--resource_manager_address=", resource_manager),
                     absl::StrCat("--server_port=", options.proxy_port), absl::StrCat("--port_file=", spec.port_path),
                     absl::StrCat("--pjrt_plugin=", options.plugin)});
  AppendNetwork(spec.argv, options);
  AppendFfiLibrary(spec.argv, options);
  Append(spec.argv, options.proxy_flags);
  return spec;
}

ServerSpec OneProcessSpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir) {
  ServerSpec spec = MakeSpec("proxy", Role::kProxy, "landbridge-one", bin_dir, state_dir);
  Append(spec.argv,
         {absl::StrCat("--instance_type=", InstanceType(options)), absl::StrCat("--instance_count=", options.slices),
          absl::StrCat("--server_port=", options.proxy_port), absl::StrCat("--port_file=", spec.port_path),
          absl::StrCat("--pjrt_plugin=", options.plugin)});
  AppendFfiLibrary(spec.argv, options);
  Append(spec.argv, options.proxy_flags);
  return spec;
}

}  // namespace landbridge::cli
