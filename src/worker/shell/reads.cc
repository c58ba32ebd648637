#include "worker/shell/reads.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "worker/shell/box_copy.h"
#include "worker/shell/staged_source.h"

namespace landbridge {
namespace {

struct Wanted {
  DType dtype;
  std::vector<int64_t> dims;
  std::vector<int64_t> strides;  // empty: dense
  int64_t image_bytes;
};

absl::StatusOr<Wanted> Check(const Read& read) {
  Wanted wanted;
  wanted.dtype = static_cast<DType>(read.dtype());
  wanted.dims.assign(read.dims().begin(), read.dims().end());
  wanted.image_bytes = read.image_bytes();
  LB_ASSIGN_OR_RETURN(int64_t dense_bytes, BufferIo::ImageBytes(wanted.dtype, wanted.dims));
  const int element_bytes = HostElementBytes(wanted.dtype);
  const std::vector<int64_t> strides(read.byte_strides().begin(), read.byte_strides().end());
  if (IsDense(wanted.dims, strides, element_bytes)) {
    if (wanted.image_bytes != dense_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a read of ", wanted.image_bytes, " bytes from an array of ", dense_bytes));
    }
    return wanted;
  }
  if (wanted.image_bytes > limits::kArrayBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", wanted.image_bytes, " bytes"));
  }
  LB_RETURN_IF_ERROR(CheckStrides(wanted.dims, strides, element_bytes, wanted.image_bytes));
  wanted.strides = strides;
  return wanted;
}

// The wanted image in memory of our own.
absl::StatusOr<HostImage> CopyOf(const HostImage& dense, const Wanted& wanted) {
  LB_ASSIGN_OR_RETURN(OwnedImage copy, AllocateImage(wanted.image_bytes));
  if (wanted.strides.empty()) {
    if (dense.bytes > 0) std::memcpy(copy.data, dense.data, static_cast<size_t>(dense.bytes));
    return copy.Read();
  }
  const int element_bytes = HostElementBytes(wanted.dtype);
  if (wanted.image_bytes > 0) std::memset(copy.data, 0, static_cast<size_t>(wanted.image_bytes));  // gaps
  CopyStrided(copy.data, wanted.strides, dense.data, DenseStrides(wanted.dims, element_bytes), wanted.dims,
              element_bytes);
  return copy.Read();
}

}  // namespace

void Reads::Start(const Read& read, bool snapshot) {
  auto open = std::make_shared<Open>();
  open->read = read;
  open_[read.read()] = open;
  auto wanted = Check(read);
  if (!wanted.ok()) return Fail(open, wanted.status());
  const DeviceStore::Entry* entry = context_->store.Find(RefOf(read.ref()));
  if (entry == nullptr) return Fail(open, absl::InternalError(absl::StrCat(RefOf(read.ref()).ToString(), " is gone")));
  std::shared_ptr<BufferSlot> slot = entry->slot;
  std::shared_ptr<pjrt::Buffer> buffer = slot->buffer();
  if (buffer == nullptr) {
    const absl::Status failure = slot->failure();
    return Fail(open, failure.ok() ? absl::FailedPreconditionError("the buffer has no memory (any more)") : failure);
  }
  const bool in_place = wanted->strides.empty() && context_->io->IsInPlace(*buffer, wanted->dtype, wanted->image_bytes);
  const bool large = wanted->image_bytes > static_cast<int64_t>(limits::kInlineBytesMax);
  if (!context_->io->host_accessible() && large && !snapshot && wanted->strides.empty()) {
    // The plugin copies it out piece by piece, as the proxy pulls it.
    return OfferLarge(open, HostImage{nullptr, wanted->image_bytes, buffer}, [&](HostImage held) {
      return std::make_shared<StagedSource>(std::move(buffer), std::move(held.owner), wanted->dtype, wanted->dims,
                                            IndexBox::Whole(wanted->dims), *context_->io, context_->pool,
                                            context_->sent);
    });
  }
  if (!in_place || (snapshot && large)) {
    return MakeImage(open, std::move(slot), wanted->dtype, snapshot);
  }
  auto image = context_->io->ReadImage(slot, wanted->dtype, wanted->dims);
  if (!image.ok()) return Fail(open, image.status());
  Offer(open, *std::move(image));
}

void Reads::MakeImage(const std::shared_ptr<Open>& open, std::shared_ptr<BufferSlot> slot, DType dtype, bool snapshot) {
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open, slot = std::move(slot), dtype, snapshot]() mutable {
    auto make = [&]() -> absl::StatusOr<HostImage> {
      LB_ASSIGN_OR_RETURN(Wanted wanted, Check(open->read));
      LB_ASSIGN_OR_RETURN(HostImage dense, context->io->ReadImage(slot, dtype, wanted.dims));
      // ReadImage may have copied already; what points into the buffer is copied here.
      const bool is_copy = !context->io->CanFillInPlace(dtype) && wanted.strides.empty();
      if (is_copy) return dense;
      return CopyOf(dense, wanted);
    };
    auto image = make();
    slot.reset();
    context->PostEnd([this, open, snapshot, image = std::move(image)]() mutable {
      if (!image.ok()) return Fail(open, image.status());
      if (snapshot || open->snapshot_due) Quiet(open);
      Offer(open, *std::move(image));
    });
  });
}

void Reads::Offer(const std::shared_ptr<Open>& open, HostImage image) {
  const uint64_t read = open->read.read();
  if (open->read.image_bytes() <= static_cast<int64_t>(limits::kInlineBytesMax)) {
    std::string bytes;
    if (image.bytes > 0) bytes.assign(reinterpret_cast<const char*>(image.data), static_cast<size_t>(image.bytes));
    image = HostImage();
    context_->Begin();
    context_->PostEnd([this, open, read, bytes = std::move(bytes)]() mutable {
      open_.erase(read);
      context_->core->OnReadDone(read, absl::OkStatus(), std::move(bytes), false, context_->Now());
    });
    return;
  }
  OfferLarge(open, std::move(image),
             [](HostImage held) { return std::make_shared<SwitchableSource>(std::move(held)); });
}

void Reads::OfferLarge(const std::shared_ptr<Open>& open, HostImage image,
                       const std::function<std::shared_ptr<SendSource>(HostImage)>& make) {
  const uint64_t read = open->read.read();
  // The core hears that the buffer is free when the last chunk of it has been fetched.
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  image =
      NotifyWhenReleased(std::move(image), [this, context, open] { context->PostEnd([this, open] { Quiet(open); }); });
  open->source = make(std::move(image));
  open->published = true;
  context_->data_plane->Publish(context_->KeyOf(DataKeyKind::kRead, read), open->source,
                                dataplane::PublishOptions{context_->proxy});
  context_->Post([this, open, read] {
    if (!open->stopped) context_->core->OnReadDone(read, absl::OkStatus(), "", true, context_->Now());
  });
  if (open->stopped) Stop(read);
}

void Reads::Snapshot(uint64_t read) {
  auto it = open_.find(read);
  if (it == open_.end() || it->second->quiet) return;
  std::shared_ptr<Open> open = it->second;
  if (open->source == nullptr) {
    open->snapshot_due = true;  // a copy is being made anyway
    return;
  }
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open, source = open->source]() mutable {
    auto copy = source->Copy();
    if (copy.ok()) source->Switch(*std::move(copy));
    source.reset();
    context->PostEnd([this, open, status = copy.status()] {
      // Without memory for a copy the read ends, not the donor's wait.
      if (!status.ok()) {
        context_->data_plane->Unpublish(context_->KeyOf(DataKeyKind::kRead, open->read.read()), status);
        open->source.reset();
        open_.erase(open->read.read());
      }
    });
  });
}

void Reads::Stop(uint64_t read) {
  auto it = open_.find(read);
  if (it == open_.end()) return;
  std::shared_ptr<Open> open = it->second;
  open->stopped = true;
  if (!open->published) return;
  context_->data_plane->Unpublish(context_->KeyOf(DataKeyKind::kRead, read),
                                  absl::FailedPreconditionError("the read was released"));
  open->source.reset();
  open_.erase(read);
}

void Reads::StopAll() {
  std::vector<uint64_t> reads;
  for (const auto& [read, open] : open_) reads.push_back(read);
  for (uint64_t read : reads) Stop(read);
}

void Reads::Fail(const std::shared_ptr<Open>& open, const absl::Status& status) {
  context_->Begin();
  context_->PostEnd([this, open, status] {
    open_.erase(open->read.read());
    context_->core->OnReadDone(open->read.read(), status, "", false, context_->Now());
  });
}

void Reads::Quiet(const std::shared_ptr<Open>& open) {
  if (std::exchange(open->quiet, true)) return;
  context_->core->OnReadQuiet(open->read.read(), context_->Now());
}

}  // namespace landbridge
