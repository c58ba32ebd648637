// The shell around WorkerLease: one object that keeps a worker registered and leased. See README.md for the sequence.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cluster/rm_link.h"
#include "cluster/worker_lease.h"
#include "env/loop.h"

namespace landbridge {

// Thread-safety: the loop's thread only. Callbacks run on the loop, after the event that caused them, never from
// inside a call into the agent.
class WorkerAgent {
 public:
  struct Callbacks {
    std::function<void(const Grant&, ProxyLife holder)> on_activated;     // optional
    std::function<void(const Grant&, const absl::Status& why)> on_fence;  // then call OldWorkEnded(slice)
    std::function<void(const std::string& why)> on_restart;               // exit the process soon
    std::function<void(PhysicalSliceId slice, int index)> on_placed;      // optional
    std::function<void(std::vector<FormationMember>)> on_formation;       // optional; see WorkerLeaseSink
  };
  struct Options {
    std::string rm_address;
    Incarnation incarnation;
    WorkerInfo info;  // version is filled in
    LeaseTimes times;
    bool forming = false;  // WorkerLease::SetForming
  };

  WorkerAgent(Loop* loop, Options options, Callbacks callbacks);
  ~WorkerAgent();
  WorkerAgent(const WorkerAgent&) = delete;
  WorkerAgent& operator=(const WorkerAgent&) = delete;

  void Start();

  // See WorkerLease; the time is filled in.
  ControlWelcome OnHello(const ControlHello& hello);
  bool OnHolderHeartbeat(const Grant& grant, int64_t echo_ns);
  bool Holds(const Grant& grant);
  void OldWorkEnded(PhysicalSliceId slice);
  void Formed(WorkerInfo info);
  void Drain(const std::string& reason);
  void Leave();  // the last report; then give the loop one turn to send it

  const WorkerLease& lease() const;
  bool rm_up() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
