#include "worker/shell/publishes.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/shell/box_copy.h"
#include "worker/shell/byte_source.h"

namespace landbridge {
namespace {

absl::Status NotOk(const absl::Status& why) {
  return why.ok() ? absl::FailedPreconditionError("the transfer has ended at its source") : why;
}

IndexBox BoxOf(const Publish& publish) {
  if (publish.box().start_size() == 0 && publish.box().limit_size() == 0) {
    return IndexBox::Whole(std::vector<int64_t>(publish.dims().begin(), publish.dims().end()));
  }
  return {{publish.box().start().begin(), publish.box().start().end()},
          {publish.box().limit().begin(), publish.box().limit().end()}};
}

}  // namespace

void Publishes::Start(const Publish& publish) {
  auto open = std::make_shared<Open>();
  open->publish = publish;
  open_[TransferId(publish.transfer())] = open;
  if (absl::Status status = TryStart(open); !status.ok()) Fail(TransferId(publish.transfer()), status);
}

absl::Status Publishes::TryStart(const std::shared_ptr<Open>& open) {
  const Publish& op = open->publish;
  if (absl::Status status = context_->MeetPeer(Incarnation(op.peer()), op.peer_address()); !status.ok()) return status;
  const DType dtype = static_cast<DType>(op.dtype());
  std::vector<int64_t> dims(op.dims().begin(), op.dims().end());
  auto bytes = BufferIo::ImageBytes(dtype, dims);
  if (!bytes.ok()) return bytes.status();
  if (absl::Status status = CheckBox(dims, BoxOf(op)); !status.ok()) return status;
  const DeviceStore::Entry* entry = context_->store.Find(RefOf(op.ref()));
  if (entry == nullptr) return absl::InternalError(absl::StrCat(RefOf(op.ref()).ToString(), " is not here"));
  std::shared_ptr<BufferSlot> slot = entry->slot;
  std::shared_ptr<pjrt::Buffer> buffer = slot->buffer();
  if (buffer != nullptr && context_->io->IsInPlace(*buffer, dtype, *bytes)) {
    auto image = context_->io->ReadImage(slot, dtype, dims);
    if (!image.ok()) return image.status();
    Offer(open, *image);
    return absl::OkStatus();
  }
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open, slot, dtype, dims] {
    auto image = context->io->ReadImage(slot, dtype, dims);
    context->PostEnd([this, open, image] {
      const TransferId transfer(open->publish.transfer());
      if (open->stopped) {
        open_.erase(transfer);
        Unpublish(transfer, open->why);
      } else if (!image.ok()) {
        Fail(transfer, image.status());
      } else {
        Offer(open, *image);
      }
    });
  });
  return absl::OkStatus();
}

void Publishes::Offer(const std::shared_ptr<Open>& open, const HostImage& image) {
  const Publish& op = open->publish;
  const int element_bytes = HostElementBytes(static_cast<DType>(op.dtype()));
  const std::vector<int64_t> dims(op.dims().begin(), op.dims().end());
  IndexBox box = BoxOf(op);
  const dataplane::Key key = context_->KeyOf(DataKeyKind::kTransfer, op.transfer());
  const dataplane::PublishOptions options{Incarnation(op.peer())};
  open->published = true;
  if (auto range = ContiguousRange(dims, box, element_bytes)) {
    context_->data_plane->PublishSpan(
        key, absl::Span<const std::byte>(image.data + range->offset, static_cast<size_t>(range->bytes)), image.owner,
        options);
  } else {
    context_->data_plane->Publish(key,
                                  std::make_shared<PackedBoxSource>(image, DenseStrides(dims, element_bytes),
                                                                    std::move(box), element_bytes, context_->pool),
                                  options);
  }
}

void Publishes::Fail(TransferId transfer, const absl::Status& why) {
  open_.erase(transfer);
  context_->data_plane->Unpublish(context_->KeyOf(DataKeyKind::kTransfer, transfer.value()), NotOk(why));
}

void Publishes::Stop(TransferId transfer, const absl::Status& why) {
  auto it = open_.find(transfer);
  if (it != open_.end() && !it->second->published) {
    it->second->stopped = true;
    it->second->why = why;
    return;
  }
  if (it != open_.end()) open_.erase(it);
  Unpublish(transfer, why);
}

void Publishes::StopAll(const absl::Status& why) {
  std::vector<TransferId> transfers;
  for (const auto& [transfer, open] : open_) transfers.push_back(transfer);
  for (TransferId transfer : transfers) Stop(transfer, why);
}

void Publishes::Unpublish(TransferId transfer, const absl::Status& why) {
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->data_plane->Unpublish(context_->KeyOf(DataKeyKind::kTransfer, transfer.value()), NotOk(why), [context, transfer] {
    context->PostEnd([context = context.get(), transfer] {
      context->core->OnPublishQuiet(transfer, context->Now());
    });
  });
}

}  // namespace landbridge
