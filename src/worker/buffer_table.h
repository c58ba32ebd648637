// The buffers of a worker: state, memory, who needs them and who waits for them. See worker_core.h for the states.
//
// What one launch makes of an array on several devices is one Buffer that stands for all these shards: they come, wait, are
// used and go together, so that a launch costs the same on one device and on 64. Whoever names one shard alone (a read, a
// transfer, the delete of one shard) separates them first: from then on each is a Buffer of its own. What had hold of the
// whole keeps it, and does to every part what it does to the whole.
//
// Pure. Not thread-safe. A Buffer's address is stable as long as it is pinned.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
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

// Where several shards of an array lie: shard `shards[i]` on device `devices[i]`.
struct ShardLayout {
  std::vector<uint32_t> shards, devices;
  size_t size() const { return shards.size(); }
  friend bool operator==(const ShardLayout&, const ShardLayout&) = default;
};
using ShardLayoutPtr = std::shared_ptr<const ShardLayout>;

struct Buffer;
struct BufferWhole {
  ShardLayoutPtr layout;
  SlabHandle self;
  std::vector<Buffer*> parts;  // once they were separated: then those have users, waiters and memory
};

struct Buffer {
  BufferRef ref;                       // of its first shard
  PoolId pool;                         // of its first shard
  int64_t bytes = 0;                   // of a shard
  std::shared_ptr<BufferWhole> whole;  // its own; null: it is one shard
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
    kUsable,      // what it waited for is there
    kPoisoned,    // ... and never will be
    kDoubtful,    // it counted on the buffer, and has to wait for it again
    kPromised,    // its launch is sure to come: good enough for a turn behind it, not for a start
    kMayTake,     // for the donor: nobody else needs it
    kMore,        // it was separated: instead of one buffer, `more` others too are waited for
    kMoreToTake,  // the same for the donor
  };
  struct Wake {
    Waiter who;
    Event event = Event::kUsable;
    PoisonPtr poison;
    bool was_promised = false;  // kUsable, kMore: who waited was told so, or found it so
    int more = 0;
  };

  BufferTable(WorkerSink* sink, MemoryAdmission* memory) : sink_(sink), memory_(memory) {}

  // That one shard: separates it from those that it was made with.
  Buffer* Find(BufferRef ref);
  // All shards of the array that are here, if they lie as `layout` says and are together. Else null.
  Buffer* FindTogether(ArrayId array, const ShardLayout& layout);
  bool Exists(BufferRef ref) const;
  bool AnyOf(ArrayId array) const { return arrays_.contains(array); }
  // Null if it exists.
  Buffer* Create(BufferRef ref, PoolId pool, int64_t bytes, SessionId session, Ticket producer);
  // Nothing of the array may be here. The layout has two shards at least, in different places. `bytes`: of a shard.
  Buffer* CreateTogether(ArrayId array, ShardLayoutPtr layout, bool host, int64_t bytes, SessionId session,
                         Ticket producer);
  // `fn(Buffer&)` for all shards of the array that are here, some of them together; fn may not delete.
  template <typename Fn>
  void ForEachShard(ArrayId array, Fn fn) {
    auto it = arrays_.find(array);
    if (it == arrays_.end()) return;
    if (it->second.together.valid()) fn(*slab_.Get(it->second.together));
    for (const auto& [shard, handle] : it->second.shards) fn(*slab_.Get(handle));
  }
  template <typename Fn>
  void ForEach(Fn fn) {
    slab_.ForEach([&](SlabHandle, Buffer& buffer) {
      if (!Separated(buffer)) fn(buffer);
    });
  }
  template <typename Fn>
  void ForEach(Fn fn) const {
    slab_.ForEach([&](SlabHandle, const Buffer& buffer) {
      if (!Separated(buffer)) fn(buffer);
    });
  }
  size_t size() const { return shards_; }

  // Where each of its shards lies: `fn(BufferRef, PoolId)`.
  template <typename Fn>
  static void ForEachPlace(const Buffer& buffer, Fn fn) {
    if (buffer.whole == nullptr) return fn(buffer.ref, buffer.pool);
    const ShardLayout& layout = *buffer.whole->layout;
    for (size_t i = 0; i < layout.size(); ++i) {
      fn(BufferRef{buffer.ref.array, layout.shards[i]}, PoolId{layout.devices[i], buffer.pool.host});
    }
  }
  static bool LiesIn(const Buffer& buffer, PoolId pool);
  // Its parts are Buffers of their own by now.
  static bool Separated(const Buffer& buffer) { return buffer.whole != nullptr && !buffer.whole->parts.empty(); }
  // `fn(Buffer&)` for each of those.
  template <typename Fn>
  static void ForEachPart(const Buffer& buffer, Fn fn) {
    if (buffer.whole == nullptr) return;
    for (Buffer* part : buffer.whole->parts) fn(*part);
  }

  // --- State, set by the producer. Promised comes once, if at all; before enqueued, or with it.
  void SetPromised(Buffer& buffer);
  void SetEnqueued(Buffer& buffer);
  void SetInShell(Buffer& buffer);
  void SetCanFailAlone(Buffer& buffer);
  // Its producer failed, but has not ended (what is before it may be the cause): whoever counted on it and is not
  // handed over waits again. A gang with an error among its inputs would hang in its collectives.
  void SetDoubtful(Buffer& buffer);
  void SetResident(Buffer& buffer);  // memory is the buffer's own from here on; already counted
  void SetPoisoned(Buffer& buffer, PoisonPtr poison);
  void AddWaiter(Buffer& buffer, Waiter who) { buffer.waiters.push_back(who); }

  // --- Users. Unpin, StopRunning and RequestDelete may erase the buffer.
  // Of a whole whose parts are separate no new users come: it is only found by those who have it already.
  void Pin(Buffer& buffer) { ++buffer.pins; }
  void Unpin(Buffer& buffer);
  void StartRunning(Buffer& buffer) {
    ++buffer.running;
    ForEachPart(buffer, [](Buffer& part) { ++part.running; });
  }
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
  using Shards = absl::InlinedVector<std::pair<uint32_t, SlabHandle>, 2>;  // ascending
  struct OfArray {
    SlabHandle together;  // all that one launch made here, as long as nobody named one shard of it alone
    Shards shards;        // the others
  };
  using Arrays = absl::flat_hash_map<ArrayId, OfArray>;

  bool IsTogether(const OfArray& array, uint32_t shard) const;
  void Separate(OfArray& array);
  static Shards::iterator Position(Shards& shards, uint32_t shard);
  static bool DonorMayTake(const Buffer& buffer);
  void CheckDonor(Buffer& buffer);
  void EraseIfUnneeded(Buffer& buffer);
  void LeaveShell(Buffer& buffer);

  WorkerSink* const sink_;
  MemoryAdmission* const memory_;
  Slab<Buffer> slab_;
  Arrays arrays_;
  size_t shards_ = 0;
  std::vector<Wake> wakes_;
  size_t next_wake_ = 0;
};

}  // namespace landbridge
