// Bounded staging memory: aligned chunks that uploads and reads share.
//
//   Acquire --> granted (Lease) --> ~Lease --> next in line
//      \--> in line (FIFO) when the bound is reached; Withdraw leaves the line
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace landbridge::dataplane {

struct PoolOptions {
  uint64_t bytes_max = 64u << 20;       // given out at one time, and kept, together
  uint64_t idle_bytes_max = 16u << 20;  // kept for re-use when nobody holds them; the rest goes back to the system
  uint64_t chunk_bytes = 2u << 20;      // whole chunks are cached; a power of two, at least 4 KiB
};

struct PoolStats {
  uint64_t bytes_in_use = 0;
  uint64_t bytes_in_use_peak = 0;
  uint64_t bytes_idle = 0;
  uint64_t waiting = 0;
  uint64_t grants = 0;
  uint64_t allocations = 0;  // grants that needed fresh memory
};

// Thread-safety: all methods from any thread. Never blocks. `granted` callbacks run without a lock held, on a
// thread that acquires, withdraws or gives back: keep them short.
class Pool {
 private:
  struct State;

 public:
  // Memory of at most chunk_bytes. Gives it back when destroyed, on any thread; may outlive the pool.
  //
  // Thread-safety: a plain value with one owner.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease() { Release(); }
    std::byte* data() const { return data_; }
    uint64_t size() const { return size_; }
    explicit operator bool() const { return data_ != nullptr; }

   private:
    friend class Pool;
    void Release();
    std::shared_ptr<State> state_;
    std::byte* data_ = nullptr;
    uint64_t size_ = 0;
  };
  using Granted = std::function<void(Lease)>;
  using WaitId = uint64_t;

  explicit Pool(PoolOptions options);
  ~Pool();  // those in line are granted nothing (an empty Lease)
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  const PoolOptions& options() const { return options_; }

  // Calls granted once: from inside when there is room, else later, in order of asking. An empty lease: no
  // memory (the system has none, or the pool is going). `bytes` of 1 to chunk_bytes; anything else is a mistake.
  // 0: granted already; else what Withdraw takes.
  WaitId Acquire(uint64_t bytes, Granted granted);
  // Now or never. An empty lease when the bound is reached or somebody is in line.
  Lease TryAcquire(uint64_t bytes);
  // True: `granted` will not be called.
  bool Withdraw(WaitId wait);

  PoolStats Stats() const;

 private:
  const PoolOptions options_;
  std::shared_ptr<State> state_;
};

}  // namespace landbridge::dataplane
