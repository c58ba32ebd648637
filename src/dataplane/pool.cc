#include "dataplane/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "base/log.h"

namespace landbridge::dataplane {
namespace {

std::byte* AllocateChunk(uint64_t bytes, uint64_t alignment) {
  void* data = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) return nullptr;
  // Faulting in 4 KiB pages costs several times the copy itself; the advice may be ignored.
  if (bytes >= (2u << 20)) madvise(data, bytes, MADV_HUGEPAGE);
  return static_cast<std::byte*>(data);
}

}  // namespace

// What leases share with the pool, so that they may outlive it. Small requests are counted at their own size and
// come from the heap; only whole chunks are cached.
struct Pool::State : std::enable_shared_from_this<Pool::State> {
  struct Waiter {
    WaitId id = 0;
    uint64_t bytes = 0;
    Granted granted;
  };

  explicit State(const PoolOptions& o) : options(o) {}
  ~State() {
    for (std::byte* chunk : idle) std::free(chunk);
  }

  bool Whole(uint64_t bytes) const { return bytes > options.chunk_bytes / 2; }

  // Room for `bytes`, the idle chunks counted as room.
  bool HasRoom(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return in_use + Cost(bytes) <= options.bytes_max;
  }
  uint64_t Cost(uint64_t bytes) const { return Whole(bytes) ? options.chunk_bytes : bytes; }

  std::byte* Take(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    std::byte* data = nullptr;
    if (Whole(bytes) && !idle.empty()) {
      data = idle.back();
      idle.pop_back();
    } else {
      while (!idle.empty() && in_use + idle.size() * options.chunk_bytes + Cost(bytes) > options.bytes_max) {
        std::free(idle.back());
        idle.pop_back();
      }
      data = Whole(bytes) ? AllocateChunk(options.chunk_bytes, options.chunk_bytes) : AllocateChunk(bytes, 4096);
      ++allocations;
    }
    if (data == nullptr) return nullptr;
    in_use += Cost(bytes);
    peak = std::max(peak, in_use);
    ++grants;
    return data;
  }

  void GiveBack(std::byte* data, uint64_t bytes) {
    {
      absl::MutexLock lock(&mutex);
      in_use -= Cost(bytes);
      const bool keep = !closed && Whole(bytes) && (idle.size() + 1) * options.chunk_bytes <= options.idle_bytes_max &&
                        in_use + (idle.size() + 1) * options.chunk_bytes <= options.bytes_max;
      // Somebody in line takes it at once, whatever idle_bytes_max says.
      const bool wanted = !closed && Whole(bytes) && !waiters.empty();
      if (keep || wanted) {
        idle.push_back(data);
      } else {
        std::free(data);
      }
      ServeLine();
      while (idle.size() * options.chunk_bytes > options.idle_bytes_max) {
        std::free(idle.back());
        idle.pop_back();
      }
    }
    RunReady();
  }

  // Moves from the line to `ready` whoever fits.
  void ServeLine() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!waiters.empty() && HasRoom(waiters.front().bytes)) {
      Waiter waiter = std::move(waiters.front());
      waiters.pop_front();
      ready.emplace_back(std::move(waiter.granted), MakeLease(waiter.bytes));
    }
  }

  // A callback may give its lease back at once, which readies the next: a loop, not a recursion. One thread at a
  // time runs it, which also keeps the order.
  void RunReady() {
    for (;;) {
      std::pair<Granted, Lease> next;
      {
        absl::MutexLock lock(&mutex);
        if (running || ready.empty()) return;
        running = true;
        next = std::move(ready.front());
        ready.pop_front();
      }
      next.first(std::move(next.second));
      next.first = nullptr;
      absl::MutexLock lock(&mutex);
      running = false;
    }
  }

  Lease MakeLease(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lease lease;
    lease.data_ = Take(bytes);
    if (lease.data_ == nullptr) return lease;
    lease.size_ = bytes;
    lease.state_ = shared_from_this();
    return lease;
  }

  const PoolOptions options;
  absl::Mutex mutex;
  std::vector<std::byte*> idle ABSL_GUARDED_BY(mutex);
  std::deque<Waiter> waiters ABSL_GUARDED_BY(mutex);
  std::deque<std::pair<Granted, Lease>> ready ABSL_GUARDED_BY(mutex);
  bool running ABSL_GUARDED_BY(mutex) = false;
  uint64_t in_use ABSL_GUARDED_BY(mutex) = 0;
  uint64_t peak ABSL_GUARDED_BY(mutex) = 0;
  uint64_t grants ABSL_GUARDED_BY(mutex) = 0;
  uint64_t allocations ABSL_GUARDED_BY(mutex) = 0;
  WaitId next_wait ABSL_GUARDED_BY(mutex) = 1;
  bool closed ABSL_GUARDED_BY(mutex) = false;
};

Pool::Lease& Pool::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  state_ = std::move(other.state_);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  return *this;
}

void Pool::Lease::Release() {
  if (data_ == nullptr) return;
  const std::shared_ptr<State> state = std::move(state_);
  state->GiveBack(std::exchange(data_, nullptr), std::exchange(size_, 0));
}

Pool::Pool(PoolOptions options) : options_(options), state_(std::make_shared<State>(options)) {
  LB_CHECK(options.chunk_bytes >= 4096 && (options.chunk_bytes & (options.chunk_bytes - 1)) == 0);
  LB_CHECK(options.bytes_max >= options.chunk_bytes);
}

Pool::~Pool() {
  std::deque<State::Waiter> waiters;
  {
    absl::MutexLock lock(&state_->mutex);
    state_->closed = true;
    waiters.swap(state_->waiters);
    for (std::byte* chunk : state_->idle) std::free(chunk);
    state_->idle.clear();
  }
  for (State::Waiter& waiter : waiters) waiter.granted(Lease());
}

Pool::WaitId Pool::Acquire(uint64_t bytes, Granted granted) {
  LB_CHECK(bytes > 0 && bytes <= options_.chunk_bytes);
  Lease lease;
  {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->waiters.empty() || !state_->HasRoom(bytes)) {
      const WaitId id = state_->next_wait++;
      state_->waiters.push_back({id, bytes, std::move(granted)});
      return id;
    }
    lease = state_->MakeLease(bytes);
  }
  granted(std::move(lease));
  return 0;
}

Pool::Lease Pool::TryAcquire(uint64_t bytes) {
  LB_CHECK(bytes > 0 && bytes <= options_.chunk_bytes);
  absl::MutexLock lock(&state_->mutex);
  if (!state_->waiters.empty() || !state_->HasRoom(bytes)) return Lease();
  return state_->MakeLease(bytes);
}

bool Pool::Withdraw(WaitId wait) {
  State::Waiter withdrawn;  // destroyed without the lock
  {
    absl::MutexLock lock(&state_->mutex);
    auto& waiters = state_->waiters;
    auto it = std::find_if(waiters.begin(), waiters.end(), [wait](const State::Waiter& w) { return w.id == wait; });
    if (it == waiters.end()) return false;
    withdrawn = std::move(*it);
    waiters.erase(it);
    state_->ServeLine();  // a large request in front may have held back smaller ones that fit
  }
  state_->RunReady();
  return true;
}

PoolStats Pool::Stats() const {
  absl::MutexLock lock(&state_->mutex);
  PoolStats stats;
  stats.bytes_in_use = state_->in_use;
  stats.bytes_in_use_peak = state_->peak;
  stats.bytes_idle = state_->idle.size() * options_.chunk_bytes;
  stats.waiting = state_->waiters.size();
  stats.grants = state_->grants;
  stats.allocations = state_->allocations;
  return stats;
}

}  // namespace landbridge::dataplane
