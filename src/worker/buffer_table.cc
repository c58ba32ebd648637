#include "worker/buffer_table.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

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

bool BufferTable::LiesIn(const Buffer& buffer, PoolId pool) {
  if (buffer.whole == nullptr) return buffer.pool == pool;
  const std::vector<uint32_t>& devices = buffer.whole->layout->devices;
  return buffer.pool.host == pool.host && std::find(devices.begin(), devices.end(), pool.device) != devices.end();
}

// ---------------------------------------------------------------- one and many

bool BufferTable::IsTogether(const OfArray& array, uint32_t shard) const {
  if (!array.together.valid()) return false;
  const std::vector<uint32_t>& shards = slab_.Get(array.together)->whole->layout->shards;
  return std::find(shards.begin(), shards.end(), shard) != shards.end();
}

bool BufferTable::Exists(BufferRef ref) const {
  auto it = arrays_.find(ref.array);
  if (it == arrays_.end()) return false;
  return IsTogether(it->second, ref.shard) || std::any_of(it->second.shards.begin(), it->second.shards.end(),
                                                          [&](const auto& entry) { return entry.first == ref.shard; });
}

Buffer* BufferTable::Find(BufferRef ref) {
  auto it = arrays_.find(ref.array);
  if (it == arrays_.end()) return nullptr;
  if (IsTogether(it->second, ref.shard)) Separate(it->second);
  Shards& shards = it->second.shards;
  auto position = Position(shards, ref.shard);
  if (position == shards.end() || position->first != ref.shard) return nullptr;
  return slab_.Get(position->second);
}

Buffer* BufferTable::FindTogether(ArrayId array, const ShardLayout& layout) {
  auto it = arrays_.find(array);
  if (it == arrays_.end() || !it->second.together.valid() || !it->second.shards.empty()) return nullptr;
  Buffer* whole = slab_.Get(it->second.together);
  const ShardLayoutPtr& lies = whole->whole->layout;
  return lies.get() == &layout || *lies == layout ? whole : nullptr;
}

Buffer* BufferTable::Create(BufferRef ref, PoolId pool, int64_t bytes, SessionId session, Ticket producer) {
  OfArray& array = arrays_[ref.array];
  auto position = Position(array.shards, ref.shard);
  if (position != array.shards.end() && position->first == ref.shard) return nullptr;
  if (IsTogether(array, ref.shard)) return nullptr;
  auto [handle, buffer] = slab_.Add();
  array.shards.insert(position, {ref.shard, handle});
  ++shards_;
  buffer->ref = ref;
  buffer->pool = pool;
  buffer->bytes = bytes;
  buffer->session = session;
  buffer->producer = producer;
  return buffer;
}

Buffer* BufferTable::CreateTogether(ArrayId id, ShardLayoutPtr layout, bool host, int64_t bytes, SessionId session,
                                    Ticket producer) {
  OfArray& array = arrays_[id];
  LB_CHECK(layout->size() > 1 && array.shards.empty() && !array.together.valid());
  auto [handle, buffer] = slab_.Add();
  array.together = handle;
  shards_ += layout->size();
  buffer->ref = BufferRef{id, layout->shards[0]};
  buffer->pool = PoolId{layout->devices[0], host};
  buffer->bytes = bytes;
  buffer->session = session;
  buffer->producer = producer;
  buffer->whole = std::make_shared<BufferWhole>(BufferWhole{std::move(layout), handle, {}});
  return buffer;
}

// Whoever waits for the whole waits for each part from here on. What was pushed before stays right: it is for those who do
// not wait any more.
void BufferTable::Separate(OfArray& array) {
  Buffer& all = *slab_.Get(std::exchange(array.together, SlabHandle()));
  std::shared_ptr<BufferWhole> whole = std::move(all.whole);
  const int count = static_cast<int>(whole->layout->size());
  for (size_t i = 0; i < whole->layout->size(); ++i) {
    auto [handle, part] = slab_.Add();
    *part = all;
    part->ref.shard = whole->layout->shards[i];
    part->pool.device = whole->layout->devices[i];
    array.shards.insert(Position(array.shards, part->ref.shard), {part->ref.shard, handle});
    whole->parts.push_back(part);
  }
  for (const Waiter& waiter : all.waiters) {
    if (waiter.kind == WaiterKind::kLaunchPoison) continue;  // counts nothing
    wakes_.push_back(Wake{waiter, Event::kMore, nullptr, all.promised, count - 1});
  }
  if (all.donor.kind != WaiterKind::kNone && !all.donor_cleared) {
    wakes_.push_back(Wake{all.donor, Event::kMoreToTake, nullptr, false, count - 1});
  }
  if (all.pins == 0) return slab_.Erase(whole->self);
  all.waiters.clear();
  all.donor = Waiter();
  all.in_shell = all.charged = all.delete_requested = false;
  all.whole = std::move(whole);
}

// ---------------------------------------------------------------- state

void BufferTable::SetPromised(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { SetPromised(part); });
  if (std::exchange(buffer.promised, true)) return;
  for (const Waiter& waiter : buffer.waiters) {
    if (IsLaunch(waiter.kind)) wakes_.push_back(Wake{waiter, Event::kPromised, nullptr});
  }
}

void BufferTable::SetEnqueued(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { SetEnqueued(part); });
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

void BufferTable::SetInShell(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { SetInShell(part); });
  buffer.in_shell = !Separated(buffer);
}

void BufferTable::SetCanFailAlone(Buffer& buffer) {
  ForEachPart(buffer, [](Buffer& part) { part.can_fail_alone = true; });
  buffer.can_fail_alone = true;
}

void BufferTable::SetDoubtful(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { SetDoubtful(part); });
  buffer.doubtful = true;
  for (Waiter& waiter : buffer.waiters) {
    if (waiter.kind != WaiterKind::kLaunchPoison) continue;
    wakes_.push_back(Wake{waiter, Event::kDoubtful, nullptr});
    waiter.kind = WaiterKind::kLaunch;
  }
}

void BufferTable::SetResident(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { SetResident(part); });
  buffer.state = BufferState::kResident;
  buffer.charged = !Separated(buffer);
  for (const Waiter& waiter : buffer.waiters) {
    if (waiter.kind == WaiterKind::kLaunchPoison) continue;
    wakes_.push_back(Wake{waiter, Event::kUsable, nullptr, buffer.promised});
  }
  buffer.waiters.clear();
}

void BufferTable::SetPoisoned(Buffer& buffer, PoisonPtr poison) {
  ForEachPart(buffer, [&](Buffer& part) { SetPoisoned(part, poison); });
  buffer.state = BufferState::kPoisoned;
  buffer.poison = std::move(poison);
  for (const Waiter& waiter : buffer.waiters) wakes_.push_back(Wake{waiter, Event::kPoisoned, buffer.poison});
  buffer.waiters.clear();
  if (buffer.running == 0) {
    LeaveShell(buffer);
  } else if (buffer.in_shell && !buffer.charged) {
    // The plugin may keep it for what was handed over with it.
    ForEachPlace(buffer, [&](BufferRef, PoolId pool) { memory_->Grow(pool, buffer.bytes); });
    buffer.charged = true;
  }
}

void BufferTable::LeaveShell(Buffer& buffer) {
  if (!buffer.in_shell) return;
  buffer.in_shell = false;
  const bool charged = std::exchange(buffer.charged, false);
  ForEachPlace(buffer, [&](BufferRef ref, PoolId pool) {
    sink_->Free(ref);
    if (charged) memory_->Release(pool, buffer.bytes);
  });
}

// ---------------------------------------------------------------- users

// The last user of a separated whole takes it away with it. The parts have this user, too, so they are all there until then.
void BufferTable::Unpin(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { Unpin(part); });
  --buffer.pins;
  if (Separated(buffer)) {
    if (buffer.pins == 0) slab_.Erase(buffer.whole->self);
    return;
  }
  CheckDonor(buffer);
  EraseIfUnneeded(buffer);
}

void BufferTable::StopRunning(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { StopRunning(part); });
  --buffer.running;
  if (buffer.running == 0 && buffer.state == BufferState::kPoisoned) LeaveShell(buffer);
}

void BufferTable::RequestDelete(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { RequestDelete(part); });
  if (Separated(buffer)) return;
  buffer.delete_requested = true;
  EraseIfUnneeded(buffer);
}

void BufferTable::EraseIfUnneeded(Buffer& buffer) {
  if (!buffer.delete_requested || buffer.pins > 0) return;
  LeaveShell(buffer);
  auto array = arrays_.find(buffer.ref.array);
  SlabHandle handle;
  if (buffer.whole != nullptr) {
    shards_ -= buffer.whole->layout->size();
    handle = std::exchange(array->second.together, SlabHandle());
  } else {
    --shards_;
    const auto position = Position(array->second.shards, buffer.ref.shard);
    handle = position->second;
    array->second.shards.erase(position);
  }
  if (array->second.shards.empty() && !array->second.together.valid()) arrays_.erase(array);
  slab_.Erase(handle);
}

void BufferTable::RemoveUnplacedReader(Buffer& buffer) {
  ForEachPart(buffer, [&](Buffer& part) { RemoveUnplacedReader(part); });
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
