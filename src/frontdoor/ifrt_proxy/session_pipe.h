// The queues between a session's stream and the loop, and the one place that decides what the stream does next.
//
//     lane's thread --OnRead--> [requests] --TakeRequests--> loop --PushResponses--> [responses] --> Stream::StartWrite
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "google/protobuf/arena.h"
#include "proto/ifrt_proxy/ifrt_service.pb.h"

namespace landbridge {

// Answers of one session that the client has not taken. Above, its requests are not looked at; one more may be written.
constexpr size_t kSessionAnswerBytesMax = size_t{64} << 20;
// Programs of one session that wait for the compiler. Above, its stream is not read; the largest single one fits.
constexpr size_t kSessionCompileBytesMax = size_t{1} << 30;

// One message on an arena of its own: a request is a dozen small objects, made on one thread and freed on another.
class ReceivedRequest {
 public:
  using Request = xla::ifrt::proxy::IfrtRequest;
  ReceivedRequest()
      : arena_(block_, sizeof(block_)), message_(google::protobuf::Arena::CreateMessage<Request>(&arena_)) {}
  Request* mutable_message() { return message_; }
  const Request& message() const { return *message_; }
  // Of memory, about: objects lie on the arena, what their strings hold does not.
  size_t bytes() const { return sizeof(*this) + arena_.SpaceAllocated() + message_->ByteSizeLong(); }
  // Empty again.
  void Clear() {
    arena_.Reset();
    message_ = google::protobuf::Arena::CreateMessage<Request>(&arena_);
  }

 private:
  alignas(8) char block_[1024];  // an Execute of some 20 arguments
  google::protobuf::Arena arena_;
  Request* message_;
};

// Thread-safety: any thread; nothing blocks. The loop's calls may write on the loop's thread: gRPC never waits there.
class SessionPipe {
 public:
  using RequestPtr = std::unique_ptr<ReceivedRequest>;
  using Response = xla::ifrt::proxy::IfrtResponse;

  // What carries the messages. StartRead and StartWrite are answered by OnRead and OnWritten, and open one at a time;
  // no method is called after Finish.
  class Stream {
   public:
    virtual ~Stream() = default;
    virtual void StartRead() = 0;
    virtual void StartWrite(const Response& response, bool more_follows) = 0;  // encodes it at once
    virtual void Cancel() = 0;  // reads and writes that are open end soon
    virtual void Finish() = 0;
  };

  // `wake` is called when requests are there that nobody was told of.
  SessionPipe(SessionId session, std::function<void()> wake) : session_(session), wake_(std::move(wake)) {}

  SessionId session() const { return session_; }

  // --- Stream.
  RequestPtr NewRequest();
  void Start(Stream* stream);
  // Null: there will be no more, the session is over. True: the loop was not woken, since it can wait for what is
  // here; call Announce within limits::kLazyDelay.
  bool OnRead(RequestPtr request);
  void OnWritten(bool ok);
  void OnEnded() { Close(); }  // the client is gone
  void Announce();

  // --- Loop.
  // None while kSessionAnswerBytesMax wait to be written: `wake` is called when the client has taken them.
  std::vector<RequestPtr> TakeRequests();
  // The last ones of those taken, not looked at since their answers would not find room. They are taken again after
  // `wake`.
  void PutBack(std::vector<RequestPtr> requests);
  void Recycle(std::vector<RequestPtr> requests);  // what has been dealt with
  // Bytes of requests that are kept behind the pipe; see kSessionCompileBytesMax.
  void AddKept(size_t bytes);
  void RemoveKept(size_t bytes);
  void PushResponses(std::vector<std::unique_ptr<Response>> responses);
  void SetPaused(bool paused);

  // Anyone. The stream ends; what is queued is dropped.
  void Close();
  bool closed() const;

 private:
  enum class Step { kNothing, kRead, kWrite, kCancel, kFinish };

  void Advance();
  Step Next(std::unique_ptr<Response>* response, bool* more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Room() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WakesStalled() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionId session_;
  const std::function<void()> wake_;
  mutable absl::Mutex mutex_;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null before Start and from Finish on
  std::vector<RequestPtr> requests_ ABSL_GUARDED_BY(mutex_);
  size_t request_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<RequestPtr> spare_ ABSL_GUARDED_BY(mutex_);
  struct Answer {
    std::unique_ptr<Response> response;
    size_t bytes = 0;
  };
  std::deque<Answer> responses_ ABSL_GUARDED_BY(mutex_);
  size_t response_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of responses_ and of the one that is being written
  size_t writing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stalled_ ABSL_GUARDED_BY(mutex_) = false;  // the loop is to be woken once answers have left
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // inside Stream::Cancel, which must not outlive Finish
};

}  // namespace landbridge
