// The inside of a compiler process: reads calls, compiles, answers.
#pragma once

#include <cstdint>
#include <string>

#include "compiler/compile_devices.h"

namespace landbridge {

struct CompilerChildOptions {
  std::string plugin_path;
  CompileTarget target;
  std::string ffi_libraries;       // custom_calls/ffi_library.h: ParseFfiLibraries
  int64_t memory_limit_bytes = 0;  // RLIMIT_DATA; 0: none
  bool enable_test_faults = false;
};

// The child's exit codes that mean something to the service; others are crashes.
constexpr int kCompilerExitOutOfMemory = 112;
constexpr int kCompilerExitCannotStart = 113;

// Serves frames on the socket `fd` until it closes; returns the exit code. Standard output must not be `fd`: plugins
// print there.
int RunCompilerChild(int fd, const CompilerChildOptions& options);

}  // namespace landbridge
