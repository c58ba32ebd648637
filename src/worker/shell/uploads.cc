#include "worker/shell/uploads.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "worker/shell/box_copy.h"

namespace landbridge {
namespace {

// Fills each slot on a pool thread; returns when all buffers are ready.
absl::Status FillFromImage(const BufferIo& io, const std::byte* data, DType dtype, const std::vector<int64_t>& dims,
                           const std::vector<int64_t>& strides, const std::vector<const pjrt::Memory*>& memories,
                           const std::vector<std::shared_ptr<BufferSlot>>& slots) {
  for (size_t i = 0; i < slots.size(); ++i) {
    LB_ASSIGN_OR_RETURN(pjrt::Buffer buffer, io.FromImage(data, dtype, dims, strides, *memories[i]));
    LB_ASSIGN_OR_RETURN(pjrt::Event ready, buffer.ReadyEvent());
    slots[i]->Fill(std::move(buffer));
    LB_RETURN_IF_ERROR(FromPluginError(ready.Await(), "making a buffer"));
  }
  return absl::OkStatus();
}

absl::Status FillFromFirst(const std::vector<const pjrt::Memory*>& memories,
                           const std::vector<std::shared_ptr<BufferSlot>>& slots) {
  std::shared_ptr<pjrt::Buffer> first = slots[0]->buffer();
  std::vector<pjrt::Event> events;
  for (size_t i = 1; i < slots.size(); ++i) {
    auto copy = first->CopyToMemory(memories[i]->handle);
    if (!copy.ok()) return FromPluginError(copy.status(), "copying a buffer to another device");
    LB_ASSIGN_OR_RETURN(pjrt::Event ready, copy->ReadyEvent());
    events.push_back(std::move(ready));
    slots[i]->Fill(*std::move(copy));
  }
  for (const pjrt::Event& event : events) {
    LB_RETURN_IF_ERROR(FromPluginError(event.Await(), "copying a buffer to another device"));
  }
  return absl::OkStatus();
}

}  // namespace

void Uploads::Start(std::shared_ptr<const Upload> upload) {
  auto open = std::make_shared<Open>();
  open->upload = std::move(upload);
  const Upload& op = *open->upload;
  open_[op.key()] = open;
  absl::Status status = Prepare(*open);
  if (status.ok()) {
    if (!op.pulled()) {
      open->waits_for_bytes = true;
    } else if (open->strides.empty() && context_->io->CanFillInPlace(open->dtype)) {
      status = PullInPlace(open);
    } else {
      PullImage(open);
    }
  }
  if (!status.ok()) PostFinish(open, status);
}

absl::Status Uploads::Prepare(Open& open) {
  const Upload& op = *open.upload;
  if (op.targets_size() == 0) return absl::InvalidArgumentError("an upload without a target");
  open.dtype = static_cast<DType>(op.dtype());
  open.dims.assign(op.dims().begin(), op.dims().end());
  LB_ASSIGN_OR_RETURN(open.dense_bytes, BufferIo::ImageBytes(open.dtype, open.dims));
  const int element_bytes = HostElementBytes(open.dtype);
  std::vector<int64_t> strides(op.byte_strides().begin(), op.byte_strides().end());
  if (IsDense(open.dims, strides, element_bytes)) {
    if (op.image_bytes() < open.dense_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("an image of ", op.image_bytes(), " bytes for an array of ", open.dense_bytes));
    }
  } else {
    LB_RETURN_IF_ERROR(CheckStrides(open.dims, strides, element_bytes, op.image_bytes()));
    open.strides = std::move(strides);
  }
  if (op.image_bytes() > limits::kArrayBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", op.image_bytes(), " bytes"));
  }
  for (const Target& target : op.targets()) {
    LB_ASSIGN_OR_RETURN(const pjrt::Memory* memory, context_->io->FindMemory(target.device(), target.memory()));
    open.memories.push_back(memory);
    open.slots.push_back(context_->store.Create(RefOf(target.ref()), static_cast<int>(target.device())));
  }
  return absl::OkStatus();
}

absl::Status Uploads::PullInPlace(const std::shared_ptr<Open>& open) {
  auto buffer = context_->io->client().CreateUninitialized(open->dtype, open->dims, *open->memories[0]);
  if (!buffer.ok()) return FromPluginError(buffer.status(), "making a buffer");
  open->slots[0]->Fill(*std::move(buffer));
  if (open->dense_bytes == 0) {
    Replicate(open);
    return absl::OkStatus();
  }
  LB_ASSIGN_OR_RETURN(std::shared_ptr<const BufferSlot::Pinned> pinned, open->slots[0]->Pin());
  std::byte* data = pinned->data();
  open->pull =
      puller_->Pull(context_->proxy, context_->KeyOf(DataKeyKind::kUpload, open->upload->key()), 0, data,
                    static_cast<uint64_t>(open->dense_bytes), std::move(pinned), [this, open](absl::Status status) {
                      open->pull = 0;
                      if (!status.ok()) return Finish(open, status);
                      Replicate(open);
                    });
  return absl::OkStatus();
}

void Uploads::PullImage(const std::shared_ptr<Open>& open) {
  open->waits_for_memory = true;
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->images->Acquire(open->upload->image_bytes(), [this, context, open](ImageBudget::Grant grant) {
    context->PostEnd([this, open, grant = std::move(grant)]() mutable {
      open->waits_for_memory = false;
      if (open->finished) return;  // cancelled in line
      if (absl::Status status = PullIntoImage(open, std::move(grant)); !status.ok()) Finish(open, status);
    });
  });
}

absl::Status Uploads::PullIntoImage(const std::shared_ptr<Open>& open, ImageBudget::Grant grant) {
  const int64_t bytes = open->upload->image_bytes();
  LB_ASSIGN_OR_RETURN(OwnedImage image, AllocateImage(bytes));
  using Held = std::pair<std::shared_ptr<void>, ImageBudget::Grant>;
  image.owner = std::make_shared<Held>(std::move(image.owner), std::move(grant));
  if (bytes == 0) {
    MakeFromImage(open, image.owner, image.data, 0);
    return absl::OkStatus();
  }
  open->pull = puller_->Pull(context_->proxy, context_->KeyOf(DataKeyKind::kUpload, open->upload->key()), 0, image.data,
                             static_cast<uint64_t>(bytes), image.owner, [this, open, image](absl::Status status) {
                               open->pull = 0;
                               if (!status.ok()) return Finish(open, status);
                               MakeFromImage(open, image.owner, image.data, image.bytes);
                             });
  return absl::OkStatus();
}

void Uploads::Bytes(uint64_t key, std::string data) {
  auto it = open_.find(key);
  if (it == open_.end() || !it->second->waits_for_bytes) return;  // cancelled
  std::shared_ptr<Open> open = it->second;
  open->waits_for_bytes = false;
  if (static_cast<int64_t>(data.size()) != open->upload->image_bytes()) {
    return PostFinish(open, absl::InvalidArgumentError(absl::StrCat("an image of ", open->upload->image_bytes(),
                                                                    " bytes arrived as ", data.size())));
  }
  auto keep = std::make_shared<const std::string>(std::move(data));
  MakeFromImage(open, keep, reinterpret_cast<const std::byte*>(keep->data()), static_cast<int64_t>(keep->size()));
}

void Uploads::MakeFromImage(const std::shared_ptr<Open>& open, std::shared_ptr<const void> keep, const std::byte* data,
                            int64_t bytes) {
  if (bytes <= static_cast<int64_t>(limits::kInlineBytesMax) && context_->io->host_accessible()) {
    // Cheaper here than a hop to another thread. The plugin copies small images during the call.
    PostFinish(open,
               FillFromImage(*context_->io, data, open->dtype, open->dims, open->strides, open->memories, open->slots));
    return;
  }
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open, keep = std::move(keep), data]() mutable {
    absl::Status status =
        FillFromImage(*context->io, data, open->dtype, open->dims, open->strides, open->memories, open->slots);
    keep.reset();
    context->PostEnd([this, open, status] { Finish(open, status); });
  });
}

void Uploads::Replicate(const std::shared_ptr<Open>& open) {
  if (open->slots.size() == 1) return PostFinish(open, absl::OkStatus());
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open] {
    absl::Status status = FillFromFirst(open->memories, open->slots);
    context->PostEnd([this, open, status] { Finish(open, status); });
  });
}

void Uploads::Cancel(uint64_t key, const absl::Status& why) {
  auto it = open_.find(key);
  if (it == open_.end()) return;
  std::shared_ptr<Open> open = it->second;
  if (open->pull != 0) {
    puller_->Cancel(open->pull, why);
  } else if (open->waits_for_bytes || open->waits_for_memory) {
    open->waits_for_bytes = false;
    PostFinish(open, why.ok() ? absl::CancelledError("the upload was given up") : why);
  }  // else it is being made, and ends by itself
}

void Uploads::PostFinish(const std::shared_ptr<Open>& open, const absl::Status& status) {
  context_->Begin();
  context_->PostEnd([this, open, status] { Finish(open, status); });
}

void Uploads::Finish(const std::shared_ptr<Open>& open, const absl::Status& status) {
  if (std::exchange(open->finished, true)) return;
  if (!status.ok()) {
    for (const auto& slot : open->slots) slot->Fail(status);
  }
  const uint64_t key = open->upload->key();
  open_.erase(key);
  context_->core->OnUploadDone(key, status, context_->Now());
}

}  // namespace landbridge
