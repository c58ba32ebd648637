// Keeps libucs out of the process's signals and standard output.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ucp/api/ucp.h"

namespace landbridge::dataplane {

// UCX's own text for a status.
std::string UcxText(ucs_status_t status);

// The names of the network interfaces that carry `listen_address`, in UCX's terms: "lo", "eth0", or "all" for
// the wildcard address. FAILED_PRECONDITION when no interface has it.
absl::StatusOr<std::string> NetworkDevices(absl::string_view listen_address);

// To be asked once a worker exists: FAILED_PRECONDITION when UCX ignored one of our options.
absl::Status CheckUcxOptionsTaken();

// A context configured for this room. See ucx_library.cc for each option and why.
absl::StatusOr<ucp_context_h> MakeUcxContext(absl::string_view listen_address, absl::string_view transports);

}  // namespace landbridge::dataplane
