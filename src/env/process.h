// Child processes and facts about this one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "env/loop.h"

namespace landbridge {

struct ProcessOptions {
  std::vector<std::string> args;           // args[0]: the program, found in PATH if it has no '/'
  std::map<std::string, std::string> env;  // added to (or replacing in) our environment
  std::string stdout_file, stderr_file;    // appended to; empty: inherited; both may be the same file
  std::string working_directory;           // empty: ours
  bool own_session = false;                // survives a Ctrl-C of our terminal
  std::vector<int> inherited_fds;          // given to the child as 3, 4, ...
};

struct ProcessExit {
  int code = 0;                  // exit code, when signal is 0
  int signal = 0;                // the signal that ended it
  std::string ToString() const;  // "exit code 3", "signal 9 (Killed)"
};

// Thread-safety: the loop's thread only.
class Process {
 public:
  // INVALID_ARGUMENT names a program that cannot be started.
  static absl::StatusOr<std::unique_ptr<Process>> Spawn(Loop* loop, const ProcessOptions& options,
                                                        std::function<void(ProcessExit)> on_exit);
  // Does not end the child; on_exit is not called any more.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  int pid() const;
  bool running() const;
  void Kill(int signal_number);  // ignored once the child has ended

 private:
  struct Impl;
  explicit Process(Impl* impl) : impl_(impl) {}
  Impl* impl_;
};

// The kernel sends us `signal_number` when the process that started us dies. Call first thing in a child. Returns
// false when that process is gone already (`parent_pid` is what it told us, 0: not known).
bool DieWithParent(int signal_number, int parent_pid = 0);

std::string HostName();
std::string ExecutablePath();  // of this program

}  // namespace landbridge
