// Length-prefixed frames over a socket or pipe, with a deadline and a way to interrupt.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/time.h"

namespace landbridge {

constexpr TimeNs kNoDeadline = INT64_MAX;

// This process's monotonic clock.
TimeNs MonotonicNow();

// Thread-safety: one reader and one writer at a time. Does not own the descriptors.
class FrameChannel {
 public:
  // `stop_fd` (or -1): when it becomes readable, calls under way end with CANCELLED.
  FrameChannel(int fd_in, int fd_out, int stop_fd) : fd_in_(fd_in), fd_out_(fd_out), stop_fd_(stop_fd) {}

  // UNAVAILABLE: the other end is gone. ABORTED: the deadline passed. CANCELLED: stopped.
  // INVALID_ARGUMENT: an announced length above kCompileFrameBytesMax (nothing is allocated for it).
  absl::Status Write(absl::string_view payload, TimeNs deadline = kNoDeadline);
  absl::StatusOr<std::string> Read(TimeNs deadline = kNoDeadline);

 private:
  absl::Status WriteAll(const char* data, size_t size, TimeNs deadline);
  absl::Status ReadAll(char* data, size_t size, TimeNs deadline);
  absl::Status Wait(int fd, short events, TimeNs deadline);
  int fd_in_;
  int fd_out_;
  int stop_fd_;
};

}  // namespace landbridge
