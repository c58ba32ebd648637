#include "worker/shell/makes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "sharding/reshard_limits.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

// An empty box stands for the whole array.
IndexBox BoxOf(const Box& proto, absl::Span<const int64_t> dims) {
  if (proto.start_size() == 0 && proto.limit_size() == 0) return IndexBox::Whole(dims);
  return {{proto.start().begin(), proto.start().end()}, {proto.limit().begin(), proto.limit().end()}};
}

bool IsWhole(const IndexBox& box, absl::Span<const int64_t> dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    if (box.start[i] != 0 || box.limit[i] != dims[i]) return false;
  }
  return true;
}

absl::Status CopyWhole(const std::shared_ptr<pjrt::Buffer>& source, const pjrt::Memory& memory, BufferSlot& target) {
  auto copy = source->CopyToMemory(memory.handle);
  if (!copy.ok()) return FromPluginError(copy.status(), "copying a buffer");
  LB_ASSIGN_OR_RETURN(pjrt::Event ready, copy->ReadyEvent());
  target.Fill(*std::move(copy));
  return FromPluginError(ready.Await(), "copying a buffer");
}

}  // namespace

void Makes::Start(std::shared_ptr<const MakeBuffers> make, int index) {
  auto open = std::make_shared<Open>();
  open->make = std::move(make);
  open->index = index;
  open->id = {Ticket(open->make->ticket()), index};
  open_[open->id] = open;
  absl::Status status = Prepare(open);
  bool taken = false;
  if (status.ok()) status = TryWholeCopy(open, &taken);
  if (status.ok() && !taken) status = StartPieces(open);
  if (status.ok()) return;
  // Pulls that are under way end first.
  ++open->arriving;
  Arrived(open, status);
}

absl::Status Makes::Prepare(const std::shared_ptr<Open>& open) {
  const MakeBuffer& spec = open->spec();
  open->dtype = static_cast<DType>(spec.dtype());
  open->dims.assign(spec.dims().begin(), spec.dims().end());
  LB_ASSIGN_OR_RETURN(open->bytes, BufferIo::ImageBytes(open->dtype, open->dims));
  LB_ASSIGN_OR_RETURN(open->memory, context_->io->FindMemory(spec.target().device(), spec.target().memory()));
  open->slot = context_->store.Create(RefOf(spec.target().ref()), static_cast<int>(spec.target().device()));
  return absl::OkStatus();
}

absl::Status Makes::TryWholeCopy(const std::shared_ptr<Open>& open, bool* taken) {
  const MakeBuffer& spec = open->spec();
  if (spec.pieces_size() != 1 || !spec.pieces(0).has_local()) return absl::OkStatus();
  const Piece& piece = spec.pieces(0);
  const std::vector<int64_t> source_dims(piece.source_dims().begin(), piece.source_dims().end());
  if (!source_dims.empty() && source_dims != open->dims) return absl::OkStatus();
  const IndexBox source_box = BoxOf(piece.source_box(), open->dims), target_box = BoxOf(piece.target_box(), open->dims);
  LB_RETURN_IF_ERROR(CheckBox(open->dims, source_box));
  LB_RETURN_IF_ERROR(CheckBox(open->dims, target_box));
  if (!IsWhole(source_box, open->dims) || !IsWhole(target_box, open->dims)) return absl::OkStatus();

  const DeviceStore::Entry* entry = context_->store.Find(RefOf(piece.local()));
  if (entry == nullptr) {
    return absl::InternalError(absl::StrCat("the source ", RefOf(piece.local()).ToString(), " is not here"));
  }
  std::shared_ptr<BufferSlot> source_slot = entry->slot;
  std::shared_ptr<pjrt::Buffer> source = source_slot->buffer();
  if (source == nullptr) {
    LB_RETURN_IF_ERROR(source_slot->failure());
    return absl::InternalError(absl::StrCat("the source ", RefOf(piece.local()).ToString(), " has no memory"));
  }
  LB_ASSIGN_OR_RETURN(std::vector<int64_t> dims, source->dims());
  if (dims != open->dims) {
    return absl::InvalidArgumentError(
        absl::StrCat("a copy of ", RefOf(piece.local()).ToString(), " has other dimensions than its source"));
  }
  *taken = true;
  if (piece.donate()) {
    LB_ASSIGN_OR_RETURN(auto* source_memory, source->memory());
    if (source_memory == open->memory->handle) {
      open->slot->FillShared(source_slot->Take());
      PostFinish(open, absl::OkStatus());
      return absl::OkStatus();
    }
  }
  if (open->bytes <= static_cast<int64_t>(limits::kInlineBytesMax) && context_->io->host_accessible()) {
    PostFinish(open, CopyWhole(source, *open->memory, *open->slot));
    return absl::OkStatus();
  }
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open, source]() mutable {
    absl::Status status = CopyWhole(source, *open->memory, *open->slot);
    source.reset();
    context->PostEnd([this, open, status] { Finish(open, status); });
  });
  return absl::OkStatus();
}

absl::Status Makes::StartPieces(const std::shared_ptr<Open>& open) {
  open->in_place = context_->io->CanFillInPlace(open->dtype);
  if (!context_->io->host_accessible()) return TakeImage(open);
  if (open->in_place) {
    auto buffer = context_->io->client().CreateUninitialized(open->dtype, open->dims, *open->memory);
    if (!buffer.ok()) return FromPluginError(buffer.status(), "making a buffer");
    open->slot->Fill(*std::move(buffer));
    if (open->bytes > 0) {
      LB_ASSIGN_OR_RETURN(std::shared_ptr<const BufferSlot::Pinned> pinned, open->slot->Pin());
      open->data = pinned->data();
      open->keep = std::move(pinned);
    }
  } else {
    LB_ASSIGN_OR_RETURN(OwnedImage image, AllocateImage(open->bytes));
    open->data = image.data;
    open->keep = image.owner;
  }
  return ArrangePieces(open);
}

absl::Status Makes::TakeImage(const std::shared_ptr<Open>& open) {
  open->next = [this, open] {
    ++open->arriving;
    context_->Begin();
    std::shared_ptr<ShellContext> context = context_->shared_from_this();
    context_->received->Acquire(open->bytes, [this, context, open](ImageBudget::Grant grant) {
      context->PostEnd([this, open, grant = std::move(grant)]() mutable { OnRoom(open, std::move(grant)); });
    });
  };
  for (const Piece& piece : open->spec().pieces()) {
    if (piece.has_local()) continue;
    const IndexBox box = BoxOf(piece.target_box(), open->dims);
    LB_RETURN_IF_ERROR(CheckBox(open->dims, box));
    const int64_t bytes =
        std::min(PackedBytes(box.Elements(), DeviceElementBits(open->dtype)), limits::kStagedProbeBytes);
    if (bytes == 0) continue;
    LB_ASSIGN_OR_RETURN(OwnedImage first, AllocateImage(bytes));
    ++open->arriving;
    StartPull(open, piece.remote(), 0, first.data, bytes, first.owner,
              [this, open](const absl::Status& status) { Arrived(open, status); });
  }
  ++open->arriving;  // of this function
  Arrived(open, absl::OkStatus());
  return absl::OkStatus();
}

void Makes::OnRoom(const std::shared_ptr<Open>& open, ImageBudget::Grant grant) {
  absl::Status status = open->status;  // given up in line
  if (status.ok()) {
    absl::StatusOr<OwnedImage> image = AllocateImage(open->bytes);
    status = image.status();
    if (status.ok()) {
      open->data = image->data;
      using Held = std::pair<std::shared_ptr<void>, ImageBudget::Grant>;
      open->keep = std::make_shared<Held>(std::move(image->owner), std::move(grant));
      status = ArrangePieces(open);
    }
  }
  Arrived(open, status);  // of the place in line
}

absl::Status Makes::ArrangePieces(const std::shared_ptr<Open>& open) {
  const MakeBuffer& spec = open->spec();
  const int element_bytes = HostElementBytes(open->dtype);
  // The pieces must cover the target exactly: nobody may read memory that was never written.
  int64_t covered = 0;
  for (const Piece& piece : spec.pieces()) {
    IndexBox target_box = BoxOf(piece.target_box(), open->dims);
    LB_RETURN_IF_ERROR(CheckBox(open->dims, target_box));
    covered += target_box.Elements();
    if (piece.has_local()) {
      const DeviceStore::Entry* entry = context_->store.Find(RefOf(piece.local()));
      if (entry == nullptr) {
        return absl::InternalError(absl::StrCat("the source ", RefOf(piece.local()).ToString(), " is not here"));
      }
      LocalPiece local;
      local.source = entry->slot;
      std::shared_ptr<pjrt::Buffer> buffer = entry->slot->buffer();
      if (buffer == nullptr) {
        LB_RETURN_IF_ERROR(entry->slot->failure());
        return absl::InternalError(absl::StrCat("the source ", RefOf(piece.local()).ToString(), " has no memory"));
      }
      LB_ASSIGN_OR_RETURN(local.source_dims, buffer->dims());
      LB_ASSIGN_OR_RETURN(DType source_dtype, buffer->dtype());
      if (source_dtype != open->dtype) {
        return absl::InvalidArgumentError(
            absl::StrCat("a piece of type ", DTypeName(source_dtype), " in a buffer of type ", DTypeName(open->dtype)));
      }
      local.source_box = BoxOf(piece.source_box(), local.source_dims);
      local.target_box = target_box;
      LB_RETURN_IF_ERROR(CheckBox(local.source_dims, local.source_box));
      if (local.source_box.dims() != target_box.dims()) {
        return absl::InvalidArgumentError(
            absl::StrCat("a piece ", local.source_box.ToString(), " does not fit into ", target_box.ToString()));
      }
      open->local.push_back(std::move(local));
      continue;
    }
    const int64_t bytes = PackedBytes(target_box.Elements(), DeviceElementBits(open->dtype));
    if (bytes == 0) continue;
    const auto range = ContiguousRange(open->dims, target_box, element_bytes);
    if (range.has_value() && !IsSubByte(open->dtype)) {  // sub-byte elements travel packed, and are unpacked here
      ++open->arriving;
      StartPull(open, piece.remote(), 0, open->data + range->offset, bytes, open->keep,
                [this, open](const absl::Status& status) { Arrived(open, status); });
    } else {
      StartStrips(open, std::make_shared<Strips>(Strips{piece.remote(), std::move(target_box), bytes, 0}));
    }
  }
  if (covered != IndexBox::Whole(open->dims).Elements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("pieces with ", covered, " elements for a buffer of ", IndexBox::Whole(open->dims).Elements()));
  }
  ++open->arriving;  // of this function
  Arrived(open, absl::OkStatus());
  return absl::OkStatus();
}

void Makes::StartPull(const std::shared_ptr<Open>& open, const RemoteSource& source, int64_t offset, std::byte* dst,
                      int64_t bytes, std::shared_ptr<const void> keep, std::function<void(absl::Status)> landed) {
  auto handle = std::make_shared<Puller::Handle>(0);
  const dataplane::Key key{source.space(), DataKeyId(DataKeyKind::kTransfer, source.transfer())};
  *handle = puller_->Pull(Incarnation(source.incarnation()), key, static_cast<uint64_t>(offset), dst,
                          static_cast<uint64_t>(bytes), std::move(keep),
                          [open, handle, landed = std::move(landed)](absl::Status status) {
                            open->pulls.erase(*handle);
                            landed(std::move(status));
                          });
  open->pulls.insert(*handle);
}

// One part of the target is there, or never will be; with the last one the rest can be done.
void Makes::Arrived(const std::shared_ptr<Open>& open, const absl::Status& status) {
  if (!status.ok() && open->status.ok()) {
    open->status = status;
    for (Puller::Handle pull : open->pulls) puller_->Cancel(pull, status);
  }
  if (--open->arriving > 0) return;
  if (open->status.ok()) return open->next ? std::exchange(open->next, nullptr)() : PutTogether(open);
  open->next = nullptr;
  PostFinish(open, open->status);
}

void Makes::StartStrips(const std::shared_ptr<Open>& open, const std::shared_ptr<Strips>& strips) {
  ++open->arriving;
  const int64_t first = std::min(strips->bytes, limits::kReshardStagedFirstBytes);
  const absl::Status status = PullChunk(open, strips, first, nullptr, [this, open, strips] {
    // The source is there: the rest need not wait for anything but memory.
    while (open->status.ok() && strips->asked < strips->bytes) AskForChunk(open, strips);
  });
  if (!status.ok()) Arrived(open, status);
}

void Makes::AskForChunk(const std::shared_ptr<Open>& open, const std::shared_ptr<Strips>& strips) {
  const int64_t offset = strips->asked;
  const int64_t bytes = std::min(strips->bytes - offset, limits::kReshardStagedChunkBytes);
  strips->asked += bytes;
  ++open->arriving;
  auto chunk = std::make_shared<Strips>(*strips);
  chunk->asked = offset;
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->staged->Acquire(bytes, [this, context, open, chunk, bytes](ImageBudget::Grant grant) {
    context->PostEnd([this, open, chunk, bytes, grant = std::move(grant)]() mutable {
      absl::Status status = open->status;
      if (status.ok()) status = PullChunk(open, chunk, bytes, std::move(grant), [] {});
      if (!status.ok()) Arrived(open, status);
    });
  });
}

// Bytes from strips->asked on, and to their places when they have landed. Then `then`; and Arrived, once, unless this
// fails at once.
absl::Status Makes::PullChunk(const std::shared_ptr<Open>& open, const std::shared_ptr<Strips>& strips, int64_t bytes,
                              ImageBudget::Grant grant, std::function<void()> then) {
  LB_ASSIGN_OR_RETURN(OwnedImage image, AllocateImage(bytes));
  const int64_t offset = strips->asked;
  strips->asked += bytes;
  StartPull(
      open, strips->source, offset, image.data, bytes, image.owner,
      [this, open, strips, image, offset, bytes, grant = std::move(grant),
       then = std::move(then)](const absl::Status& status) mutable {
        if (!status.ok()) return Arrived(open, status);
        then();
        context_->Begin();
        std::shared_ptr<ShellContext> context = context_->shared_from_this();
        context_->pool->Run([this, context, open, strips, image, offset, bytes, grant = std::move(grant)]() mutable {
          const int element_bytes = HostElementBytes(open->dtype);
          const std::vector<int64_t> strides = DenseStrides(open->dims, element_bytes);
          if (IsSubByte(open->dtype)) {
            ScatterPackedBits(open->data, strides, strips->box, DeviceElementBits(open->dtype), image.data, offset,
                              bytes);
          } else {
            ScatterPackedRange(open->data, strides, strips->box, element_bytes, image.data, offset, bytes);
          }
          image.owner.reset();
          grant.reset();
          context->PostEnd([this, open] { Arrived(open, absl::OkStatus()); });
        });
      });
  return absl::OkStatus();
}

void Makes::PutTogether(const std::shared_ptr<Open>& open) {
  if (open->local.empty() && open->in_place) {
    open->keep.reset();
    return PostFinish(open, absl::OkStatus());
  }
  context_->Begin();
  std::shared_ptr<ShellContext> context = context_->shared_from_this();
  context_->pool->Run([this, context, open] {
    const int element_bytes = HostElementBytes(open->dtype);
    const std::vector<int64_t> strides = DenseStrides(open->dims, element_bytes);
    absl::Status status;
    for (LocalPiece& piece : open->local) {
      auto image = context->io->ReadImage(piece.source, open->dtype, piece.source_dims);
      if (!image.ok()) {
        status = image.status();
        break;
      }
      const std::vector<int64_t> source_strides = DenseStrides(piece.source_dims, element_bytes);
      CopyStrided(open->data + OffsetOf(piece.target_box.start, strides), strides,
                  image->data + OffsetOf(piece.source_box.start, source_strides), source_strides,
                  piece.target_box.dims(), element_bytes);
    }
    open->local.clear();
    if (status.ok() && !open->in_place) {
      auto buffer = context->io->FromImage(open->data, open->dtype, open->dims, {}, *open->memory);
      status = buffer.status();
      if (buffer.ok()) {
        auto ready = buffer->ReadyEvent();
        status = ready.ok() ? FromPluginError(ready->Await(), "making a buffer") : ready.status();
        open->slot->Fill(*std::move(buffer));
      }
    }
    open->keep.reset();
    context->PostEnd([this, open, status] { Finish(open, status); });
  });
}

void Makes::Cancel(Ticket ticket, int index, const absl::Status& why) {
  auto it = open_.find(Id{ticket, index});
  if (it == open_.end()) return;
  std::shared_ptr<Open> open = it->second;
  if (open->arriving == 0) return;  // it is being made, and ends by itself
  if (open->status.ok()) open->status = why.ok() ? absl::CancelledError("given up") : why;
  for (Puller::Handle pull : open->pulls) puller_->Cancel(pull, open->status);
}

void Makes::PostFinish(const std::shared_ptr<Open>& open, const absl::Status& status) {
  context_->Begin();
  context_->PostEnd([this, open, status] { Finish(open, status); });
}

void Makes::Finish(const std::shared_ptr<Open>& open, const absl::Status& status) {
  if (std::exchange(open->finished, true)) return;
  open->keep.reset();
  if (!status.ok() && open->slot != nullptr) open->slot->Fail(status);
  open_.erase(open->id);
  context_->core->OnMakeDone(open->id.first, open->id.second, status, context_->Now());
}

}  // namespace landbridge
