#include "cli/group_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace landbridge::cli {
namespace {

// Answers each byte with 1 or 0. Ends when the other side does.
[[noreturn]] void Watch(int fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  prctl(PR_SET_NAME, "landbridge-intr");
  // Whoever reads our standard output must not wait for this process.
  const int null_fd = open("/dev/null", O_RDWR);
  for (int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null_fd, standard);
  signal(SIGTERM, SIG_IGN);  // of the group: we end with our parent
  signal(SIGHUP, SIG_IGN);
  sigset_t all, interrupt;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  for (char byte; read(fd, &byte, 1) == 1;) {
    const timespec at_once{0, 0};
    byte = sigtimedwait(&interrupt, nullptr, &at_once) == SIGINT ? 1 : 0;
    if (write(fd, &byte, 1) != 1) break;
  }
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<GroupWatch>> GroupWatch::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no socket to watch for Ctrl-C: ", strerror(errno)));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    Watch(ends[1], parent);
  }
  const int error = errno;
  close(ends[1]);
  if (pid < 0) {
    close(ends[0]);
    return absl::ResourceExhaustedError(absl::StrCat("no process to watch for Ctrl-C: ", strerror(error)));
  }
  return std::unique_ptr<GroupWatch>(new GroupWatch(pid, ends[0]));
}

GroupWatch::~GroupWatch() {
  close(fd_);
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

bool GroupWatch::GroupWasInterrupted() {
  char byte = 0;
  if (send(fd_, &byte, 1, MSG_NOSIGNAL) != 1) return false;
  ssize_t got;
  do {
    got = read(fd_, &byte, 1);
  } while (got < 0 && errno == EINTR);
  return got == 1 && byte == 1;
}

}  // namespace landbridge::cli
