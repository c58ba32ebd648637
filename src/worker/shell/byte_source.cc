#include "worker/shell/byte_source.h"

#include <utility>

namespace landbridge {

PackedBoxSource::PackedBoxSource(HostImage image, std::vector<int64_t> strides, IndexBox box, int64_t element_bytes,
                                 TaskPool* pool)
    : layout_(std::make_shared<const Layout>(
          Layout{std::move(image), std::move(strides), std::move(box), element_bytes})),
      bytes_(layout_->box.Elements() * element_bytes),
      pool_(pool) {}

void PackedBoxSource::Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) {
  pool_->Run([layout = layout_, offset, size, done = std::move(done)] {
    auto piece = AllocateImage(static_cast<int64_t>(size));
    if (!piece.ok()) return done(piece.status());
    GatherPackedRange(piece->data, static_cast<int64_t>(offset), static_cast<int64_t>(size), layout->image.data,
                      layout->strides, layout->box, layout->element_bytes);
    done(dataplane::Chunk{piece->data, size, piece->owner});
  });
}

void SwitchableSource::Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) {
  HostImage now = image();
  done(dataplane::Chunk{now.data + offset, size, now.owner});
}

HostImage SwitchableSource::image() const {
  absl::MutexLock lock(&mutex_);
  return image_;
}

void SwitchableSource::Switch(HostImage same_bytes) {
  absl::MutexLock lock(&mutex_);
  std::swap(image_, same_bytes);
}

HostImage NotifyWhenReleased(HostImage image, std::function<void()> released) {
  struct Holder {
    Holder(std::shared_ptr<const void> held, std::function<void()> call)
        : owner(std::move(held)), released(std::move(call)) {}
    ~Holder() {
      owner.reset();
      released();
    }
    std::shared_ptr<const void> owner;
    std::function<void()> released;
  };
  image.owner = std::make_shared<Holder>(std::move(image.owner), std::move(released));
  return image;
}

}  // namespace landbridge
