// The folder of one local cluster:
//
//   DIR/cluster.json    what runs: written when ready and at every change, removed at the end
//   DIR/lock            locked by the supervisor as long as it lives
//   DIR/logs/NAME.log   standard output and error of each process
//   DIR/ports/NAME      "host:port" of each server, written by itself
//   DIR/requests/       restart requests of other commands, seen by the supervisor at SIGHUP
//
// Thread-safety: plain values; the folder is shared between processes as said above.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace landbridge::cli {

struct ProcessState {
  std::string name;
  pid_t pid = 0;
  uint64_t start_time = 0;
  std::string log;
  std::string address;        // "host:port"; empty until the server listens
  std::string admin_address;  // where it answers questions
  std::string ended;          // how it ended; empty while it runs
  int starts = 1;
};

struct ClusterState {
  pid_t supervisor_pid = 0;
  uint64_t supervisor_start_time = 0;
  std::string proxy_address;             // "host:port"
  std::string resource_manager_address;  // "host:port"
  int slices = 0, workers_per_slice = 0, devices_per_worker = 0;
  std::string plugin;
  std::vector<ProcessState> processes;
};

// What JAX_BACKEND_TARGET takes.
std::string BackendTarget(const ClusterState& state);

nlohmann::json ToJson(const ClusterState& state);
absl::StatusOr<ClusterState> FromJson(const nlohmann::json& json);

absl::Status SaveState(const std::string& state_dir, const ClusterState& state);
// FAILED_PRECONDITION when no cluster runs there, with what to do.
absl::StatusOr<ClusterState> LoadState(const std::string& state_dir);
void RemoveState(const std::string& state_dir);

// The folder when no --state is given: $LANDBRIDGE_STATE (which `run` sets for its command), else
// $XDG_STATE_HOME/landbridge/default, else ~/.landbridge/default.
std::string DefaultStateDir();

// Makes the folder and its subfolders; forgets ports and requests of an earlier cluster.
absl::Status PrepareStateDir(const std::string& state_dir);
// The lock's file descriptor. FAILED_PRECONDITION while another supervisor holds it.
absl::StatusOr<int> LockStateDir(const std::string& state_dir);

}  // namespace landbridge::cli
