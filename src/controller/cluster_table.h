// Which device belongs to which worker, and who works there now.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "controller/controller.h"
#include "controller/launch_args.h"
#include "controller/op_refs.h"
#include "controller/plan_table.h"

namespace landbridge::ctl {

struct ParkedOp {
  WorkerOp op;
  SessionId session;
  size_t bytes = 0;
  uint64_t order = 0;  // of arrival: what was blocked goes back to its place
};

// One life of the worker at a slot. It exists before the worker does: what is meant for a slot without a worker
// belongs to the life to come. So nothing is ever re-addressed: what died with one life stays dead.
struct Life {
  int slot = 0;  // index in ClusterTable
  bool up = false;
  Incarnation incarnation;  // once up
  std::string data_address;
  std::string name;

  // Outbox; see dispatcher.h.
  size_t unfinished = 0;  // nodes sent and not ended
  Ticket youngest_sent;   // of all nodes that were sent
  std::deque<ParkedOp> parked;
  HeldRefs parked_refs;
  std::deque<ParkedOp> blocked;
  HeldRefs blocked_refs;

  // An operation with these references has to come after one that waits there. Orders count from 1.
  bool MustFollowParked(const OpRefs& refs) const {
    return !parked.empty() && parked_refs.MustFollow(refs, parked.front().order);
  }
  bool MustFollowBlocked(const OpRefs& refs) const { return !blocked.empty() && blocked_refs.MustFollow(refs, 1); }
  bool Holds(uint64_t array) const {
    return (!blocked.empty() && blocked_refs.Holds(array, 1)) ||
           (!parked.empty() && parked_refs.Holds(array, parked.front().order));
  }

  DeleteBuffers deletes;  // of `deletes_session`, not sent yet
  SessionId deletes_session;
  Unpublish unpublishes;                     // not sent yet
  bool collected = false;                    // one of those may be there
  absl::flat_hash_set<SessionId> sessions;   // that sent something
  SessionId last_session;                    // the latest of them: saves the look-up
  absl::flat_hash_set<Incarnation> peers;    // that it pulls from: whose data address it knows
  absl::flat_hash_set<Incarnation> pullers;  // that it was told to publish to
  PlansTold plans;                           // what it knows by number
  LaunchDifferences differences;             // of its stream
  uint32_t log = 0;                          // number of its order log; 0: nothing that spans workers was sent there
};

// Lives are freed when they end; whoever holds a Life* lets go of it in Controller::OnWorkerLost.
class ClusterTable {
 public:
  struct Slot {
    SlotId id;
    std::unique_ptr<Life> life;  // the one that is up, or the one to come
    std::string last_name;       // of the worker that was here last, for messages
  };
  struct Device {
    int slot = -1;  // -1: no such device
    uint32_t ordinal = 0;
  };

  void Declare(std::vector<VirtualDevice> devices);

  // INVALID_ARGUMENT if unknown.
  absl::StatusOr<Device> Find(DeviceId device) const;
  bool Known(DeviceId device) const;
  // The device must be known.
  const Device& At(DeviceId device) const { return devices_[static_cast<size_t>(device.value())]; }
  Life* LifeOf(DeviceId device) const { return slots_[static_cast<size_t>(At(device).slot)].life.get(); }
  DeviceLocation LocationOf(DeviceId device) const;
  // The device must be known. Those of a slice are counted worker by worker.
  uint32_t NumberInSlice(DeviceId device) const;

  absl::Status CheckDevices(const Sharding& sharding) const;
  // Whether a program on these devices spans workers. INVALID_ARGUMENT for none, and for those that there are not.
  absl::StatusOr<bool> SpansWorkers(absl::Span<const DeviceId> devices) const;

  std::vector<Slot>& slots() { return slots_; }
  const std::vector<Slot>& slots() const { return slots_; }
  Slot* FindSlot(SlotId id);
  Life* FindLife(Incarnation incarnation) const;
  void SetUp(Life* life, Incarnation incarnation, std::string data_address, std::string name);
  // Replaces it by the life to come; the caller drops it when nothing points to it.
  std::unique_ptr<Life> End(Life* life);

 private:
  std::vector<Device> devices_;  // by id
  std::vector<Slot> slots_;      // in the order of SlotId
  std::map<SlotId, int> by_slot_;
  absl::flat_hash_map<Incarnation, Life*> by_incarnation_;
};

}  // namespace landbridge::ctl
