// What a local cluster consists of, and the command lines that start it. Pure: no process is started here.
//
// Thread-safety: plain values and functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace landbridge::cli {

// What happens when a worker ends by itself while the cluster runs. The loss of the resource manager or the
// proxy always ends the cluster.
enum class WorkerLoss {
  kStop,      // end the cluster
  kContinue,  // leave the others running; the loss shows in `status`
  kRestart,   // start it again
};

struct ClusterOptions {
  int slices = 1;
  int workers_per_slice = 1;
  int devices_per_worker = 4;
  std::string platform = "cpu";   // of the slices' type: cpu, cuda
  int proxy_port = 0;             // 0: any free port
  std::string listen_address;     // empty: the servers' own default, loopback
  bool insecure_network = false;  // the servers refuse to listen beyond loopback without it
  std::string plugin;             // path of the PJRT plugin; see plugin_search.h
  std::string ffi_library;        // libraries with custom-call handlers (base/ffi_libraries.h), for workers and proxy
  bool one_process = false;       // all servers in one process (landbridge-one): for measurements
  bool simulated = false;         // workers without devices, all in one process (landbridge-simulated-workers)
  int start_timeout_s = 60;
  WorkerLoss worker_loss = WorkerLoss::kContinue;
  // Passed to every server of the kind as they are, behind our own flags.
  std::vector<std::string> resource_manager_flags, worker_flags, proxy_flags;

  int workers() const { return slices * workers_per_slice; }
};

constexpr int kLocalProcessesMax = 1024;    // workers that one command starts on one machine
constexpr int kSimulatedWorkersMax = 4096;  // as worker/simulated/simulated_limits.h
constexpr int kDevicesPerWorkerMax = 1024;

// Says which option is wrong and what it may be.
absl::Status Validate(const ClusterOptions& options);

enum class Role { kResourceManager, kWorker, kProxy };

// One server as it will be started.
struct ServerSpec {
  std::string name;  // resource-manager, worker-SLICE-INDEX, proxy: also the names of its log and port file
  Role role = Role::kWorker;
  std::vector<std::string> argv;
  std::string log_path;
  std::string port_path;  // the server writes "host:port\n" there once it listens (and where it answers questions
                          // to PORT_PATH.admin, if that is another port)
};

// Folders of a cluster's state (see cluster_state.h).
std::string LogPath(const std::string& state_dir, const std::string& name);
std::string PortPath(const std::string& state_dir, const std::string& name);

ServerSpec ResourceManagerSpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir);
// `resource_manager` is its "host:port".
ServerSpec WorkerSpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir,
                      const std::string& resource_manager, int slice, int index);
// All workers in one process.
ServerSpec SimulatedWorkersSpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir,
                                const std::string& resource_manager);
ServerSpec ProxySpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir,
                     const std::string& resource_manager);

// Everything in one process, under the name and role of the proxy.
ServerSpec OneProcessSpec(const ClusterOptions& options, const std::string& bin_dir, const std::string& state_dir);

}  // namespace landbridge::cli
