// What peers take of ours: memory or values still to be computed, which are free when everything expected was taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "dataplane/data_plane.h"

namespace landbridge {

// Where one exchange of a collective goes. Exact: nothing is hashed.
struct CollectiveKey {
  int phase = 0;           // below 4
  int32_t op = 0;          // below kCollectiveOpsMax
  int64_t occurrence = 0;  // below kCollectiveOccurrencesMax
  int32_t device = 0;      // logical, below kCollectiveRanksMax: whose value, or the first of those that it sums up
  int operand = 0;         // below kCollectiveOperandsMax
  uint64_t Pack() const;
  static CollectiveKey Unpack(uint64_t packed);  // of any number
};

// Counts what was read and let go of again. Thread-safety: all members from any thread.
class Outgoing : public dataplane::Source, public std::enable_shared_from_this<Outgoing> {
 public:
  // `size`: all bytes. `expected`: how many peers will take, over all of them; 0 is not allowed (publish nothing then).
  Outgoing(int64_t size, int64_t expected) : size_(size), left_(expected) {}

  uint64_t size() const override { return static_cast<uint64_t>(size_); }
  void Read(uint64_t offset, uint64_t bytes, dataplane::ReadDone done) final;

  // Before it is published. Called once: when all was taken, or by End.
  void OnDrained(absl::AnyInvocable<void()> drained);
  // Nobody reads it any more.
  void End();

 protected:
  // As Source::Read.
  virtual void Produce(int64_t offset, int64_t bytes, dataplane::ReadDone done) = 0;

 private:
  void Released(int64_t bytes);
  const int64_t size_;
  absl::Mutex mutex_;
  int64_t left_ ABSL_GUARDED_BY(mutex_);
  absl::AnyInvocable<void()> drained_ ABSL_GUARDED_BY(mutex_);
};

// Memory that is there.
class OutgoingMemory final : public Outgoing {
 public:
  OutgoingMemory(const std::byte* data, int64_t size, int64_t expected, std::shared_ptr<const void> owner)
      : Outgoing(size, expected), data_(data), owner_(std::move(owner)) {}

 private:
  void Produce(int64_t offset, int64_t bytes, dataplane::ReadDone done) override;
  const std::byte* const data_;
  const std::shared_ptr<const void> owner_;
};

// Values that are computed when they are asked for, on the executor.
class OutgoingValues final : public Outgoing {
 public:
  // Writes `bytes` from `offset` on. Any thread, several at once.
  using Compute = std::function<void(int64_t offset, int64_t bytes, std::byte* out)>;
  using Executor = std::function<void(absl::AnyInvocable<void()>)>;
  OutgoingValues(int64_t size, int64_t expected, Executor executor, Compute compute)
      : Outgoing(size, expected), executor_(std::move(executor)), compute_(std::move(compute)) {}
  bool copies() const override { return true; }

 private:
  void Produce(int64_t offset, int64_t bytes, dataplane::ReadDone done) override;
  const Executor executor_;
  const Compute compute_;
};

// Values that take more than computing: others' come first. Not bounded as copies are, since what a reader waits for may
// itself wait for copies of its mates; bounded by what readers ask for at a time (kCollectivePiecesInFlight).
class OutgoingLater final : public Outgoing {
 public:
  // As Source::Read.
  using Fetch = std::function<void(int64_t offset, int64_t bytes, dataplane::ReadDone done)>;
  OutgoingLater(int64_t size, int64_t expected, Fetch fetch) : Outgoing(size, expected), fetch_(std::move(fetch)) {}

 private:
  void Produce(int64_t offset, int64_t bytes, dataplane::ReadDone done) override {
    fetch_(offset, bytes, std::move(done));
  }
  const Fetch fetch_;
};

}  // namespace landbridge
