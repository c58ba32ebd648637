#include "compiler/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/limits.h"
#include "base/status.h"
#include "compiler/compiler_child.h"

extern char** environ;

namespace landbridge {
namespace {

// Ours, with `added` in place of variables of the same names.
std::vector<std::string> MergeEnvironment(const std::vector<std::string>& added) {
  std::vector<std::string> merged;
  auto name_of = [](absl::string_view entry) { return entry.substr(0, entry.find('=')); };
  for (char** entry = environ; *entry != nullptr; ++entry) {
    bool replaced = false;
    for (const std::string& other : added) replaced = replaced || name_of(other) == name_of(*entry);
    if (!replaced) merged.emplace_back(*entry);
  }
  merged.insert(merged.end(), added.begin(), added.end());
  return merged;
}

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

ChildProcess::ChildProcess(pid_t pid, int fd, const ChildProcessOptions& options)
    : pid_(pid), fd_(fd), stop_fd_(options.stop_fd), memory_limit_bytes_(options.memory_limit_bytes) {}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      fd_(std::exchange(other.fd_, -1)),
      stop_fd_(other.stop_fd_),
      memory_limit_bytes_(other.memory_limit_bytes_),
      greeting_(std::move(other.greeting_)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(fd_, other.fd_);
  std::swap(stop_fd_, other.stop_fd_);
  std::swap(memory_limit_bytes_, other.memory_limit_bytes_);
  std::swap(greeting_, other.greeting_);
  return *this;
}

ChildProcess::~ChildProcess() {
  bool ignored = false;
  Bury(/*at_once=*/true, &ignored);
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const ChildProcessOptions& options) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::FailedPreconditionError(absl::StrCat("no socket for a compiler process: ", std::strerror(errno)));
  }
  std::vector<std::string> arguments = {options.binary, absl::StrCat("--pjrt_plugin=", options.plugin_path),
                                        absl::StrCat("--parent_pid=", ::getpid()),
                                        absl::StrCat("--memory_limit_bytes=", options.memory_limit_bytes)};
  arguments.insert(arguments.end(), options.plugin_flags.begin(), options.plugin_flags.end());
  if (!options.ffi_libraries.empty()) arguments.push_back(absl::StrCat("--ffi_library=", options.ffi_libraries));
  if (options.enable_test_faults) arguments.push_back("--enable_test_faults");
  std::vector<std::string> environment = MergeEnvironment(options.environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], 0);
  posix_spawn_file_actions_adddup2(&actions, sockets[1], 1);
  if (!options.log_path.empty()) {
    posix_spawn_file_actions_addopen(&actions, 2, options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  }
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  // A group of its own: Ctrl-C in the terminal is for the service to handle.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  int error = ::posix_spawn(&pid, options.binary.c_str(), &actions, &attributes, Pointers(arguments).data(),
                            Pointers(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(sockets[1]);
  if (error != 0) {
    ::close(sockets[0]);
    return absl::FailedPreconditionError(
        absl::StrCat("the compiler process ", options.binary, " cannot be started: ", std::strerror(error)));
  }

  ChildProcess child(pid, sockets[0], options);
  FrameChannel channel(child.fd_, child.fd_, child.stop_fd_);
  absl::StatusOr<std::string> frame = channel.Read(MonotonicNow() + limits::kCompilerStartTimeMax);
  const std::string log = options.log_path.empty() ? std::string() : absl::StrCat("; its log is ", options.log_path);
  if (!frame.ok()) {
    if (absl::IsCancelled(frame.status())) return frame.status();
    bool ignored = false;
    bool late = absl::IsAborted(frame.status());
    std::string end = child.Bury(/*at_once=*/late, &ignored);
    return absl::FailedPreconditionError(
        absl::StrCat("the compiler process ",
                     late ? "was not ready in time" : absl::StrCat("ended while it started: it ", end), log));
  }
  if (!child.greeting_.ParseFromString(*frame) || child.greeting_.protocol_version() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.binary, " speaks another protocol; install proxy and compiler of one version", log));
  }
  if (child.greeting_.error_code() != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the compiler process cannot work: ", FilterForeignText(child.greeting_.error_message()), log));
  }
  return child;
}

bool ChildProcess::Alive() {
  if (fd_ < 0) return false;
  pollfd entry{fd_, POLLIN, 0};
  // It only speaks when spoken to: anything readable now is its end.
  return ::poll(&entry, 1, 0) == 0;
}

absl::StatusOr<CompileReply> ChildProcess::Call(const CompileCall& call, TimeNs deadline, bool* accepted) {
  *accepted = false;
  FrameChannel channel(fd_, fd_, stop_fd_);
  LB_RETURN_IF_ERROR(channel.Write(call.SerializeAsString(), deadline));
  LB_ASSIGN_OR_RETURN(std::string acknowledgement, channel.Read(deadline));
  if (!acknowledgement.empty()) return absl::UnavailableError("the answer is out of place");
  *accepted = true;
  LB_ASSIGN_OR_RETURN(std::string frame, channel.Read(deadline));
  CompileReply reply;
  if (!reply.ParseFromString(frame)) return absl::UnavailableError("the answer does not parse");
  return reply;
}

std::string ChildProcess::Bury(bool at_once, bool* out_of_memory) {
  *out_of_memory = false;
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (pid_ <= 0) return "is gone";
  pid_t pid = std::exchange(pid_, -1);
  int status = 0;
  rusage usage{};
  // A process that closed its socket is about to end by itself; give it a moment, so that its own reason counts.
  pid_t reaped = 0;
  for (int i = 0; i < 50 && reaped == 0 && !at_once; ++i) {
    reaped = ::wait4(pid, &status, WNOHANG, &usage);
    if (reaped == 0) {
      timespec pause{0, 2'000'000};
      ::nanosleep(&pause, nullptr);
    }
  }
  if (reaped == 0) {
    ::kill(pid, SIGKILL);
    while (::wait4(pid, &status, 0, &usage) < 0 && errno == EINTR) {
    }
    return "had to be killed";
  }
  if (reaped < 0) return "is gone";
  const int64_t peak_bytes = static_cast<int64_t>(usage.ru_maxrss) * 1024;
  const bool near_limit = memory_limit_bytes_ > 0 && peak_bytes > memory_limit_bytes_ / 10 * 7;
  if (WIFEXITED(status)) {
    int code = WEXITSTATUS(status);
    *out_of_memory = code == kCompilerExitOutOfMemory || (code != 0 && near_limit);
    if (code == kCompilerExitOutOfMemory) return "ran out of memory";
    return absl::StrCat("ended with exit code ", code);
  }
  int signal = WTERMSIG(status);
  *out_of_memory = signal == SIGKILL || near_limit;
  return absl::StrCat("died with signal ", signal, " (", ::strsignal(signal), ")",
                      signal == SIGKILL ? ", most likely because the machine ran out of memory" : "");
}

}  // namespace landbridge
