#include "frontdoor/ifrt_proxy/session_pipe.h"

#include <iterator>
#include <utility>

#include "base/limits.h"

namespace landbridge {
namespace {

constexpr size_t kSpareRequestsMax = 64;

// Nobody waits for it, and a request that does follows most of the time: the client sends them in front of others.
bool CanWait(const ReceivedRequest& request) { return request.message().has_destruct_array_request(); }

}  // namespace

bool SessionPipe::Room() const {
  return !paused_ && requests_.size() < limits::kSessionQueuedRequestsMax &&
         request_bytes_ < limits::kSessionParkedBytesMax && kept_bytes_ < kSessionCompileBytesMax &&
         responses_.size() < limits::kSessionQueuedRequestsMax && response_bytes_ < kSessionAnswerBytesMax;
}

// Whether the loop, which found no room for answers, is to be told that there is some.
bool SessionPipe::WakesStalled() {
  if (!stalled_ || response_bytes_ >= kSessionAnswerBytesMax) return false;
  stalled_ = false;
  if (closed_ || told_ || requests_.empty()) return false;
  told_ = true;
  return true;
}

SessionPipe::Step SessionPipe::Next(std::unique_ptr<Response>* response, bool* more) {
  if (stream_ == nullptr) return Step::kNothing;
  if (closed_) {
    if (!reading_ && !writing_) return cancelling_ ? Step::kNothing : Step::kFinish;
    if (std::exchange(cancelled_, true)) return Step::kNothing;
    cancelling_ = true;
    return Step::kCancel;
  }
  if (!writing_ && !responses_.empty()) {
    *response = std::move(responses_.front().response);
    writing_bytes_ = responses_.front().bytes;
    responses_.pop_front();
    *more = !responses_.empty();
    writing_ = true;
    return Step::kWrite;
  }
  if (!reading_ && Room()) {
    reading_ = true;
    return Step::kRead;
  }
  return Step::kNothing;
}

// Does what is to be done. Several threads may be here: each step is taken by one, and while one is open the stream
// is not finished.
void SessionPipe::Advance() {
  for (;;) {
    std::unique_ptr<Response> response;
    bool more = false;
    Step step;
    Stream* stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
      step = Next(&response, &more);
      if (step == Step::kFinish) stream_ = nullptr;
    }
    switch (step) {
      case Step::kNothing: return;
      case Step::kRead: stream->StartRead(); break;
      case Step::kWrite: stream->StartWrite(*response, more); break;
      case Step::kCancel: {
        stream->Cancel();
        absl::MutexLock lock(&mutex_);
        cancelling_ = false;
        break;
      }
      case Step::kFinish: return stream->Finish();
    }
  }
}

void SessionPipe::Start(Stream* stream) {
  {
    absl::MutexLock lock(&mutex_);
    stream_ = stream;
  }
  Advance();
}

bool SessionPipe::OnRead(RequestPtr request) {
  bool wake = false, quiet = false;
  {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    if (request == nullptr) closed_ = true;
    if (!closed_) {
      quiet = CanWait(*request);
      request_bytes_ += request->bytes();
      requests_.push_back(std::move(request));
      quiet = quiet && !told_ && requests_.size() == 1;
      wake = !told_ && !quiet && !stalled_;
      told_ = told_ || wake;
    }
  }
  if (wake) wake_();
  Advance();
  return quiet;
}

void SessionPipe::Announce() {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_ || told_ || stalled_ || requests_.empty()) return;
    told_ = true;
  }
  wake_();
}

void SessionPipe::OnWritten(bool ok) {
  bool wake = false;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    response_bytes_ -= std::exchange(writing_bytes_, 0);
    if (!ok) closed_ = true;
    wake = WakesStalled();
  }
  if (wake) wake_();
  Advance();
}

std::vector<SessionPipe::RequestPtr> SessionPipe::TakeRequests() {
  std::vector<RequestPtr> taken;
  bool parked;
  {
    absl::MutexLock lock(&mutex_);
    told_ = false;
    stalled_ = response_bytes_ >= kSessionAnswerBytesMax;
    if (stalled_) return taken;
    request_bytes_ = 0;
    taken.swap(requests_);
    parked = !reading_;
  }
  if (parked) Advance();
  return taken;
}

void SessionPipe::PutBack(std::vector<RequestPtr> requests) {
  absl::MutexLock lock(&mutex_);
  if (closed_) return;
  for (const RequestPtr& request : requests) request_bytes_ += request->bytes();
  requests_.insert(requests_.begin(), std::make_move_iterator(requests.begin()),
                   std::make_move_iterator(requests.end()));
  stalled_ = true;
}

void SessionPipe::AddKept(size_t bytes) {
  absl::MutexLock lock(&mutex_);
  kept_bytes_ += bytes;
}

void SessionPipe::RemoveKept(size_t bytes) {
  {
    absl::MutexLock lock(&mutex_);
    kept_bytes_ -= bytes;
  }
  Advance();
}

SessionPipe::RequestPtr SessionPipe::NewRequest() {
  {
    absl::MutexLock lock(&mutex_);
    if (!spare_.empty()) {
      RequestPtr request = std::move(spare_.back());
      spare_.pop_back();
      return request;
    }
  }
  return std::make_unique<ReceivedRequest>();
}

void SessionPipe::Recycle(std::vector<RequestPtr> requests) {
  if (requests.size() > kSpareRequestsMax) requests.resize(kSpareRequestsMax);
  for (const RequestPtr& request : requests) request->Clear();
  absl::MutexLock lock(&mutex_);
  while (!requests.empty() && spare_.size() < kSpareRequestsMax) {
    spare_.push_back(std::move(requests.back()));
    requests.pop_back();
  }
}

void SessionPipe::PushResponses(std::vector<std::unique_ptr<Response>> responses) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    for (auto& response : responses) {
      const size_t bytes = response->ByteSizeLong();
      response_bytes_ += bytes;
      responses_.push_back({std::move(response), bytes});
    }
    if (writing_) return;  // its end comes back for them
  }
  Advance();
}

void SessionPipe::SetPaused(bool paused) {
  {
    absl::MutexLock lock(&mutex_);
    paused_ = paused;
  }
  if (!paused) Advance();
}

void SessionPipe::Close() {
  std::vector<RequestPtr> dropped;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    dropped.swap(requests_);
    responses_.clear();
    response_bytes_ = writing_bytes_;
  }
  Advance();
}

bool SessionPipe::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_;
}

}  // namespace landbridge
