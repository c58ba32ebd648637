// Whether a SIGINT that reached us was sent to our whole process group or to us alone.
//
// The command of `run` stays in our process group, so Ctrl-C at the terminal and `kill -INT -PGID` reach it without us,
// and once is enough. A signal does not say which of the two it was; a small process that waits in the same group does.
//
// Thread-safety: the main thread only; see process.h.
#pragma once

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"

namespace landbridge::cli {

class GroupWatch {
 public:
  // To be called before the command is started: a group's signal reaches the younger members first, so the watch has it
  // when we have. SIGINT must be blocked (see signals.h).
  static absl::StatusOr<std::unique_ptr<GroupWatch>> Start();
  ~GroupWatch();
  GroupWatch(const GroupWatch&) = delete;
  GroupWatch& operator=(const GroupWatch&) = delete;

  // Whether the whole group has got SIGINT since the last question. False also when the watch is gone.
  bool GroupWasInterrupted();
  pid_t pid() const { return pid_; }

 private:
  GroupWatch(pid_t pid, int fd) : pid_(pid), fd_(fd) {}

  const pid_t pid_;
  const int fd_;  // ask and hear
};

}  // namespace landbridge::cli
