#include "cli/signals.h"

#include <poll.h>
#include <unistd.h>

namespace landbridge::cli {

Signals::Signals() {
  sigemptyset(&mask_);
  for (int sig : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&mask_, sig);
  sigprocmask(SIG_BLOCK, &mask_, nullptr);
  fd_ = signalfd(-1, &mask_, SFD_CLOEXEC | SFD_NONBLOCK);
}

Signals::~Signals() {
  if (fd_ >= 0) close(fd_);
  sigprocmask(SIG_UNBLOCK, &mask_, nullptr);
}

std::optional<signalfd_siginfo> Signals::Next(std::chrono::milliseconds timeout) {
  pollfd entry{fd_, POLLIN, 0};
  if (poll(&entry, 1, static_cast<int>(timeout.count())) <= 0) return std::nullopt;
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof info) != static_cast<ssize_t>(sizeof info)) return std::nullopt;
  return info;
}

}  // namespace landbridge::cli
