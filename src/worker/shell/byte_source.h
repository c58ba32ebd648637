// Sources of the data plane over device buffers and images.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "dataplane/data_plane.h"
#include "worker/shell/box_copy.h"
#include "worker/shell/buffer_io.h"
#include "worker/shell/task_pool.h"

namespace landbridge {

// What a worker sends: it may be exchanged for a copy of itself, so that somebody else gets the memory that it reads.
class SendSource : public dataplane::Source {
 public:
  // All its bytes in memory of their own. Blocks for the copy. RESOURCE_EXHAUSTED if there is no memory.
  virtual absl::StatusOr<HostImage> Copy() const = 0;
  // Reads from the copy from now on. The old memory is let go: on this thread, or with the last chunk of it on its way.
  virtual void Switch(HostImage copy) = 0;
};

// A box of a dense image, row-major as it travels; sub-byte elements are packed. What is one run of the image is sent
// from where it lies, anything else is packed piece by piece when it is pulled: no second copy exists at any time, unless
// the source is exchanged for one (Copy, Switch) so that somebody else gets the image's memory.
//
// Thread-safety: all members from any thread.
class BoxSource : public SendSource {
 public:
  // The image of an array of `dims`; the box lies inside.
  BoxSource(HostImage image, DType dtype, absl::Span<const int64_t> dims, IndexBox box, TaskPool* pool);
  uint64_t size() const override { return static_cast<uint64_t>(bytes_); }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override;
  bool copies() const override { return packs_; }

  absl::StatusOr<HostImage> Copy() const override;
  void Switch(HostImage copy) override;

 private:
  struct Layout {
    HostImage image;
    std::vector<int64_t> strides;
    IndexBox box;
    int element_bytes = 0, bits = 0;
    void Pack(std::byte* dst, int64_t offset, int64_t bytes) const;
  };
  const int64_t bytes_;
  const bool packs_;
  TaskPool* const pool_;
  mutable absl::Mutex mutex_;
  HostImage ready_ ABSL_GUARDED_BY(mutex_);                       // as they travel, or else
  std::shared_ptr<const Layout> layout_ ABSL_GUARDED_BY(mutex_);  // how to make them so
};

// An image that may be exchanged for a copy of itself while peers pull it: each chunk that is under way keeps the
// image that it reads.
//
// Thread-safety: all members from any thread.
class SwitchableSource : public SendSource {
 public:
  explicit SwitchableSource(HostImage image) : size_(static_cast<uint64_t>(image.bytes)), image_(std::move(image)) {}
  uint64_t size() const override { return size_; }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override;
  absl::StatusOr<HostImage> Copy() const override;
  void Switch(HostImage same_bytes) override;

 private:
  HostImage image() const;

  const uint64_t size_;
  mutable absl::Mutex mutex_;
  HostImage image_ ABSL_GUARDED_BY(mutex_);
};

// `image`, and when the last holder of it lets go, after its own owner is gone: `released`, on that thread.
HostImage NotifyWhenReleased(HostImage image, std::function<void()> released);

}  // namespace landbridge
