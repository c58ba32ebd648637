// The buffers of a worker: state, memory, who needs them and who waits for them. See worker_core.h for the states.
//
// Pure. Not thread-safe. A Buffer's address is stable as long as it is pinned.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "base/ids.h"
#include "worker/memory_admission.h"
#include "worker/poison.h"
#include "worker/waiter.h"
#include "worker/worker_core.h"

namespace landbridge {

enum class BufferState : uint8_t { kPending, kEnqueued, kResident, kPoisoned };

struct Buffer {
  BufferRef ref;
  PoolId pool;
  int64_t bytes = 0;
  BufferState state = BufferState::kPending;
  bool in_shell = false;  // the shell was told to make it, and not yet to free it
  bool charged = false;   // `bytes` are counted for this buffer (before: for the node that makes it)
  bool delete_requested = false;
  bool can_fail_alone = false;  // while not resident: other shards of what uses it may be good when this one is bad
  bool doubtful = false;        // its producer failed and has not ended: enqueued is not enough for anybody
  bool promised = false;       // its launch is enqueued, or has all it needs but its turn among those that span workers
  bool donor_cleared = false;  // the donor was told that nobody else needs the buffer
  bool donor_is_make = false;
  SessionId session;
  Ticket producer;
  int pins = 0;              // nodes (the producer too), transfers and reads that name it
  int running = 0;           // of these: things in the shell that end by themselves
  int unplaced_readers = 0;  // launches that read it and are not in the order log
  int transfers = 0;         // publishes, makes and reads of it that are not over
  Waiter donor;              // the node that gives it up; nobody may name it afterwards
  Ticket donor_ticket;
  PoisonPtr poison;
  absl::InlinedVector<Waiter, 2> waiters;
  absl::InlinedVector<uint64_t, 1> open_reads;    // in the shell
  absl::InlinedVector<TransferId, 1> open_sends;  // offered to peers
};

class BufferTable {
 public:
  enum class Event : uint8_t {
    kUsable,    // what it waited for is there
    kPoisoned,  // ... and never will be
    kDoubtful,  // it counted on the buffer, and has to wait for it again
    kPromised,  // its launch is sure to come: good enough for a turn behind it, not for a start
    kMayTake,   // for the donor: nobody else needs it
  };
  struct Wake {
    Waiter who;
    Event event = Event::kUsable;
    PoisonPtr poison;
    bool was_promised = false;  // kUsable: who waited was told so, or found it so
  };

  BufferTable(WorkerSink* sink, MemoryAdmission* memory) : sink_(sink), memory_(memory) {}

  Buffer* Find(BufferRef ref);
  const Buffer* Find(BufferRef ref) const;
  // Null if it exists.
  Buffer* Create(BufferRef ref, PoolId pool, int64_t bytes, SessionId session, Ticket producer);
  // `fn(Buffer&)` for all shards of the array that are here, by shard; fn may not delete.
  template <typename Fn>
  void ForEachShard(ArrayId array, Fn fn) {
    auto it = arrays_.find(array);
    if (it == arrays_.end()) return;
    for (const auto& [shard, handle] : it->second) fn(*slab_.Get(handle));
  }
  template <typename Fn>
  void ForEach(Fn fn) {
    slab_.ForEach([&](SlabHandle, Buffer& buffer) { fn(buffer); });
  }
  template <typename Fn>
  void ForEach(Fn fn) const {
    slab_.ForEach([&](SlabHandle, const Buffer& buffer) { fn(buffer); });
  }
  size_t size() const { return slab_.size(); }

  // --- State, set by the producer. Promised comes once, if at all; before enqueued, or with it.
  void SetPromised(Buffer& buffer);
  void SetEnqueued(Buffer& buffer);
  // Its producer failed, but has not ended (what is before it may be the cause): whoever counted on it and is not
  // handed over waits again. A gang with an error among its inputs would hang in its collectives.
  void SetDoubtful(Buffer& buffer);
  void SetResident(Buffer& buffer);  // memory is the buffer's own from here on; already counted
  void SetPoisoned(Buffer& buffer, PoisonPtr poison);
  void AddWaiter(Buffer& buffer, Waiter who) { buffer.waiters.push_back(who); }

  // --- Users. Unpin, StopRunning and RequestDelete may erase the buffer.
  void Pin(Buffer& buffer) { ++buffer.pins; }
  void Unpin(Buffer& buffer);
  void StartRunning(Buffer& buffer) { ++buffer.running; }
  void StopRunning(Buffer& buffer);
  void RequestDelete(Buffer& buffer);
  void AddUnplacedReader(Buffer& buffer) { ++buffer.unplaced_readers; }
  void RemoveUnplacedReader(Buffer& buffer);
  void AddTransfer(Buffer& buffer) { ++buffer.transfers; }
  void EndTransfer(Buffer& buffer);
  // The donor has pinned it. A launch waits until every earlier reader is in the log or withdrawn and no transfer
  // reads it [rule (c)]; a make, which is not in the device's order, until it is the only one that needs it.
  // True if nothing has to be waited for; else kMayTake will come.
  bool SetDonor(Buffer& buffer, Waiter donor, Ticket ticket, bool is_make);

  bool NextWake(Wake* wake);

 private:
  using Shards = absl::InlinedVector<std::pair<uint32_t, SlabHandle>, 4>;  // ascending

  static Shards::iterator Position(Shards& shards, uint32_t shard);
  static bool DonorMayTake(const Buffer& buffer);
  void CheckDonor(Buffer& buffer);
  void EraseIfUnneeded(Buffer& buffer);
  void LeaveShell(Buffer& buffer);

  WorkerSink* const sink_;
  MemoryAdmission* const memory_;
  Slab<Buffer> slab_;
  absl::flat_hash_map<ArrayId, Shards> arrays_;
  std::vector<Wake> wakes_;
  size_t next_wake_ = 0;
};

}  // namespace landbridge
