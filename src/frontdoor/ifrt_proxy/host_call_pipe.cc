#include "frontdoor/ifrt_proxy/host_call_pipe.h"

#include <type_traits>
#include <utility>

namespace landbridge {
namespace {

constexpr char kReadyByte = 1, kCallByte = 2;     // to the client
constexpr char kResultsByte = 1, kErrorByte = 2;  // from the client
constexpr size_t kAnswerHeadBytes = 1 + sizeof(uint64_t);

template <typename T>
void AppendLittle(std::string* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out->push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

}  // namespace

HostCallFrameOut ReadyFrame() { return {std::string(1, kReadyByte), nullptr}; }

HostCallFrameOut CallFrame(uint64_t call, uint64_t function, uint32_t device,
                           std::shared_ptr<const std::string> operands) {
  HostCallFrameOut frame{std::string(1, kCallByte), std::move(operands)};
  AppendLittle(&frame.head, call);
  AppendLittle(&frame.head, function);
  AppendLittle(&frame.head, device);
  return frame;
}

absl::StatusOr<HostCallAnswer> ParseHostCallAnswer(absl::string_view frame) {
  if (frame.size() < kAnswerHeadBytes || (frame[0] != kResultsByte && frame[0] != kErrorByte)) {
    return absl::InvalidArgumentError("a frame of a client that serves callbacks is no answer to a call");
  }
  HostCallAnswer answer;
  answer.failed = frame[0] == kErrorByte;
  for (size_t i = 0; i < sizeof(uint64_t); ++i) {
    answer.call |= static_cast<uint64_t>(static_cast<unsigned char>(frame[1 + i])) << (8 * i);
  }
  answer.bytes = frame.substr(kAnswerHeadBytes);
  return answer;
}

HostCallPipe::Step HostCallPipe::Next(HostCallFrameOut* frame) {
  if (stream_ == nullptr) return Step::kNothing;
  if (closed_) {
    if (!reading_ && !writing_) return cancelling_ ? Step::kNothing : Step::kFinish;
    if (std::exchange(cancelled_, true)) return Step::kNothing;
    cancelling_ = true;
    return Step::kCancel;
  }
  if (!writing_ && !out_.empty()) {
    *frame = std::move(out_.front());
    out_.pop_front();
    writing_bytes_ = frame->bytes();
    writing_ = true;
    return Step::kWrite;
  }
  if (!reading_ && !held_) {
    reading_ = true;
    return Step::kRead;
  }
  return Step::kNothing;
}

// Does what is to be done. Several threads may be here: each step is taken by one, and while one is open the stream
// is not finished.
void HostCallPipe::Advance() {
  for (;;) {
    HostCallFrameOut frame;
    Step step;
    Stream* stream;
    {
      absl::MutexLock lock(&mutex_);
      stream = stream_;
      step = Next(&frame);
      if (step == Step::kFinish) stream_ = nullptr;
    }
    switch (step) {
      case Step::kNothing: return;
      case Step::kRead: stream->StartRead(); break;
      case Step::kWrite: stream->StartWrite(frame); break;
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

void HostCallPipe::Start(Stream* stream) {
  {
    absl::MutexLock lock(&mutex_);
    stream_ = stream;
  }
  Advance();
}

void HostCallPipe::OnRead(Frame frame) {
  {
    absl::MutexLock lock(&mutex_);
    reading_ = false;
    held_ = frame != nullptr && !closed_;
    if (!held_) frame = nullptr;
  }
  if (frame == nullptr) return Close();
  deliver_(std::move(frame));
}

void HostCallPipe::OnWritten(bool ok) {
  size_t bytes;
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    bytes = std::exchange(writing_bytes_, 0);
  }
  if (!ok) return Close();
  written_(bytes);
  Advance();
}

void HostCallPipe::Taken() {
  {
    absl::MutexLock lock(&mutex_);
    held_ = false;
  }
  Advance();
}

void HostCallPipe::Send(HostCallFrameOut frame) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    out_.push_back(std::move(frame));
  }
  Advance();
}

void HostCallPipe::Close() {
  bool first;
  {
    absl::MutexLock lock(&mutex_);
    first = !std::exchange(closed_, true);
    out_.clear();
  }
  if (first) on_closed_();
  Advance();
}

}  // namespace landbridge
