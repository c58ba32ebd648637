#include "collectives/outgoing.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "collectives/collective_program.h"

namespace landbridge {

uint64_t CollectiveKey::Pack() const {
  uint64_t packed = 0;
  auto add = [&packed](int64_t value, uint64_t count) {
    LB_CHECK(value >= 0 && static_cast<uint64_t>(value) < count);
    packed = packed * count + static_cast<uint64_t>(value);
  };
  add(phase, 4);
  add(op, kCollectiveOpsMax);
  add(occurrence, kCollectiveOccurrencesMax);
  add(device, kCollectiveRanksMax);
  add(operand, kCollectiveOperandsMax);
  return packed;
}

CollectiveKey CollectiveKey::Unpack(uint64_t packed) {
  auto take = [&packed](uint64_t count) {
    const uint64_t value = packed % count;
    packed /= count;
    return value;
  };
  CollectiveKey key;
  key.operand = static_cast<int>(take(kCollectiveOperandsMax));
  key.device = static_cast<int32_t>(take(kCollectiveRanksMax));
  key.occurrence = static_cast<int64_t>(take(kCollectiveOccurrencesMax));
  key.op = static_cast<int32_t>(take(kCollectiveOpsMax));
  key.phase = static_cast<int>(take(4));
  return key;
}

void Outgoing::Read(uint64_t offset, uint64_t bytes, dataplane::ReadDone done) {
  auto self = shared_from_this();
  Produce(static_cast<int64_t>(offset), static_cast<int64_t>(bytes),
          [self, done = std::move(done)](absl::StatusOr<dataplane::Chunk> chunk) {
            if (chunk.ok()) {
              // The chunk's owner is let go when the peer has the bytes.
              auto count = [self, inner = chunk->owner, size = static_cast<int64_t>(chunk->size)](const void*) mutable {
                inner.reset();
                self->Released(size);
              };
              chunk->owner = std::shared_ptr<const void>(chunk->data, std::move(count));
            }
            done(std::move(chunk));
          });
}

void Outgoing::OnDrained(absl::AnyInvocable<void()> drained) {
  absl::MutexLock lock(&mutex_);
  drained_ = std::move(drained);
}

void Outgoing::End() {
  absl::AnyInvocable<void()> drained;
  {
    absl::MutexLock lock(&mutex_);
    drained = std::exchange(drained_, nullptr);
  }
  if (drained) drained();
}

void Outgoing::Released(int64_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    left_ -= bytes;
    if (left_ > 0) return;
  }
  End();
}

void OutgoingMemory::Produce(int64_t offset, int64_t bytes, dataplane::ReadDone done) {
  done(dataplane::Chunk{data_ + offset, static_cast<uint64_t>(bytes), owner_});
}

void OutgoingValues::Produce(int64_t offset, int64_t bytes, dataplane::ReadDone done) {
  executor_(
      [self = std::static_pointer_cast<OutgoingValues>(shared_from_this()), offset, bytes, done = std::move(done)] {
        auto values = std::make_shared<std::vector<std::byte>>(static_cast<size_t>(bytes));
        self->compute_(offset, bytes, values->data());
        done(dataplane::Chunk{values->data(), static_cast<uint64_t>(bytes), values});
      });
}

}  // namespace landbridge
