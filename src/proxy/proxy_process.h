// The proxy process: one loop thread with the controller, the lease and the control streams; the front door's threads,
// the data plane and the compile service around it. This is wiring; decisions are made in the pure parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "cluster/admin.h"
#include "cluster/holder_agent.h"
#include "compiler/compile_service.h"
#include "controller/controller.h"
#include "dataplane/data_plane.h"
#include "env/loop.h"
#include "env/memory_trimmer.h"
#include "frontdoor/ifrt_proxy/front_door.h"
#include "cluster/worker_stream.h"

namespace landbridge {

struct ProxyOptions {
  std::string listen_address = "127.0.0.1:29000";  // for clients
  std::string admin_address = "127.0.0.1:0";       // for `landbridge status`
  std::string port_file;                           // "host:port\n" of the clients' port, when clients may come
  std::string resource_manager_address;
  std::vector<std::string> virtual_slices;  // types; empty: every slice of the resource manager
  LeaseTimes times;
  CompileServiceOptions compile;
  std::string shared_directory;      // uploads by file; empty: refused
  std::string cluster_secret;        // data planes of processes with another one are refused
  Scheduling scheduling;             // what workers order launches by
  bool sequential_dispatch = false;  // see Controller::Options
};

// Thread-safety: construct, Run and destroy on one thread, which becomes the loop's.
class ProxyProcess : private ControllerSink {
 public:
  explicit ProxyProcess(ProxyOptions options);
  ~ProxyProcess() override;

  // Serves until SIGTERM or SIGINT; returns what made it stop when that is an error.
  absl::Status Run();

 private:
  struct Member {
    MemberRef ref;
    Incarnation life;  // LifeUnder its grant: what controller and data plane know it by
    SlotId slot;
    std::string name;  // "slice0/0 on HOST (pid N)"
    WorkerStream stream;
    bool flowing = false;                                    // a connection of it is up
    uint64_t ops_sent = 0, frames_sent = 0, bytes_sent = 0;  // what is repeated counts again
    std::vector<DeviceUse> use;                              // of its last heartbeat
    std::vector<LinkUse> links;                              // of its last heartbeat
  };

  // ControllerSink. These only record.
  void SendToWorker(Incarnation worker, WorkerOp op) override;
  void Resolve(RequestId request, const absl::Status& status) override;
  void ResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override;
  void ResolveExplain(RequestId request, std::string json) override;
  void ServeHostBuffer(uint64_t key, std::vector<Incarnation> workers) override;
  void WantHostBytes(uint64_t key) override;
  void DropHostBuffer(uint64_t key) override;
  void ServeExecutable(Incarnation worker, ExecutableId executable,
                       std::shared_ptr<const std::string> envelope) override;
  void StopServingExecutable(Incarnation worker, ExecutableId executable) override;
  void PauseSession(SessionId session, bool paused) override;

  HolderAgent::Callbacks AgentCallbacks();
  void OnFleet(const Fleet& fleet);
  void OnMemberUp(const MemberRef& ref, const WorkerInfo& info);
  void OnMemberLost(const MemberRef& ref, const absl::Status& why);
  absl::Status OnControl(const MemberRef& ref, absl::string_view payload);
  void OpenTheDoor();
  // Something was recorded for workers: send it in one frame each, at the end of this turn of the loop.
  void FlushSoon();
  void FlushStreams();
  Member* Find(const MemberRef& ref) const;
  void AddAdminAnswers();
  nlohmann::json Status();
  nlohmann::json Slices() const;
  void Explain(bool graph, AdminTable::Answer answer);

  ProxyOptions options_;
  Loop loop_;
  const ProxyLife life_;
  std::unique_ptr<dataplane::DataPlane> data_plane_;
  std::unique_ptr<CompileService> compiler_;
  Controller controller_;
  std::unique_ptr<IfrtFrontDoor> door_;
  std::unique_ptr<HolderAgent> agent_;
  AdminTable admin_;
  std::unique_ptr<AdminServer> admin_server_;
  absl::flat_hash_map<Incarnation, std::unique_ptr<Member>> members_;                // by life
  absl::flat_hash_map<std::pair<Incarnation, PhysicalSliceId>, Incarnation> lives_;  // of members, by process and slice
  absl::flat_hash_map<ExecutableId, std::weak_ptr<const std::string>> executables_served_;
  uint64_t request_ = 0;  // our request for slices
  bool door_open_ = false;
  std::string client_address_;
  bool flush_posted_ = false;
  uint64_t losses_ = 0;
  uint64_t work_done_ = 0;  // grows with every frame sent and report taken
  uint64_t flushes_ = 0;    // turns of the loop at whose end something was sent
  MemoryTrimmer trimmer_;
  struct Explaining {
    AdminTable::Answer answer;
    Loop::TimerId limit = 0;
  };
  absl::flat_hash_map<RequestId, Explaining> explaining_;
  uint64_t next_explain_ = 1;
  std::vector<Incarnation> dirty_;  // members with something to send
  absl::Status failure_;
};

}  // namespace landbridge
