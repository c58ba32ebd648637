#include "env/memory_trimmer.h"

#include <malloc.h>

#include <climits>

namespace landbridge {

void KeepFreedMemory() {
  // One arena, since what one thread frees another allocates.
  ::mallopt(M_ARENA_MAX, 1);
  ::mallopt(M_MMAP_THRESHOLD, kKeptBlockBytesMax);
  ::mallopt(M_TRIM_THRESHOLD, INT_MAX);
}

bool MemoryTrimmer::Tick(uint64_t work_done, TimeNs now) {
  if (work_done != seen_) {
    seen_ = work_done;
    since_ = now;
    trimmed_ = false;
    return false;
  }
  if (trimmed_ || now - since_ < idle_) return false;
  trimmed_ = true;
  ::malloc_trim(0);
  return true;
}

}  // namespace landbridge
