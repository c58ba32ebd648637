// The programs of a launch queue: loading, and forgetting them when nothing needs them.
#include "worker/launch_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {
namespace {

bool SaneBytes(int64_t bytes) { return bytes >= 0 && bytes <= limits::kArrayBytesMax; }

}  // namespace

absl::Status LaunchQueue::CheckLoad(const LoadExecutable& load, uint32_t devices) {
  const ExecutableInfo& info = load.info();
  for (int i = 0; i < load.devices_size(); ++i) {
    if (load.devices(i) >= devices) {
      return absl::InvalidArgumentError(
          absl::StrCat("executable for device ", load.devices(i), " of a worker with ", devices, " devices"));
    }
    for (int j = 0; j < i; ++j) {
      if (load.devices(j) == load.devices(i)) {
        return absl::InvalidArgumentError(absl::StrCat("executable names device ", load.devices(i), " twice"));
      }
    }
  }
  if (load.devices_size() > 0 && load.devices_size() != info.num_devices()) {
    return absl::InvalidArgumentError(
        absl::StrCat("executable for ", info.num_devices(), " devices given ", load.devices_size()));
  }
  for (const TensorInfo& tensor : info.parameters()) {
    if (!SaneBytes(tensor.device_bytes()))
      return absl::InvalidArgumentError("executable with a parameter of impossible size");
  }
  for (const TensorInfo& tensor : info.outputs()) {
    if (!SaneBytes(tensor.device_bytes()))
      return absl::InvalidArgumentError("executable with an output of impossible size");
  }
  if (!SaneBytes(info.temp_bytes_per_device()))
    return absl::InvalidArgumentError("executable with impossible scratch memory");
  return absl::OkStatus();
}

void LaunchQueue::OnLoad(LoadExecutable load, TimeNs now) {
  const ExecutableId id(load.executable());
  if (programs_.contains(id)) {
    ++context_->anomalies;
    return;
  }
  const absl::Status status = CheckLoad(load, context_->memory.devices());
  auto program = std::make_unique<Program>();
  program->id = id;
  program->info = load.info();
  program->devices.assign(load.devices().begin(), load.devices().end());
  programs_.emplace(id, std::move(program));
  if (status.ok()) {
    context_->sink->Load(load);
  } else {
    OnLoadDone(id, status, now);
  }
}

void LaunchQueue::OnUnload(ExecutableId id) {
  auto it = programs_.find(id);
  if (it == programs_.end() || it->second->unload_requested) {
    ++context_->anomalies;
    return;
  }
  it->second->unload_requested = true;
  MaybeUnload(*it->second);
}

void LaunchQueue::OnLoadDone(ExecutableId id, const absl::Status& status, TimeNs now) {
  auto it = programs_.find(id);
  if (it == programs_.end() || it->second->loaded || !it->second->failed.ok()) {
    ++context_->anomalies;
    return;
  }
  Program& program = *it->second;
  program.loaded = status.ok();
  program.failed = status;
  WorkerReport report;
  report.mutable_load_done()->set_executable(id.value());
  *report.mutable_load_done()->mutable_status() = StatusToProto(status);
  context_->report.Now(std::move(report));

  ++program.queued;  // keeps it while its launches are looked at
  for (SlabHandle handle : std::exchange(program.waiting, {})) {
    Node* node = launches_.Get(handle);
    if (node == nullptr) continue;
    node->load_missing = false;
    if (status.ok()) {
      CheckRunnable(*node, now);
    } else {
      Drop(*node, MakePoison(status, node->ticket, node->op->user_context()));
    }
  }
  LeaveProgram(program);
}

void LaunchQueue::LeaveProgram(Program& program) {
  --program.queued;
  MaybeUnload(program);
}

void LaunchQueue::MaybeUnload(Program& program) {
  if (!program.unload_requested || program.queued > 0) return;
  if (program.loaded) {
    context_->sink->Unload(program.id);
  } else if (program.failed.ok()) {
    return;  // still loading
  }
  programs_.erase(ExecutableId(program.id));
}

}  // namespace landbridge
