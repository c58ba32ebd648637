#include "worker/shell/host_call_launches.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

// The operands of a call, one after the other. `call` keeps them valid.
class OperandSource final : public dataplane::Source {
 public:
  OperandSource(std::vector<absl::Span<const std::byte>> parts, uint64_t size)
      : parts_(std::move(parts)), size_(size) {}
  uint64_t size() const override { return size_; }
  bool copies() const override { return parts_.size() > 1; }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override {
    if (parts_.size() == 1) return done(dataplane::Chunk{parts_[0].data() + offset, size, nullptr});
    auto packed = std::make_shared<std::string>();
    packed->reserve(size);
    for (const auto& part : parts_) {
      if (offset >= part.size()) {
        offset -= part.size();
        continue;
      }
      const uint64_t taken = std::min<uint64_t>(part.size() - offset, size - packed->size());
      packed->append(reinterpret_cast<const char*>(part.data()) + offset, taken);
      offset = 0;
      if (packed->size() == size) break;
    }
    done(dataplane::Chunk{packed->data(), packed->size(), packed});
  }

 private:
  const std::vector<absl::Span<const std::byte>> parts_;
  const uint64_t size_;
};

}  // namespace

HostCallLaunches::~HostCallLaunches() {
  // No launch is open any more when the grant's shell goes.
  if (pool_ != nullptr) pool_->Shutdown();
}

void HostCallLaunches::Open(const Launch& launch, const LaunchWork& work) {
  if (pool_ == nullptr) {
    pool_ = std::make_shared<TaskPool>(context_->io->device_count() + limits::kHostCallThreadsMore, "host-calls");
  }
  const Ticket ticket(launch.ticket());
  OpenLaunch& open = launches_[ticket];
  open.session = launch.session();
  open.aborted = ended_;
  open.registration = pjrt::HostCallRegistration(
      work.launch_id, [this, context = context_->shared_from_this(), ticket](pjrt::HostCall call) {
        context->Post([this, ticket, call = std::move(call)]() mutable { Start(ticket, std::move(call)); });
      });
}

absl::Status HostCallLaunches::Close(Ticket ticket) {
  auto it = launches_.find(ticket);
  if (it == launches_.end()) return absl::OkStatus();
  absl::Status failure = std::move(it->second.failure);
  launches_.erase(it);
  return failure;
}

void HostCallLaunches::Start(Ticket ticket, pjrt::HostCall host_call) {
  auto call = std::make_shared<Call>();
  call->ticket = ticket;
  call->call = std::move(host_call);
  const uint64_t id = ++last_;
  auto launch = launches_.find(ticket);
  if (launch == launches_.end()) {
    return Finish(id, std::move(call), absl::FailedPreconditionError("the launch is over"), "");
  }
  if (!launch->second.aborted.ok()) return Finish(id, std::move(call), launch->second.aborted, "");
  const int64_t bytes = call->call.operand_bytes(), result_bytes = call->call.result_bytes();
  if (bytes > limits::kHostCallBytesMax || result_bytes > limits::kHostCallBytesMax) {
    return Finish(id, std::move(call),
                  absl::InvalidArgumentError(absl::StrCat("a callback takes ", bytes, " bytes and gives ", result_bytes,
                                                          "; at most ", limits::kHostCallBytesMax,
                                                          " are possible each way: pass less, or part by part")),
                  "");
  }
  WorkerReport report;
  auto* out = report.mutable_host_call();
  out->set_call(id);
  out->set_session(launch->second.session);
  out->set_ticket(ticket.value());
  out->set_function(call->call.function);
  const auto& devices = context_->io->client().devices();
  for (size_t d = 0; d < devices.size(); ++d) {
    if (devices[d].id == call->call.device) out->set_device(static_cast<uint32_t>(d));
  }
  out->set_operand_bytes(bytes);
  out->set_result_bytes(result_bytes);
  if (bytes <= static_cast<int64_t>(limits::kInlineBytesMax)) {
    for (const auto& part : call->call.operands) {
      out->mutable_operands()->append(reinterpret_cast<const char*>(part.data()), part.size());
    }
  } else {
    std::vector<absl::Span<const std::byte>> parts;
    for (const auto& part : call->call.operands) {
      if (!part.empty()) parts.push_back(part);
    }
    call->published = true;
    context_->data_plane->Publish(context_->KeyOf(DataKeyKind::kHostCall, id),
                                  std::make_shared<OperandSource>(std::move(parts), static_cast<uint64_t>(bytes)),
                                  dataplane::PublishOptions{context_->proxy});
  }
  calls_.emplace(id, std::move(call));
  report_(std::move(report));
}

void HostCallLaunches::OnReply(HostCallReply reply) {
  auto it = calls_.find(reply.call());
  if (it == calls_.end() || it->second->replied) {
    if (reply.results_key() != 0) {  // over here: nobody takes the results
      WorkerReport report;
      report.mutable_host_call_taken()->set_call(reply.call());
      report_(std::move(report));
    }
    return;
  }
  const CallPtr call = it->second;
  if (reply.results_key() != 0) return PullResults(it->first, call, reply.results_key());
  absl::Status status = StatusOf(reply.status());
  if (status.ok() && static_cast<int64_t>(reply.results().size()) != call->call.result_bytes()) {
    status = absl::InternalError(
        absl::StrCat("a callback's results came as ", reply.results().size(), " bytes of ", call->call.result_bytes()));
  }
  Finish(reply.call(), call, std::move(status), std::move(*reply.mutable_results()));
}

void HostCallLaunches::PullResults(uint64_t id, const CallPtr& call, uint64_t results_key) {
  struct Join {
    size_t left = 1;
    absl::Status status;
  };
  auto join = std::make_shared<Join>();
  auto done = [this, id, call, join](const absl::Status& status) {
    if (join->status.ok()) join->status = status;
    if (--join->left > 0) return;
    WorkerReport report;
    report.mutable_host_call_taken()->set_call(id);
    report_(std::move(report));
    Finish(id, call, join->status.ok() ? join->status : AddContext(join->status, "fetching a callback's results"), "");
  };
  call->replied = true;
  uint64_t offset = 0;
  for (const auto& result : call->call.results) {
    if (result.empty()) continue;
    ++join->left;
    puller_->Pull(context_->proxy, context_->KeyOf(DataKeyKind::kHostCall, results_key), offset, result.data(),
                  result.size(), call, done);
    offset += result.size();
  }
  done(absl::OkStatus());
}

void HostCallLaunches::Abort(Ticket ticket, const absl::Status& why) {
  if (auto launch = launches_.find(ticket); launch != launches_.end() && launch->second.aborted.ok()) {
    launch->second.aborted = why;
  }
  std::vector<uint64_t> ids;
  for (const auto& [id, call] : calls_) {
    if (call->ticket == ticket && !call->replied) ids.push_back(id);
  }
  for (uint64_t id : ids) Finish(id, calls_[id], why, "");
}

void HostCallLaunches::AbortAll(const absl::Status& why) {
  ended_ = why;
  std::vector<Ticket> tickets;
  for (const auto& [ticket, launch] : launches_) tickets.push_back(ticket);
  for (Ticket ticket : tickets) Abort(ticket, why);
}

void HostCallLaunches::Finish(uint64_t id, CallPtr call, absl::Status status, std::string results) {
  calls_.erase(id);
  if (auto launch = launches_.find(call->ticket); !status.ok() && launch != launches_.end()) {
    if (launch->second.failure.ok()) launch->second.failure = status;
  }
  if (!call->published) return Complete(std::move(call), std::move(status), std::move(results));
  // The operands' memory is the program's again when nobody reads it.
  context_->Begin();
  context_->data_plane->Unpublish(context_->KeyOf(DataKeyKind::kHostCall, id),
                                  absl::FailedPreconditionError("the callback is over"),
                                  [this, context = context_->shared_from_this(), call = std::move(call),
                                   status = std::move(status), results = std::move(results)]() mutable {
                                    context->PostEnd([this, call = std::move(call), status = std::move(status),
                                                      results = std::move(results)]() mutable {
                                      Complete(std::move(call), std::move(status), std::move(results));
                                    });
                                  });
}

void HostCallLaunches::Complete(CallPtr call, absl::Status status, std::string results) {
  pool_->Run([call = std::move(call), status = std::move(status), results = std::move(results)]() mutable {
    size_t offset = 0;
    if (status.ok() && !results.empty()) {
      for (const auto& result : call->call.results) {
        if (!result.empty()) std::memcpy(result.data(), results.data() + offset, result.size());
        offset += result.size();
      }
    }
    results.clear();
    call->call.completion.Complete(status);
  });
}

}  // namespace landbridge
