#include "worker/core_context.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {

void Reporter::Failed(const std::vector<BufferRef>& refs, const Poison& poison, Ticket node) {
  if (muted_) return;
  WorkerReport report;
  BuffersFailed* failed = report.mutable_failed();
  for (BufferRef ref : refs) RefToProto(ref, failed->add_refs());
  *failed->mutable_status() = PoisonToProto(poison);
  failed->set_ticket(node.value());
  sink_->Report(std::move(report));
}

void Reporter::TransferDone(TransferId transfer, const Poison* poison) {
  if (poison == nullptr) {
    transfers_.push_back(transfer);
    return;
  }
  WorkerReport report;
  report.mutable_transfers_done()->add_transfers(transfer.value());
  *report.mutable_transfers_done()->mutable_status() = PoisonToProto(*poison);
  Now(std::move(report));
}

void Reporter::Flush(bool all, uint64_t epoch, uint64_t done_through) {
  if (!keys_.empty()) {
    WorkerReport report;
    for (uint64_t key : keys_) report.mutable_uploads_done()->add_keys(key);
    Now(std::move(report));
    keys_.clear();
  }
  if (!transfers_.empty()) {
    WorkerReport report;
    for (TransferId transfer : transfers_) report.mutable_transfers_done()->add_transfers(transfer.value());
    report.mutable_transfers_done()->mutable_status();
    Now(std::move(report));
    transfers_.clear();
  }
  if (!tickets_.empty() && (all || hurried_ || tickets_.size() >= limits::kProgressTicketsMax)) {
    hurried_ = false;
    WorkerReport report;
    Progress* progress = report.mutable_progress();
    progress->set_epoch(epoch);
    progress->set_place(done_through);
    for (Ticket ticket : tickets_) progress->add_tickets(ticket.value());
    Now(std::move(report));
    tickets_.clear();
  }
}

void CoreContext::CreatePoisoned(const std::vector<BufferRef>& refs, Ticket ticket, SessionId session,
                                 const PoisonPtr& poison, bool reported) {
  std::vector<BufferRef> made;
  for (BufferRef ref : refs) {
    Buffer* buffer = buffers.Create(ref, PoolId{}, 0, session, ticket);
    if (buffer == nullptr) {
      ++anomalies;
      continue;
    }
    buffers.SetPoisoned(*buffer, poison);
    made.push_back(ref);
  }
  if (reported) report.Failed(made, *poison, ticket);
}

void MemoryNeeds::Add(PoolId pool, int64_t bytes) {
  if (bytes <= 0) return;
  if (needs_.empty() || needs_.back().pool < pool) {
    needs_.push_back(Need{pool, bytes, false});
    return;
  }
  auto at = std::lower_bound(needs_.begin(), needs_.end(), pool, Before);
  if (at->pool != pool) at = needs_.insert(at, Need{pool, 0, false});
  at->bytes = AddBytes(at->bytes, bytes);
}

absl::Status MemoryNeeds::Ask(MemoryAdmission& memory, MemoryAdmission::Key key, Waiter who) {
  for (size_t i = 0; i < needs_.size(); ++i) {
    switch (memory.Ask(needs_[i].pool, key, who, needs_[i].bytes)) {
      case MemoryAdmission::Answer::kReserved: break;
      case MemoryAdmission::Answer::kWaits:
        needs_[i].waits = true;
        ++waiting_;
        break;
      case MemoryAdmission::Answer::kNeverFits: {
        absl::Status status = memory.DoesNotFit(needs_[i].pool, key, needs_[i].bytes);
        needs_.resize(i);
        Drop(memory, key);
        return status;
      }
    }
  }
  return absl::OkStatus();
}

void MemoryNeeds::Granted(PoolId pool) {
  for (Need& need : needs_) {
    if (need.pool == pool && need.waits) {
      need.waits = false;
      --waiting_;
    }
  }
}

void MemoryNeeds::Drop(MemoryAdmission& memory, MemoryAdmission::Key key) {
  for (const Need& need : needs_) {
    if (need.waits) {
      memory.Withdraw(need.pool, key);
    } else {
      memory.Release(need.pool, need.bytes);
    }
  }
  needs_.clear();
  waiting_ = 0;
}

int64_t MemoryNeeds::BytesOf(PoolId pool) const {
  const auto at = std::lower_bound(needs_.begin(), needs_.end(), pool, Before);
  return at == needs_.end() || at->pool != pool ? 0 : at->bytes;
}

absl::StatusOr<int64_t> DeviceBytes(int32_t dtype, absl::Span<const int64_t> dims) {
  const std::optional<DType> type = DTypeFromIfrtKind(dtype);
  if (!type) return absl::InvalidArgumentError(absl::StrCat("unknown element type ", dtype));
  if (dims.size() > limits::kRankMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("an array of rank ", dims.size(), " (at most ", limits::kRankMax, ")"));
  }
  int64_t elements = 1;
  for (int64_t dim : dims) {
    if (dim < 0) return absl::InvalidArgumentError(absl::StrCat("an array dimension of ", dim));
    if (dim != 0 && elements > limits::kArrayBytesMax / dim) {
      return absl::InvalidArgumentError(absl::StrCat("an array of more than ", limits::kArrayBytesMax, " elements"));
    }
    elements *= dim;
  }
  const int bits = DeviceElementBits(*type);
  if (bits > 0 && elements > limits::kArrayBytesMax / bits) {
    return absl::InvalidArgumentError(absl::StrCat("an array of more than ", limits::kArrayBytesMax, " bits"));
  }
  return (elements * bits + 7) / 8;
}

}  // namespace landbridge
