// Programs and their launches: which launches are runnable, their place (through the Sequencer), handing over, and
// what their end means for buffers and memory.
//
// Waiting is counted, never searched: a launch has one number of conditions that are not met, and each condition
// tells it once.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "base/ascending_map.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/core_context.h"
#include "worker/launch_args.h"
#include "worker/sequencer.h"
#include "worker/span_member.h"

namespace landbridge {

class LaunchQueue {
 public:
  LaunchQueue(CoreContext* context, const WorkerLimits& limits, SpanMember* spans);

  void OnLoad(LoadExecutable load, TimeNs now);
  void OnUnload(ExecutableId id);
  void OnLoadDone(ExecutableId id, const absl::Status& status, TimeNs now);
  void OnLaunch(std::unique_ptr<Launch> launch, TimeNs now);
  void OnScheduling(const Scheduling& op);
  void OnAbort(const AbortLaunch& op);
  void DropUnplaced(Ticket ticket, const PoisonPtr& why);  // unless it has a place, or has ended
  void OnTime();
  void OnLaunchDone(Ticket ticket, const absl::Status& status, DurationNs run_ns);

  void OnWake(const BufferTable::Wake& wake, TimeNs now);
  void OnMemoryGranted(Waiter who, PoolId pool, TimeNs now);
  void OnMemoryNeverFits(const MemoryAdmission::Blocked& blocked);

  // Ends launches in log order, then places and hands over what can be. True if anything happened.
  bool Advance(TimeNs now);

  void CancelSession(SessionId session, const PoisonPtr& why);
  void Fence(const PoisonPtr& why);

  size_t launches() const { return launches_.size(); }
  size_t executables() const { return programs_.size(); }
  size_t running() const { return running_; }
  bool AnyQueued() const { return launches_.size() > placed_; }
  bool AnyHurried() const { return hurried_ > 0; }  // handed over, and somebody waits for the end
  bool AnyRunningOn(uint32_t device) const { return !in_order_[device].empty(); }
  uint64_t epoch() const { return sequencer_.epoch(); }
  uint64_t done_through() const { return sequencer_.done_through(); }
  uint32_t queued_on(uint32_t device) const { return queued_on_[device]; }
  int placed_on(uint32_t device) const { return sequencer_.placed(device); }
  int activations_peak(uint32_t device) const { return sequencer_.activations_peak(device); }

  void Explain(TimeNs now, nlohmann::json* out) const;
  void Graph(nlohmann::json* out) const;  // graph_json.cc

 private:
  struct Program {
    ExecutableId id;
    ExecutableInfo info;
    std::vector<uint32_t> devices;  // empty: any one
    bool loaded = false;
    absl::Status failed;  // the load's error
    bool unload_requested = false;
    size_t queued = 0;                // launches that are not handed over
    std::vector<SlabHandle> waiting;  // launches that wait for the load
    DurationNs run_estimate = 0;      // 0: none yet
    ShardLayoutPtr layout;            // of its latest launch, if that is on several devices
    LaunchBase launch_base;
  };
  enum class Stage : uint8_t { kWaiting, kCandidate, kPlaced, kDone };
  struct Node {
    SlabHandle self;
    std::shared_ptr<const Launch> op;
    Ticket ticket;
    SessionId session;
    Program* program = nullptr;
    Stage stage = Stage::kWaiting;
    bool load_missing = false;
    bool promised = false;  // it spans workers, and has all it needs but its turn
    int inputs_missing = 0;
    int inputs_unpromised = 0;  // of those: nobody knows whether they will ever come
    int donations_missing = 0;
    MemoryNeeds memory;
    absl::InlinedVector<uint32_t, 4> devices;
    ShardLayoutPtr layout;  // null: one device
    // By parameter or output, and of that by logical device, or one for all of them together.
    absl::InlinedVector<Buffer*, 8> inputs;
    absl::InlinedVector<Buffer*, 8> outputs;
    absl::InlinedVector<Buffer*, 4> donated;
    TimeNs arrived = 0, ready_since = 0;
    uint64_t place = 0;
    absl::Status result;  // kDone
  };

  static absl::Status CheckLoad(const LoadExecutable& load, uint32_t devices);
  absl::Status CheckLaunch(const Launch& op, const Program* program) const;
  absl::Status CheckSpan(const Launch& op, const ExecutableInfo& info) const;
  using Buffers = absl::InlinedVector<Buffer*, 8>;
  absl::Status FindInputs(const Launch& op, const ShardLayout* layout, Buffers* inputs);
  absl::Status CheckInput(const Launch& op, BufferRef ref, const Buffer* buffer, uint32_t device) const;
  static absl::Status CheckDonations(const Launch& op, const Buffers& inputs);
  static ShardLayoutPtr LayoutOf(const Launch& op, Program* program);
  // How many of `inputs` belong to the parameter whose first one is given.
  static size_t InputsOf(const Buffer& first, int devices) {
    return first.whole != nullptr ? 1 : static_cast<size_t>(devices);
  }
  void Reject(const Launch& op, const absl::Status& why);
  void CreateOutputs(Node& node);
  // Pins them, registers as reader or donor, waits for what is missing. A poisoned one is returned.
  PoisonPtr TakeInputs(Node& node);
  // How its inputs are waited for. Side effects must not act on what turns out bad; in a gang with one bad shard the others
  // would hang in their collectives.
  static WaiterKind InputWaiter(const Node& node);
  static bool IsUsable(const Node& node, const Buffer& input);
  void ComputeNeeds(Node& node) const;
  static bool ComputeEvenNeeds(Node& node);
  bool Runnable(const Node& node) const;
  void CheckRunnable(Node& node, TimeNs now);
  void CheckPromise(Node& node);  // of a launch that spans workers
  static Ticket NumberOf(const Launch& op) { return Ticket(op.span().number()); }
  Candidate MakeCandidate(const Node& node) const;
  void NeverStarts(const Launch& op);  // it will have no place in the log
  void NeverPlaced(const Node& node);
  void RenewCandidates(const Program& program);  // its run time is known now
  void HandOver(Node& node, uint64_t place);
  void Drop(Node& node, const PoisonPtr& why);  // not handed over: poison, release, forget
  void End(Node& node);                         // handed over and done, all before it too
  void LeaveProgram(Program& program);          // one queued launch less
  void MaybeUnload(Program& program);           // may forget it
  void ExplainNode(const Node& node, TimeNs now, nlohmann::json* out) const;
  nlohmann::json GraphOf(const Node& node) const;

  CoreContext* const context_;
  SpanMember* const spans_;
  Sequencer sequencer_;
  absl::flat_hash_map<ExecutableId, std::unique_ptr<Program>> programs_;
  Slab<Node> launches_;
  Node* OfTicket(Ticket ticket);  // null: none
  AscendingMap<Ticket, SlabHandle> by_ticket_;
  std::vector<std::deque<SlabHandle>> in_order_;  // per device: handed over and not ended, as in the log
  std::vector<uint32_t> queued_on_;
  std::vector<uint32_t> look_at_;  // devices whose oldest launch may have ended
  size_t placed_ = 0;              // handed over and not ended
  size_t hurried_ = 0;             // of those
  size_t running_ = 0;             // handed over, and the shell has not said that it is done
  bool place_again_ = false;
};

}  // namespace landbridge
