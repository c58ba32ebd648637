#include "env/address.h"

#include <netinet/in.h>
#include <uv.h>

#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "env/connection.h"

namespace landbridge {

std::string SocketAddressToString(const sockaddr_storage& address) {
  std::array<char, 64> text{};
  if (address.ss_family == AF_INET6) {
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&address);
    uv_ip6_name(v6, text.data(), text.size());
    return absl::StrCat("[", text.data(), "]:", SocketAddressPort(address));
  }
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&address);
  uv_ip4_name(v4, text.data(), text.size());
  return absl::StrCat(text.data(), ":", SocketAddressPort(address));
}

int SocketAddressPort(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  return 0;
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view address) {
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("\"", address.substr(0, 200), "\" is not an address (", why,
                                                   "): expected host:port, 1.2.3.4:port or [::1]:port"));
  };
  if (address.size() > limits::kAddressBytesMax) return bad("too long");
  HostPort result;
  absl::string_view port;
  if (!address.empty() && address[0] == '[') {
    const size_t end = address.find(']');
    if (end == absl::string_view::npos || end + 1 >= address.size() || address[end + 1] != ':') {
      return bad("an IPv6 address needs ]:port at its end");
    }
    result.host = std::string(address.substr(1, end - 1));
    if (result.host.empty()) return bad("empty brackets");
    port = address.substr(end + 2);
  } else {
    const size_t colon = address.rfind(':');
    if (colon == absl::string_view::npos) return bad("no port");
    if (address.find(':') != colon) return bad("an IPv6 address needs brackets");
    result.host = std::string(address.substr(0, colon));
    port = address.substr(colon + 1);
  }
  if (port.empty() || port[0] == '+' || port[0] == '-' || !absl::SimpleAtoi(port, &result.port) ||
      result.port > 65535) {
    return bad("the port must be a number from 0 to 65535");
  }
  return result;
}

}  // namespace landbridge
