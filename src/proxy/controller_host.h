// What the controller stands on: the lease, the control streams to the workers, the data plane that serves programs.
// One loop thread owns all of it. Who calls the controller (a front door, a benchmark's driver) is its ControllerDoor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "cluster/admin.h"
#include "cluster/holder_agent.h"
#include "cluster/worker_stream.h"
#include "controller/controller.h"
#include "dataplane/data_plane.h"
#include "env/loop.h"

namespace landbridge {

// What a host tells whoever calls its controller, on the loop's thread. What comes out of the controller is only to be
// recorded: these must not call it back.
class ControllerDoor {
 public:
  virtual ~ControllerDoor() = default;

  // Once, when the devices are declared to the controller: sessions may be opened from now on.
  virtual void OnDevices(const Fleet& fleet, const std::vector<VirtualDevice>& devices) = 0;
  // Its data plane is closed; the controller hears of it next.
  virtual void OnWorkerLost(Incarnation worker, const absl::Status& why) = 0;
  // Launches that call functions of their client.
  virtual void OnHostCall(Incarnation worker, HostCall call) = 0;
  virtual void OnHostCallTaken(Incarnation worker, uint64_t call) = 0;

  // As in ControllerSink.
  virtual void OnResolve(RequestId request, const absl::Status& status) = 0;
  virtual void OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result) = 0;
  virtual void ServeHostBuffer(uint64_t key, std::vector<Incarnation> workers) = 0;
  virtual void WantHostBytes(uint64_t key) = 0;
  virtual void DropHostBuffer(uint64_t key) = 0;
  virtual void PauseSession(SessionId session, bool paused) = 0;
};

struct ControllerHostOptions {
  std::string resource_manager_address;
  std::vector<std::string> virtual_slices;  // types; empty: every slice of the resource manager
  LeaseTimes times;
  std::string listen_host = "127.0.0.1";  // of the data plane
  std::string cluster_secret;             // data planes of processes with another one are refused
  Scheduling scheduling;                  // what workers order launches by
  bool sequential_dispatch = false;       // see Controller::Options
};

// Thread-safety: the loop's thread, or before the loop runs and after it has ended. life, data_plane: any thread.
class ControllerHost : private ControllerSink {
 public:
  // Opens the data plane. `loop` outlives the host.
  static absl::StatusOr<std::unique_ptr<ControllerHost>> Open(Loop* loop, ControllerHostOptions options);
  ~ControllerHost() override;

  // Registers with the resource manager and asks for the slices. `door` outlives the host's Shutdown;
  // `client_address` is what others are told about this process.
  void Join(ControllerDoor* door, const std::string& client_address);
  // Gives the slices back; give the loop a moment to send it.
  void Leave() { agent_->Leave(); }
  // Ends leases, streams and data plane; no call of the door comes after it.
  void Shutdown();

  Controller& controller() { return controller_; }
  ProxyLife life() const { return life_; }
  dataplane::DataPlane* data_plane() const { return data_plane_.get(); }
  // What a client's function gave, for the worker whose program called it.
  void ReplyHostCall(Incarnation worker, HostCallReply reply);

  // --- Looking inside.
  bool has_devices() const { return has_devices_; }
  // What keeps this process from having devices, for people.
  std::string waits_for() const;
  // Grows with every frame sent and report taken.
  uint64_t work_done() const { return work_done_; }
  // What the controller and all workers know of each other (Controller::Explain), with the slices; `graph`: the dataflow
  // graph. Workers that are silent for limits::kExplainPatience are listed with null.
  void Explain(bool graph, AdminTable::Answer answer);
  // Adds "counts", "controller", "slices", "data_plane" and figures of the streams.
  void AddStatus(nlohmann::json* status);
  // How many of the workers are up: cheap however many there are.
  nlohmann::json WorkerCounts() const;

 private:
  struct Member {
    MemberRef ref;
    Incarnation life;  // LifeUnder its grant: what controller and data plane know it by
    SlotId slot;
    std::string name;  // "slice0/0 on HOST (pid N)"
    WorkerStream stream;
    bool flowing = false;                                    // a connection of it is up
    bool dirty = false;                                      // is in dirty_
    uint64_t ops_sent = 0, frames_sent = 0, bytes_sent = 0;  // what is repeated counts again
    std::vector<DeviceUse> use;                              // of its last heartbeat
    std::vector<LinkUse> links;                              // of its last heartbeat
  };
  struct Explaining {
    AdminTable::Answer answer;
    Loop::TimerId limit = 0;
  };

  ControllerHost(Loop* loop, ControllerHostOptions options);

  // ControllerSink. These only record, or pass on to the door, which only records.
  void SendToWorker(Incarnation worker, WorkerOp op) override;
  void Resolve(RequestId request, const absl::Status& status) override { door_->OnResolve(request, status); }
  void ResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override {
    door_->OnResolveRead(request, std::move(result));
  }
  void ResolveExplain(RequestId request, std::string json) override;
  void ServeHostBuffer(uint64_t key, std::vector<Incarnation> workers) override {
    door_->ServeHostBuffer(key, std::move(workers));
  }
  void WantHostBytes(uint64_t key) override { door_->WantHostBytes(key); }
  void DropHostBuffer(uint64_t key) override { door_->DropHostBuffer(key); }
  void ServeExecutable(Incarnation worker, ExecutableId executable,
                       std::shared_ptr<const std::string> envelope) override;
  void StopServingExecutable(Incarnation, ExecutableId) override {}  // OnTick sees that the envelope is gone
  void PauseSession(SessionId session, bool paused) override { door_->PauseSession(session, paused); }

  HolderAgent::Callbacks AgentCallbacks();
  void OnTick();
  void OnFleet(const Fleet& fleet);
  void OnMemberUp(const MemberRef& ref, const WorkerInfo& info);
  void OnMemberLost(const MemberRef& ref, const absl::Status& why);
  absl::Status OnControl(const MemberRef& ref, absl::string_view payload);
  void OnReport(Member* member, const WorkerReport& report);
  // Something was recorded for the worker: it goes out in one frame with all the rest, at the end of this turn of the loop.
  void FlushSoon(Member* member);
  void FlushStreams();
  Member* Find(const MemberRef& ref) const;
  nlohmann::json Slices() const;

  Loop* const loop_;
  const ControllerHostOptions options_;
  const ProxyLife life_;
  Controller controller_;
  ControllerDoor* door_ = nullptr;
  std::unique_ptr<dataplane::DataPlane> data_plane_;
  std::unique_ptr<HolderAgent> agent_;
  Loop::TimerId tick_ = 0;
  absl::flat_hash_map<Incarnation, std::unique_ptr<Member>> members_;                // by life
  absl::flat_hash_map<std::pair<Incarnation, PhysicalSliceId>, Incarnation> lives_;  // of members, by process and slice
  absl::flat_hash_map<ExecutableId, std::weak_ptr<const std::string>> executables_served_;
  absl::flat_hash_map<RequestId, Explaining> explaining_;
  uint64_t next_explain_ = 1;
  std::vector<Incarnation> dirty_;  // members with something to send
  bool flush_posted_ = false;
  bool has_devices_ = false;
  std::string waits_for_kind_;  // what the devices are, if nobody has said it yet
  uint64_t losses_ = 0;
  uint64_t work_done_ = 0;
  uint64_t flushes_ = 0;  // turns of the loop at whose end something was sent
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace landbridge
