#include "controller/host_uploads.h"

#include <algorithm>
#include <utility>

#include "controller/status_proto.h"

namespace landbridge::ctl {

bool HostUploads::Add(uint64_t key, SessionId session, bool pulled, std::shared_ptr<const std::string> bytes) {
  auto [it, added] = buffers_.try_emplace(key);
  if (!added) return false;
  Buffer& buffer = it->second;
  buffer.session = session;
  buffer.pulled = pulled;
  buffer.known = !pulled && bytes != nullptr;
  if (buffer.known) buffer.bytes = std::move(bytes);
  return true;
}

void HostUploads::AddTarget(uint64_t key, Life* life, ArrayId array) {
  buffers_.find(key)->second.targets.push_back({life, array, false});
}

void HostUploads::Start(uint64_t key) {
  auto it = buffers_.find(key);
  if (it == buffers_.end()) return;
  if (!it->second.pulled && !it->second.known) sink_->WantHostBytes(key);
  DropIfDone(key);
}

WorkerOp HostUploads::DataOp(uint64_t key, const Buffer& buffer) const {
  WorkerOp op;
  UploadData* data = op.mutable_upload_data();
  data->set_key(key);
  if (!buffer.error.ok()) {
    ToProto(buffer.error, data->mutable_error());
  } else {
    data->set_data(*buffer.bytes);
  }
  return op;
}

void HostUploads::BeforeUploadSent(Life* life, uint64_t key) {
  auto it = buffers_.find(key);
  if (it == buffers_.end() || !it->second.pulled) return;
  std::vector<Incarnation> workers{life->incarnation};
  for (const Destination& target : it->second.targets) {
    if (!target.sent && target.life != life) workers.emplace_back();
  }
  sink_->ServeHostBuffer(key, std::move(workers));
}

void HostUploads::AfterUploadSent(Life* life, uint64_t key, Dispatcher* dispatcher) {
  auto it = buffers_.find(key);
  if (it == buffers_.end()) return;
  auto at = std::find_if(it->second.targets.begin(), it->second.targets.end(),
                         [life](const Destination& target) { return target.life == life && !target.sent; });
  if (at == it->second.targets.end()) return;
  at->sent = true;
  if (!it->second.known) return;
  dispatcher->SendNow(life, DataOp(key, it->second));
  it->second.targets.erase(at);
  DropIfDone(key);
}

std::vector<HostUploads::Failed> HostUploads::OnBytes(uint64_t key, absl::StatusOr<std::string> bytes,
                                                      Dispatcher* dispatcher) {
  std::vector<Failed> failed;
  auto it = buffers_.find(key);
  if (it == buffers_.end() || it->second.known) return failed;
  Buffer& buffer = it->second;
  if (buffer.pulled && bytes.ok()) return failed;  // they come another way
  buffer.known = true;
  if (bytes.ok()) {
    buffer.bytes = std::make_shared<const std::string>(*std::move(bytes));
  } else {
    buffer.error = bytes.status();
    for (const Destination& target : buffer.targets) failed.push_back({target.life, target.array});
  }
  std::vector<Destination> targets;
  targets.swap(buffer.targets);
  for (const Destination& target : targets) {
    if (target.sent) {
      dispatcher->SendNow(target.life, DataOp(key, buffer));
    } else {
      buffer.targets.push_back(target);
    }
  }
  DropIfDone(key);
  return failed;
}

void HostUploads::OnUploadDone(Life* life, uint64_t key) {
  auto it = buffers_.find(key);
  if (it == buffers_.end()) return;
  auto& targets = it->second.targets;
  targets.erase(std::remove_if(targets.begin(), targets.end(),
                               [life](const Destination& target) { return target.life == life && target.sent; }),
                targets.end());
  DropIfDone(key);
}

void HostUploads::LoseLife(Life* life) {
  std::vector<uint64_t> keys;
  for (auto& [key, buffer] : buffers_) {
    const size_t before = buffer.targets.size();
    const bool was_to_come =
        std::any_of(buffer.targets.begin(), buffer.targets.end(),
                    [life](const Destination& target) { return target.life == life && !target.sent; });
    if (was_to_come && buffer.pulled) sink_->ServeHostBuffer(key, {});
    buffer.targets.erase(std::remove_if(buffer.targets.begin(), buffer.targets.end(),
                                        [life](const Destination& target) { return target.life == life; }),
                         buffer.targets.end());
    if (buffer.targets.size() != before) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  for (uint64_t key : keys) DropIfDone(key);
}

void HostUploads::DropSession(SessionId session) {
  std::vector<uint64_t> keys;
  for (auto& [key, buffer] : buffers_) {
    if (buffer.session == session) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  for (uint64_t key : keys) {
    buffers_.erase(key);
    sink_->DropHostBuffer(key);
  }
}

void HostUploads::DropIfDone(uint64_t key) {
  auto it = buffers_.find(key);
  if (it == buffers_.end() || !it->second.targets.empty()) return;
  buffers_.erase(it);
  sink_->DropHostBuffer(key);
}

}  // namespace landbridge::ctl
