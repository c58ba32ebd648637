// The proxy process: a ControllerHost and the front door on one loop thread; the door's threads and the compile service
// around it. This is wiring; decisions are made in the pure parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "cluster/admin.h"
#include "compiler/compile_service.h"
#include "controller/controller.h"
#include "env/loop.h"
#include "env/memory_trimmer.h"
#include "frontdoor/ifrt_proxy/front_door.h"
#include "proxy/controller_host.h"

namespace landbridge {

struct ProxyOptions {
  std::string listen_address = "127.0.0.1:29000";  // for clients
  std::string admin_address = "127.0.0.1:0";       // for `landbridge status`
  std::string port_file;                           // "host:port\n" of the clients' port, when clients may come
  std::string resource_manager_address;
  std::vector<std::string> virtual_slices;  // types; empty: every slice of the resource manager
  LeaseTimes times;
  DurationNs spin = 0;  // of the loop: see Loop::SetSpin
  CompileServiceOptions compile;
  std::string shared_directory;      // uploads by file; empty: refused
  std::string cluster_secret;        // data planes of processes with another one are refused
  Scheduling scheduling;             // what workers order launches by
  bool sequential_dispatch = false;  // see Controller::Options
};

// Thread-safety: construct, Run and destroy on one thread, which becomes the loop's.
class ProxyProcess : private ControllerDoor {
 public:
  explicit ProxyProcess(ProxyOptions options);
  ~ProxyProcess() override;

  // Serves until SIGTERM or SIGINT; returns what made it stop when that is an error.
  absl::Status Run();

 private:
  // ControllerDoor.
  void OnDevices(const Fleet& fleet, const std::vector<VirtualDevice>& devices) override;
  void OnWorkerLost(Incarnation worker, const absl::Status& why) override { door_->OnWorkerLost(worker, why); }
  void OnHostCall(Incarnation worker, HostCall call) override { door_->OnHostCall(worker, std::move(call)); }
  void OnHostCallTaken(Incarnation worker, uint64_t call) override { door_->OnHostCallTaken(worker, call); }
  void OnResolve(RequestId request, const absl::Status& status) override { door_->OnResolve(request, status); }
  void OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override {
    door_->OnResolveRead(request, std::move(result));
  }
  void ServeHostBuffer(uint64_t key, std::vector<Incarnation> workers) override {
    door_->ServeHostBuffer(key, std::move(workers));
  }
  void WantHostBytes(uint64_t key) override { door_->WantHostBytes(key); }
  void DropHostBuffer(uint64_t key) override { door_->DropHostBuffer(key); }
  void PauseSession(SessionId session, bool paused) override { door_->PauseSession(session, paused); }

  absl::Status OpenDoor();
  void AddAdminAnswers();
  nlohmann::json Status();

  ProxyOptions options_;
  Loop loop_;
  std::unique_ptr<ControllerHost> host_;
  std::unique_ptr<CompileService> compiler_;
  std::unique_ptr<IfrtFrontDoor> door_;
  AdminTable admin_;
  std::unique_ptr<AdminServer> admin_server_;
  std::string client_address_;
  MemoryTrimmer trimmer_;
  absl::Status failure_;
};

}  // namespace landbridge
