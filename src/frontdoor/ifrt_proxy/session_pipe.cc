#include "frontdoor/ifrt_proxy/session_pipe.h"

#include <utility>

#include "absl/time/time.h"
#include "base/limits.h"

namespace landbridge {

bool SessionPipe::RoomOrClosed() const {
  return closed_ || (!paused_ && requests_.size() < limits::kSessionQueuedRequestsMax &&
                     request_bytes_ < limits::kSessionParkedBytesMax &&
                     responses_.size() < limits::kSessionQueuedRequestsMax);
}

bool SessionPipe::WaitForRoom(const std::function<bool()>& gone) {
  absl::MutexLock lock(&mutex_);
  while (!RoomOrClosed()) {
    mutex_.AwaitWithTimeout(absl::Condition(this, &SessionPipe::RoomOrClosed),
                            absl::Nanoseconds(limits::kPausedSessionLook));
    if (gone()) return false;
  }
  return !closed_;
}

void SessionPipe::PushRequest(std::unique_ptr<Request> request) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    // Only programs and string constants make a request big; its exact size does not matter.
    request_bytes_ += sizeof(Request) + request->compile_request().program().data().size();
    requests_.push_back(std::move(request));
    if (told_) return;
    told_ = true;
  }
  wake_();
}

std::vector<std::unique_ptr<SessionPipe::Request>> SessionPipe::TakeRequests() {
  absl::MutexLock lock(&mutex_);
  told_ = false;
  request_bytes_ = 0;
  return std::exchange(requests_, {});
}

std::vector<std::unique_ptr<SessionPipe::Response>> SessionPipe::TakeResponses() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](SessionPipe* pipe) { return pipe->closed_ || !pipe->responses_.empty(); }, this));
  if (closed_) return {};
  return std::exchange(responses_, {});
}

void SessionPipe::PushResponses(std::vector<std::unique_ptr<Response>> responses) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  if (responses_.empty()) {
    responses_ = std::move(responses);
    return;
  }
  for (auto& response : responses) responses_.push_back(std::move(response));
}

void SessionPipe::SetPaused(bool paused) {
  absl::MutexLock lock(&mutex_);
  paused_ = paused;
}

void SessionPipe::Close() {
  absl::MutexLock lock(&mutex_);
  closed_ = true;
  requests_.clear();
  responses_.clear();
}

bool SessionPipe::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

}  // namespace landbridge
