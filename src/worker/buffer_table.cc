#include "worker/buffer_table.h"

#include <algorithm>
#include <utility>

namespace landbridge {

BufferTable::Shards::iterator BufferTable::Position(Shards& shards, uint32_t shard) {
  // Almost always dense: shard i of an array whose first shard here is s sits at i - s.
  if (!shards.empty() && shard >= shards.front().first) {
    const size_t guess = shard - shards.front().first;
    if (guess < shards.size() && shards[guess].first == shard) return shards.begin() + static_cast<ptrdiff_t>(guess);
  }
  return std::lower_bound(shards.begin(), shards.end(), shard,
                          [](const auto& entry, uint32_t wanted) { return entry.first < wanted; });
}

Buffer* BufferTable::Find(BufferRef ref) {
  auto it = arrays_.find(ref.array);
  if (it == arrays_.end()) return nullptr;
  auto position = Position(it->second, ref.shard);
  if (position == it->second.end() || position->first != ref.shard) return nullptr;
  return slab_.Get(position->second);
}

const Buffer* BufferTable::Find(BufferRef ref) const { return const_cast<BufferTable*>(this)->Find(ref); }

Buffer* BufferTable::Create(BufferRef ref, PoolId pool, int64_t bytes, SessionId session, Ticket producer) {
  Shards& shards = arrays_[ref.array];
  auto position = Position(shards, ref.shard);
  if (position != shards.end() && position->first == ref.shard) return nullptr;
  auto [handle, buffer] = slab_.Add();
  shards.insert(position, {ref.shard, handle});
  buffer->ref = ref;
  buffer->pool = pool;
  buffer->bytes = bytes;
  buffer->session = session;
  buffer->producer = producer;
  return buffer;
}

void BufferTable::SetPromised(Buffer& buffer) {
  if (std::exchange(buffer.promised, true)) return;
  for (const Waiter& waiter : buffer.waiters) {
    if (IsLaunch(waiter.kind)) wakes_.push_back(Wake{waiter, Event::kPromised, nullptr});
  }
}

void BufferTable::SetEnqueued(Buffer& buffer) {
  buffer.state = BufferState::kEnqueued;
  const bool was_promised = std::exchange(buffer.promised, true);
  for (Waiter& waiter : buffer.waiters) {
    const bool usable =
        waiter.kind == WaiterKind::kLaunch || (waiter.kind == WaiterKind::kLaunchGang && !buffer.can_fail_alone);
    if (usable) {
      wakes_.push_back(Wake{waiter, Event::kUsable, nullptr, was_promised});
      waiter.kind = WaiterKind::kLaunchPoison;
    } else if (!was_promised && IsLaunch(waiter.kind)) {
      wakes_.push_back(Wake{waiter, Event::kPromised, nullptr});
    }
  }
}

void BufferTable::SetDoubtful(Buffer& buffer) {
  buffer.doubtful = true;
  for (Waiter& waiter : buffer.waiters) {
    if (waiter.kind != WaiterKind::kLaunchPoison) continue;
    wakes_.push_back(Wake{waiter, Event::kDoubtful, nullptr});
    waiter.kind = WaiterKind::kLaunch;
  }
}

void BufferTable::SetResident(Buffer& buffer) {
  buffer.state = BufferState::kResident;
  buffer.charged = true;
  for (const Waiter& waiter : buffer.waiters) {
    if (waiter.kind == WaiterKind::kLaunchPoison) continue;
    wakes_.push_back(Wake{waiter, Event::kUsable, nullptr, buffer.promised});
  }
  buffer.waiters.clear();
}

void BufferTable::SetPoisoned(Buffer& buffer, PoisonPtr poison) {
  buffer.state = BufferState::kPoisoned;
  buffer.poison = std::move(poison);
  for (const Waiter& waiter : buffer.waiters) wakes_.push_back(Wake{waiter, Event::kPoisoned, buffer.poison});
  buffer.waiters.clear();
  if (buffer.running == 0) {
    LeaveShell(buffer);
  } else if (buffer.in_shell && !buffer.charged) {
    memory_->Grow(buffer.pool, buffer.bytes);  // the plugin may keep it for what was handed over with it
    buffer.charged = true;
  }
}

void BufferTable::LeaveShell(Buffer& buffer) {
  if (!buffer.in_shell) return;
  buffer.in_shell = false;
  sink_->Free(buffer.ref);
  if (std::exchange(buffer.charged, false)) memory_->Release(buffer.pool, buffer.bytes);
}

void BufferTable::Unpin(Buffer& buffer) {
  --buffer.pins;
  CheckDonor(buffer);
  EraseIfUnneeded(buffer);
}

void BufferTable::StopRunning(Buffer& buffer) {
  --buffer.running;
  if (buffer.running == 0 && buffer.state == BufferState::kPoisoned) LeaveShell(buffer);
}

void BufferTable::RequestDelete(Buffer& buffer) {
  buffer.delete_requested = true;
  EraseIfUnneeded(buffer);
}

void BufferTable::EraseIfUnneeded(Buffer& buffer) {
  if (!buffer.delete_requested || buffer.pins > 0) return;
  LeaveShell(buffer);
  auto array = arrays_.find(buffer.ref.array);
  auto position = Position(array->second, buffer.ref.shard);
  const SlabHandle handle = position->second;
  array->second.erase(position);
  if (array->second.empty()) arrays_.erase(array);
  slab_.Erase(handle);
}

void BufferTable::RemoveUnplacedReader(Buffer& buffer) {
  --buffer.unplaced_readers;
  CheckDonor(buffer);
}

void BufferTable::EndTransfer(Buffer& buffer) {
  --buffer.transfers;
  CheckDonor(buffer);
}

bool BufferTable::DonorMayTake(const Buffer& buffer) {
  if (buffer.donor_is_make) return buffer.pins == 1;
  return buffer.unplaced_readers == 0 && buffer.transfers == 0;
}

bool BufferTable::SetDonor(Buffer& buffer, Waiter donor, Ticket ticket, bool is_make) {
  buffer.donor = donor;
  buffer.donor_ticket = ticket;
  buffer.donor_is_make = is_make;
  buffer.donor_cleared = DonorMayTake(buffer);
  for (uint64_t read : buffer.open_reads) sink_->SnapshotRead(read);
  for (TransferId send : buffer.open_sends) sink_->SnapshotPublish(send);
  return buffer.donor_cleared;
}

void BufferTable::CheckDonor(Buffer& buffer) {
  if (buffer.donor.kind == WaiterKind::kNone || buffer.donor_cleared || !DonorMayTake(buffer)) return;
  buffer.donor_cleared = true;
  wakes_.push_back(Wake{buffer.donor, Event::kMayTake, nullptr});
}

bool BufferTable::NextWake(Wake* wake) {
  if (next_wake_ == wakes_.size()) {
    wakes_.clear();
    next_wake_ = 0;
    return false;
  }
  *wake = std::move(wakes_[next_wake_++]);
  return true;
}

}  // namespace landbridge
