// Events of other threads for the worker's loop, batched: one wake-up for all that came since the last one. While
// nobody waits for them, events that can be late share a wake-up with those of the next moment.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "base/limits.h"
#include "env/loop.h"

namespace landbridge {

// Thread-safety: Push and PushLate from any thread; everything else on the loop's thread. Keep it by shared_ptr:
// whoever may push late holds one.
class Inbox : public std::enable_shared_from_this<Inbox> {
 public:
  using Event = absl::AnyInvocable<void()>;

  // What the owner finds at the end of a batch.
  struct Outlook {
    bool in_a_hurry = false;  // somebody waits for events: each one wakes the loop
    bool put_off = false;     // something was put off: come back within limits::kProgressDelay
  };
  // Runs once after each batch of events. `late`: that delay has passed, put nothing off any longer.
  using AfterBatch = std::function<Outlook(bool late)>;

  Inbox(Loop* loop, AfterBatch after_batch) : loop_(loop), after_batch_(std::move(after_batch)) {}

  void Push(Event event) { Add(std::move(event), false); }
  // The event may run up to limits::kProgressDelay from now (but in order), unless somebody is in a hurry.
  void PushLate(Event event) { Add(std::move(event), true); }

  // Events that were not run are dropped, and so are later ones.
  void Close() {
    std::vector<Event> dropped;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      dropped.swap(events_);
    }
    loop_->Cancel(std::exchange(timer_, 0));
  }

 private:
  void Add(Event event, bool late) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return;
      events_.push_back(std::move(event));
      has_late_ = has_late_ || late;
      if (woken_ || (late && quiet_)) return;
      woken_ = true;
    }
    loop_->Post([self = shared_from_this()] { self->Drain(false); });
  }

  void Drain(bool late) {
    for (bool again = true; again;) {
      std::vector<Event> events;
      bool had_late = false;
      {
        absl::MutexLock lock(&mutex_);
        if (closed_) return;
        if (!late) woken_ = false;
        events.swap(events_);
        had_late = std::exchange(has_late_, false);
      }
      for (Event& event : events) event();
      const Outlook outlook = after_batch_(late);
      // Late events come in swarms: after one, the next share a wake-up. A timer that finds none is not renewed.
      if (timer_ == 0 && (outlook.put_off || (had_late && !outlook.in_a_hurry))) {
        timer_ = loop_->RunAfter(limits::kProgressDelay, [weak = weak_from_this()] {
          auto self = weak.lock();
          if (self == nullptr) return;
          self->timer_ = 0;
          self->Drain(true);
        });
      }
      absl::MutexLock lock(&mutex_);
      quiet_ = timer_ != 0 && !outlook.in_a_hurry;
      again = !events_.empty() && !woken_ && !quiet_;  // came quietly, and nothing else would look at them
    }
  }

  Loop* const loop_;
  const AfterBatch after_batch_;
  Loop::TimerId timer_ = 0;
  absl::Mutex mutex_;
  std::vector<Event> events_ ABSL_GUARDED_BY(mutex_);
  bool has_late_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;  // a Drain is posted
  bool quiet_ ABSL_GUARDED_BY(mutex_) = false;  // late events need not wake: the timer runs, nobody is in a hurry
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace landbridge
