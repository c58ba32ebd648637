#include "worker/shell/publishes.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "worker/shell/box_copy.h"
#include "worker/shell/shell_limits.h"
#include "worker/shell/staged_source.h"

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
    Offer(open, *std::move(image), true);
    return absl::OkStatus();
  }
  if (buffer != nullptr && !context_->io->host_accessible()) {
    // The plugin copies it out piece by piece, as the peer pulls it.
    OfferSource(open, HostImage{nullptr, *bytes, buffer}, true, [&](HostImage held) {
      return std::make_shared<StagedSource>(std::move(buffer), std::move(held.owner), dtype, dims, BoxOf(op),
                                            *context_->io, context_->pool, context_->sent);
    });
    return absl::OkStatus();
  }
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open, slot, dtype, dims] {
    auto image = context->io->ReadImage(slot, dtype, dims);
    context->PostEnd([this, open, image = std::move(image)]() mutable {
      const TransferId transfer(open->publish.transfer());
      if (open->stopped) {
        open_.erase(transfer);
        Unpublish(transfer, open->why);
      } else if (!image.ok()) {
        Fail(transfer, image.status());
      } else {
        Offer(open, *std::move(image), false);
      }
    });
  });
  return absl::OkStatus();
}

void Publishes::Offer(const std::shared_ptr<Open>& open, HostImage image, bool holds_buffer) {
  OfferSource(open, std::move(image), holds_buffer, [&](HostImage held) {
    const Publish& op = open->publish;
    const std::vector<int64_t> dims(op.dims().begin(), op.dims().end());
    return std::make_shared<BoxSource>(std::move(held), static_cast<DType>(op.dtype()), dims, BoxOf(op),
                                       context_->pool);
  });
}

void Publishes::OfferSource(const std::shared_ptr<Open>& open, HostImage image, bool holds_buffer,
                            const std::function<std::shared_ptr<SendSource>(HostImage)>& make) {
  const Publish& op = open->publish;
  const TransferId transfer(op.transfer());
  open->published = true;
  open->holds_buffer = holds_buffer;
  if (holds_buffer) {
    std::shared_ptr<ShellContext> context = context_->shared_from_this();
    image = NotifyWhenReleased(std::move(image), [context, transfer, wanted = open->report_release] {
      if (!wanted->load()) return;
      context->Post([context = context.get(), transfer] { context->core->OnPublishQuiet(transfer, context->Now()); });
    });
  }
  open->source = make(std::move(image));
  context_->data_plane->Publish(context_->KeyOf(DataKeyKind::kTransfer, op.transfer()), open->source,
                                dataplane::PublishOptions{Incarnation(op.peer())});
  if (open->snapshot_due) SnapshotWhenLate(open);
}

void Publishes::Snapshot(TransferId transfer) {
  auto it = open_.find(transfer);
  if (it == open_.end()) return PostQuiet(transfer);  // it has failed
  std::shared_ptr<Open> open = it->second;
  if (std::exchange(open->snapshot_due, true) || !open->published) return;
  SnapshotWhenLate(open);
}

void Publishes::SnapshotWhenLate(const std::shared_ptr<Open>& open) {
  if (!open->holds_buffer) return PostQuiet(TransferId(open->publish.transfer()));
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->loop->RunAfter(limits::kSendSnapshotDelay, [this, context, open] {
    if (context->closed || open->source == nullptr) return;  // everything was sent meanwhile
    context->snapshots->Acquire(static_cast<int64_t>(open->source->size()),
                                [this, context, open](ImageBudget::Grant grant) {
                                  context->Post([this, open, grant = std::move(grant)]() mutable {
                                    if (open->source != nullptr) MakeSnapshot(open, std::move(grant));
                                  });
                                });
  });
}

void Publishes::MakeSnapshot(const std::shared_ptr<Open>& open, ImageBudget::Grant grant) {
  open->report_release->store(true);
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([context, source = open->source, name = RefOf(open->publish.ref()).ToString(),
                       grant = std::move(grant)]() mutable {
    absl::StatusOr<HostImage> copy = source->Copy();
    if (copy.ok()) {
      copy->owner = std::make_shared<std::pair<std::shared_ptr<const void>, ImageBudget::Grant>>(std::move(copy->owner),
                                                                                                 std::move(grant));
      source->Switch(*std::move(copy));
    } else {
      LogWarning("the donor of ", name, " waits until it is sent: ", copy.status().ToString());
    }
    source.reset();
    context->PostEnd([] {});
  });
}

void Publishes::PostQuiet(TransferId transfer) {
  context_->Post([this, transfer] { context_->core->OnPublishQuiet(transfer, context_->Now()); });
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
  if (it != open_.end()) {
    it->second->source.reset();  // also for a snapshot that is due
    open_.erase(it);
  }
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
  context_->data_plane->Unpublish(
      context_->KeyOf(DataKeyKind::kTransfer, transfer.value()), NotOk(why), [context, transfer] {
        context->PostEnd(
            [context = context.get(), transfer] { context->core->OnPublishQuiet(transfer, context->Now()); });
      });
}

}  // namespace landbridge
