// Many simulated workers in one process and on one loop, for clusters of thousands of devices on one machine. To resource
// manager and proxy each is a worker of its own, with its own port, lease and control stream.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/admin.h"
#include "env/fine_timers.h"
#include "env/loop.h"
#include "worker/simulated/simulated_worker.h"

namespace landbridge {

struct SimulatedHostOptions {
  SimulatedWorkerOptions worker;
  int workers = 1;
  int first = 0;  // number of the first in its name, where several processes simulate workers of one cluster
  DurationNs launch_time = 0;
  std::string admin_address = "127.0.0.1:0";  // for questions: "status", and "kill" (below)
  std::string port_file;                      // gets the port for questions when all workers listen
};

// Answers {"what": "kill", "worker": "simulated-7", "restart": true}: ends that worker as SIGKILL would; with `restart` a
// new life follows at once.
//
// Thread-safety: the loop's thread only; the constructor and destructor may run before and after the loop does.
class SimulatedHost {
 public:
  // RESOURCE_EXHAUSTED when this process may not open enough files; INVALID_ARGUMENT for counts out of range.
  static absl::StatusOr<std::unique_ptr<SimulatedHost>> Start(Loop* loop, SimulatedHostOptions options);
  ~SimulatedHost();

  // Tells the resource manager that all leave; gives the loop one turn to send it.
  void Leave();
  std::string admin_address() const { return admin_server_->address(); }
  nlohmann::json Status() const;
  absl::Status Kill(const std::string& name, bool restart);

 private:
  SimulatedHost(Loop* loop, SimulatedHostOptions options);
  absl::Status Init();
  void Wake(size_t worker);
  void EndOfTurn();
  void EndOfDelay();

  Loop* const loop_;
  const SimulatedHostOptions options_;
  std::unique_ptr<FineTimers> timers_;  // ends of launches
  SimulatedHostContext context_;
  TransferBoard board_;
  std::vector<std::unique_ptr<SimulatedWorker>> workers_;
  std::vector<bool> awake_;  // is in woken_
  std::vector<size_t> woken_, put_off_;
  bool turn_posted_ = false;
  Loop::TimerId delay_ = 0, tick_ = 0;
  AdminTable admin_;
  std::unique_ptr<AdminServer> admin_server_;
};

}  // namespace landbridge
