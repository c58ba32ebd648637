#include "frontdoor/ifrt_proxy/shared_directory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace landbridge {
namespace {

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status SystemError(absl::string_view what, absl::string_view name) {
  return absl::InvalidArgumentError(absl::StrCat(what, " '", name, "' in the shared directory: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const char>> MapUploadedFile(const std::string& directory, uint64_t handle,
                                                            int64_t size) {
  const std::string name = absl::StrCat("lt_", static_cast<int32_t>(static_cast<uint32_t>(handle)));
  const Fd dir(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (dir.get() < 0) return SystemError("Cannot open", directory);
  const Fd file(::openat(dir.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return SystemError("Cannot open", name);
  ::unlinkat(dir.get(), name.c_str(), 0);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return SystemError("Cannot look at", name);
  if (!S_ISREG(info.st_mode) || size < 0 || info.st_size != size) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' in the shared directory holds ", info.st_size,
                                                   " bytes instead of ", size, " or is no regular file"));
  }
  if (size == 0) return std::shared_ptr<const char>(std::make_shared<char>(0));
  const size_t bytes = static_cast<size_t>(size);
  void* memory = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) return SystemError("Cannot map", name);
  ::madvise(memory, bytes, MADV_SEQUENTIAL);
  return std::shared_ptr<const char>(static_cast<const char*>(memory),
                                     [bytes](const char* p) { ::munmap(const_cast<char*>(p), bytes); });
}

}  // namespace landbridge
