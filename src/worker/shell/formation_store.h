// The key-value store of one formation: what the members of a slice tell each other while their plugins' clients become one, and
// later, when devices first meet in a collective. The first member's process has it. Its life is that of the formation, which ends
// when any member does: so nothing of it needs to survive, and no key is ever used again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/time.h"
#include "pjrt/key_value_store.h"

namespace landbridge {

// Bounded in sizes and numbers (shell_limits.h); RESOURCE_EXHAUSTED names the bound.
//
// Thread-safety: all members from any thread.
class FormationStore : public pjrt::KeyValueStore {
 public:
  using Answer = std::function<void(absl::StatusOr<std::string>)>;

  // ALREADY_EXISTS for a key that is there.
  absl::Status Put(absl::string_view key, absl::string_view value) override;
  absl::StatusOr<std::string> Get(absl::string_view key, DurationNs timeout) override;
  absl::StatusOr<std::string> TryGet(absl::string_view key) override;

  // For peers: `answer` runs once, here or on the thread that puts, expires or closes; it must be short and not call back.
  // DEADLINE_EXCEEDED at the first Expire from `deadline` on.
  void Wait(absl::string_view key, TimeNs deadline, Answer answer);
  void Expire(TimeNs now);

  // The formation is over: everybody who waits, and whoever asks from now on, gets `why`.
  void Close(const absl::Status& why);

  size_t waiting() const;

  // DEADLINE_EXCEEDED: what those hear whose time is over.
  static absl::Status Late(absl::string_view key);

 private:
  struct Waiting {
    std::string key;
    TimeNs deadline = 0;
    Answer answer;
  };
  absl::Status Check(absl::string_view key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::map<std::string, std::string, std::less<>> values_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace landbridge
