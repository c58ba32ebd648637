#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace landbridge::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kCaptureBytesMax = 1 << 20;
constexpr std::streamoff kTailBytesMax = 64 << 10;

std::string ErrnoText() { return strerror(errno); }

int MillisecondsLeft(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

// Of /proc/PID/stat from field 3 of proc(5) on.
constexpr size_t kStatState = 0, kStatParent = 1, kStatStartTime = 19;

std::optional<std::vector<std::string>> StatFields(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  // The name in field 2 may hold spaces and brackets; fields are counted from the last bracket.
  const size_t end = line.rfind(')');
  if (end == std::string::npos) return std::nullopt;
  std::vector<std::string> fields = absl::StrSplit(line.substr(end + 1), ' ', absl::SkipEmpty());
  if (fields.size() <= kStatStartTime) return std::nullopt;
  return fields;
}

// In the child, between fork and exec. Reports through `error_fd` which step failed.
[[noreturn]] void ExecChild(const SpawnOptions& options, pid_t parent, int output_fd, int error_fd) {
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent ended before the line above
  if (options.own_process_group) setpgid(0, 0);
  if (options.null_stdin) {
    const int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd >= 0) dup2(null_fd, STDIN_FILENO);
  }
  if (output_fd >= 0) {
    dup2(output_fd, STDOUT_FILENO);
    dup2(output_fd, STDERR_FILENO);
  }
  for (const auto& [name, value] : options.environment) setenv(name.c_str(), value.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& arg : options.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(error_fd, &error, sizeof error);
  _exit(127);
}

}  // namespace

absl::StatusOr<pid_t> Spawn(const SpawnOptions& options) {
  if (options.argv.empty()) return absl::InvalidArgumentError("no command was given");
  int output_fd = -1;
  if (!options.output_path.empty()) {
    const int keep = options.append_output ? 0 : O_TRUNC;
    output_fd = open(options.output_path.c_str(), O_WRONLY | O_CREAT | keep | O_APPEND | O_CLOEXEC, 0644);
    if (output_fd < 0) {
      return absl::FailedPreconditionError(absl::StrCat("cannot write ", options.output_path, ": ", ErrnoText()));
    }
  }
  int error_pipe[2];
  if (pipe2(error_pipe, O_CLOEXEC) != 0) {
    if (output_fd >= 0) close(output_fd);
    return absl::ResourceExhaustedError(absl::StrCat("cannot make a pipe: ", ErrnoText()));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) ExecChild(options, parent, output_fd, error_pipe[1]);
  const std::string fork_error = pid < 0 ? ErrnoText() : "";
  if (output_fd >= 0) close(output_fd);
  close(error_pipe[1]);
  if (pid < 0) {
    close(error_pipe[0]);
    return absl::ResourceExhaustedError(absl::StrCat("cannot start a process: ", fork_error));
  }
  // Ends without bytes as soon as exec succeeded, since the pipe closes then.
  int exec_error = 0;
  ssize_t got;
  do {
    got = read(error_pipe[0], &exec_error, sizeof exec_error);
  } while (got < 0 && errno == EINTR);
  close(error_pipe[0]);
  if (got == static_cast<ssize_t>(sizeof exec_error)) {
    waitpid(pid, nullptr, 0);
    return absl::FailedPreconditionError(absl::StrCat("cannot run ", options.argv[0], ": ", strerror(exec_error)));
  }
  return pid;
}

std::string DescribeExit(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int sig = WTERMSIG(wait_status);
    return absl::StrCat("was killed by signal ", sig, " (", strsignal(sig), ")");
  }
  return absl::StrCat("exited with code ", WEXITSTATUS(wait_status));
}

int ExitCodeOf(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

std::optional<uint64_t> ProcessStartTime(pid_t pid) {
  const std::optional<std::vector<std::string>> fields = StatFields(pid);
  uint64_t start = 0;
  if (!fields.has_value() || (*fields)[kStatState] == "Z" || (*fields)[kStatState] == "X") return std::nullopt;
  if (!absl::SimpleAtoi((*fields)[kStatStartTime], &start)) return std::nullopt;
  return start;
}

bool IsAlive(pid_t pid, uint64_t start_time) { return pid > 0 && ProcessStartTime(pid) == start_time; }

bool WaitUntilGone(pid_t pid, uint64_t start_time, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return !IsAlive(pid, start_time);
  pollfd entry{fd, POLLIN, 0};
  while (IsAlive(pid, start_time) && Clock::now() < deadline) {
    if (poll(&entry, 1, MillisecondsLeft(deadline)) > 0) break;
  }
  close(fd);
  return !IsAlive(pid, start_time);
}

void AdoptOrphans() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

namespace {

// Our children that run, in no order.
std::vector<pid_t> Children() {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    const std::optional<std::vector<std::string>> fields = StatFields(pid);
    pid_t parent = 0;
    if (fields.has_value() && absl::SimpleAtoi((*fields)[kStatParent], &parent) && parent == getpid()) {
      children.push_back(pid);
    }
  }
  return children;
}

}  // namespace

void EndDescendants(const std::vector<pid_t>& keep, std::chrono::milliseconds grace) {
  constexpr std::chrono::milliseconds kPause{10};
  const auto deadline = Clock::now() + grace;
  std::vector<pid_t> told;
  auto has = [](const std::vector<pid_t>& list, pid_t pid) {
    return std::find(list.begin(), list.end(), pid) != list.end();
  };
  while (true) {
    bool left = false;
    for (pid_t pid : Children()) {
      if (has(keep, pid)) continue;
      if (waitpid(pid, nullptr, WNOHANG) == pid) {
        left = true;  // its own children are ours now
        continue;
      }
      left = true;
      if (Clock::now() > deadline) {
        kill(pid, SIGKILL);
      } else if (!has(told, pid)) {
        kill(pid, SIGTERM);
        told.push_back(pid);
      }
    }
    if (!left) return;
    poll(nullptr, 0, static_cast<int>(kPause.count()));
  }
}

absl::StatusOr<std::string> CaptureOutput(const std::vector<std::string>& argv, std::chrono::milliseconds timeout) {
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) return absl::ResourceExhaustedError(absl::StrCat("pipe: ", ErrnoText()));
  SpawnOptions options;
  options.argv = argv;
  options.null_stdin = true;
  options.own_process_group = true;
  options.output_path = absl::StrCat("/proc/self/fd/", out[1]);
  absl::StatusOr<pid_t> pid = Spawn(options);
  close(out[1]);
  if (!pid.ok()) {
    close(out[0]);
    return pid.status();
  }
  const auto deadline = Clock::now() + timeout;
  std::string text;
  bool ended = false;
  while (!ended) {
    pollfd entry{out[0], POLLIN, 0};
    const int ready = poll(&entry, 1, MillisecondsLeft(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || text.size() > kCaptureBytesMax) break;
    char buffer[4096];
    const ssize_t got = read(out[0], buffer, sizeof buffer);
    if (got <= 0)
      ended = true;
    else
      text.append(buffer, static_cast<size_t>(got));
  }
  close(out[0]);
  if (!ended) kill(-*pid, SIGKILL);
  int wait_status = 0;
  while (waitpid(*pid, &wait_status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) return absl::AbortedError(absl::StrCat(argv[0], " did not answer in time"));
  if (ExitCodeOf(wait_status) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(argv[0], " ", DescribeExit(wait_status), ": ", text));
  }
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::stringstream content;
  content << in.rdbuf();
  return content.str();
}

absl::Status WriteFileAtomically(const std::string& path, const std::string& content) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
    out << content;
    out.flush();
    if (!out) return absl::FailedPreconditionError(absl::StrCat("cannot write ", temporary, ": ", ErrnoText()));
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string error = ErrnoText();
    unlink(temporary.c_str());
    return absl::FailedPreconditionError(absl::StrCat("cannot write ", path, ": ", error));
  }
  return absl::OkStatus();
}

std::string LogTail(const std::string& path, int lines) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return "    (there is no log)\n";
  in.seekg(0, std::ios::end);
  const std::streamoff size = in.tellg();
  in.seekg(size > kTailBytesMax ? size - kTailBytesMax : 0);
  std::deque<std::string> last;
  for (std::string line; std::getline(in, line);) {
    last.push_back(line);
    if (last.size() > static_cast<size_t>(lines)) last.pop_front();
  }
  if (last.empty()) return "    (the log is empty)\n";
  std::string text;
  for (const std::string& line : last) absl::StrAppend(&text, "    ", line, "\n");
  return text;
}

}  // namespace landbridge::cli
