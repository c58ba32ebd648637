#include "frontdoor/ifrt_proxy/call.h"

#include <pthread.h>

#include <utility>

#include "base/limits.h"
#include "frontdoor/ifrt_proxy/session_pipe.h"

namespace landbridge {

Call::Call() {
  for (size_t i = 0; i < tags_.size(); ++i) tags_[i] = {this, static_cast<Event>(i)};
}

void* Call::NewTag(Event event) {
  refs_.fetch_add(1, std::memory_order_relaxed);
  return &tags_[static_cast<size_t>(event)];
}

void* Call::BeginTag() {
  // A call that never begins is told nothing of its end.
  context_.AsyncNotifyWhenDone(&tags_[static_cast<size_t>(Event::kEnded)]);
  return NewTag(Event::kBegun);
}

void Call::Unref() {
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
}

void Call::Dispatch(void* tag, bool ok) {
  const Tag at = *static_cast<Tag*>(tag);
  if (at.event == Event::kBegun && ok)
    at.call->refs_.fetch_add(2, std::memory_order_relaxed);  // until kFinished, kEnded
  if (at.event != Event::kBegun || ok) at.call->OnEvent(at.event, ok);
  if (at.event == Event::kFinished) at.call->Unref();
  at.call->Unref();
}

void Lane::Start() {
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "door");
}

void Lane::Stop() {
  if (!thread_.joinable()) return;
  queue_->Shutdown();
  thread_.join();
}

void Lane::AddQuiet(std::shared_ptr<SessionPipe> pipe) {
  if (quiet_.empty()) {
    quiet_until_ = gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(limits::kLazyDelay, GPR_TIMESPAN));
  }
  quiet_.push_back(std::move(pipe));
}

void Lane::AnnounceQuiet() {
  for (const auto& pipe : std::exchange(quiet_, {})) pipe->Announce();
}

void Lane::Run() {
  for (;;) {
    void* tag = nullptr;
    bool ok = false;
    switch (queue_->AsyncNext(&tag, &ok, quiet_.empty() ? gpr_inf_future(GPR_CLOCK_MONOTONIC) : quiet_until_)) {
      case grpc::CompletionQueue::SHUTDOWN: return;
      case grpc::CompletionQueue::TIMEOUT: AnnounceQuiet(); break;
      case grpc::CompletionQueue::GOT_EVENT:
        Call::Dispatch(tag, ok);
        if (!quiet_.empty() && gpr_time_cmp(gpr_now(GPR_CLOCK_MONOTONIC), quiet_until_) >= 0) AnnounceQuiet();
        break;
    }
  }
}

}  // namespace landbridge
