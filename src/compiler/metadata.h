// Everything that is known about a compiled program, taken once.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "compiler/options.h"
#include "pjrt/executable.h"
#include "proto/landbridge/executable.pb.h"

namespace landbridge {

// What the plugin does not know is left out; only an inconsistent or unreadable program is an error.
absl::StatusOr<ExecutableInfo> DescribeExecutable(pjrt::Executable& executable, const NormalizedOptions& options);

// Memory figures and code size alone: those of `executable`, whatever `info` had.
absl::Status DescribeMemoryAndCode(pjrt::Executable& executable, ExecutableInfo& info);

}  // namespace landbridge
