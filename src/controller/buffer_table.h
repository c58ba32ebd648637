// Arrays, the buffers that they stand on, and who still needs those.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "controller/cluster_table.h"
#include "controller/controller.h"

namespace landbridge::ctl {

class Dispatcher;

// One shard's memory on one worker.
struct Shard {
  enum Flag : uint8_t {
    kTold = 1,     // the worker knows it, or will by an operation that waits
    kReady = 2,    // has its bytes
    kFailed = 4,   // will never have them: `error`
    kDead = 8,     // deleted or donated
    kOrphan = 16,  // the worker does not know whose it is
  };
  Life* life = nullptr;  // null: it never existed, or its worker is lost
  absl::Status error;
  uint32_t views = 0;  // arrays that hold this shard, not the whole group
  uint8_t flags = 0;

  bool Is(Flag flag) const { return (flags & flag) != 0; }
};

// The buffers that one operation made. Most groups have one shard: no allocation for it.
struct Group {
  ArrayId id;  // that made it; what workers call it
  uint32_t count = 0;
  uint32_t arrays = 0;                       // that hold all of it
  uint32_t views = 0;                        // sum over the shards
  uint32_t ready = 0, failed = 0, dead = 0;  // numbers of such shards
  int64_t shard_bytes = 0;                   // of the first
  Shard one;
  std::unique_ptr<Shard[]> many;

  Shard& at(uint32_t i) { return count == 1 ? one : many[i]; }
  const Shard& at(uint32_t i) const { return count == 1 ? one : many[i]; }
};

struct ShardRef {
  Group* group = nullptr;
  uint32_t shard = 0;
  Shard& operator*() const { return group->at(shard); }
  Shard* operator->() const { return &group->at(shard); }
  BufferRef ref() const { return {group->id, shard}; }
};

struct Array {
  enum class Form : uint8_t { kNone, kWhole, kOne, kMany };  // none: an error, or deleted

  SessionId session;
  std::shared_ptr<const ArraySpec> spec;
  Group* group = nullptr;                       // kWhole, kOne
  std::unique_ptr<std::vector<ShardRef>> many;  // kMany: one per shard of the spec
  absl::Status error;                           // of the array as a whole
  uint32_t shard = 0;                           // kOne
  Form form = Form::kNone;
  bool deleted = false;

  uint32_t size() const {
    switch (form) {
      case Form::kNone: return 0;
      case Form::kWhole: return group->count;
      case Form::kOne: return 1;
      case Form::kMany: return static_cast<uint32_t>(many->size());
    }
    return 0;
  }
  ShardRef at(uint32_t i) const {
    if (form == Form::kMany) return (*many)[i];
    return {group, form == Form::kOne ? shard : i};
  }
};

class BufferTable {
 public:
  explicit BufferTable(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}
  ~BufferTable();
  BufferTable(const BufferTable&) = delete;
  BufferTable& operator=(const BufferTable&) = delete;

  // Null if unknown or another session's: the two look the same.
  Array* Find(SessionId session, ArrayId id) const;
  Group* FindGroup(ArrayId id) const;

  ArrayId NextId() { return ArrayId(next_++); }
  // The caller fills in lives and flags; the group stays as long as arrays hold it.
  Group* NewGroup(ArrayId id, uint32_t count, int64_t shard_bytes);
  Array* NewWhole(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec, Group* group);
  // One shard per shard of the spec. Takes the simplest form.
  Array* NewView(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec, std::vector<ShardRef> shards);
  Array* NewOf(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec, ShardRef shard);
  Array* NewError(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec, absl::Status error);

  bool Deleted(const Array& array) const;
  // Of the array, or of its first failed shard.
  absl::Status Error(const Array& array) const;
  bool Ready(const Array& array) const;  // all shards are

  void MarkReady(Group* group, uint32_t shard);
  // Keeps the first error; nothing if it is ready. False if nothing changed.
  bool MarkFailed(Group* group, uint32_t shard, const absl::Status& error);
  // Unmarks kDead, for an operation that is refused after all.
  void Revive(ShardRef shard);
  // Sets kDead. False if it is dead already.
  bool Kill(ShardRef shard);

  // The array is gone for its client.
  void Release(SessionId session, ArrayId id);
  // The array is deleted, its buffers live on in other arrays; freed if there are none.
  void Abandon(Array* array);
  // The user's delete(): buffers go now, for all arrays that hold them.
  void Destroy(Array* array);
  // Without telling the workers, who hear that the session has ended.
  void DropSession(SessionId session);
  // All its shards are lost with `why`.
  void LoseLife(Life* life, const absl::Status& why);

  size_t arrays() const { return arrays_; }
  size_t groups() const { return groups_; }
  void ForEachArray(absl::FunctionRef<void(ArrayId, const Array&)> fn) const;  // in no order
  void ForEachGroup(absl::FunctionRef<void(const Group&)> fn) const;

 private:
  // An array and the buffers made under the same id live apart: aliases outlast what they alias.
  struct Entry {
    Array* array = nullptr;
    Group* group = nullptr;
  };

  Array* NewArray(ArrayId id, SessionId session, std::shared_ptr<const ArraySpec> spec);
  void Let(Array* array);                        // go of its buffers
  void Settle(Group* group, SessionId session);  // free what nobody holds any more
  void FreeShard(Group* group, uint32_t shard, SessionId session);
  void FreeGroup(Group* group);
  void Erase(ArrayId id);  // if nothing is left of it

  Dispatcher* const dispatcher_;
  uint64_t next_ = 1;
  absl::flat_hash_map<ArrayId, Entry> table_;
  size_t arrays_ = 0;
  size_t groups_ = 0;
  bool tell_ = true;  // workers, of deletes
};

}  // namespace landbridge::ctl
