// A file descriptor that is closed with its scope.
#pragma once

#include <unistd.h>

#include <utility>

namespace landbridge {

// Thread-safety: none.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}  // negative: none
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }  // the caller closes it

 private:
  int fd_;
};

}  // namespace landbridge
