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

// A box of an image, packed row-major piece by piece when it is pulled: no second copy of it exists at any time.
//
// Thread-safety: all members from any thread.
class PackedBoxSource : public dataplane::Source {
 public:
  // `strides` of the image in bytes; the box lies inside it.
  PackedBoxSource(HostImage image, std::vector<int64_t> strides, IndexBox box, int64_t element_bytes, TaskPool* pool);
  uint64_t size() const override { return static_cast<uint64_t>(bytes_); }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override;
  bool copies() const override { return true; }

 private:
  struct Layout {
    HostImage image;
    std::vector<int64_t> strides;
    IndexBox box;
    int64_t element_bytes;
  };
  const std::shared_ptr<const Layout> layout_;
  const int64_t bytes_;
  TaskPool* const pool_;
};

// An image that may be exchanged for a copy of itself while peers pull it: each chunk that is under way keeps the
// image that it reads.
//
// Thread-safety: all members from any thread.
class SwitchableSource : public dataplane::Source {
 public:
  explicit SwitchableSource(HostImage image) : size_(static_cast<uint64_t>(image.bytes)), image_(std::move(image)) {}
  uint64_t size() const override { return size_; }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override;
  HostImage image() const;
  void Switch(HostImage same_bytes);  // the old image is let go (on this thread, or with the last chunk of it)

 private:
  const uint64_t size_;
  mutable absl::Mutex mutex_;
  HostImage image_ ABSL_GUARDED_BY(mutex_);
};

// `image`, and when the last holder of it lets go, after its own owner is gone: `released`, on that thread.
HostImage NotifyWhenReleased(HostImage image, std::function<void()> released);

}  // namespace landbridge
