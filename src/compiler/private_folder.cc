#include "compiler/private_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "env/file.h"

namespace landbridge {

absl::StatusOr<Fd> OpenPrivateFolder(const std::string& folder) {
  if (absl::Status made = MakeDirectories(folder, 0700); !made.ok()) {
    return absl::FailedPreconditionError(made.message());
  }
  Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info;
  if (fd.get() < 0 || ::fstat(fd.get(), &info) != 0) return SystemError(absl::StrCat("the folder ", folder), errno);
  if (const std::string why = WhyNotOurs(info); !why.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the folder ", folder, " is not safe for native code: ", why));
  }
  return fd;
}

std::string WhyNotOurs(const struct stat& info) {
  if (info.st_uid != ::geteuid()) {
    return absl::StrCat("it belongs to user ", info.st_uid, ", not to this process's user ", ::geteuid());
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::StrFormat("others may write to it (mode %04o)", static_cast<unsigned>(info.st_mode & 07777));
  }
  return "";
}

absl::Status SystemError(absl::string_view what, int error) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<std::string> ReadAll(int fd, size_t size) {
  std::string bytes(size, '\0');
  size_t have = 0;
  while (have < size) {
    const ssize_t n = ::read(fd, bytes.data() + have, size - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::InvalidArgumentError(absl::StrCat("it cannot be read: ", std::strerror(errno)));
    if (n == 0) break;
    have += static_cast<size_t>(n);
  }
  bytes.resize(have);
  return bytes;
}

std::string TemporaryName() {
  static std::atomic<uint64_t> next{0};
  return absl::StrCat(kTemporaryPrefix, absl::Hex(std::random_device{}()), "-", ::getpid(), "-", next++);
}

}  // namespace landbridge
