#include "worker/memory_admission.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace landbridge {

int64_t AddBytes(int64_t a, int64_t b) {
  return a > std::numeric_limits<int64_t>::max() - b ? std::numeric_limits<int64_t>::max() : a + b;
}

std::string PoolId::ToString() const {
  return host ? absl::StrCat("host memory of device ", device) : absl::StrCat("device ", device);
}

MemoryAdmission::MemoryAdmission(const std::vector<int64_t>& device_bytes, const std::vector<int64_t>& host_bytes)
    : devices_(static_cast<uint32_t>(device_bytes.size())), pools_(2 * device_bytes.size()) {
  for (size_t i = 0; i < device_bytes.size(); ++i) {
    pools_[2 * i].limit = device_bytes[i];
    if (i < host_bytes.size()) pools_[2 * i + 1].limit = host_bytes[i];
  }
}

void MemoryAdmission::Take(Pool& pool, int64_t bytes) {
  pool.used = AddBytes(pool.used, bytes);
  pool.peak = std::max(pool.peak, pool.used);
}

MemoryAdmission::Answer MemoryAdmission::Ask(PoolId id, Key key, Waiter who, int64_t bytes) {
  if (bytes <= 0) return Answer::kReserved;
  Pool& pool = pools_[Index(id)];
  if (bytes > pool.limit) return Answer::kNeverFits;
  if (pool.waiting.empty() && bytes <= pool.limit - pool.used) {
    Take(pool, bytes);
    return Answer::kReserved;
  }
  auto [it, added] = pool.waiting.emplace(key, Request{who, bytes});
  waiting_ += added ? 1 : 0;
  if (it == pool.waiting.begin()) MarkDirty(Index(id));
  return Answer::kWaits;
}

void MemoryAdmission::Withdraw(PoolId id, Key key) {
  Pool& pool = pools_[Index(id)];
  auto it = pool.waiting.find(key);
  if (it == pool.waiting.end()) return;
  const bool was_head = it == pool.waiting.begin();
  pool.waiting.erase(it);
  --waiting_;
  if (was_head) MarkDirty(Index(id));
}

void MemoryAdmission::Release(PoolId id, int64_t bytes) {
  if (bytes <= 0) return;
  pools_[Index(id)].used -= bytes;
  MarkDirty(Index(id));
}

void MemoryAdmission::Grow(PoolId id, int64_t bytes) {
  if (bytes > 0) Take(pools_[Index(id)], bytes);
}

void MemoryAdmission::MarkDirty(size_t index) {
  Pool& pool = pools_[index];
  if (pool.dirty || pool.waiting.empty()) return;
  pool.dirty = true;
  dirty_.push_back(index);
}

std::optional<MemoryAdmission::Granted> MemoryAdmission::NextGranted() {
  while (!dirty_.empty()) {
    Pool& pool = pools_[dirty_.back()];
    auto head = pool.waiting.begin();
    if (head != pool.waiting.end() && head->second.bytes <= pool.limit - pool.used) {
      const Waiter who = head->second.who;
      Take(pool, head->second.bytes);
      pool.waiting.erase(head);
      --waiting_;
      return Granted{IdOf(dirty_.back()), who};  // still dirty: the next may fit too
    }
    pool.dirty = false;
    dirty_.pop_back();
  }
  return std::nullopt;
}

std::vector<MemoryAdmission::Blocked> MemoryAdmission::BlockedHeads() const {
  std::vector<Blocked> heads;
  for (size_t i = 0; i < pools_.size(); ++i) {
    if (pools_[i].waiting.empty()) continue;
    const auto& [key, request] = *pools_[i].waiting.begin();
    heads.push_back(Blocked{IdOf(i), key, request.who, request.bytes});
  }
  return heads;
}

std::optional<MemoryAdmission::Key> MemoryAdmission::Head(PoolId id) const {
  const Pool& pool = pools_[Index(id)];
  if (pool.waiting.empty()) return std::nullopt;
  return pool.waiting.begin()->first;
}

MemoryAdmission::Figures MemoryAdmission::figures(PoolId id) const {
  const Pool& pool = pools_[Index(id)];
  return Figures{pool.used, pool.limit, pool.peak};
}

absl::Status MemoryAdmission::DoesNotFit(PoolId id, Key key, int64_t bytes) const {
  const Figures f = figures(id);
  return absl::ResourceExhaustedError(absl::StrCat(key.ticket.ToString(), " needs ", bytes, " bytes on ", id.ToString(),
                                                   ": ", f.used, " of ", f.limit,
                                                   " bytes are in use, and no earlier work or delete will free enough. "
                                                   "Delete or donate arrays, or use smaller ones."));
}

}  // namespace landbridge
