#include "env/process_tuning.h"

#include "absl/synchronization/mutex.h"

namespace landbridge {

void TuneProcess() {
  // Distributions ship Abseil with its lock-order checks on; they cost several per cent of a call. Tests keep them.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
}

}  // namespace landbridge
