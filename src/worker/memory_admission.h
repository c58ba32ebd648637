// Memory of the worker's devices and hosts, given out strictly in ticket order: a younger node never reserves past an
// older one that has not [2 of scheduler.md]; else the younger ones eat what the older one needs, whose outputs they
// may be waiting for.
//
// Pure. Not thread-safe. All sizes in bytes.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "worker/waiter.h"

namespace landbridge {

// a + b for sizes >= 0, without overflow.
int64_t AddBytes(int64_t a, int64_t b);

// Which memory: of a device, or of the host for that device.
struct PoolId {
  uint32_t device = 0;
  bool host = false;
  std::string ToString() const;  // "device 1", "host memory of device 1"
  friend auto operator<=>(const PoolId&, const PoolId&) = default;
};

class MemoryAdmission {
 public:
  struct Key {
    Ticket ticket;
    uint32_t part = 0;  // of a node whose parts reserve one by one
    friend auto operator<=>(const Key&, const Key&) = default;
  };
  struct Figures {
    int64_t used = 0, limit = 0, peak = 0;
  };
  struct Blocked {  // the oldest request of a pool, which does not fit now
    PoolId pool;
    Key key;
    Waiter who;
    int64_t bytes = 0;
  };
  struct Granted {
    PoolId pool;
    Waiter who;
  };
  enum class Answer { kReserved, kWaits, kNeverFits };

  // A missing host limit means none.
  MemoryAdmission(const std::vector<int64_t>& device_bytes, const std::vector<int64_t>& host_bytes);

  uint32_t devices() const { return devices_; }

  // kWaits: NextGranted will return `who`, once. Needs of 0 are always reserved at once.
  Answer Ask(PoolId pool, Key key, Waiter who, int64_t bytes);
  void Withdraw(PoolId pool, Key key);  // of a request that waits
  void Release(PoolId pool, int64_t bytes);
  void Grow(PoolId pool, int64_t bytes);  // unconditionally: what was promised otherwise before
  // Reserves for the next request that fits and is its pool's oldest.
  std::optional<Granted> NextGranted();
  std::vector<Blocked> BlockedHeads() const;
  bool AnyWaiting() const { return waiting_ > 0; }
  std::optional<Key> Head(PoolId pool) const;

  Figures figures(PoolId pool) const;
  absl::Status DoesNotFit(PoolId pool, Key key, int64_t bytes) const;

 private:
  struct Request {
    Waiter who;
    int64_t bytes;
  };
  struct Pool {
    int64_t used = 0, limit = std::numeric_limits<int64_t>::max(), peak = 0;
    absl::btree_map<Key, Request> waiting;
    bool dirty = false;  // a request may fit since the last look
  };

  size_t Index(PoolId pool) const { return size_t{2} * pool.device + (pool.host ? 1 : 0); }
  PoolId IdOf(size_t index) const { return PoolId{static_cast<uint32_t>(index / 2), index % 2 == 1}; }
  void MarkDirty(size_t index);
  void Take(Pool& pool, int64_t bytes);

  const uint32_t devices_;
  std::vector<Pool> pools_;
  std::vector<size_t> dirty_;
  size_t waiting_ = 0;  // requests, in all pools
};

}  // namespace landbridge
