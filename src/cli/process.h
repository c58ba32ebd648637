// Child processes that never outlive their parent, and small helpers around files and pids.
//
// Thread-safety: call from one thread, the one that lives as long as the children should: the kernel ends
// them when the *thread* that started them ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace landbridge::cli {

struct SpawnOptions {
  std::vector<std::string> argv;                                 // argv[0] is looked up on PATH when it has no slash
  std::vector<std::pair<std::string, std::string>> environment;  // set on top of ours
  std::string output_path;                                       // standard output and error go there; empty: ours
  bool append_output = false;                                    // keep what is in it
  bool own_process_group = false;  // Ctrl-C at the terminal does not reach it; signals can be sent to the group
  bool null_stdin = false;
};

// The child is killed by the kernel when this process ends in whatever way. A command that cannot be executed
// is an error here, not an exit code.
absl::StatusOr<pid_t> Spawn(const SpawnOptions& options);

// "exited with code 3", "was killed by signal 9 (Killed)".
std::string DescribeExit(int wait_status);
// What a shell reports: the exit code, or 128 + signal.
int ExitCodeOf(int wait_status);

// Identity of a process beyond its pid, which is re-used: its start time in clock ticks since boot.
std::optional<uint64_t> ProcessStartTime(pid_t pid);
// True while `pid` runs and is the same process; zombies count as ended.
bool IsAlive(pid_t pid, uint64_t start_time);

// Waits for a process that need not be our child. False when it still lives after `timeout`.
bool WaitUntilGone(pid_t pid, uint64_t start_time, std::chrono::milliseconds timeout);

// From now on, processes whose parent has ended become our children if they descend from us: see EndDescendants.
void AdoptOrphans();
// Ends whatever descends from us but the processes in `keep` and what those have started: SIGTERM, and SIGKILL after
// `grace`. Needs AdoptOrphans.
void EndDescendants(const std::vector<pid_t>& keep, std::chrono::milliseconds grace);

// Standard output of a short command; an error when it fails or takes longer than `timeout`.
absl::StatusOr<std::string> CaptureOutput(const std::vector<std::string>& argv, std::chrono::milliseconds timeout);

absl::StatusOr<std::string> ReadFile(const std::string& path);
// Through a temporary file beside it, so that readers see the old content or the new one.
absl::Status WriteFileAtomically(const std::string& path, const std::string& content);

// The last `lines` lines of a text file, each indented; says so when there are none.
std::string LogTail(const std::string& path, int lines = 15);

}  // namespace landbridge::cli
