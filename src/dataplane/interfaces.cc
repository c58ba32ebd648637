#include "dataplane/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace landbridge::dataplane {
namespace {

constexpr size_t kAddressesMax = 8;  // more say nothing new, and every one is tried

std::string TextOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes = nullptr;
  if (address->sa_family == AF_INET) {
    bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  } else if (address->sa_family == AF_INET6) {
    // Link-local ones mean nothing without their interface.
    const in6_addr& ip = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&ip)) bytes = &ip;
  }
  if (bytes == nullptr || inet_ntop(address->sa_family, bytes, text, sizeof(text)) == nullptr) return "";
  return text;
}

}  // namespace

std::string MachineName() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char space[64] = {};
  if (boot.empty() || readlink("/proc/self/ns/net", space, sizeof(space) - 1) <= 0) return "";
  return absl::StrCat(boot, "/", space);
}

absl::StatusOr<std::vector<std::string>> ReachableAddresses(absl::string_view listen_address) {
  std::string wanted(listen_address == "localhost" ? "127.0.0.1" : listen_address);
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return absl::FailedPreconditionError("data plane: the system lists no interfaces");
  std::vector<std::string> all, loopback;
  std::set<std::string> known;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0) continue;
    const std::string text = TextOf(at->ifa_addr);
    if (text.empty() || !known.insert(text).second) continue;
    if (wanted == "0.0.0.0" && at->ifa_addr->sa_family != AF_INET) continue;
    ((at->ifa_flags & IFF_LOOPBACK) != 0 ? loopback : all).push_back(text);
  }
  freeifaddrs(list);
  if (wanted == "0.0.0.0" || wanted == "::") {
    if (all.empty()) all = loopback;
    if (all.size() > kAddressesMax) all.resize(kAddressesMax);
    return all;
  }
  // All of 127/8 is loopback.
  if (known.contains(wanted) || wanted.rfind("127.", 0) == 0) return std::vector<std::string>{wanted};
  return absl::FailedPreconditionError(absl::StrCat("no network interface of this host has the address ", wanted,
                                                    "; it has ", absl::StrJoin(known, ", ")));
}

bool ParseEndpoint(absl::string_view ip, int port, sockaddr_storage* address, socklen_t* length) {
  *address = {};
  const std::string text(ip);
  auto* four = reinterpret_cast<sockaddr_in*>(address);
  if (inet_pton(AF_INET, text.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<uint16_t>(port));
    *length = sizeof(sockaddr_in);
    return true;
  }
  *address = {};
  auto* six = reinterpret_cast<sockaddr_in6*>(address);
  if (inet_pton(AF_INET6, text.c_str(), &six->sin6_addr) != 1) return false;
  six->sin6_family = AF_INET6;
  six->sin6_port = htons(static_cast<uint16_t>(port));
  *length = sizeof(sockaddr_in6);
  return true;
}

std::string JoinEndpoint(absl::string_view ip, int port) {
  return ip.find(':') == absl::string_view::npos ? absl::StrCat(ip, ":", port) : absl::StrCat("[", ip, "]:", port);
}

bool SplitEndpoint(absl::string_view endpoint, sockaddr_storage* address, socklen_t* length) {
  const size_t colon = endpoint.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(endpoint.substr(colon + 1), &port) || port <= 0 ||
      port > 65535) {
    return false;
  }
  absl::string_view ip = endpoint.substr(0, colon);
  if (ip.size() >= 2 && ip.front() == '[' && ip.back() == ']') ip = ip.substr(1, ip.size() - 2);
  return ParseEndpoint(ip, port, address, length);
}

}  // namespace landbridge::dataplane
