// Questions to running servers, for `status` and for knowing when a cluster is complete.
//
// Thread-safety: plain functions; each call has its own connection.
#pragma once

#include <chrono>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace landbridge::cli {

// What the server answers to {"what": `what`}, as JSON. `address` is where it answers questions ("host:port").
// UNAVAILABLE when it does not answer within `timeout`.
absl::StatusOr<nlohmann::json> QueryServer(const std::string& address, std::chrono::milliseconds timeout,
                                           const std::string& what = "status");

}  // namespace landbridge::cli
