// What goes to which worker, in which order, and what has to wait.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "controller/cluster_table.h"
#include "controller/controller.h"
#include "controller/op_refs.h"

namespace landbridge::ctl {

// A session's work that waits for workers.
struct Pressure {
  size_t ops = 0;
  size_t bytes = 0;
  bool paused = false;
};

// What the dispatcher has to know about operations.
class DispatchHooks {
 public:
  virtual ~DispatchHooks() = default;
  // Names a peer that has no incarnation yet (or, with sequential dispatch, needs something that is not made yet).
  virtual bool MustWait(const WorkerOp& op) const = 0;
  // It goes out now: fill in what was not known before, note that it is gone.
  virtual void BeforeSend(Life* life, WorkerOp* op) = 0;
  virtual void AfterUploadSent(Life* life, uint64_t key) = 0;
  // Every node that was sent there and has not ended has a higher ticket.
  virtual bool OldestAt(const Life* life, Ticket ticket) const = 0;
};

// One stream of operations per life. An operation waits
//  - in `parked`, first in first out, while the slot has no worker or has launches_per_worker_max unfinished nodes;
//  - in `blocked` while it must wait for something elsewhere (a peer that is not up), or must follow something that waits there. What does not
//    depend on it goes past: a dead slice holds up nobody else. What had to wait so takes its old place when it is
//    free, and the oldest node of a life needs no credit: those that went past may wait for it, elsewhere.
// What takes no credit (reads, watches, publications, deletes, loads) goes past `parked` unless it must follow
// something there: sent work may need it to end. Deletes are collected, and sent with the next operation or by
// Flush: later is always right, earlier never.
class Dispatcher {
 public:
  Dispatcher(size_t launches_per_worker_max, ClusterTable* cluster, ControllerSink* sink, DispatchHooks* hooks)
      : launches_max_(launches_per_worker_max), cluster_(cluster), sink_(sink), hooks_(hooks) {}

  void Send(Life* life, WorkerOp&& op, SessionId session);
  // Past all that waits: for what does not depend on any buffer.
  void SendNow(Life* life, WorkerOp&& op);

  void DeleteArray(Life* life, ArrayId array, SessionId session);
  void DeleteShard(Life* life, BufferRef ref, SessionId session);
  // The transfer and so many in all that follow it.
  void EndTransfer(Life* source, TransferId transfer, uint32_t count);
  void FlushCollected(Life* life);
  void FlushAll();  // of all lives: end of an event

  void OnUp(Life* life);  // sends what waited, there and at peers
  void OnNodeEnded(Life* life);
  // Forgets what waits for it.
  void DropLife(Life* life);
  void DropSession(SessionId session);
  // If nothing that waits needs the program: forgets that it was to be loaded. False otherwise.
  bool DropWaitingLoad(Life* life, ExecutableId program);

  // Visits what waits, in order; `fn` may change an operation, and drops it by returning false. Operations put into
  // `extra` take its place (or follow it). Call Recheck afterwards.
  using Editor = std::function<bool(ParkedOp* entry, std::vector<ParkedOp>* extra)>;
  void EditWaiting(Life* life, const Editor& fn);
  void Recheck(Life* life);  // blocked ones may be free now
  void RecheckAll();

  size_t waiting() const { return waiting_; }
  Pressure PressureOf(SessionId session) const;

 private:
  void Route(Life* life, WorkerOp&& op, SessionId session);
  void Emit(Life* life, WorkerOp&& op, SessionId session);
  void Place(Life* life, WorkerOp&& op, SessionId session, const OpRefs& refs);
  void PlaceFreed(Life* life, ParkedOp&& entry);
  bool HasCredit(const Life* life, const WorkerOp& op) const;
  void Enqueue(Life* life, bool blocked, ParkedOp&& entry, const OpRefs& refs);
  void Drain(Life* life);
  void Collected(Life* life);
  void Count(const ParkedOp& entry);
  void Uncount(const ParkedOp& entry);
  void Rebuild(Life* life);

  const size_t launches_max_;
  ClusterTable* const cluster_;
  ControllerSink* const sink_;
  DispatchHooks* const hooks_;
  size_t waiting_ = 0;
  uint64_t next_order_ = 1;
  std::vector<int> collected_;  // slots that may have something to flush
  absl::flat_hash_map<SessionId, Pressure> pressure_;
};

}  // namespace landbridge::ctl
