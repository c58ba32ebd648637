// Gives freed memory back to the system once a process has become idle: the allocator keeps what arrays leave behind, and
// giving it back while work goes on would pay for fresh pages again and again (half of the time of a small pipeline's
// step); nor is a client idle that reads its next batch for a second. How much it keeps meanwhile: src/bin/allocator.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace landbridge {

// Thread-safety: one thread. The trimming itself takes the allocator's locks for some milliseconds.
class MemoryTrimmer {
 public:
  explicit MemoryTrimmer(DurationNs idle = 2 * kSecond) : idle_(idle) {}

  // Call regularly. `work_done` grows whenever the process does something. True: it was idle for long enough since
  // the last change, and memory was given back (once per idle time).
  bool Tick(uint64_t work_done, TimeNs now);

 private:
  const DurationNs idle_;
  uint64_t seen_ = 0;
  TimeNs since_ = 0;
  bool trimmed_ = true;  // nothing was done yet
};

}  // namespace landbridge
