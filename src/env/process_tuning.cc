#include "env/process_tuning.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

// jemalloc's, where a program is linked to it.
extern "C" int mallctl(const char* name, void* old, size_t* old_size, void* value, size_t value_size)
    __attribute__((weak));

namespace landbridge {
namespace {

// Freed memory goes back after a while, or when the process is idle (bin/allocator). But jemalloc gives a block back at once if
// it has grown, with its free neighbours, to 8 MiB in the first arena or `oversize_threshold` in the others: so the arrays of
// each step would be paged in anew. There is no option for that, only this. Blocks are still bounded: what is kept lies beside
// what devices' limits let arrays take (four fifths of the memory, unless told otherwise).
constexpr size_t kKeptBlockMemoryShare = 16;

void KeepFreedNeighbours() {
  if (mallctl == nullptr) return;
  const auto memory = static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t block = memory / kKeptBlockMemoryShare;
  unsigned arenas = 0, own = 0;
  size_t size = sizeof arenas;
  if (mallctl("opt.narenas", &arenas, &size, nullptr, 0) != 0) return;
  if (mallctl("thread.arena", &own, &size, nullptr, 0) != 0) return;
  for (unsigned arena = 0; arena < arenas; ++arena) {
    mallctl("thread.arena", nullptr, nullptr, &arena, sizeof arena);  // makes it, if it is not there yet
    mallctl(absl::StrCat("arena.", arena, ".oversize_threshold").c_str(), nullptr, nullptr, &block, sizeof block);
  }
  mallctl("thread.arena", nullptr, nullptr, &own, sizeof own);
}

}  // namespace

void TuneProcess() {
  KeepFreedNeighbours();
  // Distributions ship Abseil with its lock-order checks on; they cost several per cent of a call. Tests keep them.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);  // refused: NeedOpenFiles tells, where many are needed
  }
}

absl::Status NeedOpenFiles(int64_t count, absl::string_view what) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY ||
      static_cast<uint64_t>(count) <= files.rlim_cur) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(what, " needs ", count, " open files, but this process may have ",
                                                   files.rlim_cur,
                                                   ": raise the limit (ulimit -Hn, or LimitNOFILE= of a "
                                                   "systemd unit)"));
}

}  // namespace landbridge
