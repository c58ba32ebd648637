// The data plane over sockets: one listener and one thread per process, which may carry several peers.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/time.h"
#include "dataplane/data_plane.h"

namespace landbridge::dataplane {

struct SocketOptions {
  // The address that peers on other hosts connect to: loopback unless told otherwise. "0.0.0.0" or "::" is every one.
  std::string listen_address = "127.0.0.1";
  // Peers on this host are reached by local sockets; off (tests, benchmarks): by TCP, too.
  bool local_sockets = true;
  // Their chunks are read straight from their memory where the system lets us; off: through the socket.
  bool direct_reads = true;
  // After the last event the thread polls this long before it sleeps. 0: sleep at once. Spinning saves about 40 us
  // a round trip and costs a core while it lasts.
  DurationNs spin = 0;
  // Messages to a peer that wait to be written; above that it does not read, and its connection is broken. Small data and
  // answers to what it asked for once are far below; only refusals and what is asked for and given up again add up.
  uint64_t queued_bytes_max = uint64_t{128} << 20;
};

// Starts one thread. FAILED_PRECONDITION: no interface has listen_address, or the system gives no sockets (says why).
absl::StatusOr<std::shared_ptr<DataPlaneHost>> MakeSocketHost(SocketOptions options);

// One peer alone on a host of its own.
absl::StatusOr<std::unique_ptr<DataPlane>> MakeSocketDataPlane(DataPlaneOptions base, SocketOptions options = {});

}  // namespace landbridge::dataplane
