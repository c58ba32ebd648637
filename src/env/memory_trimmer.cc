#include "env/memory_trimmer.h"

#include <malloc.h>

#include <cstddef>

// jemalloc's, where a program is linked to it: the sanitizers bring allocators of their own, tests use glibc's.
extern "C" int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t value_size)
    __attribute__((weak));

namespace landbridge {
namespace {

void GiveBack() {
  if (mallctl == nullptr) {
    ::malloc_trim(0);
    return;
  }
  mallctl("thread.tcache.flush", nullptr, nullptr, nullptr, 0);
  mallctl("arena.4096.purge", nullptr, nullptr, nullptr, 0);  // 4096 (MALLCTL_ARENAS_ALL): of every arena
}

}  // namespace

bool MemoryTrimmer::Tick(uint64_t work_done, TimeNs now) {
  if (work_done != seen_) {
    seen_ = work_done;
    since_ = now;
    trimmed_ = false;
    return false;
  }
  if (trimmed_ || now - since_ < idle_) return false;
  trimmed_ = true;
  GiveBack();
  return true;
}

}  // namespace landbridge
