#include "compiler/frame_io.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {
namespace {

constexpr size_t kGrowBytes = size_t{16} << 20;  // memory grows with what has arrived, not with what was announced

absl::Status Gone() { return absl::UnavailableError("the other end is gone"); }

}  // namespace

TimeNs MonotonicNow() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<TimeNs>(now.tv_sec) * kSecond + now.tv_nsec;
}

absl::Status FrameChannel::Wait(int fd, short events, TimeNs deadline) {
  for (;;) {
    int timeout_ms = -1;
    if (deadline != kNoDeadline) {
      TimeNs left = deadline - MonotonicNow();
      if (left <= 0) return absl::AbortedError("the time limit has passed");
      timeout_ms = static_cast<int>(std::min<TimeNs>((left + kMillisecond - 1) / kMillisecond, 3'600'000));
    }
    pollfd fds[2] = {{fd, events, 0}, {stop_fd_, POLLIN, 0}};
    int n = ::poll(fds, stop_fd_ >= 0 ? 2 : 1, timeout_ms);
    if (n < 0 && errno != EINTR) return absl::UnavailableError(absl::StrCat("poll: ", std::strerror(errno)));
    if (n <= 0) continue;
    if (stop_fd_ >= 0 && fds[1].revents != 0) return absl::CancelledError("stopped");
    if (fds[0].revents != 0) return absl::OkStatus();
  }
}

absl::Status FrameChannel::WriteAll(const char* data, size_t size, TimeNs deadline) {
  while (size > 0) {
    ssize_t n = ::send(fd_out_, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      LB_RETURN_IF_ERROR(Wait(fd_out_, POLLOUT, deadline));
      continue;
    }
    if (n < 0) return Gone();
    data += n;
    size -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status FrameChannel::ReadAll(char* data, size_t size, TimeNs deadline) {
  while (size > 0) {
    ssize_t n = ::recv(fd_in_, data, size, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      LB_RETURN_IF_ERROR(Wait(fd_in_, POLLIN, deadline));
      continue;
    }
    if (n <= 0) return Gone();
    data += n;
    size -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status FrameChannel::Write(absl::string_view payload, TimeNs deadline) {
  if (payload.size() > limits::kCompileFrameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", payload.size(), " bytes exceeds the limit of ", limits::kCompileFrameBytesMax));
  }
  uint64_t length = payload.size();
  LB_RETURN_IF_ERROR(WriteAll(reinterpret_cast<const char*>(&length), sizeof(length), deadline));
  return WriteAll(payload.data(), payload.size(), deadline);
}

absl::StatusOr<std::string> FrameChannel::Read(TimeNs deadline) {
  uint64_t length = 0;
  LB_RETURN_IF_ERROR(ReadAll(reinterpret_cast<char*>(&length), sizeof(length), deadline));
  if (length > limits::kCompileFrameBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame announces ", length, " bytes, the limit is ", limits::kCompileFrameBytesMax));
  }
  std::string payload;
  while (payload.size() < length) {
    size_t have = payload.size();
    size_t more = std::min<size_t>(length - have, kGrowBytes);
    payload.resize(have + more);
    LB_RETURN_IF_ERROR(ReadAll(payload.data() + have, more, deadline));
  }
  return payload;
}

}  // namespace landbridge
