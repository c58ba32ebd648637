// A Python of this host, asked in a process of its own.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/time.h"
#include "custom_calls/custom_call_limits.h"

namespace landbridge {

struct PythonProcess {
  std::string interpreter;  // found in PATH if it has no '/'
  std::string script;
  DurationNs time_limit = limits::kPythonQueryTime;
  size_t answer_bytes_max = limits::kPythonQueryBytesMax;
};

// What the script prints; it reads `input` as its standard input and gets no other descriptor of ours. FAILED_PRECONDITION
// if it cannot be started, fails, prints too much or is late (it is killed then). Blocks until it has ended. Any thread.
absl::StatusOr<std::string> RunPython(const PythonProcess& process, absl::string_view input);

}  // namespace landbridge
