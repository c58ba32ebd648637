// The queues between a session's two gRPC threads and the loop.
//
//     reader --PushRequest--> [requests] --TakeRequests--> loop --PushResponses--> [responses] --> writer
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "proto/ifrt_proxy/ifrt_service.pb.h"

namespace landbridge {

// Thread-safety: any thread. WaitForRoom and TakeResponses block, the rest does not.
class SessionPipe {
 public:
  using Request = xla::ifrt::proxy::IfrtRequest;
  using Response = xla::ifrt::proxy::IfrtResponse;

  // `wake` is called (from the reader) when requests are there and nobody was told yet.
  SessionPipe(SessionId session, std::function<void()> wake) : session_(session), wake_(std::move(wake)) {}

  SessionId session() const { return session_; }

  // --- Reader. Waits until a request may be read: not paused, and neither queue long. False: the session is over.
  // `gone` is asked now and then while it waits: the client's end cannot be seen otherwise without reading.
  bool WaitForRoom(const std::function<bool()>& gone);
  void PushRequest(std::unique_ptr<Request> request);

  // --- Writer. Waits for at least one response. Empty: the session is over.
  std::vector<std::unique_ptr<Response>> TakeResponses();

  // --- Loop.
  std::vector<std::unique_ptr<Request>> TakeRequests();
  void PushResponses(std::vector<std::unique_ptr<Response>> responses);
  void SetPaused(bool paused);

  // Anyone. Both threads of the session end; what is queued is dropped.
  void Close();
  bool closed() const;

 private:
  bool RoomOrClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionId session_;
  const std::function<void()> wake_;
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Request>> requests_ ABSL_GUARDED_BY(mutex_);
  size_t request_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<Response>> responses_ ABSL_GUARDED_BY(mutex_);
  bool told_ ABSL_GUARDED_BY(mutex_) = false;
  bool paused_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace landbridge
