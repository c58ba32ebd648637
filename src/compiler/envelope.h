// The sealed form in which compiled programs travel between processes and hosts. They are native code, and the
// plugin checks nothing: a flipped bit means wrong numbers, hangs or crashes. So nothing reaches it unchecked.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/landbridge/executable.pb.h"

namespace landbridge {

constexpr uint32_t kEnvelopeFormatVersion = 2;

// What must fit between the process that compiled and the one that loads.
struct HostIdentity {
  std::string plugin_sha256;
  std::string platform;
  std::string cpu_model;
  std::string cpu_features;  // space separated, sorted; empty where code is not for the CPU

  // Of this host. CPU fields are filled for platform "cpu".
  static HostIdentity Current(absl::string_view plugin_sha256, absl::string_view platform);
};

// Fills format_version and the identity fields of `body` and seals it.
std::string SealEnvelope(ExecutableBody body, const HostIdentity& identity);

// INVALID_ARGUMENT, naming what is wrong, for anything that is truncated, corrupt, of another format or plugin
// build, or needs CPU features that this host lacks.
absl::StatusOr<ExecutableBody> OpenEnvelope(absl::string_view envelope, const HostIdentity& identity);

}  // namespace landbridge
