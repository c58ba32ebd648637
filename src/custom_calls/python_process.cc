#include "custom_calls/python_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

extern char** environ;

namespace landbridge {
namespace {

TimeNs MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<TimeNs>(now.tv_sec) * kSecond + now.tv_nsec;
}

// Closed at the end of the block.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { Close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }
  void Close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

// A file in memory, to be read from its start: unlike a pipe it takes everything at once.
absl::Status FillInput(int fd, absl::string_view input) {
  while (!input.empty()) {
    const ssize_t n = ::write(fd, input.data(), input.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::FailedPreconditionError(absl::StrCat("no memory for its input: ", std::strerror(errno)));
    input.remove_prefix(static_cast<size_t>(n));
  }
  if (::lseek(fd, 0, SEEK_SET) != 0) return absl::FailedPreconditionError(std::strerror(errno));
  return absl::OkStatus();
}

absl::StatusOr<pid_t> Spawn(const PythonProcess& process, int input, int output) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawn_file_actions_adddup2(&actions, output, 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::string name = process.interpreter, flag = "-c", script = process.script;
  char* argv[] = {name.data(), flag.data(), script.data(), nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return absl::FailedPreconditionError(std::strerror(error));
  return pid;
}

absl::StatusOr<std::string> ReadAll(int fd, const PythonProcess& process) {
  std::string out;
  for (const TimeNs until = MonotonicNs() + process.time_limit;;) {
    pollfd wait{fd, POLLIN, 0};
    const TimeNs left = until - MonotonicNs();
    const int ready = left <= 0 ? 0 : ::poll(&wait, 1, static_cast<int>(left / kMillisecond) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      return absl::FailedPreconditionError(absl::StrCat("no answer within ", process.time_limit / kSecond, " s"));
    }
    char buffer[size_t{1} << 16];
    const ssize_t n = ::read(fd, buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return out;
    out.append(buffer, static_cast<size_t>(n));
    if (out.size() > process.answer_bytes_max) return absl::FailedPreconditionError("too long an answer");
  }
}

}  // namespace

absl::StatusOr<std::string> RunPython(const PythonProcess& process, absl::string_view input) {
  if (absl::StrContains(process.interpreter, '/') && ::access(process.interpreter.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError("there is no such program");
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::FailedPreconditionError("no pipe");
  Descriptor from(ends[0]), to(ends[1]), given(::memfd_create("landbridge-input", MFD_CLOEXEC));
  if (given.get() < 0) return absl::FailedPreconditionError("no file in memory");
  LB_RETURN_IF_ERROR(FillInput(given.get(), input));
  LB_ASSIGN_OR_RETURN(const pid_t pid, Spawn(process, given.get(), to.get()));
  to.Close();
  given.Close();
  absl::StatusOr<std::string> out = ReadAll(from.get(), process);
  from.Close();
  if (!out.ok()) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (out.ok() && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) return absl::FailedPreconditionError("it failed");
  return out;
}

}  // namespace landbridge
