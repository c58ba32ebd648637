#include "worker/shell/staged_source.h"

#include <utility>

#include "base/status.h"

namespace landbridge {

StagedSource::StagedSource(std::shared_ptr<pjrt::Buffer> buffer, std::shared_ptr<const void> owner, DType dtype,
                           absl::Span<const int64_t> dims, IndexBox box, const BufferIo& io, TaskPool* pool,
                           ImageBudget* budget)
    : dtype_(dtype),
      dims_(dims.begin(), dims.end()),
      box_(std::move(box)),
      bytes_(PackedBytes(box_.Elements(), DeviceElementBits(dtype))),
      io_(io),
      pool_(pool),
      budget_(budget) {
  if (!IsSubByte(dtype) && buffer->IsRowMajor()) {
    if (auto range = ContiguousRange(dims_, box_, HostElementBytes(dtype))) run_offset_ = range->offset;
  }
  held_ = std::make_shared<const Held>(Held{std::move(buffer), std::move(owner)});
}

void StagedSource::Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) {
  std::shared_ptr<const Held> held;
  std::shared_ptr<dataplane::Source> copy;
  bool begin = false;
  {
    absl::MutexLock lock(&mutex_);
    held = held_;
    copy = copy_;
    if (copy == nullptr && !run_offset_.has_value()) {
      waiting_.push_back({offset, size, std::move(done)});
      begin = !std::exchange(staging_, true);
      if (!begin) return;
    }
  }
  if (copy != nullptr) return copy->Read(offset, size, std::move(done));
  auto self = shared_from_this();
  if (run_offset_.has_value()) {
    pool_->Run([self, held = std::move(held), offset, size, done = std::move(done)]() mutable {
      self->ReadRun(std::move(held), offset, size, std::move(done));
    });
    return;
  }
  auto bytes = BufferIo::ImageBytes(dtype_, dims_);
  budget_->Acquire(bytes.value_or(0), [self, held = std::move(held)](ImageBudget::Grant grant) {
    self->pool_->Run([self, held, grant = std::move(grant)]() mutable { self->StageWhole(held, std::move(grant)); });
  });
}

void StagedSource::ReadRun(std::shared_ptr<const Held> held, uint64_t offset, uint64_t size, dataplane::ReadDone done) {
  auto piece = AllocateImage(static_cast<int64_t>(size));
  if (!piece.ok()) return done(piece.status());
  auto copied =
      held->buffer->CopyRawToHost(piece->data, *run_offset_ + static_cast<int64_t>(offset), static_cast<int64_t>(size));
  if (!copied.ok()) return done(FromPluginError(copied.status(), "reading a buffer"));
  // The plugin's thread has other things to do than what comes after.
  copied->OnReady([self = shared_from_this(), held = std::move(held), piece = *std::move(piece), size,
                   done = std::move(done)](absl::Status status) mutable {
    TaskPool* pool = self->pool_;
    pool->Run([self = std::move(self), held = std::move(held), piece = std::move(piece), size, done = std::move(done),
               status = std::move(status)]() mutable {
      held.reset();
      if (!status.ok()) return done(FromPluginError(status, "reading a buffer"));
      done(dataplane::Chunk{piece.data, size, std::move(piece.owner)});
    });
  });
}

absl::StatusOr<HostImage> StagedSource::ReadWhole(const Held& held) const {
  LB_ASSIGN_OR_RETURN(const int64_t bytes, BufferIo::ImageBytes(dtype_, dims_));
  return io_.CopyOut(*held.buffer, dtype_, bytes);
}

void StagedSource::StageWhole(std::shared_ptr<const Held> held, ImageBudget::Grant grant) {
  absl::StatusOr<HostImage> image = ReadWhole(*held);
  held.reset();
  std::shared_ptr<dataplane::Source> copy;
  if (image.ok()) {
    using Kept = std::pair<std::shared_ptr<const void>, ImageBudget::Grant>;
    image->owner = std::make_shared<Kept>(std::move(image->owner), std::move(grant));
    copy = std::make_shared<BoxSource>(*std::move(image), dtype_, dims_, box_, pool_);
  }
  std::vector<Waiting> waiting;
  std::shared_ptr<const Held> dropped;
  {
    absl::MutexLock lock(&mutex_);
    staging_ = false;
    waiting.swap(waiting_);
    if (copy != nullptr) {
      if (copy_ == nullptr) copy_ = copy;
      dropped.swap(held_);
    }
  }
  for (Waiting& read : waiting) {
    copy != nullptr ? copy->Read(read.offset, read.size, std::move(read.done)) : read.done(image.status());
  }
}

absl::StatusOr<HostImage> StagedSource::Copy() const {
  std::shared_ptr<const Held> held;
  {
    absl::MutexLock lock(&mutex_);
    held = held_;
  }
  if (held == nullptr) return absl::FailedPreconditionError("the buffer is not read any more");
  LB_ASSIGN_OR_RETURN(HostImage whole, ReadWhole(*held));
  if (run_offset_ == 0 && whole.bytes == bytes_) return whole;
  return BoxSource(std::move(whole), dtype_, dims_, box_, pool_).Copy();
}

void StagedSource::Switch(HostImage copy) {
  auto source = std::make_shared<SwitchableSource>(std::move(copy));
  std::shared_ptr<const Held> dropped;
  absl::MutexLock lock(&mutex_);
  if (copy_ == nullptr) copy_ = std::move(source);
  dropped.swap(held_);  // let go without the lock
}

}  // namespace landbridge
