// This machine's name and network addresses.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge::dataplane {

// The same for two processes that can reach each other's abstract Unix sockets: kernel and network namespace.
std::string MachineName();

// Numeric addresses at which others reach a socket that is bound to `listen_address`: itself, or for a wildcard
// those of all interfaces that are up, loopback only if there is nothing else. FAILED_PRECONDITION: no interface
// has it; says which there are.
absl::StatusOr<std::vector<std::string>> ReachableAddresses(absl::string_view listen_address);

// "127.0.0.1", "::1". False: not a numeric address.
bool ParseEndpoint(absl::string_view ip, int port, sockaddr_storage* address, socklen_t* length);
std::string JoinEndpoint(absl::string_view ip, int port);  // "127.0.0.1:80", "[::1]:80"
bool SplitEndpoint(absl::string_view endpoint, sockaddr_storage* address, socklen_t* length);

}  // namespace landbridge::dataplane
