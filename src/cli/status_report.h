// What `status` and `devices` show: the processes as we see them, and what the servers say about themselves.
//
// Thread-safety: plain functions.
#pragma once

#include <string>

#include "cli/cluster_state.h"
#include "nlohmann/json.hpp"

namespace landbridge::cli {

// {state, running, address, plugin, processes: [{name, pid, alive, log, address, ended, starts}],
//  resource_manager: {...}, proxy: {...}, slices, devices, sessions, parked}. The last four are taken from the
// servers' answers for those who only want to look; `parked` says of each launch, copy and read that waits for what
// (see wait_graph.h). Where a server does not answer, its part is missing and resource_manager_error or proxy_error
// says why.
nlohmann::json CollectStatus(const ClusterState& state, const std::string& state_dir);

// How many workers the proxy's slices should have, and how many of them it can use. From the proxy's answer to "workers".
struct WorkersUp {
  int expected = 0;
  int up = 0;
};
WorkersUp CountWorkers(const nlohmann::json& answer);

// Joins what we know with the servers' answers. Pure.
nlohmann::json BuildStatus(const ClusterState& state, const std::string& state_dir, bool supervisor_alive,
                           const std::vector<bool>& process_alive,
                           const absl::StatusOr<nlohmann::json>& resource_manager,
                           const absl::StatusOr<nlohmann::json>& proxy, const absl::StatusOr<nlohmann::json>& explain);

// The proxy's answer to "explain".
absl::StatusOr<nlohmann::json> CollectExplain(const ClusterState& state);
// And to "graph".
absl::StatusOr<nlohmann::json> CollectGraph(const ClusterState& state);

// For people.
std::string RenderStatus(const nlohmann::json& report);
std::string RenderDevices(const nlohmann::json& report);

}  // namespace landbridge::cli
