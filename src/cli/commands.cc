#include "cli/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/ffi_libraries.h"
#include "base/status.h"
#include "cli/cluster_state.h"
#include "cli/dataflow_graph.h"
#include "cli/group_watch.h"
#include "cli/local_cluster.h"
#include "cli/plugin_search.h"
#include "cli/process.h"
#include "cli/signals.h"
#include "cli/status_report.h"
#include "cli/wait_graph.h"

namespace landbridge::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kLoopInterval{100};
constexpr milliseconds kCommandGrace{5000};  // between SIGTERM and SIGKILL for the command of `run`
constexpr milliseconds kDownTimeout{15'000};
constexpr milliseconds kRestartTimeout{30'000};

int Fail(const absl::Status& status, int code = kExitError) {
  fprintf(stderr, "landbridge: %s\n", std::string(status.message()).c_str());
  return code;
}

std::string BinDir() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path().string();
}

// The folder that build/PRESET/bin lies in; empty for an installed tool.
std::string CheckoutOf(const std::string& bin_dir) {
  const fs::path root = fs::path(bin_dir).parent_path().parent_path().parent_path();
  std::error_code error;
  return fs::exists(root / "CMakeLists.txt", error) ? root.string() : "";
}

// Checks what can be checked before anything starts, and completes the options.
absl::Status Complete(ClusterOptions& options, const std::string& bin_dir) {
  LB_RETURN_IF_ERROR(Validate(options));
  std::vector<const char*> binaries = {"landbridge-server", "landbridge-proxy"};
  if (options.one_process) binaries = {"landbridge-one"};
  if (options.simulated) binaries.push_back("landbridge-simulated-workers");
  for (const char* binary : binaries) {
    const std::string path = absl::StrCat(bin_dir, "/", binary);
    if (access(path.c_str(), X_OK) != 0) {
      return absl::FailedPreconditionError(absl::StrCat(path, " is missing; build it with `make build`"));
    }
  }
  LB_ASSIGN_OR_RETURN(options.ffi_library, AbsoluteFfiLibraries(options.ffi_library));
  LB_ASSIGN_OR_RETURN(options.plugin, FindPlugin(options.plugin, CheckoutOf(bin_dir)));
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> ClientEnvironment(const ClusterState& state) {
  const char* platforms = getenv("JAX_PLATFORMS");
  // "proxy,cpu" is a user's choice that works too.
  const bool keep = platforms != nullptr && strstr(platforms, "proxy") != nullptr;
  return {{"JAX_PLATFORMS", keep ? platforms : "proxy"},
          {"JAX_BACKEND_TARGET", BackendTarget(state)},
          {"IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS", "true"}};
}

nlohmann::json UpAnswer(const ClusterState& state, const std::string& state_dir) {
  nlohmann::json processes = nlohmann::json::array();
  for (const ProcessState& p : state.processes) {
    processes.push_back({{"name", p.name}, {"pid", p.pid}, {"log", p.log}, {"address", p.address}});
  }
  return {{"address", BackendTarget(state)},
          {"state", state_dir},
          {"supervisor_pid", state.supervisor_pid},
          {"resource_manager_address", state.resource_manager_address},
          {"processes", processes}};
}

// Reaps all ended children. The command's exit status goes to `command_status`.
void Reap(LocalCluster& cluster, pid_t command, std::optional<int>* command_status) {
  int wait_status;
  for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
    if (pid == command)
      *command_status = wait_status;
    else
      cluster.OnChildEnded(pid, wait_status);
  }
}

// Runs the command to its end. Its exit code, or kExitClusterLost.
int RunCommand(LocalCluster& cluster, Signals& signals, const RunArguments& arguments, const std::string& state_dir) {
  absl::StatusOr<std::unique_ptr<GroupWatch>> watch = GroupWatch::Start();
  if (!watch.ok()) return Fail(watch.status());
  AdoptOrphans();
  SpawnOptions spawn;
  spawn.argv = arguments.command;
  // The command stays in our process group: it owns the terminal and gets Ctrl-C from it, as without us.
  spawn.environment = ClientEnvironment(cluster.state());
  spawn.environment.emplace_back("LANDBRIDGE_STATE", state_dir);
  absl::StatusOr<pid_t> command = Spawn(spawn);
  if (!command.ok()) return Fail(command.status(), 127);

  std::optional<int> ended;
  std::optional<std::chrono::steady_clock::time_point> kill_at;
  auto terminate = [&] {
    if (kill_at.has_value()) return;
    kill(*command, SIGTERM);
    kill_at = std::chrono::steady_clock::now() + kCommandGrace;
  };
  while (!ended.has_value()) {
    if (auto info = signals.Next(kLoopInterval)) {
      const int sig = static_cast<int>(info->ssi_signo);
      // Ctrl-C at the terminal has reached the command too; it decides what that means. A signal that somebody
      // sent to us alone is passed on.
      if (sig == SIGINT && !(*watch)->GroupWasInterrupted()) kill(*command, SIGINT);
      if (sig == SIGTERM) terminate();
      if (sig == SIGHUP) {
        if (info->ssi_code == SI_KERNEL)
          terminate();  // the terminal is gone
        else
          cluster.ServeRequests();
      }
    }
    Reap(cluster, *command, &ended);
    cluster.Poll();
    if (!cluster.fatal_error().ok()) terminate();
    if (kill_at.has_value() && std::chrono::steady_clock::now() > *kill_at) kill(*command, SIGKILL);
  }
  // What the command has started ends with it when it did not end by itself.
  if (kill_at.has_value() || WIFSIGNALED(*ended)) {
    std::vector<pid_t> keep = cluster.ServerPids();
    keep.push_back((*watch)->pid());
    EndDescendants(keep, kCommandGrace);
  }
  if (!cluster.fatal_error().ok()) return Fail(cluster.fatal_error(), kExitClusterLost);
  return ExitCodeOf(*ended);
}

// The life of a cluster that stays: in the background, until SIGTERM or the loss of a part that must not be lost.
int SuperviseUntilDown(LocalCluster& cluster, Signals& signals) {
  std::optional<int> unused;
  while (true) {
    if (auto info = signals.Next(kLoopInterval)) {
      const int sig = static_cast<int>(info->ssi_signo);
      if (sig == SIGTERM || sig == SIGINT) return 0;
      if (sig == SIGHUP) cluster.ServeRequests();
    }
    Reap(cluster, 0, &unused);
    cluster.Poll();
    if (!cluster.fatal_error().ok()) return Fail(cluster.fatal_error(), kExitClusterLost);
  }
}

// Writes all of `text` to a pipe whose reader may be gone.
void Report(int fd, const std::string& text) {
  signal(SIGPIPE, SIG_IGN);
  for (size_t done = 0; done < text.size();) {
    const ssize_t written = write(fd, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<size_t>(written);
  }
}

// In the forked child of `up`. Says "ok" or an error on `answer_fd`, then supervises.
[[noreturn]] void Supervisor(const UpArguments& arguments, const std::string& bin_dir, int answer_fd) {
  setsid();
  const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const int log_fd = open(LogPath(arguments.state_dir, "supervisor").c_str(),
                          O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
  dup2(null_fd, STDIN_FILENO);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  int code = 0;
  {
    Signals signals;
    LocalCluster cluster(arguments.cluster, bin_dir, arguments.state_dir, &signals,
                         [](const std::string& line) { fprintf(stderr, "%s\n", line.c_str()); });
    const absl::Status started = cluster.Start();
    if (!started.ok()) {
      // End the servers first, so that the folder can be used again when the answer is there.
      cluster.Stop();
      fprintf(stderr, "%s\n", std::string(started.message()).c_str());
      Report(answer_fd, std::string(started.message()));
      _exit(kExitError);
    }
    Report(answer_fd, "ok");
    close(answer_fd);
    code = SuperviseUntilDown(cluster, signals);
  }
  _exit(code);
}

}  // namespace

int Run(RunArguments arguments) {
  const std::string bin_dir = BinDir();
  if (absl::Status complete = Complete(arguments.cluster, bin_dir); !complete.ok()) return Fail(complete);
  std::string state_dir = arguments.state_dir;
  const bool temporary = state_dir.empty();
  if (temporary) {
    state_dir = (fs::temp_directory_path() / "landbridge-run-XXXXXX").string();
    if (mkdtemp(state_dir.data()) == nullptr) {
      return Fail(
          absl::FailedPreconditionError(absl::StrCat("cannot make the folder ", state_dir, ": ", strerror(errno))));
    }
  } else {
    state_dir = fs::absolute(state_dir).string();
  }
  absl::StatusOr<int> lock = LockStateDir(state_dir);
  if (!lock.ok()) return Fail(lock.status());
  if (absl::Status prepared = PrepareStateDir(state_dir); !prepared.ok()) return Fail(prepared);

  Signals signals;
  const bool quiet = arguments.quiet;
  int code = 0;
  {
    LocalCluster cluster(arguments.cluster, bin_dir, state_dir, &signals, [quiet](const std::string& line) {
      if (!quiet) fprintf(stderr, "landbridge: %s\n", line.c_str());
    });
    if (absl::Status started = cluster.Start(); !started.ok()) {
      cluster.Stop();
      return Fail(started, absl::IsCancelled(started) ? 130 : kExitError);
    }
    if (!quiet) {
      fprintf(stderr, "landbridge: cluster is ready at %s (logs in %s/logs)\n", BackendTarget(cluster.state()).c_str(),
              state_dir.c_str());
    }
    code = RunCommand(cluster, signals, arguments, state_dir);
  }
  if (code == 0 && temporary) {
    std::error_code error;
    fs::remove_all(state_dir, error);
  } else if (code != 0 && !quiet) {
    fprintf(stderr, "landbridge: the logs of the servers are in %s/logs\n", state_dir.c_str());
  }
  close(*lock);
  return code;
}

int Up(UpArguments arguments) {
  const std::string bin_dir = BinDir();
  arguments.state_dir = fs::absolute(arguments.state_dir).string();
  if (absl::Status complete = Complete(arguments.cluster, bin_dir); !complete.ok()) return Fail(complete);
  // The lock goes over to the supervisor with the fork and ends with it, however it ends.
  absl::StatusOr<int> lock = LockStateDir(arguments.state_dir);
  if (!lock.ok()) return Fail(lock.status());
  if (absl::Status prepared = PrepareStateDir(arguments.state_dir); !prepared.ok()) return Fail(prepared);
  RemoveState(arguments.state_dir);
  int answer[2];
  if (pipe2(answer, O_CLOEXEC) != 0) return Fail(absl::ResourceExhaustedError(strerror(errno)));
  const pid_t supervisor = fork();
  if (supervisor < 0) return Fail(absl::ResourceExhaustedError(absl::StrCat("fork: ", strerror(errno))));
  if (supervisor == 0) {
    close(answer[0]);
    Supervisor(arguments, bin_dir, answer[1]);
  }
  close(answer[1]);
  Signals signals;
  std::string text;
  char buffer[4096];
  // Ctrl-C while waiting ends the supervisor, whose end closes the pipe.
  fcntl(answer[0], F_SETFL, O_NONBLOCK);
  while (true) {
    const ssize_t got = read(answer[0], buffer, sizeof buffer);
    if (got == 0) break;
    if (got > 0) {
      text.append(buffer, static_cast<size_t>(got));
      continue;
    }
    if (auto info = signals.Next(milliseconds(20))) {
      if (info->ssi_signo == SIGINT || info->ssi_signo == SIGTERM) kill(supervisor, SIGTERM);
    }
  }
  close(answer[0]);
  if (text != "ok") {
    waitpid(supervisor, nullptr, 0);
    if (text.empty()) {
      const std::string log = LogPath(arguments.state_dir, "supervisor");
      text = absl::StrCat("the supervisor ended while starting. Its log is ", log, " and ends with:\n", LogTail(log));
    }
    return Fail(absl::AbortedError(text));
  }
  absl::StatusOr<ClusterState> state = LoadState(arguments.state_dir);
  if (!state.ok()) return Fail(state.status());
  if (arguments.json) {
    printf("%s\n", UpAnswer(*state, arguments.state_dir).dump().c_str());
    return 0;
  }
  fprintf(stderr, "landbridge: %d slice%s of %d x %d devices, %zu processes; logs in %s/logs\n", state->slices,
          state->slices == 1 ? "" : "s", state->workers_per_slice, state->devices_per_worker, state->processes.size(),
          arguments.state_dir.c_str());
  for (const auto& [name, value] : ClientEnvironment(*state)) printf("export %s=%s\n", name.c_str(), value.c_str());
  fprintf(stderr, "landbridge: run the lines above (or `eval \"$(landbridge up ...)\"`), then any JAX program.\n");
  return 0;
}

int Down(const std::string& state_dir) {
  absl::StatusOr<ClusterState> state = LoadState(state_dir);
  if (!state.ok()) {
    if (!fs::exists(absl::StrCat(state_dir, "/cluster.json"))) {
      fprintf(stderr, "landbridge: no cluster runs in %s\n", state_dir.c_str());
      return 0;
    }
    return Fail(state.status());
  }
  const pid_t pid = state->supervisor_pid;
  if (IsAlive(pid, state->supervisor_start_time)) {
    kill(pid, SIGTERM);
    if (!WaitUntilGone(pid, state->supervisor_start_time, kDownTimeout)) {
      // The kernel ends its children with it.
      kill(pid, SIGKILL);
      WaitUntilGone(pid, state->supervisor_start_time, kDownTimeout);
    }
  }
  for (const ProcessState& p : state->processes) {
    if (!WaitUntilGone(p.pid, p.start_time, kDownTimeout)) {
      return Fail(absl::AbortedError(absl::StrCat(p.name, " (pid ", p.pid, ") does not end; its log is ", p.log)));
    }
  }
  RemoveState(state_dir);
  fprintf(stderr, "landbridge: the cluster in %s has ended\n", state_dir.c_str());
  return 0;
}

int Restart(const std::string& state_dir, const std::string& name) {
  absl::StatusOr<ClusterState> state = LoadState(state_dir);
  if (!state.ok()) return Fail(state.status());
  if (!IsAlive(state->supervisor_pid, state->supervisor_start_time)) {
    return Fail(absl::FailedPreconditionError(absl::StrCat("the cluster in ", state_dir, " has ended")));
  }
  auto find = [&name](const ClusterState& in) -> const ProcessState* {
    for (const ProcessState& p : in.processes) {
      if (p.name == name) return &p;
    }
    return nullptr;
  };
  const ProcessState* before = find(*state);
  if (before == nullptr || name.rfind("worker-", 0) != 0) {
    std::vector<std::string> names;
    for (const ProcessState& p : state->processes) {
      if (p.name.rfind("worker-", 0) == 0) names.push_back(p.name);
    }
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("there is no worker named ", name, "; the workers are ", absl::StrJoin(names, ", "))));
  }
  if (absl::Status written = WriteFileAtomically(absl::StrCat(state_dir, "/requests/", name), ""); !written.ok()) {
    return Fail(written);
  }
  kill(state->supervisor_pid, SIGHUP);
  const auto deadline = std::chrono::steady_clock::now() + kRestartTimeout;
  while (std::chrono::steady_clock::now() < deadline) {
    absl::StatusOr<ClusterState> now = LoadState(state_dir);
    const ProcessState* after = now.ok() ? find(*now) : nullptr;
    if (after != nullptr && after->pid != before->pid && !after->address.empty()) {
      fprintf(stderr, "landbridge: %s runs as pid %d\n", name.c_str(), after->pid);
      return 0;
    }
    usleep(20'000);
  }
  return Fail(absl::AbortedError(
      absl::StrCat(name, " did not start; its log is ", before->log, " and ends with:\n", LogTail(before->log))));
}

int ShowStatus(const std::string& state_dir, bool json) {
  absl::StatusOr<ClusterState> state = LoadState(state_dir);
  if (!state.ok()) {
    if (json) printf("%s\n", nlohmann::json{{"state", state_dir}, {"running", false}}.dump().c_str());
    return Fail(state.status(), kExitNotRunning);
  }
  const nlohmann::json report = CollectStatus(*state, state_dir);
  printf("%s", json ? (report.dump(2) + "\n").c_str() : RenderStatus(report).c_str());
  return report.at("running").get<bool>() ? 0 : kExitNotRunning;
}

int ShowWhy(const std::string& state_dir, const std::string& what, bool json) {
  absl::StatusOr<ClusterState> state = LoadState(state_dir);
  if (!state.ok()) return Fail(state.status(), kExitNotRunning);
  absl::StatusOr<nlohmann::json> explain = CollectExplain(*state);
  if (!explain.ok()) {
    return Fail(
        AddContext(explain.status(), "the proxy does not say what waits for what; `landbridge status` shows its log"));
  }
  if (json) {
    printf("%s\n", explain->dump(2).c_str());
    return 0;
  }
  const std::string text = WaitGraph(*explain).Why(what);
  if (text.empty()) {
    printf("%s\n", what.empty() ? "nothing waits"
                                : absl::StrCat("nothing of ", what, " waits: it has ended, or it never was").c_str());
    return 0;
  }
  printf("%s", text.c_str());
  return 0;
}

namespace {

constexpr milliseconds kGraphvizTimeout{60'000};

absl::StatusOr<std::string> DotToSvg(const std::string& dot) {
  std::string path = (fs::temp_directory_path() / "landbridge-graph-XXXXXX").string();
  const int fd = mkstemp(path.data());
  if (fd < 0) return absl::FailedPreconditionError(absl::StrCat("cannot make ", path, ": ", strerror(errno)));
  close(fd);
  absl::StatusOr<std::string> svg = absl::UnavailableError("not drawn");
  if (absl::Status written = WriteFileAtomically(path, dot); written.ok()) {
    svg = CaptureOutput({"dot", "-Tsvg", path}, kGraphvizTimeout);
  } else {
    svg = written;
  }
  std::error_code error;
  fs::remove(path, error);
  if (svg.ok()) return svg;
  return absl::FailedPreconditionError(absl::StrCat("--svg needs graphviz's `dot` on PATH (", svg.status().message(),
                                                    "); install graphviz, or take --dot and draw it elsewhere"));
}

}  // namespace

int ShowGraph(const std::string& state_dir, GraphForm form) {
  absl::StatusOr<ClusterState> state = LoadState(state_dir);
  if (!state.ok()) return Fail(state.status(), kExitNotRunning);
  absl::StatusOr<nlohmann::json> answer = CollectGraph(*state);
  if (!answer.ok()) return Fail(AddContext(answer.status(), "the proxy does not tell its graph"));
  const nlohmann::json graph = BuildDataflowGraph(*answer);
  std::string text;
  switch (form) {
    case GraphForm::kText: text = DataflowGraphToText(graph); break;
    case GraphForm::kJson: text = graph.dump(2) + "\n"; break;
    case GraphForm::kDot: text = DataflowGraphToDot(graph); break;
    case GraphForm::kSvg: {
      absl::StatusOr<std::string> svg = DotToSvg(DataflowGraphToDot(graph));
      if (!svg.ok()) return Fail(svg.status());
      text = *std::move(svg);
      break;
    }
  }
  printf("%s", text.c_str());
  return 0;
}

int ShowDevices(const std::string& state_dir, bool json) {
  absl::StatusOr<ClusterState> state = LoadState(state_dir);
  if (!state.ok()) return Fail(state.status(), kExitNotRunning);
  const nlohmann::json report = CollectStatus(*state, state_dir);
  if (!report.contains("devices")) {
    return Fail(absl::FailedPreconditionError(
        absl::StrCat("the proxy does not tell its devices", report.value("proxy_error", std::string()))));
  }
  printf("%s", json ? (report.at("devices").dump(2) + "\n").c_str() : RenderDevices(report).c_str());
  return 0;
}

}  // namespace landbridge::cli
