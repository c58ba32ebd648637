// The data plane over UCX: messages over TCP; bulk by CMA on one host, TCP or RDMA between hosts.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/time.h"
#include "dataplane/data_plane.h"

namespace landbridge::dataplane {

struct UcxOptions {
  DataPlaneOptions base;
  // The address whose interface carries TCP (and RDMA): loopback unless told otherwise. "0.0.0.0" is every one.
  std::string listen_address = "127.0.0.1";
  // "auto": whatever is fastest; or a list in UCX's terms, e.g. "tcp" (tests, benchmarks).
  std::string transports = "auto";
  // After the last event the progress thread polls this long before it sleeps. 0: sleep at once. Spinning saves
  // about 40 us a round trip and costs a core while it lasts.
  DurationNs spin = 0;
};

// Starts one thread. FAILED_PRECONDITION: no interface has listen_address, or UCX cannot start (says why).
absl::StatusOr<std::unique_ptr<DataPlane>> MakeUcxDataPlane(UcxOptions options);

}  // namespace landbridge::dataplane
