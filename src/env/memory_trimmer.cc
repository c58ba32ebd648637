#include "env/memory_trimmer.h"

#include <malloc.h>

namespace landbridge {

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
