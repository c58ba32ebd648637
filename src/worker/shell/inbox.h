// Events of other threads for the worker's loop, batched: one wake-up for all that came since the last one.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "env/loop.h"

namespace landbridge {

// Thread-safety: Push from any thread; everything else on the loop's thread. Keep it by shared_ptr: whoever may push
// late holds one.
class Inbox : public std::enable_shared_from_this<Inbox> {
 public:
  using Event = absl::AnyInvocable<void()>;

  // `after_batch` runs once after each batch of events.
  Inbox(Loop* loop, std::function<void()> after_batch) : loop_(loop), after_batch_(std::move(after_batch)) {}

  void Push(Event event) {
    bool wake;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      events_.push_back(std::move(event));
      wake = events_.size() == 1;
    }
    if (wake) loop_->Post([self = shared_from_this()] { self->Drain(); });
  }

  // Events that were not run are dropped, and so are later ones.
  void Close() {
    std::vector<Event> dropped;
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    dropped.swap(events_);
  }

 private:
  void Drain() {
    std::vector<Event> events;
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      events.swap(events_);
    }
    for (Event& event : events) event();
    after_batch_();
  }

  Loop* loop_;
  std::function<void()> after_batch_;
  absl::Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace landbridge
