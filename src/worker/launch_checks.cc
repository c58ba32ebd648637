// What may be wrong with a launch when it arrives, and what becomes of it then.
#include "worker/launch_queue.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {

absl::Status LaunchQueue::CheckSpan(const Launch& op, const ExecutableInfo& info) const {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("t", op.ticket(), " spans workers, but ", what));
  };
  const LaunchSpan& span = op.span();
  if (!info.split()) return wrong("its program was not compiled for that");
  if (span.shards_size() != op.devices_size()) return wrong("does not say which devices are here");
  for (int d = 0; d < span.shards_size(); ++d) {
    const bool ascends = d == 0 || span.shards(d) > span.shards(d - 1);
    if (!ascends || span.shards(d) >= static_cast<uint32_t>(info.num_devices()))
      return wrong("names its devices wrongly");
  }
  if (span.worker_of_device_size() != info.num_devices()) return wrong("does not say where all its devices are");
  for (uint32_t worker : span.worker_of_device()) {
    if (worker >= static_cast<uint32_t>(span.workers_size())) return wrong("names a worker that is not in it");
  }
  if (span.has_failed()) return absl::OkStatus();  // not all its workers are there
  const std::vector<SliceId> logs = LogsOf(span);
  if (std::adjacent_find(logs.begin(), logs.end()) != logs.end()) return wrong("names a log twice");
  if (!spans_->log().valid() || !std::binary_search(logs.begin(), logs.end(), spans_->log())) {
    return wrong("does not name this worker's log");
  }
  if (span.number() == 0 || spans_->Knows(NumberOf(op))) return wrong("has a number that was used");
  return absl::OkStatus();
}

absl::Status LaunchQueue::CheckLaunch(const Launch& op, const Program* program) const {
  if (program == nullptr || program->unload_requested) {
    return absl::InvalidArgumentError(absl::StrCat("x", op.executable(), " is not loaded on this worker"));
  }
  if (!program->failed.ok()) return program->failed;
  const ExecutableInfo& info = program->info;
  if (op.has_span() || info.split()) LB_RETURN_IF_ERROR(CheckSpan(op, info));
  if (op.devices_size() == 0 || (!op.has_span() && op.devices_size() != info.num_devices())) {
    return absl::InvalidArgumentError(
        absl::StrCat("x", op.executable(), " runs on ", info.num_devices(), " devices, not ", op.devices_size()));
  }
  for (uint32_t device : op.devices()) {
    if (device >= context_->memory.devices()) {
      return absl::InvalidArgumentError(absl::StrCat("this worker has no device ", device));
    }
  }
  if (!program->devices.empty()) {  // those were looked at when it was loaded
    if (!std::equal(op.devices().begin(), op.devices().end(), program->devices.begin(), program->devices.end())) {
      return absl::InvalidArgumentError(absl::StrCat("x", op.executable(), " is loaded for other devices"));
    }
  } else {
    for (int i = 0; i < op.devices_size(); ++i) {
      for (int j = 0; j < i; ++j) {
        if (op.devices(j) == op.devices(i)) return absl::InvalidArgumentError("a device is named twice");
      }
    }
  }
  if (op.args_size() != info.parameters_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("x", op.executable(), " takes ", info.parameters_size(), " arguments, not ", op.args_size()));
  }
  if (op.outputs_size() != info.outputs_size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("x", op.executable(), " makes ", info.outputs_size(), " arrays, not ", op.outputs_size()));
  }
  for (const LaunchArg& arg : op.args()) {
    if (arg.shards_size() != 0 && arg.shards_size() != op.devices_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("an argument has ", arg.shards_size(), " shards for ", op.devices_size(), " devices"));
    }
  }
  for (uint32_t parameter : op.donated()) {
    if (parameter >= static_cast<uint32_t>(op.args_size())) {
      return absl::InvalidArgumentError(absl::StrCat("donates parameter ", parameter, ", which there is not"));
    }
  }
  std::vector<uint64_t> outputs(op.outputs().begin(), op.outputs().end());
  std::sort(outputs.begin(), outputs.end());
  if (std::adjacent_find(outputs.begin(), outputs.end()) != outputs.end()) {
    return absl::InvalidArgumentError("makes an array twice");
  }
  for (uint64_t output : outputs) {
    if (!context_->buffers.AnyOf(ArrayId(output))) continue;
    for (int d = 0; d < op.devices_size(); ++d) {
      const BufferRef ref{ArrayId(output), ShardOf(op, d)};
      if (context_->buffers.Exists(ref)) {
        return absl::InvalidArgumentError(absl::StrCat("makes ", ref.ToString(), ", which exists"));
      }
    }
  }
  return absl::OkStatus();
}

// Steady loops launch on the same devices each time.
ShardLayoutPtr LaunchQueue::LayoutOf(const Launch& op, Program* program) {
  const int devices = op.devices_size();
  if (devices < 2) return nullptr;
  ShardLayout layout;
  if (op.has_span()) {
    layout.shards.assign(op.span().shards().begin(), op.span().shards().end());
  } else if (program->layout != nullptr &&
             std::equal(op.devices().begin(), op.devices().end(), program->layout->devices.begin(),
                        program->layout->devices.end())) {
    return program->layout;  // a program either spans workers or does not
  } else {
    for (int d = 0; d < devices; ++d) layout.shards.push_back(static_cast<uint32_t>(d));
  }
  layout.devices.assign(op.devices().begin(), op.devices().end());
  if (program->layout != nullptr && *program->layout == layout) return program->layout;
  program->layout = std::make_shared<const ShardLayout>(std::move(layout));
  return program->layout;
}

absl::Status LaunchQueue::CheckInput(const Launch& op, BufferRef ref, const Buffer* buffer, uint32_t device) const {
  if (buffer == nullptr || buffer->delete_requested) {
    return absl::InvalidArgumentError(
        absl::StrCat("t", op.ticket(), " takes ", ref.ToString(), ", which was deleted or never made here"));
  }
  if (buffer->donor.kind != WaiterKind::kNone) {
    return absl::InvalidArgumentError(absl::StrCat("t", op.ticket(), " takes ", ref.ToString(),
                                                   ", which was donated to ", buffer->donor_ticket.ToString()));
  }
  // An error has no place: it counts everywhere.
  if (buffer->state != BufferState::kPoisoned && buffer->pool.device != device) {
    return absl::InvalidArgumentError(absl::StrCat("t", op.ticket(), " takes ", ref.ToString(), " on device ", device,
                                                   ", but it is on ", buffer->pool.ToString()));
  }
  return absl::OkStatus();
}

absl::Status LaunchQueue::FindInputs(const Launch& op, const ShardLayout* layout, Buffers* inputs) {
  BufferTable& buffers = context_->buffers;
  const int devices = op.devices_size();
  inputs->reserve(static_cast<size_t>(op.args_size()));
  // First those that are named alone: that may separate what another argument names as a whole.
  for (int i = 0; layout != nullptr && i < op.args_size(); ++i) {
    for (const BufferRefProto& shard : op.args(i).shards()) buffers.Find(RefFromProto(shard));
  }
  for (const LaunchArg& arg : op.args()) {
    Buffer* whole = nullptr;
    if (layout != nullptr && arg.shards_size() == 0) whole = buffers.FindTogether(ArrayId(arg.array()), *layout);
    if (whole != nullptr) {
      LB_RETURN_IF_ERROR(CheckInput(op, whole->ref, whole, whole->pool.device));
      inputs->push_back(whole);
      continue;
    }
    for (int d = 0; d < devices; ++d) {
      const BufferRef ref =
          arg.shards_size() == 0 ? BufferRef{ArrayId(arg.array()), ShardOf(op, d)} : RefFromProto(arg.shards(d));
      Buffer* buffer = buffers.Find(ref);
      LB_RETURN_IF_ERROR(CheckInput(op, ref, buffer, op.devices(d)));
      inputs->push_back(buffer);
    }
  }
  return op.donated_size() == 0 ? absl::OkStatus() : CheckDonations(op, *inputs);
}

absl::Status LaunchQueue::CheckDonations(const Launch& op, const Buffers& inputs) {
  std::vector<bool> gives(static_cast<size_t>(op.args_size()), false);
  for (uint32_t parameter : op.donated()) {
    if (gives[parameter]) return absl::InvalidArgumentError(absl::StrCat("parameter ", parameter, " is donated twice"));
    gives[parameter] = true;
  }
  absl::flat_hash_set<const Buffer*> donated;
  for (int pass = 0; pass < 2; ++pass) {
    size_t i = 0;
    for (const bool given : gives) {
      for (const size_t end = i + InputsOf(*inputs[i], op.devices_size()); i < end; ++i) {
        if (given != (pass == 0)) continue;
        const Buffer* buffer = inputs[i];
        const bool clash = pass == 0 ? !donated.insert(buffer).second : donated.contains(buffer);
        if (clash) {
          return absl::InvalidArgumentError(
              absl::StrCat("t", op.ticket(), " donates ", buffer->ref.ToString(), " and uses it a second time"));
        }
      }
    }
  }
  return absl::OkStatus();
}

void LaunchQueue::Reject(const Launch& op, const absl::Status& why) {
  std::vector<BufferRef> refs;
  // What the message says of its own devices may be what is wrong with it.
  const bool shards_known = !op.has_span() || op.span().shards_size() == op.devices_size();
  for (uint64_t output : op.outputs()) {
    for (int d = 0; shards_known && d < op.devices_size(); ++d) refs.push_back({ArrayId(output), ShardOf(op, d)});
  }
  const Ticket ticket(op.ticket());
  context_->CreatePoisoned(refs, ticket, SessionId(op.session()), MakePoison(why, ticket, op.user_context()), true);
  // What it would have consumed is gone for the client.
  for (uint32_t parameter : op.donated()) {
    if (parameter >= static_cast<uint32_t>(op.args_size())) continue;
    const LaunchArg& arg = op.args(static_cast<int>(parameter));
    for (int d = 0; shards_known && d < op.devices_size() && (arg.shards_size() == 0 || d < arg.shards_size()); ++d) {
      Buffer* buffer = context_->buffers.Find(arg.shards_size() == 0 ? BufferRef{ArrayId(arg.array()), ShardOf(op, d)}
                                                                     : RefFromProto(arg.shards(d)));
      if (buffer != nullptr && buffer->donor.kind == WaiterKind::kNone) context_->buffers.RequestDelete(*buffer);
    }
  }
  if (op.report_at_once()) context_->report.Hurry();
  context_->NodeEnded(ticket);
}

}  // namespace landbridge
