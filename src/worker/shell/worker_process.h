// A worker: one process per accelerator host. Registers with the resource manager, takes a holder's control stream,
// and does what it says with the PJRT plugin.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/limits.h"
#include "cluster/admin.h"
#include "cluster/control_server.h"
#include "cluster/worker_agent.h"
#include "custom_calls/handler_supply.h"
#include "dataplane/data_plane.h"
#include "env/loop.h"
#include "env/memory_trimmer.h"
#include "pjrt/client.h"
#include "sharding/reshard_limits.h"
#include "worker/shell/control_session.h"
#include "worker/shell/formation.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {

struct WorkerOptions {
  std::string resource_manager_address;
  std::string listen_host = "127.0.0.1";
  int port = 0;           // 0: any free one
  std::string port_file;  // gets "host:port\n" when we listen
  std::string name;       // the same when the worker is started again; empty: host and port or pid
  int slice_hint = -1;    // the slice it would like to be in; the resource manager decides
  std::string plugin_path;
  int workers_per_slice = 1;          // more: clients of plugins that can are made together (formation.h)
  int devices = 4;                    // CPU plugins only: others show what is there
  pjrt::AttributeMap plugin_options;  // pjrt/client_options.h
  int64_t device_memory_limit = 0;    // bytes per device; 0: as the plugin says, or 80 % of the host's over all devices
  LeaseTimes times;
  DurationNs drain_grace = 30 * kSecond;
  int pool_threads = 2;
  HandlerSupplyOptions custom_calls;
  bool unordered_launches = false;  // for the control experiment only: WorkerLimits::spans_unordered
  std::string cluster_secret;       // data planes of processes with another one are refused
};

// Thread-safety: the loop's thread only; the constructor and Shutdown may run before and after the loop does.
class WorkerProcess {
 public:
  // Loads the plugin, opens the data plane and the port, writes the port file, and begins to register. Call
  // pjrt::PreparePluginEnvironment before. `stop` is called, on the loop, when the process should end; with a reason
  // if that is a failure (then only a new life helps: exit with an error, so that the launcher starts another).
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Start(Loop* loop, WorkerOptions options,
                                                              std::function<void(const absl::Status&)> stop);
  ~WorkerProcess();

  // SIGTERM: no new grants; the holder hears that we drain. `stop` is called when no holder is left or the grace has
  // passed.
  void Drain(const std::string& reason);
  // In this order: the port, the holders (fenced), the data plane (no byte lands any more), the launches (waited for
  // as long as `patience`), dispatch threads, pool, buffers and programs, plugin client. Blocks. False: some launch
  // did not end; then do not destroy this object but leave the process with _exit.
  bool Shutdown(DurationNs patience);

  int port() const { return server_->port(); }
  std::string control_address() const;
  Incarnation incarnation() const { return incarnation_; }
  const pjrt::Client& client() const { return *client_; }  // there unless it is made with others
  nlohmann::json Status();

 private:
  WorkerProcess(Loop* loop, WorkerOptions options, std::function<void(const absl::Status&)> stop);
  absl::Status Init();
  absl::Status InitNetwork();
  // The client, and what stands on it.
  absl::Status MakeClientAlone();
  absl::Status TakeClient(std::unique_ptr<pjrt::Client> client);
  bool MakesClientWithOthers() const;
  void OnFormation(std::vector<FormationMember> members);
  void StartForming();
  void OnFormed(const std::shared_ptr<Formation>& formation, absl::StatusOr<std::unique_ptr<pjrt::Client>> made);
  WorkerInfo Describe() const;

  uint64_t OnStreamResumed(const ControlStreamId& stream, uint64_t received);
  ControlSession& SessionOf(const ControlStreamId& stream);
  void OnFence(const Grant& grant, const absl::Status& why);
  void OnTick();
  Inbox::Outlook EndOfTurn(bool late);
  void CheckOldWork();
  ControlSession* FindSession(const ControlStreamId& stream);
  void WakeUp();

  Loop* const loop_;
  WorkerOptions options_;
  const std::function<void(const absl::Status&)> stop_;
  const Incarnation incarnation_;

  std::shared_ptr<pjrt::Plugin> plugin_;
  // The newest that the resource manager told of, the one that a client is made in, on a thread, and the one it was made in.
  std::shared_ptr<Formation> formation_, forming_, formed_;
  std::thread forming_thread_;
  std::unique_ptr<pjrt::Client> client_;  // null while it is made together with others
  std::unique_ptr<BufferIo> io_;
  WorkerLimits limits_;
  std::shared_ptr<dataplane::DataPlaneHost> data_host_;       // a data plane per grant
  uint64_t ended_bytes_sent_ = 0, ended_bytes_received_ = 0;  // of grants that have ended
  std::unique_ptr<HandlerSupply> handlers_;
  std::unique_ptr<TaskPool> pool_, slow_pool_;
  std::unique_ptr<Dispatcher> dispatcher_;
  ImageBudget images_{limits::kImagesStagedBytesMax};
  ImageBudget staged_{limits::kReshardStagedBytesMax};
  ImageBudget sent_{limits::kStagedSendBytesMax};
  ImageBudget received_{limits::kStagedReceiveBytesMax};
  ImageBudget snapshots_{limits::kSendSnapshotBytesMax};
  std::shared_ptr<Inbox> inbox_;
  AdminTable admin_;
  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<WorkerAgent> agent_;

  absl::flat_hash_map<PhysicalSliceId, std::unique_ptr<ControlSession>> sessions_;
  std::vector<std::unique_ptr<ControlSession>> fenced_;  // until their old work has ended
  std::vector<Loop::TimerId> timers_;
  TimeNs last_heartbeat_ = 0;
  MemoryTrimmer trimmer_;
  uint64_t busy_ticks_ = 0;
  bool draining_ = false;
  TimeNs drain_until_ = 0;
  bool shut_down_ = false;
};

}  // namespace landbridge
