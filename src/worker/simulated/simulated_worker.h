// One simulated worker: registers with the resource manager, is granted and fenced, and serves a holder's control stream
// as a real one does; the shell below it only simulates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/time.h"
#include "cluster/control_server.h"
#include "cluster/worker_agent.h"
#include "env/loop.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/shell/holder_stream.h"
#include "worker/simulated/simulated_shell.h"

namespace landbridge {

// What all simulated workers of a process have alike.
struct SimulatedWorkerOptions {
  std::string resource_manager_address;
  std::string listen_host = "127.0.0.1";
  std::string platform = "cpu";
  int devices = 4;
  int64_t device_memory_limit = int64_t{16} << 30;  // bytes of each device
  LeaseTimes times;
};

// Thread-safety: the loop's thread only.
class SimulatedWorker {
 public:
  // `wake`: call OnTurn at the end of this turn of the loop.
  SimulatedWorker(Loop* loop, const SimulatedWorkerOptions* options, SimulatedHostContext* host, int index,
                  std::function<void()> wake);
  ~SimulatedWorker();

  const std::string& name() const { return name_; }

  // A new life: opens a port and registers. Errors as Listener::Listen.
  absl::Status Start();
  // As SIGKILL does: the port and all connections are gone, nobody is told.
  void Kill();
  // Tells the resource manager.
  void Leave();
  bool alive() const { return server_ != nullptr; }

  // Sends what has been reported. True: progress that nobody waits for was put off; call again, with `late`.
  bool OnTurn(bool late);
  // Every TickPeriod.
  void OnTick(TimeNs now);

  bool serves_holder() const;
  void AddTo(nlohmann::json* counts) const;

 private:
  struct Session {
    Grant grant;
    ProxyLife holder;
    std::unique_ptr<HolderStream> stream;
    std::unique_ptr<SimulatedShell> shell;
  };

  WorkerInfo Describe() const;
  Session* Find(const ControlStreamId& stream);
  Session& SessionOf(const ControlStreamId& stream);
  uint64_t OnStreamResumed(const ControlStreamId& stream, uint64_t received);
  void OnFence(const Grant& grant, const absl::Status& why);
  void CheckOldWork();
  void SendHeartbeats(TimeNs now);

  Loop* const loop_;
  const SimulatedWorkerOptions* const options_;
  SimulatedHostContext* const host_;
  const int index_;
  const std::string name_;
  const std::function<void()> wake_;

  Incarnation incarnation_;
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<WorkerAgent> agent_;
  std::vector<std::unique_ptr<Session>> sessions_;  // one, but for moments between two holders
  std::vector<std::unique_ptr<Session>> fenced_;    // until their old work has ended
  TimeNs last_heartbeat_ = 0;
  bool restart_due_ = false;
};

}  // namespace landbridge
