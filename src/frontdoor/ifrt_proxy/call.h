// Calls of clients, as gRPC's completion queues tell of them. One thread per queue (a lane) serves all calls: fewer
// wake-ups per message than gRPC's own threads need (bench/grpc_echo), and none that pending requests could use up.
//
//     gRPC --tag--> lane's thread --> Call::OnEvent
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace landbridge {

class SessionPipe;

// One call: made while it waits for a client, and gone when it is finished and gRPC owes it no tag.
//
// Thread-safety: events come on the lane's thread, one at a time; NewTag may be called on any thread while the call
// is not finished.
class Call {
 public:
  enum class Event : uint8_t { kBegun, kRead, kWritten, kFinished, kEnded };

  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // What a queue returned.
  static void Dispatch(void* tag, bool ok);

 protected:
  Call();
  virtual ~Call() = default;

  // gRPC will give it back, once. One of each event may be open.
  void* NewTag(Event event);
  // For the request that waits for a client: kBegun comes, or (at the end of the server) the call just goes. kEnded
  // comes after kBegun, when the client is gone or the call is over.
  void* BeginTag();

  virtual void OnEvent(Event event, bool ok) = 0;

  grpc::ServerContext context_;

 private:
  struct Tag {
    Call* call = nullptr;
    Event event = Event::kBegun;
  };
  void Unref();

  std::array<Tag, 5> tags_;
  std::atomic<int> refs_{0};
};

// A completion queue and its thread.
//
// Thread-safety: Start and Stop from the owner; AddQuiet on the lane's own thread.
class Lane {
 public:
  explicit Lane(std::unique_ptr<grpc::ServerCompletionQueue> queue) : queue_(std::move(queue)) {}
  ~Lane() { Stop(); }
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

  void Start();
  // No call is left, or will begin.
  void Stop();

  // The pipe holds only requests that may wait: it is announced to the loop within limits::kLazyDelay.
  void AddQuiet(std::shared_ptr<SessionPipe> pipe);

 private:
  void Run();
  void AnnounceQuiet();

  const std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::vector<std::shared_ptr<SessionPipe>> quiet_;
  gpr_timespec quiet_until_ = {};
  std::thread thread_;
};

// Calls under way.
//
// Thread-safety: all members from any thread.
class CallCount {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }
  void WaitForNone() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](int* count) { return *count == 0; }, &count_));
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace landbridge
