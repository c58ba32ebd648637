// Timers finer than the loop's own, which have whole milliseconds: for virtual device work of microseconds.
#pragma once

#include <cstdint>
#include <memory>
#include <queue>
#include <vector>

#include "absl/status/statusor.h"
#include "base/time.h"
#include "env/fd.h"
#include "env/loop.h"

struct uv_poll_s;

namespace landbridge {

// Thread-safety: the loop's thread only.
class FineTimers {
 public:
  // RESOURCE_EXHAUSTED when the process has no descriptor left. `loop` outlives it.
  static absl::StatusOr<std::unique_ptr<FineTimers>> Make(Loop* loop);
  // Drops what has not run.
  ~FineTimers();
  FineTimers(const FineTimers&) = delete;
  FineTimers& operator=(const FineTimers&) = delete;

  // Runs `task` once at that time of MonotonicClock, never early, and at once when it is over; those of one time in the
  // order of their calls. A late loop runs all that are due in one turn.
  void RunAt(TimeNs due, Loop::Task task);
  void RunAfter(DurationNs delay, Loop::Task task);

 private:
  struct Timer {
    TimeNs due;
    uint64_t number;
    mutable Loop::Task task;  // moved out of the queue's top
    // The earliest is the queue's top.
    friend bool operator<(const Timer& a, const Timer& b) {
      return a.due != b.due ? a.due > b.due : a.number > b.number;
    }
  };

  FineTimers(Loop* loop, Fd fd);
  void Arm();
  void RunDue();

  Loop* const loop_;
  Fd fd_;
  uv_poll_s* poll_ = nullptr;
  std::priority_queue<Timer> timers_;
  uint64_t next_number_ = 1;
  TimeNs armed_ = 0;  // for this time; 0: not
};

}  // namespace landbridge
