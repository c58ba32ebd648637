#include "cli/cluster_state.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/process.h"

namespace landbridge::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kFormat = 1;

std::string StatePath(const std::string& state_dir) { return absl::StrCat(state_dir, "/cluster.json"); }

}  // namespace

std::string BackendTarget(const ClusterState& state) { return absl::StrCat("grpc://", state.proxy_address); }

json ToJson(const ClusterState& state) {
  json processes = json::array();
  for (const ProcessState& p : state.processes) {
    processes.push_back({{"name", p.name},
                         {"pid", p.pid},
                         {"start_time", p.start_time},
                         {"log", p.log},
                         {"address", p.address},
                         {"admin_address", p.admin_address},
                         {"ended", p.ended},
                         {"starts", p.starts}});
  }
  return {{"format", kFormat},
          {"supervisor_pid", state.supervisor_pid},
          {"supervisor_start_time", state.supervisor_start_time},
          {"proxy_address", state.proxy_address},
          {"resource_manager_address", state.resource_manager_address},
          {"slices", state.slices},
          {"workers_per_slice", state.workers_per_slice},
          {"devices_per_worker", state.devices_per_worker},
          {"plugin", state.plugin},
          {"processes", processes}};
}

absl::StatusOr<ClusterState> FromJson(const json& source) {
  try {
    if (source.at("format").get<int>() != kFormat) {
      return absl::FailedPreconditionError("cluster.json was written by another version of landbridge");
    }
    ClusterState state;
    source.at("supervisor_pid").get_to(state.supervisor_pid);
    source.at("supervisor_start_time").get_to(state.supervisor_start_time);
    source.at("proxy_address").get_to(state.proxy_address);
    source.at("resource_manager_address").get_to(state.resource_manager_address);
    source.at("slices").get_to(state.slices);
    source.at("workers_per_slice").get_to(state.workers_per_slice);
    source.at("devices_per_worker").get_to(state.devices_per_worker);
    source.at("plugin").get_to(state.plugin);
    for (const json& entry : source.at("processes")) {
      ProcessState p;
      entry.at("name").get_to(p.name);
      entry.at("pid").get_to(p.pid);
      entry.at("start_time").get_to(p.start_time);
      entry.at("log").get_to(p.log);
      entry.at("address").get_to(p.address);
      entry.at("admin_address").get_to(p.admin_address);
      entry.at("ended").get_to(p.ended);
      entry.at("starts").get_to(p.starts);
      state.processes.push_back(std::move(p));
    }
    return state;
  } catch (const json::exception& error) {
    return absl::FailedPreconditionError(absl::StrCat("cluster.json is damaged: ", error.what()));
  }
}

absl::Status SaveState(const std::string& state_dir, const ClusterState& state) {
  return WriteFileAtomically(StatePath(state_dir), ToJson(state).dump(2) + "\n");
}

absl::StatusOr<ClusterState> LoadState(const std::string& state_dir) {
  absl::StatusOr<std::string> text = ReadFile(StatePath(state_dir));
  if (!text.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no cluster runs in ", state_dir, "; start one with `landbridge up`, or name its folder with --state"));
  }
  json parsed = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    return absl::FailedPreconditionError(absl::StrCat(StatePath(state_dir), " is damaged: it is not JSON"));
  }
  absl::StatusOr<ClusterState> state = FromJson(parsed);
  if (!state.ok()) return AddContext(state.status(), state_dir);
  return state;
}

void RemoveState(const std::string& state_dir) { unlink(StatePath(state_dir).c_str()); }

std::string DefaultStateDir() {
  if (const char* named = getenv("LANDBRIDGE_STATE"); named != nullptr && *named != 0) return named;
  if (const char* xdg = getenv("XDG_STATE_HOME"); xdg != nullptr && *xdg != 0) {
    return absl::StrCat(xdg, "/landbridge/default");
  }
  const char* home = getenv("HOME");
  return absl::StrCat(home != nullptr && *home != 0 ? home : "/tmp", "/.landbridge/default");
}

absl::Status PrepareStateDir(const std::string& state_dir) {
  std::error_code error;
  for (const char* sub : {"ports", "requests"}) fs::remove_all(fs::path(state_dir) / sub, error);
  for (const char* sub : {"logs", "ports", "requests"}) {
    fs::create_directories(fs::path(state_dir) / sub, error);
    if (error) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot make the state folder ", state_dir, ": ", error.message()));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int> LockStateDir(const std::string& state_dir) {
  std::error_code error;
  fs::create_directories(state_dir, error);
  const std::string path = absl::StrCat(state_dir, "/lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::FailedPreconditionError(absl::StrCat("cannot make the state folder ", state_dir, ": ",
                                                      error ? error.message() : std::string(strerror(errno))));
  }
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat("a cluster already runs in ", state_dir,
                                                      "; end it with `landbridge down --state ", state_dir,
                                                      "`, or give this one another folder with --state"));
  }
  return fd;
}

}  // namespace landbridge::cli
