// Address texts and socket addresses. For env/ only.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <string>

namespace landbridge {

constexpr size_t kUnixPathBytesMax = sizeof(sockaddr_un::sun_path) - 1;

std::string SocketAddressToString(const sockaddr_storage& address);  // "127.0.0.1:80", "[::1]:80"
int SocketAddressPort(const sockaddr_storage& address);

}  // namespace landbridge
