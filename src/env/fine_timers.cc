#include "env/fine_timers.h"

#include <sys/timerfd.h>
#include <uv.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace landbridge {

absl::StatusOr<std::unique_ptr<FineTimers>> FineTimers::Make(Loop* loop) {
  Fd fd(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (fd.get() < 0) return absl::ResourceExhaustedError(absl::StrCat("no timer: ", std::strerror(errno)));
  return std::unique_ptr<FineTimers>(new FineTimers(loop, std::move(fd)));
}

FineTimers::FineTimers(Loop* loop, Fd fd) : loop_(loop), fd_(std::move(fd)), poll_(new uv_poll_t()) {
  LB_CHECK(uv_poll_init(loop_->uv(), poll_, fd_.get()) == 0);
  poll_->data = this;
  LB_CHECK(uv_poll_start(poll_, UV_READABLE, [](uv_poll_t* poll, int, int) {
             auto* self = static_cast<FineTimers*>(poll->data);
             self->loop_->CountEvent();
             self->RunDue();
           }) == 0);
}

FineTimers::~FineTimers() {
  uv_close(reinterpret_cast<uv_handle_t*>(poll_),
           [](uv_handle_t* handle) { delete reinterpret_cast<uv_poll_t*>(handle); });
}

void FineTimers::RunAfter(DurationNs delay, Loop::Task task) {
  RunAt(MonotonicClock().Now() + std::max<DurationNs>(delay, 0), std::move(task));
}

void FineTimers::RunAt(TimeNs due, Loop::Task task) {
  due = std::max<TimeNs>(due, 1);  // 0 would stop the system's timer
  timers_.push({due, next_number_++, std::move(task)});
  Arm();
}

void FineTimers::Arm() {
  if (timers_.empty()) return;
  const TimeNs due = timers_.top().due;
  if (armed_ != 0 && armed_ <= due) return;
  armed_ = due;
  itimerspec at = {};
  at.it_value.tv_sec = due / kSecond;
  at.it_value.tv_nsec = due % kSecond;
  LB_CHECK(::timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &at, nullptr) == 0);
}

void FineTimers::RunDue() {
  uint64_t expired = 0;
  static_cast<void>(!::read(fd_.get(), &expired, sizeof(expired)));  // only to make it unreadable
  armed_ = 0;
  const TimeNs now = MonotonicClock().Now();
  while (!timers_.empty() && timers_.top().due <= now) {
    Loop::Task task = std::move(timers_.top().task);
    timers_.pop();
    task();  // may add timers
  }
  Arm();
}

}  // namespace landbridge
