#include "cli/local_cluster.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "cli/admin_query.h"
#include "cli/process.h"
#include "cli/status_report.h"

namespace landbridge::cli {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPollInterval{10};
constexpr milliseconds kEndTimeout{3000};
// A worker that ends at once after each start is started again ever more slowly, up to this.
constexpr milliseconds kRestartDelayMin{50}, kRestartDelayMax{10'000};
constexpr milliseconds kStableAfter{10'000};
constexpr milliseconds kAdminTimeout{1000};
constexpr uintmax_t kLogBytesMax = 16u << 20;  // a longer log of a worker is put aside when it is started again
constexpr int kExitRestart = 75;               // of landbridge-server

std::string RandomHex(size_t bytes) {
  std::string random(bytes, '\0');
  if (getentropy(random.data(), random.size()) != 0) return "";
  return absl::BytesToHexString(random);
}

}  // namespace

LocalCluster::LocalCluster(ClusterOptions options, std::string bin_dir, std::string state_dir, Signals* signals,
                           std::function<void(const std::string&)> progress)
    : options_(std::move(options)),
      bin_dir_(std::move(bin_dir)),
      state_dir_(std::move(state_dir)),
      signals_(signals),
      progress_(std::move(progress)),
      cluster_secret_(RandomHex(16)) {
  state_.supervisor_pid = getpid();
  state_.supervisor_start_time = ProcessStartTime(getpid()).value_or(0);
  state_.slices = options_.slices;
  state_.workers_per_slice = options_.workers_per_slice;
  state_.devices_per_worker = options_.devices_per_worker;
  state_.plugin = options_.plugin;
}

LocalCluster::~LocalCluster() { Stop(); }

absl::Status LocalCluster::Start() {
  start_deadline_ = Clock::now() + std::chrono::seconds(options_.start_timeout_s);
  if (options_.one_process) return StartOneProcess();
  progress_("starting the resource manager");
  LB_RETURN_IF_ERROR(LaunchNew(ResourceManagerSpec(options_, bin_dir_, state_dir_)));
  LB_RETURN_IF_ERROR(AwaitPorts(0));
  state_.resource_manager_address = state_.processes[0].address;

  progress_(absl::StrCat("starting ", options_.workers(), options_.simulated ? " simulated worker" : " worker",
                         options_.workers() == 1 ? "" : "s", " (", options_.slices, " slice",
                         options_.slices == 1 ? "" : "s", " of ", options_.workers_per_slice, " x ",
                         options_.devices_per_worker, " devices) and the proxy"));
  LB_RETURN_IF_ERROR(LaunchNew(ProxySpec(options_, bin_dir_, state_dir_, state_.resource_manager_address)));
  if (options_.simulated) {
    LB_RETURN_IF_ERROR(
        LaunchNew(SimulatedWorkersSpec(options_, bin_dir_, state_dir_, state_.resource_manager_address)));
  }
  for (int slice = 0; slice < options_.slices && !options_.simulated; ++slice) {
    for (int index = 0; index < options_.workers_per_slice; ++index) {
      LB_RETURN_IF_ERROR(
          LaunchNew(WorkerSpec(options_, bin_dir_, state_dir_, state_.resource_manager_address, slice, index)));
    }
  }
  LB_RETURN_IF_ERROR(AwaitPorts(1));
  state_.proxy_address = Proxy().address;
  LB_RETURN_IF_ERROR(AwaitWorkers());
  started_ = true;
  return SaveState(state_dir_, state_);
}

absl::Status LocalCluster::StartOneProcess() {
  progress_("starting all servers in one process");
  LB_RETURN_IF_ERROR(LaunchNew(OneProcessSpec(options_, bin_dir_, state_dir_)));
  LB_RETURN_IF_ERROR(AwaitPorts(0));
  state_.proxy_address = Proxy().address;
  LB_RETURN_IF_ERROR(AwaitWorkers());
  started_ = true;
  return SaveState(state_dir_, state_);
}

ProcessState& LocalCluster::Proxy() {
  // Started second, behind the resource manager, or as the only one.
  return state_.processes[options_.one_process ? 0 : 1];
}

absl::Status LocalCluster::LaunchNew(ServerSpec spec) {
  Server server;
  server.spec = std::move(spec);
  server.index = state_.processes.size();
  ProcessState process;
  process.name = server.spec.name;
  process.log = server.spec.log_path;
  process.starts = 0;
  state_.processes.push_back(process);
  servers_.push_back(server);
  return Launch(servers_.back());
}

absl::Status LocalCluster::Launch(Server& server) {
  unlink(server.spec.port_path.c_str());
  unlink(absl::StrCat(server.spec.port_path, ".admin").c_str());
  ProcessState& process = state_.processes[server.index];
  // The log is continued, since errors that clients hold name it, and it tells why the life before ended.
  std::error_code error;
  const bool too_long = std::filesystem::file_size(server.spec.log_path, error) > kLogBytesMax && !error;
  if (process.starts > 0 && too_long) {
    std::filesystem::rename(server.spec.log_path, absl::StrCat(server.spec.log_path, ".previous"), error);
  }
  SpawnOptions spawn;
  spawn.argv = server.spec.argv;
  spawn.output_path = server.spec.log_path;
  spawn.append_output = process.starts > 0;
  spawn.own_process_group = true;
  spawn.null_stdin = true;
  // By the environment, since everybody can read command lines.
  spawn.environment.emplace_back("LANDBRIDGE_CLUSTER_SECRET", cluster_secret_);
  absl::StatusOr<pid_t> pid = Spawn(spawn);
  if (!pid.ok()) {
    return AddContext(pid.status(),
                      absl::StrCat("cannot start ", server.spec.name, " (build the servers with `make build`)"));
  }
  process.pid = *pid;
  process.start_time = ProcessStartTime(*pid).value_or(0);
  process.address.clear();
  process.admin_address.clear();
  process.ended.clear();
  ++process.starts;
  server.running = true;
  server.started_at = Clock::now();
  server.restart_at = Clock::time_point::max();
  return absl::OkStatus();
}

bool LocalCluster::ReadPort(Server& server) {
  ProcessState& process = state_.processes[server.index];
  if (!process.address.empty()) return true;
  absl::StatusOr<std::string> text = ReadFile(server.spec.port_path);
  if (!text.ok()) return false;
  process.address = std::string(absl::StripAsciiWhitespace(*text));
  // Written before the port file, if at all.
  absl::StatusOr<std::string> admin = ReadFile(absl::StrCat(server.spec.port_path, ".admin"));
  process.admin_address = admin.ok() ? std::string(absl::StripAsciiWhitespace(*admin)) : process.address;
  return !process.address.empty();
}

absl::Status LocalCluster::DescribeDeath(const Server& server) const {
  const ProcessState& process = state_.processes[server.index];
  return absl::AbortedError(absl::StrCat(process.name, " ", process.ended, started_ ? "" : " before it was ready",
                                         ". Its log is ", process.log, " and ends with:\n", LogTail(process.log)));
}

absl::Status LocalCluster::PumpWhileStarting(const std::string& waiting_for) {
  while (auto signal_info = signals_->Next(kPollInterval)) {
    const int sig = static_cast<int>(signal_info->ssi_signo);
    if (sig == SIGINT || sig == SIGTERM) return absl::CancelledError("interrupted while the cluster started");
    if (sig != SIGCHLD) continue;
    int wait_status;
    for (pid_t pid; (pid = waitpid(-1, &wait_status, WNOHANG)) > 0;) {
      OnChildEnded(pid, wait_status);
    }
  }
  LB_RETURN_IF_ERROR(fatal_error_);
  if (Clock::now() > start_deadline_) {
    std::string text = absl::StrCat("gave up after ", options_.start_timeout_s, " s waiting for ", waiting_for, "\n");
    for (const Server& server : servers_) {
      const ProcessState& process = state_.processes[server.index];
      if (process.address.empty() || started_ || waiting_for.find("placed") != std::string::npos) {
        absl::StrAppend(&text, process.name, ": its log is ", process.log, " and ends with:\n",
                        LogTail(process.log, 5));
      }
    }
    return absl::AbortedError(text);
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitPorts(size_t first_server) {
  while (true) {
    std::vector<std::string> missing;
    for (size_t i = first_server; i < servers_.size(); ++i) {
      if (!ReadPort(servers_[i])) missing.push_back(servers_[i].spec.name);
    }
    if (missing.empty()) return absl::OkStatus();
    LB_RETURN_IF_ERROR(PumpWhileStarting(absl::StrCat(absl::StrJoin(missing, ", "), " to listen")));
  }
}

absl::Status LocalCluster::AwaitWorkers() {
  // Clients may come before the workers do; the cluster is complete when the proxy sees all of them.
  while (true) {
    absl::StatusOr<nlohmann::json> answer = QueryServer(Proxy().admin_address, kAdminTimeout, "workers");
    const WorkersUp seen = answer.ok() ? CountWorkers(*answer) : WorkersUp{};
    if (seen.expected > 0 && seen.up == seen.expected) return absl::OkStatus();
    LB_RETURN_IF_ERROR(PumpWhileStarting(
        absl::StrCat("the workers to be placed and reached by the proxy (", seen.up, " of ", seen.expected, " are)",
                     answer.ok() ? "" : absl::StrCat("; the proxy does not answer: ", answer.status().message()))));
  }
}

bool LocalCluster::OnChildEnded(pid_t pid, int wait_status) {
  for (Server& server : servers_) {
    ProcessState& process = state_.processes[server.index];
    if (!server.running || process.pid != pid) continue;
    server.running = false;
    process.ended = DescribeExit(wait_status);
    // Whatever it had started itself (the proxy's compiler) ends with it: its group is named after it.
    kill(-pid, SIGKILL);
    if (stopping_) return true;
    const bool is_worker = server.spec.role == Role::kWorker;
    // A worker that was fenced asks for a new life; that is no crash.
    const bool asks_restart = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == kExitRestart;
    if (!started_ || !is_worker || (options_.worker_loss == WorkerLoss::kStop && !asks_restart)) {
      if (fatal_error_.ok()) fatal_error_ = DescribeDeath(server);
    } else {
      progress_(absl::StrCat(process.name, " (pid ", pid, ") ", process.ended, "; its log is ", process.log));
      if (options_.worker_loss == WorkerLoss::kRestart || asks_restart) {
        const auto lived = Clock::now() - server.started_at;
        milliseconds delay = kRestartDelayMin;
        if (lived < kStableAfter) delay *= 1 << std::min(process.starts - 1, 8);
        server.restart_at = Clock::now() + std::min(delay, kRestartDelayMax);
      }
      Save();
    }
    return true;
  }
  return false;
}

absl::Status LocalCluster::Restart(const std::string& name) {
  for (Server& server : servers_) {
    if (server.spec.name != name) continue;
    if (server.spec.role != Role::kWorker) {
      return absl::InvalidArgumentError(absl::StrCat("only workers can be started again, not ", name));
    }
    const ProcessState& process = state_.processes[server.index];
    if (server.running) {
      kill(process.pid, SIGTERM);
      WaitUntilGone(process.pid, process.start_time, kEndTimeout);
      kill(-process.pid, SIGKILL);  // with whatever it has started; it is not reaped yet, so the number is its own
      int wait_status = 0;
      while (waitpid(process.pid, &wait_status, 0) < 0 && errno == EINTR) {
      }
      server.running = false;
    }
    absl::Status launched = Launch(server);
    Save();
    return launched;
  }
  return absl::InvalidArgumentError(absl::StrCat("there is no process named ", name));
}

void LocalCluster::ServeRequests() {
  std::error_code error;
  std::vector<std::filesystem::path> requests;
  for (const auto& entry : std::filesystem::directory_iterator(absl::StrCat(state_dir_, "/requests"), error)) {
    requests.push_back(entry.path());
  }
  for (const auto& request : requests) {
    const std::string name = request.filename().string();
    const absl::Status restarted = Restart(name);
    progress_(absl::StrCat("restart of ", name, ": ", restarted.ok() ? "done" : std::string(restarted.message())));
    std::filesystem::remove(request, error);
  }
}

void LocalCluster::Poll() {
  bool changed = false;
  for (Server& server : servers_) {
    ProcessState& process = state_.processes[server.index];
    if (!server.running && Clock::now() >= server.restart_at) {
      const absl::Status launched = Launch(server);
      if (launched.ok()) {
        progress_(absl::StrCat(process.name, " was started again as pid ", process.pid));
      } else {
        progress_(std::string(launched.message()));
        server.restart_at = Clock::now() + kRestartDelayMax;
      }
      changed = true;
    }
    if (server.running && process.address.empty() && ReadPort(server)) changed = true;
  }
  if (changed) Save();
}

void LocalCluster::EndServers(Role role) {
  std::vector<Server*> ending;
  for (Server& server : servers_) {
    if (server.running && server.spec.role == role) {
      kill(state_.processes[server.index].pid, SIGTERM);
      ending.push_back(&server);
    }
  }
  const auto deadline = Clock::now() + kEndTimeout;
  for (Server* server : ending) {
    const ProcessState& process = state_.processes[server->index];
    const auto left = std::max(milliseconds(0), std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
    if (!WaitUntilGone(process.pid, process.start_time, left)) {
      progress_(absl::StrCat(process.name, " did not end by itself and was killed; its log is ", process.log));
    }
    kill(-process.pid, SIGKILL);
    while (waitpid(process.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    server->running = false;
  }
}

void LocalCluster::Stop() {
  stopping_ = true;
  EndServers(Role::kProxy);
  EndServers(Role::kWorker);
  EndServers(Role::kResourceManager);
  RemoveState(state_dir_);
}

std::vector<pid_t> LocalCluster::ServerPids() const {
  std::vector<pid_t> pids;
  for (const Server& server : servers_) {
    if (server.running) pids.push_back(state_.processes[server.index].pid);
  }
  return pids;
}

void LocalCluster::Save() {
  if (!started_) return;
  if (absl::Status saved = SaveState(state_dir_, state_); !saved.ok()) progress_(std::string(saved.message()));
}

}  // namespace landbridge::cli
