// The servers of one local cluster as children of this process: start, watch, restart, end.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/cluster_options.h"
#include "cli/cluster_state.h"
#include "cli/signals.h"

namespace landbridge::cli {

// Thread-safety: the main thread only (see process.h). Destruction ends every server.
class LocalCluster {
 public:
  // `bin_dir` holds landbridge-server and landbridge-proxy; `state_dir` is prepared and locked by the caller.
  // `progress` gets one line per stage of Start.
  LocalCluster(ClusterOptions options, std::string bin_dir, std::string state_dir, Signals* signals,
               std::function<void(const std::string&)> progress);
  ~LocalCluster();
  LocalCluster(const LocalCluster&) = delete;
  LocalCluster& operator=(const LocalCluster&) = delete;

  // Returns when clients can connect and all workers are there, and has written cluster.json then. An error
  // names the server, its log, and shows the log's last lines. CANCELLED when SIGINT or SIGTERM came meanwhile.
  absl::Status Start();

  // To be called for each ended child. False when `pid` is none of the servers. What the loss means is told by
  // `fatal_error()`: OK while the cluster goes on.
  bool OnChildEnded(pid_t pid, int wait_status);
  const absl::Status& fatal_error() const { return fatal_error_; }

  // Starts a server again: at once when it ended, else after ending it. For workers only.
  absl::Status Restart(const std::string& name);
  // Serves the restart requests that lie in the state folder.
  void ServeRequests();
  // Timed work: due restarts, port files of restarted servers. Call it every 100 ms or so.
  void Poll();

  // Ends all: the proxy first, so that sessions end in order, then workers, then the resource manager; whoever
  // does not obey SIGTERM within a few seconds is killed. Removes cluster.json.
  void Stop();

  const ClusterState& state() const { return state_; }
  std::vector<pid_t> ServerPids() const;  // of those that run

 private:
  using Clock = std::chrono::steady_clock;
  struct Server {
    ServerSpec spec;
    size_t index = 0;  // in state_.processes
    bool running = false;
    Clock::time_point restart_at = Clock::time_point::max();
    Clock::time_point started_at;
  };

  absl::Status Launch(Server& server);
  absl::Status LaunchNew(ServerSpec spec);
  absl::Status StartOneProcess();
  ProcessState& Proxy();
  // Waits until the servers from this one on listen. Reaps children and looks at signals meanwhile.
  absl::Status AwaitPorts(size_t first_server);
  absl::Status AwaitWorkers();
  // Handles what has arrived; CANCELLED on SIGINT or SIGTERM, an error when a server ended.
  absl::Status PumpWhileStarting(const std::string& waiting_for);
  bool ReadPort(Server& server);
  absl::Status DescribeDeath(const Server& server) const;
  void EndServers(Role role);
  void Save();

  const ClusterOptions options_;
  const std::string bin_dir_, state_dir_;
  Signals* const signals_;
  const std::function<void(const std::string&)> progress_;
  const std::string cluster_secret_;  // of all its processes, in every life of them; random
  std::vector<Server> servers_;
  ClusterState state_;
  absl::Status fatal_error_;
  Clock::time_point start_deadline_;
  bool started_ = false;
  bool stopping_ = false;
};

}  // namespace landbridge::cli
