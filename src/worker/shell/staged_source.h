// A source of the data plane over device memory that the host cannot read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/shell/byte_source.h"
#include "worker/shell/image_budget.h"

namespace landbridge {

// A box of an array, as it travels. The plugin copies it to the host when it is pulled: what is one run of the device's memory
// in chunks, as they are asked for; anything else as a whole, once, in host memory of `budget`. Whoever pulls has room for what it
// asked for, so that host memory is given back.
//
// Thread-safety: all members from any thread.
class StagedSource : public SendSource, public std::enable_shared_from_this<StagedSource> {
 public:
  // `owner` is let go with the buffer: when the buffer is not read any more. `io`, `pool` and `budget` outlive everything.
  StagedSource(std::shared_ptr<pjrt::Buffer> buffer, std::shared_ptr<const void> owner, DType dtype,
               absl::Span<const int64_t> dims, IndexBox box, const BufferIo& io, TaskPool* pool, ImageBudget* budget);
  uint64_t size() const override { return static_cast<uint64_t>(bytes_); }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override;
  bool copies() const override { return true; }
  absl::StatusOr<HostImage> Copy() const override;
  void Switch(HostImage copy) override;

 private:
  struct Held {
    std::shared_ptr<pjrt::Buffer> buffer;
    std::shared_ptr<const void> owner;
  };
  struct Waiting {
    uint64_t offset = 0, size = 0;
    dataplane::ReadDone done;
  };
  // The dense image of the whole array. Blocks.
  absl::StatusOr<HostImage> ReadWhole(const Held& held) const;
  void ReadRun(std::shared_ptr<const Held> held, uint64_t offset, uint64_t size, dataplane::ReadDone done);
  void StageWhole(std::shared_ptr<const Held> held, ImageBudget::Grant grant);

  const DType dtype_;
  const std::vector<int64_t> dims_;
  const IndexBox box_;
  const int64_t bytes_;
  std::optional<int64_t> run_offset_;  // in the device's memory, if the box is one run of it
  const BufferIo& io_;
  TaskPool* const pool_;
  ImageBudget* const budget_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<const Held> held_ ABSL_GUARDED_BY(mutex_);         // null: not needed any more
  std::shared_ptr<dataplane::Source> copy_ ABSL_GUARDED_BY(mutex_);  // reads go there instead
  bool staging_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);  // for the whole image
};

}  // namespace landbridge
