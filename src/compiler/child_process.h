// A compiler process as the service sees it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/time.h"
#include "compiler/frame_io.h"
#include "proto/landbridge/compiler.pb.h"

namespace landbridge {

struct ChildProcessOptions {
  std::string binary;
  std::string plugin_path;
  std::vector<std::string> plugin_flags;  // as landbridge-compiler takes them: --plugin_option, --compile_topology, ...
  std::string ffi_libraries;
  std::string log_path;  // empty: our standard error
  int64_t memory_limit_bytes = 0;
  bool enable_test_faults = false;
  std::vector<std::string> environment;
  int stop_fd = -1;
};

// Thread-safety: none; one thread owns it, and must outlive the process it started (the kernel ends the child with
// the thread).
class ChildProcess {
 public:
  // Starts the process and waits for its greeting. FAILED_PRECONDITION if it cannot work.
  static absl::StatusOr<ChildProcess> Start(const ChildProcessOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();  // kills and reaps

  const CompilerGreeting& greeting() const { return greeting_; }
  pid_t pid() const { return pid_; }

  // False if it has ended by itself.
  bool Alive();

  // One compile. Errors as FrameChannel's; after any of them the process must be dropped. `accepted` tells whether the
  // process had begun to work on it.
  absl::StatusOr<CompileReply> Call(const CompileCall& call, TimeNs deadline, bool* accepted);

  // Kills what is left and says how the process ended, e.g. "died with signal 6 (Aborted)". `out_of_memory` is set
  // when memory is the likely reason. With `at_once` no time is left to it to end by itself.
  std::string Bury(bool at_once, bool* out_of_memory);

 private:
  ChildProcess(pid_t pid, int fd, const ChildProcessOptions& options);
  pid_t pid_ = -1;
  int fd_ = -1;
  int stop_fd_ = -1;
  int64_t memory_limit_bytes_ = 0;
  CompilerGreeting greeting_;
};

}  // namespace landbridge
