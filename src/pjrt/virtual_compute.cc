#include "pjrt/virtual_compute.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "pjrt/client.h"
#include "pjrt/ffi_handler.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {
namespace {

using Clock = std::chrono::steady_clock;

struct Copy {
  void* to;
  const void* from;
  size_t bytes;
};

struct Job {
  Clock::time_point due;
  std::vector<Copy> copies;
  FfiCompletion completion;

  void Finish() {
    for (const Copy& copy : copies) {
      if (copy.bytes > 0 && copy.to != copy.from) std::memcpy(copy.to, copy.from, copy.bytes);
    }
    completion.Complete();
  }
};

// One thread at a time waits for the earliest job; when that is due it makes another one wait for the next and finishes the
// job itself, so that nobody has to be woken between a job's time and its end.
//
// Thread-safety: all members from any thread. Never destroyed: its threads outlive main().
class TimerPool {
 public:
  static TimerPool& Get() {
    static TimerPool* pool = new TimerPool;
    return *pool;
  }

  // A job too many fails at once, in this thread.
  void Add(std::unique_ptr<Job> job) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (timers_.size() >= limits::kVirtualComputePendingMax) {
      lock.unlock();
      job->completion.Complete(absl::ResourceExhaustedError(
          absl::StrCat("more than ", limits::kVirtualComputePendingMax, " virtual computations wait at one time")));
      return;
    }
    const bool first = timers_.empty() || job->due < timers_.front()->due;
    timers_.push_back(std::move(job));
    std::push_heap(timers_.begin(), timers_.end(), Later);
    if (!watched_) {
      WakeOrStartOne();
    } else if (first) {
      sooner_.notify_one();
    }
  }

  int64_t pending() {
    std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<int64_t>(timers_.size());
  }

 private:
  static bool Later(const std::unique_ptr<Job>& a, const std::unique_ptr<Job>& b) { return a->due > b->due; }

  // Somebody will look at the timers. (At the limit of threads those that finish jobs do, when they have.)
  void WakeOrStartOne() {
    if (starting_) return;
    if (idle_ > 0) {
      work_.notify_one();
    } else if (threads_ < limits::kVirtualComputeThreadsMax) {
      ++threads_;
      starting_ = true;
      std::thread([this] { Run(); }).detach();
    }
  }

  void Run() {
    prctl(PR_SET_TIMERSLACK, 1);  // nanoseconds; by default timers may be 50 us late
    std::unique_lock<std::mutex> lock(mutex_);
    starting_ = false;
    for (;;) {
      while (watched_ || timers_.empty()) {
        ++idle_;
        work_.wait(lock);
        --idle_;
      }
      watched_ = true;
      while (Clock::now() < timers_.front()->due) sooner_.wait_until(lock, timers_.front()->due);
      watched_ = false;
      std::pop_heap(timers_.begin(), timers_.end(), Later);
      std::unique_ptr<Job> job = std::move(timers_.back());
      timers_.pop_back();
      if (!timers_.empty()) WakeOrStartOne();
      lock.unlock();
      job->Finish();
      job.reset();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable sooner_;            // for the one who watches: another job is the first now
  std::condition_variable work_;              // for those who do not
  std::vector<std::unique_ptr<Job>> timers_;  // a heap, earliest first
  bool watched_ = false;
  bool starting_ = false;  // a thread that will look at the timers
  size_t idle_ = 0;
  size_t threads_ = 0;
};

absl::Status Start(FfiCall& call) {
  LB_ASSIGN_OR_RETURN(int64_t microseconds, call.IntAttribute("duration_us"));
  if (microseconds < 0 || microseconds > kVirtualComputeMicrosecondsMax) {
    return absl::InvalidArgumentError(absl::StrCat(kVirtualComputeTarget, ": duration_us must lie between 0 and ",
                                                   kVirtualComputeMicrosecondsMax, ", but it is ", microseconds));
  }
  if (call.num_operands() != call.num_results()) {
    return absl::InvalidArgumentError(absl::StrCat(kVirtualComputeTarget, " gives back what it gets, but it has ",
                                                   call.num_operands(), " operands and ", call.num_results(),
                                                   " results"));
  }
  auto job = std::make_unique<Job>();
  job->due = Clock::now() + std::chrono::microseconds(microseconds);
  for (int64_t i = 0; i < call.num_operands(); ++i) {
    LB_ASSIGN_OR_RETURN(FfiBuffer from, call.Operand(i));
    LB_ASSIGN_OR_RETURN(FfiBuffer to, call.Result(i));
    if (from.dtype != to.dtype || from.dims != to.dims) {
      return absl::InvalidArgumentError(
          absl::StrCat(kVirtualComputeTarget, ": operand and result ", i, " differ in shape or element type"));
    }
    job->copies.push_back({to.data, from.data, static_cast<size_t>(from.bytes)});
  }
  LB_ASSIGN_OR_RETURN(job->completion, call.Defer());
  TimerPool::Get().Add(std::move(job));
  return absl::OkStatus();
}

XLA_FFI_Error* VirtualCompute(XLA_FFI_CallFrame* frame) {
  if (FfiCall::AnswerMetadata(frame)) return nullptr;
  FfiCall call(frame);
  absl::Status status = Start(call);
  return status.ok() ? nullptr : call.Fail(status);
}

}  // namespace

absl::Status RegisterVirtualCompute(Plugin& plugin) {
  return plugin.RegisterFfiHandler(kVirtualComputeTarget, reinterpret_cast<void*>(&VirtualCompute));
}

absl::Status RegisterAndCheckVirtualCompute(Client& client) {
  LB_RETURN_IF_ERROR(RegisterVirtualCompute(client.plugin()));
  return client.CheckCustomCall(kVirtualComputeTarget);
}

int64_t VirtualComputePending() { return TimerPool::Get().pending(); }

}  // namespace landbridge::pjrt
