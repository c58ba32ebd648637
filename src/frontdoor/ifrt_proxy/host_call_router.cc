#include "frontdoor/ifrt_proxy/host_call_router.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/data_keys.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {
namespace {

// The client's text, at most so long: both ends of a traceback matter.
std::string Cut(absl::string_view text) {
  if (text.size() <= kHostCallErrorBytesMax) return std::string(text);
  const size_t half = kHostCallErrorBytesMax / 2;
  return absl::StrCat(text.substr(0, half), "\n ... (cut) ...\n", text.substr(text.size() - half));
}

}  // namespace

void HostCallRouter::OnCall(Incarnation worker, HostCall call) {
  const uint64_t id = ++last_;
  const SessionId session(call.session());
  const bool is_inline = static_cast<int64_t>(call.operands().size()) == call.operand_bytes();
  auto operands = std::make_shared<std::string>(std::move(*call.mutable_operands()));
  call.clear_operands();
  calls_.emplace(id, Call{session, worker, std::move(call), {}});
  auto client = clients_.find(session);
  if (client == clients_.end() || client->second.pipe == nullptr) {
    return Fail(id, absl::FailedPreconditionError("the client whose function is called is gone"));
  }
  if (is_inline) {
    client->second.bytes += operands->size();
    return OnFetched(id, std::move(operands), absl::OkStatus());
  }
  client->second.waiting.push_back(id);
  FetchMore(client->second);
}

void HostCallRouter::FetchMore(Client& client) {
  while (!client.waiting.empty()) {
    const uint64_t id = client.waiting.front();
    auto it = calls_.find(id);
    if (it != calls_.end()) {
      const auto bytes = static_cast<size_t>(it->second.call.operand_bytes());
      if (client.bytes > 0 && client.bytes + bytes > kHostCallSessionBytesMax) return;
    }
    client.waiting.pop_front();
    if (it != calls_.end()) Fetch(id, client);
  }
}

void HostCallRouter::Fetch(uint64_t id, Client& client) {
  Call& call = calls_.at(id);
  const int64_t bytes = call.call.operand_bytes();
  if (bytes < 0 || bytes > static_cast<int64_t>(kHostCallSessionBytesMax)) {
    return Fail(id, absl::InvalidArgumentError(absl::StrCat("a callback with ", bytes, " bytes of operands")));
  }
  client.bytes += static_cast<size_t>(bytes);
  auto operands = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
  char* const data = operands->data();
  call.pull = data_plane_->Pull(call.worker, {options_.space, DataKeyId(DataKeyKind::kHostCall, call.call.call())}, 0,
                                data, static_cast<uint64_t>(bytes),
                                [post = options_.post, id, operands = std::move(operands)](absl::Status status) {
                                  post([id, operands, status = std::move(status)](HostCallRouter& router) {
                                    router.OnFetched(id, operands, status);
                                  });
                                });
}

void HostCallRouter::OnFetched(uint64_t id, std::shared_ptr<const std::string> operands, const absl::Status& status) {
  auto it = calls_.find(id);
  if (it == calls_.end()) return;  // answered meanwhile
  auto client = clients_.find(it->second.session);
  if (!status.ok() || client == clients_.end() || client->second.pipe == nullptr) {
    if (client != clients_.end()) client->second.bytes -= std::min(client->second.bytes, operands->size());
    return Fail(id, status.ok() ? absl::FailedPreconditionError("the client whose function is called is gone")
                                : AddContext(status, "fetching what a callback takes"));
  }
  const HostCall& call = it->second.call;
  client->second.pipe->Send(CallFrame(id, call.function(), call.device(), std::move(operands)));
}

void HostCallRouter::OnWritten(SessionId session, size_t bytes) {
  auto it = clients_.find(session);
  if (it == clients_.end()) return;
  // Heads are small change: what is counted are operands.
  it->second.bytes -= std::min(it->second.bytes, bytes);
  FetchMore(it->second);
}

void HostCallRouter::Fail(uint64_t id, const absl::Status& why) {
  auto it = calls_.find(id);
  if (it == calls_.end()) return;
  const Call call = std::move(it->second);
  calls_.erase(it);
  HostCallReply reply;
  reply.set_call(call.call.call());
  reply.mutable_status()->set_code(static_cast<int32_t>(why.code()));
  reply.mutable_status()->set_message(std::string(why.message()));
  options_.reply(call.worker, std::move(reply));
}

void HostCallRouter::FailAll(SessionId session, const absl::Status& why) {
  std::vector<uint64_t> ids;
  for (const auto& [id, call] : calls_) {
    if (call.session == session) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  for (uint64_t id : ids) Fail(id, why);
}

// ---------------------------------------------------------------- clients

void HostCallRouter::Attach(std::shared_ptr<HostCallPipe> pipe) {
  const SessionId session = pipe->session();
  Client& client = clients_[session];
  if (client.pipe != nullptr) {
    const std::shared_ptr<HostCallPipe> old = client.pipe;
    Detach(old);
    old->Close();
  }
  clients_[session].pipe = std::move(pipe);
}

void HostCallRouter::OnFrame(const std::shared_ptr<HostCallPipe>& pipe, HostCallPipe::Frame frame) {
  pipe->Taken();
  absl::StatusOr<HostCallAnswer> answer = ParseHostCallAnswer(*frame);
  if (!answer.ok()) return pipe->Close();
  auto it = calls_.find(answer->call);
  if (it == calls_.end() || it->second.session != pipe->session()) return;  // answered already, or not its own
  if (answer->failed) {
    return Fail(answer->call, absl::InvalidArgumentError(absl::StrCat("CpuCallback error calling callback: ",
                                                                      FilterForeignText(Cut(answer->bytes)))));
  }
  const int64_t wanted = it->second.call.result_bytes();
  if (static_cast<int64_t>(answer->bytes.size()) != wanted) {
    return Fail(answer->call, absl::InvalidArgumentError(absl::StrCat("a callback answered ", answer->bytes.size(),
                                                                      " bytes where its program wants ", wanted)));
  }
  const uint64_t id = answer->call;
  const Call call = std::move(it->second);
  calls_.erase(it);
  HostCallReply reply;
  reply.set_call(call.call.call());
  if (answer->bytes.size() <= limits::kInlineBytesMax) {
    reply.set_results(answer->bytes.data(), answer->bytes.size());
  } else {
    reply.set_results_key(id);
    served_[{call.worker, call.call.call()}] = id;
    data_plane_->PublishSpan({options_.space, DataKeyId(DataKeyKind::kHostCall, id)},
                             {reinterpret_cast<const std::byte*>(answer->bytes.data()), answer->bytes.size()}, frame,
                             dataplane::PublishOptions{call.worker});
  }
  options_.reply(call.worker, std::move(reply));
}

void HostCallRouter::Detach(const std::shared_ptr<HostCallPipe>& pipe) {
  auto it = clients_.find(pipe->session());
  if (it == clients_.end() || it->second.pipe != pipe) return;
  clients_.erase(it);
  FailAll(pipe->session(),
          absl::FailedPreconditionError("the stream on which the client serves its callbacks has ended"));
}

void HostCallRouter::CloseSession(SessionId session) {
  auto it = clients_.find(session);
  if (it != clients_.end()) {
    const std::shared_ptr<HostCallPipe> pipe = std::move(it->second.pipe);
    clients_.erase(it);
    if (pipe != nullptr) pipe->Close();
  }
  FailAll(session, absl::CancelledError("the client whose function is called is gone"));
}

// ---------------------------------------------------------------- workers

void HostCallRouter::Unpublish(uint64_t key) {
  data_plane_->Unpublish({options_.space, DataKeyId(DataKeyKind::kHostCall, key)},
                         absl::FailedPreconditionError("the callback is over"));
}

void HostCallRouter::OnTaken(Incarnation worker, uint64_t call) {
  auto it = served_.find({worker, call});
  if (it == served_.end()) return;
  Unpublish(it->second);
  served_.erase(it);
}

void HostCallRouter::OnWorkerLost(Incarnation worker) {
  absl::erase_if(calls_, [worker](const auto& entry) { return entry.second.worker == worker; });
  for (auto it = served_.begin(); it != served_.end();) {
    if (it->first.first == worker) {
      Unpublish(it->second);
      served_.erase(it++);
    } else {
      ++it;
    }
  }
}

}  // namespace landbridge
