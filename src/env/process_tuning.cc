#include "env/process_tuning.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace landbridge {

void TuneProcess() {
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
