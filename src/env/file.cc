#include "env/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "env/fd.h"

namespace landbridge {
namespace {

absl::Status FileError(absl::string_view what, const std::string& path, int error) {
  const std::string text = absl::StrCat("cannot ", what, " ", path, ": ", strerror(error));
  if (error == ENOENT || error == ENOTDIR || error == EISDIR) return absl::InvalidArgumentError(text);
  return absl::FailedPreconditionError(text);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info;
  if (fd.get() < 0 || fstat(fd.get(), &info) != 0) return FileError("read", path, errno);
  if (S_ISREG(info.st_mode) && static_cast<uint64_t>(info.st_size) > bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": it has ", info.st_size, " bytes, the limit is ", bytes_max));
  }
  std::string content;
  std::array<char, 64 * 1024> buffer;
  while (true) {
    const ssize_t got = read(fd.get(), buffer.data(), buffer.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      return FileError("read", path, errno);
    }
    if (got == 0) return content;
    if (content.size() + static_cast<size_t>(got) > bytes_max) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot read ", path, ": it is longer than ", bytes_max, " bytes"));
    }
    content.append(buffer.data(), static_cast<size_t>(got));
  }
}

bool WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content, int mode) {
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  Fd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (fd.get() < 0) return FileError("write", path, errno);
  auto fail = [&] {
    const int error = errno;
    unlink(temporary.c_str());
    return FileError("write", path, error);
  };
  if (!WriteAll(fd.get(), content) || fchmod(fd.get(), static_cast<mode_t>(mode)) != 0 || fsync(fd.get()) != 0 ||
      rename(temporary.c_str(), path.c_str()) != 0) {
    return fail();
  }
  // The name is durable once its folder is.
  const size_t slash = path.rfind('/');
  Fd folder(
      open(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) fsync(folder.get());
  return absl::OkStatus();
}

absl::Status MakeDirectories(const std::string& path, int mode) {
  std::string made;
  for (size_t at = 0; at != std::string::npos;) {
    at = path.find('/', at + 1);
    made = path.substr(0, at);
    if (made.empty()) continue;
    if (mkdir(made.c_str(), static_cast<mode_t>(mode)) != 0 && errno != EEXIST) {
      return FileError("make the folder", made, errno);
    }
  }
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return FileError("make the folder", path, errno);
  if (!S_ISDIR(info.st_mode)) return FileError("make the folder", path, ENOTDIR);
  return absl::OkStatus();
}

bool FileExists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

absl::StatusOr<std::unique_ptr<FileLock>> FileLock::TryLock(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FileError("lock", path, errno);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    close(fd);
    return absl::FailedPreconditionError(absl::StrCat(path, " is locked by process ", FileLockHolder(path)));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    const int error = errno;
    close(fd);
    return FileError("lock", path, error);
  }
  return std::unique_ptr<FileLock>(new FileLock(fd));
}

FileLock::~FileLock() { close(fd_); }

int FileLockHolder(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 || flock(fd.get(), LOCK_SH | LOCK_NB) == 0) return 0;
  std::array<char, 32> text{};
  const ssize_t size = pread(fd.get(), text.data(), text.size() - 1, 0);
  int pid = 0;
  if (size <= 0 || !absl::SimpleAtoi(absl::StripAsciiWhitespace(text.data()), &pid)) return 0;
  return pid;
}

}  // namespace landbridge
