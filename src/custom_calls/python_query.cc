#include "custom_calls/python_query.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "custom_calls/custom_call_limits.h"

extern char** environ;

namespace landbridge {
namespace {

// One line "KEY value" each. Folders that are relative go first: with -c the current one is among them.
constexpr char kAskInterpreter[] = R"(
import sys
sys.path = [p for p in sys.path if p.startswith("/")]
import importlib.util, os, platform, sysconfig
var = lambda name: sysconfig.get_config_var(name) or ""
short = "%d.%d" % sys.version_info[:2]
print("VERSION", platform.python_version())
if platform.python_implementation() != "CPython":
    print("LACKS", platform.python_implementation() + " is not CPython")
for package in ("jaxlib", "scipy"):
    if importlib.util.find_spec(package) is None:
        print("LACKS", "it has no " + package)
names = [n for n in (var("INSTSONAME"), var("LDLIBRARY")) if ".so" in n]
names += ["libpython%s.so.1.0" % short, "libpython%s.so" % short]
folders = [var("LIBDIR"), os.path.join(sys.base_prefix, "lib"), os.path.join(var("LIBDIR"), var("MULTIARCH")),
           os.path.join("/usr/lib", var("MULTIARCH")), var("LIBPL")]
seen = []
for folder in folders:
    for name in names:
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and path not in seen:
            seen.append(path)
            print("LIBRARY", path)
for path in sys.path:
    print("PATH", path)
print("END")
)";

TimeNs MonotonicNs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<TimeNs>(now.tv_sec) * kSecond + now.tv_nsec;
}

// Standard output of a program that gets no descriptor of ours.
absl::StatusOr<std::string> RunAndRead(const std::vector<std::string>& arguments, DurationNs time_limit) {
  int pipe[2];
  if (::pipe2(pipe, O_CLOEXEC) != 0) return absl::FailedPreconditionError("no pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
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
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  ::close(pipe[1]);
  if (error != 0) {
    ::close(pipe[0]);
    return absl::FailedPreconditionError(std::strerror(error));
  }
  std::string out;
  absl::Status failed;
  for (const TimeNs until = MonotonicNs() + time_limit; failed.ok();) {
    pollfd wait{pipe[0], POLLIN, 0};
    const TimeNs left = until - MonotonicNs();
    const int ready = left <= 0 ? 0 : ::poll(&wait, 1, static_cast<int>(left / kMillisecond) + 1);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      failed = absl::FailedPreconditionError(absl::StrCat("no answer within ", time_limit / kSecond, " s"));
      break;
    }
    char buffer[4096];
    const ssize_t n = ::read(pipe[0], buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    out.append(buffer, static_cast<size_t>(n));
    if (out.size() > limits::kPythonQueryBytesMax) failed = absl::FailedPreconditionError("too long an answer");
  }
  ::close(pipe[0]);
  if (!failed.ok()) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (failed.ok() && (!WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
    failed = absl::FailedPreconditionError("it failed");
  }
  if (!failed.ok()) return failed;
  return out;
}

}  // namespace

std::string EnvironmentOfPackage(absl::string_view file) {
  for (absl::string_view folder : {"/lib/python3.", "/lib64/python3."}) {
    const size_t at = file.rfind(folder);
    if (at == absl::string_view::npos) continue;
    absl::string_view rest = file.substr(at + folder.size());
    rest = rest.substr(std::min(rest.find('/'), rest.size()));
    if (absl::StartsWith(rest, "/site-packages/")) return std::string(file.substr(0, at));
  }
  return "";
}

std::vector<std::string> PythonCandidates(absl::string_view plugin_path) {
  std::vector<std::string> candidates;
  auto add_environment = [&](absl::string_view prefix) {
    if (!prefix.empty()) candidates.push_back(absl::StrCat(prefix, "/bin/python3"));
  };
  add_environment(EnvironmentOfPackage(plugin_path));
  if (const char* active = std::getenv("VIRTUAL_ENV")) add_environment(active);
  candidates.push_back("python3");
  return candidates;
}

absl::StatusOr<PythonInstallation> QueryPython(const std::string& interpreter) {
  if (absl::StrContains(interpreter, '/') && ::access(interpreter.c_str(), X_OK) != 0) {
    return absl::FailedPreconditionError("there is no such program");
  }
  LB_ASSIGN_OR_RETURN(const std::string answer,
                      RunAndRead({interpreter, "-c", kAskInterpreter}, limits::kPythonQueryTime));
  PythonInstallation found;
  found.executable = interpreter;
  std::vector<std::string> lacks;
  bool complete = false;
  for (absl::string_view line : absl::StrSplit(answer, '\n')) {
    if (absl::ConsumePrefix(&line, "VERSION ")) {
      found.version = std::string(line);
    } else if (absl::ConsumePrefix(&line, "LACKS ")) {
      lacks.emplace_back(line);
    } else if (absl::ConsumePrefix(&line, "LIBRARY ")) {
      found.libraries.emplace_back(line);
    } else if (absl::ConsumePrefix(&line, "PATH ")) {
      found.path.emplace_back(line);
    } else if (line == "END") {
      complete = true;
    }
  }
  if (!complete || found.version.empty()) return absl::FailedPreconditionError("it is no Python");
  if (found.libraries.empty()) {
    const std::string name = absl::StrCat("libpython", found.version.substr(0, found.version.rfind('.')));
    lacks.push_back(absl::StrCat("its ", name, ".so is not installed; on Debian: apt-get install ", name));
  }
  if (!lacks.empty()) return absl::FailedPreconditionError(absl::StrJoin(lacks, ", "));
  return found;
}

absl::StatusOr<PythonInstallation> FindPython(const PythonSearch& search) {
  std::vector<std::string> candidates = {search.interpreter};
  if (search.interpreter.empty()) {
    const char* named = std::getenv("LANDBRIDGE_PYTHON");
    candidates =
        named != nullptr && *named != '\0' ? std::vector<std::string>{named} : PythonCandidates(search.plugin_path);
  }
  std::vector<std::string> tried;
  for (const std::string& candidate : candidates) {
    absl::StatusOr<PythonInstallation> found = QueryPython(candidate);
    if (found.ok()) return found;
    tried.push_back(absl::StrCat(candidate, " (", FilterForeignText(found.status().message()), ")"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "its handler comes with jaxlib, which no Python of this worker's host has together with scipy and "
      "libpython: looked at ",
      absl::StrJoin(tried, ", "),
      "; run `pip install jaxlib scipy` there, or give landbridge-server --python=PATH (or LANDBRIDGE_PYTHON) "
      "with a Python that has them"));
}

}  // namespace landbridge
