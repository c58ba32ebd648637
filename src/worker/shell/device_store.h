// Where the shards of arrays are: references to plugin buffers, some of which the dispatch threads have yet to make.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "pjrt/buffer.h"

namespace landbridge {

// The place of one buffer. Made on the loop's thread when the buffer gets its reference; filled, once, by whoever
// makes it: for outputs of a launch that is the thread that issues it, before it issues anything later on that
// device. So an item in a dispatch queue may hold slots that are still empty.
//
// Thread-safety: all members from any thread.
class BufferSlot : public std::enable_shared_from_this<BufferSlot> {
 public:
  void Fill(pjrt::Buffer buffer);
  void FillShared(std::shared_ptr<pjrt::Buffer> buffer);
  // The buffer will never be there. Later Fills are dropped.
  void Fail(absl::Status why);

  // Null while empty, after Take and after Fail.
  std::shared_ptr<pjrt::Buffer> buffer() const;
  absl::Status failure() const;  // OK unless failed
  // Empties the slot: the buffer was donated, or goes elsewhere. Null if there is none.
  std::shared_ptr<pjrt::Buffer> Take();

  // The bytes as they lie in memory, in place and undonated while the pin is held; it may be dropped on any thread.
  // The buffer must be resident. FAILED_PRECONDITION if there is no buffer.
  struct Pinned;
  absl::StatusOr<std::shared_ptr<const Pinned>> Pin();

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<pjrt::Buffer> buffer_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  absl::Mutex pin_mutex_;  // the plugin does not lock its counts of references
};

struct BufferSlot::Pinned {
  ~Pinned();
  std::byte* data() const { return static_cast<std::byte*>(reference.data()); }

  std::shared_ptr<BufferSlot> slot;
  std::shared_ptr<pjrt::Buffer> buffer;
  pjrt::ExternalReference reference;
};

// Thread-safety: the loop's thread only.
class DeviceStore {
 public:
  struct Entry {
    std::shared_ptr<BufferSlot> slot;
    int device = 0;
  };

  // A new, empty slot. A reference is used once; a second time (our own mistake) replaces the first.
  std::shared_ptr<BufferSlot> Create(BufferRef ref, int device);
  // Null if unknown. Valid until the next change.
  const Entry* Find(BufferRef ref) const;
  void Erase(BufferRef ref) { entries_.erase(ref); }
  void Clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

 private:
  absl::flat_hash_map<BufferRef, Entry> entries_;
};

}  // namespace landbridge
