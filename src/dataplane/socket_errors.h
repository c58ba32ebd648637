// What the transport over sockets says when one fails.
#pragma once

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace landbridge::dataplane {

inline absl::Status ClosedError() { return absl::UnavailableError("the connection is closed"); }

inline absl::Status SocketError(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(errno)));
}

inline bool WouldBlock() { return errno == EAGAIN || errno == EINTR || errno == ENOBUFS; }

}  // namespace landbridge::dataplane
