#include "controller/requests.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "base/log.h"
#include "controller/status_proto.h"

namespace landbridge::ctl {

void Requests::OpenWait(RequestId request, SessionId session) {
  waits_.emplace(request, Wait{session, 1, absl::OkStatus()});
}

void Requests::AddError(RequestId request, const absl::Status& error) {
  auto it = waits_.find(request);
  if (it != waits_.end() && it->second.error.ok()) it->second.error = error;
}

uint64_t Requests::AddWatch(RequestId request, Life* life) {
  AddPiece(request);
  const uint64_t watch = next_watch_++;
  watches_.emplace(watch, Watch{request, life});
  return watch;
}

void Requests::AddPiece(RequestId request) {
  auto it = waits_.find(request);
  if (it != waits_.end()) ++it->second.open;
}

void Requests::StartWait(RequestId request) { EndPiece(request, absl::OkStatus()); }

void Requests::EndPiece(RequestId request, const absl::Status& status) {
  auto it = waits_.find(request);
  if (it == waits_.end()) return;
  if (it->second.error.ok()) it->second.error = status;
  if (--it->second.open != 0) return;
  answers_.push_back({request, std::move(it->second.error)});
  waits_.erase(it);
}

bool Requests::EndWatch(uint64_t watch, const Life* life, const absl::Status& status) {
  auto it = watches_.find(watch);
  if (it == watches_.end() || it->second.life != life) return false;
  const RequestId request = it->second.request;
  watches_.erase(it);
  EndPiece(request, status);
  return true;
}

void Requests::EndLaunch(Ticket ticket, const absl::Status& status) {
  if (launches_.empty()) return;
  auto it = launches_.find(ticket);
  if (it == launches_.end()) return;
  const std::vector<RequestId> waiting = std::move(it->second);
  launches_.erase(it);
  for (RequestId request : waiting) EndPiece(request, status);
}

void Requests::OpenRead(RequestId request, SessionId session, Life* life, int64_t bytes) {
  reads_.emplace(request, ReadState{session, life, bytes, false});
}

void Requests::AnswerRead(RequestId request, absl::StatusOr<ReadResult> result) {
  reads_.erase(request);
  answers_.push_back({request, std::move(result)});
}

bool Requests::EndRead(RequestId request, const Life* life, const ReadReady& ready, uint64_t space) {
  auto it = reads_.find(request);
  if (it == reads_.end() || it->second.life != life || it->second.answered || it->second.memory_of) return false;
  if (absl::Status status = FromProto(ready.status()); !status.ok()) {
    AnswerRead(request, std::move(status));
    return true;
  }
  ReadResult result;
  result.bytes = it->second.bytes;
  result.worker = life->incarnation;
  if (!ready.published()) {
    if (static_cast<int64_t>(ready.data().size()) != it->second.bytes) {
      AnswerRead(request, absl::InternalError(absl::StrCat("read ", request.value(), ": worker ", life->name, " sent ",
                                                           ready.data().size(), " bytes of ", it->second.bytes)));
      return true;
    }
    result.data = ready.data();
    AnswerRead(request, std::move(result));
    return true;
  }
  result.remote = true;
  result.space = space;
  result.id = DataKeyId(DataKeyKind::kRead, request.value());
  it->second.answered = true;
  answers_.push_back({request, absl::StatusOr<ReadResult>(std::move(result))});
  return true;
}

void Requests::OpenMemory(RequestId request, SessionId session, Life* life, uint32_t ordinal) {
  ReadState& state = reads_[request];
  state.session = session;
  state.life = life;
  state.memory_of = ordinal;
}

bool Requests::EndMemory(RequestId request, const Life* life, const MemoryUse& use) {
  auto it = reads_.find(request);
  if (it == reads_.end() || it->second.life != life || !it->second.memory_of) return false;
  const uint32_t wanted = *it->second.memory_of;
  auto device = std::find_if(use.devices().begin(), use.devices().end(),
                             [wanted](const DeviceUse& one) { return one.device() == wanted; });
  if (device == use.devices().end()) {
    AnswerRead(request,
               absl::InternalError(absl::StrCat("worker ", life->name, " told no figures of device ", wanted)));
    return true;
  }
  ReadResult result;
  result.data = device->SerializeAsString();
  result.bytes = static_cast<int64_t>(result.data.size());
  AnswerRead(request, std::move(result));
  return true;
}

Requests::Released Requests::ReleaseRead(RequestId request) {
  auto it = reads_.find(request);
  if (it == reads_.end()) return {};
  const Released released{it->second.life, it->second.answered};
  reads_.erase(it);
  return released;
}

void Requests::OpenExplain(RequestId request, std::string controller_json, const std::vector<Life*>& lives,
                           std::vector<std::string> names) {
  ExplainState& state = explains_[request];
  state.text = absl::StrCat("{\"controller\":", controller_json, ",\"workers\":{");
  for (size_t i = 0; i < lives.size(); ++i) state.open.emplace_back(lives[i], std::move(names[i]));
  EndExplainIfDone(request);
}

void Requests::EndExplain(RequestId request, const Life* life, std::string json) {
  auto it = explains_.find(request);
  if (it == explains_.end()) return;
  ExplainState& state = it->second;
  auto at = std::find_if(state.open.begin(), state.open.end(), [life](const auto& open) { return open.first == life; });
  if (at == state.open.end()) return;
  absl::StrAppend(&state.text, state.text.back() == '{' ? "" : ",", "\"", at->second,
                  "\":", json.empty() ? "null" : json);
  state.open.erase(at);
  EndExplainIfDone(request);
}

void Requests::GiveUpExplain(RequestId request) {
  auto it = explains_.find(request);
  if (it == explains_.end()) return;
  std::vector<const Life*> silent;
  for (const auto& [life, name] : it->second.open) silent.push_back(life);
  for (const Life* life : silent) EndExplain(request, life, "");
}

void Requests::EndExplainIfDone(RequestId request) {
  auto it = explains_.find(request);
  if (it == explains_.end() || !it->second.open.empty()) return;
  answers_.push_back({request, it->second.text + "}}"});
  explains_.erase(it);
}

void Requests::LoseLife(const Life* life, const absl::Status& why) {
  std::vector<uint64_t> watches;
  for (const auto& [number, watch] : watches_) {
    if (watch.life == life) watches.push_back(number);
  }
  std::sort(watches.begin(), watches.end());
  for (uint64_t watch : watches) EndWatch(watch, life, why);
  std::vector<RequestId> reads;
  for (const auto& [request, read] : reads_) {
    if (read.life == life) reads.push_back(request);
  }
  std::sort(reads.begin(), reads.end());
  for (RequestId request : reads) {
    if (reads_.find(request)->second.answered) {
      reads_.erase(request);  // who pulls it sees the worker go
    } else {
      AnswerRead(request, why);
    }
  }
  std::vector<RequestId> explains;
  for (const auto& [request, state] : explains_) explains.push_back(request);
  std::sort(explains.begin(), explains.end());
  for (RequestId request : explains) EndExplain(request, life, "");
}

void Requests::DropSession(SessionId session) {
  for (auto it = watches_.begin(); it != watches_.end();) {
    auto wait = waits_.find(it->second.request);
    if (wait != waits_.end() && wait->second.session == session) {
      watches_.erase(it++);
    } else {
      ++it;
    }
  }
  for (auto it = launches_.begin(); it != launches_.end();) {
    auto& requests = it->second;
    requests.erase(std::remove_if(requests.begin(), requests.end(),
                                  [&](RequestId request) {
                                    auto wait = waits_.find(request);
                                    return wait != waits_.end() && wait->second.session == session;
                                  }),
                   requests.end());
    if (requests.empty()) {
      launches_.erase(it++);
    } else {
      ++it;
    }
  }
  absl::erase_if(waits_, [session](const auto& entry) { return entry.second.session == session; });
  absl::erase_if(reads_, [session](const auto& entry) { return entry.second.session == session; });
}

size_t Requests::of(SessionId session) const {
  size_t count = 0;
  for (const auto& [request, wait] : waits_) count += wait.session == session;
  for (const auto& [request, read] : reads_) count += read.session == session;
  return count;
}

void Requests::Deliver() {
  while (!answers_.empty()) {
    Answer answer = std::move(answers_.front());
    answers_.pop_front();
    if (auto* status = std::get_if<absl::Status>(&answer.what)) {
      sink_->Resolve(answer.request, *status);
    } else if (auto* read = std::get_if<absl::StatusOr<ReadResult>>(&answer.what)) {
      sink_->ResolveRead(answer.request, std::move(*read));
    } else {
      sink_->ResolveExplain(answer.request, std::move(std::get<std::string>(answer.what)));
    }
  }
}

}  // namespace landbridge::ctl
