// The signals of a supervisor, delivered one by one to its loop instead of to handlers.
//
// Thread-safety: one object per process, made and used by the main thread before others start.
#pragma once

#include <signal.h>
#include <sys/signalfd.h>

#include <chrono>
#include <optional>

#include "absl/status/statusor.h"

namespace landbridge::cli {

class Signals {
 public:
  // Blocks SIGINT, SIGTERM, SIGHUP and SIGCHLD for this process (children get them back in Spawn).
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  // The next signal, waiting at most `timeout` for one. Several SIGCHLD may arrive as one.
  std::optional<signalfd_siginfo> Next(std::chrono::milliseconds timeout);

 private:
  sigset_t mask_{};
  int fd_ = -1;
};

}  // namespace landbridge::cli
