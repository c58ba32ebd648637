// The queues between the stream on which a client serves calls of its functions and the loop, the frames on it, and the one
// place that decides what the stream does next.
//
// A frame is a byte that says what it is, numbers (little endian), then bytes up to its end:
//
//   to the client    1 ready
//                    2 call      u64 call, u64 function, u32 device; operands, dense, one after the other
//   from the client  1 results   u64 call; results, dense, one after the other
//                    2 error     u64 call; text
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"

namespace landbridge {

// Two parts, so that large operands are not copied.
struct HostCallFrameOut {
  std::string head;
  std::shared_ptr<const std::string> body;  // may be null
  size_t bytes() const { return head.size() + (body == nullptr ? 0 : body->size()); }
};

HostCallFrameOut ReadyFrame();
HostCallFrameOut CallFrame(uint64_t call, uint64_t function, uint32_t device,
                           std::shared_ptr<const std::string> operands);

// What a client sent. `bytes` views the frame.
struct HostCallAnswer {
  uint64_t call = 0;
  bool failed = false;
  absl::string_view bytes;  // results, or the error's text
};
// INVALID_ARGUMENT for what is none.
absl::StatusOr<HostCallAnswer> ParseHostCallAnswer(absl::string_view frame);

// Thread-safety: any thread; nothing blocks.
class HostCallPipe {
 public:
  // What carries the frames. StartRead and StartWrite are answered by OnRead and OnWritten, and open one at a time; no
  // method is called after Finish.
  class Stream {
   public:
    virtual ~Stream() = default;
    virtual void StartRead() = 0;
    virtual void StartWrite(const HostCallFrameOut& frame) = 0;
    virtual void Cancel() = 0;  // reads and writes that are open end soon
    virtual void Finish() = 0;
  };
  using Frame = std::shared_ptr<const std::string>;

  // `deliver`: a frame came; the next one is read after Taken. `written`: so many bytes have left. `closed`: no frame comes
  // any more. Each from any thread.
  HostCallPipe(SessionId session, std::function<void(Frame)> deliver, std::function<void(size_t)> written,
               std::function<void()> closed)
      : session_(session), deliver_(std::move(deliver)), written_(std::move(written)), on_closed_(std::move(closed)) {}

  SessionId session() const { return session_; }

  // --- Stream.
  void Start(Stream* stream);
  void OnRead(Frame frame);  // null: there will be no more
  void OnWritten(bool ok);

  // --- Loop.
  void Taken();  // the frame that was delivered is dealt with
  void Send(HostCallFrameOut frame);

  // Anyone. The stream ends; what is queued is dropped.
  void Close();

 private:
  enum class Step { kNothing, kRead, kWrite, kCancel, kFinish };
  void Advance();
  Step Next(HostCallFrameOut* frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const SessionId session_;
  const std::function<void(Frame)> deliver_;
  const std::function<void(size_t)> written_;
  const std::function<void()> on_closed_;
  absl::Mutex mutex_;
  Stream* stream_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null before Start and from Finish on
  std::deque<HostCallFrameOut> out_ ABSL_GUARDED_BY(mutex_);
  size_t writing_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;  // a frame is with the loop
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mutex_) = false;  // inside Stream::Cancel, which must not outlive Finish
};

}  // namespace landbridge
