// Gives freed memory back to the system once a process has become idle: glibc keeps what large arrays leave behind,
// and giving it back while work goes on would pay for fresh pages again and again.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace landbridge {

// Blocks up to this size are kept for the next of their size when they are freed; larger ones leave gaps that too little
// else fits into.
constexpr int kKeptBlockBytesMax = 64 << 20;

// For processes that make and drop arrays all the time (workers): freed memory stays in the heap until a MemoryTrimmer gives
// it back. By default glibc returns it at once, and half of the time of a small pipeline's step went into fresh pages.
// Before other threads exist.
void KeepFreedMemory();

// Thread-safety: one thread. The trimming itself takes the allocator's locks for some milliseconds.
class MemoryTrimmer {
 public:
  explicit MemoryTrimmer(DurationNs idle = 300 * kMillisecond) : idle_(idle) {}

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
