#include "compiler/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "compiler/cache_entry.h"
#include "env/fd.h"
#include "env/file.h"

namespace landbridge {
namespace {

constexpr absl::string_view kEntrySuffix = ".program";
constexpr absl::string_view kTemporaryPrefix = ".new-";
constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;

std::string FileName(const CompileKey& key) { return absl::StrCat(absl::BytesToHexString(HashOf(key)), kEntrySuffix); }

absl::Status SystemError(absl::string_view what, int error) {
  return absl::FailedPreconditionError(absl::StrCat(what, ": ", std::strerror(error)));
}

// Empty: nobody but us can have written there.
std::string WhyNotOurs(const struct stat& info) {
  if (info.st_uid != ::geteuid()) {
    return absl::StrCat("it belongs to user ", info.st_uid, ", not to this process's user ", ::geteuid());
  }
  if ((info.st_mode & kWritableByOthers) != 0) {
    return absl::StrFormat("others may write to it (mode %04o)", static_cast<unsigned>(info.st_mode & 07777));
  }
  return "";
}

// False with errno set.
bool WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

// Shorter than `size` if the file ends before.
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

absl::StatusOr<std::shared_ptr<const CompiledProgram>> ReadEntry(int fd, const CompileKey& key) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return SystemError("it cannot be examined", errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("it is no regular file");
  if (const std::string why = WhyNotOurs(info); !why.empty()) return absl::InvalidArgumentError(why);
  const uint64_t size = static_cast<uint64_t>(info.st_size);
  if (size > limits::kDiskCacheEntryBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("its ", size, " bytes are more than the ", limits::kDiskCacheEntryBytesMax, " that one may have"));
  }
  LB_ASSIGN_OR_RETURN(const std::string bytes, ReadAll(fd, static_cast<size_t>(size)));
  return OpenCacheEntry(bytes, key);
}

struct FileInFolder {
  std::string name;
  uint64_t bytes;
  timespec used;
};

bool UsedBefore(const FileInFolder& a, const FileInFolder& b) {
  if (a.used.tv_sec != b.used.tv_sec) return a.used.tv_sec < b.used.tv_sec;
  if (a.used.tv_nsec != b.used.tv_nsec) return a.used.tv_nsec < b.used.tv_nsec;
  return a.name < b.name;
}

bool IsOld(const timespec& used) {
  return (std::time(nullptr) - used.tv_sec) * kSecond > limits::kDiskCacheTemporaryAgeMax;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DiskCache>> DiskCache::Open(std::string folder, uint64_t bytes_max) {
  if (absl::Status made = MakeDirectories(folder, 0700); !made.ok()) {
    return absl::FailedPreconditionError(made.message());
  }
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return SystemError(absl::StrCat("the folder ", folder), errno);
  std::unique_ptr<DiskCache> cache(new DiskCache(folder, fd, bytes_max));
  struct stat info;
  if (::fstat(fd, &info) != 0) return SystemError(absl::StrCat("the folder ", folder), errno);
  if (const std::string why = WhyNotOurs(info); !why.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the folder ", folder, " is not safe for native code: ", why));
  }
  cache->CountAndEvict();
  return cache;
}

DiskCache::~DiskCache() { ::close(fd_); }

absl::StatusOr<std::shared_ptr<const CompiledProgram>> DiskCache::Find(const CompileKey& key) {
  const std::string name = FileName(key);
  // Without O_NONBLOCK a pipe of that name would hold us up.
  const Fd file(::openat(fd_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0 && errno == ENOENT) return std::shared_ptr<const CompiledProgram>();
  absl::StatusOr<std::shared_ptr<const CompiledProgram>> found =
      file.get() < 0 ? SystemError("it cannot be opened", errno) : ReadEntry(file.get(), key);
  if (!found.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(folder_, "/", name, ": ", found.status().message()));
  }
  const timespec now[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
  ::futimens(file.get(), now);  // a folder that is mounted read-only keeps its order
  return found;
}

absl::Status DiskCache::Insert(const CompileKey& key, const CompiledProgram& program) {
  const std::string bytes = SealCacheEntry(key, program);
  if (bytes.size() > bytes_max_ || bytes.size() > limits::kDiskCacheEntryBytesMax) return absl::OkStatus();
  LB_RETURN_IF_ERROR(Write(FileName(key), bytes));
  bytes_ += bytes.size();
  ++entries_;
  written_since_count_ += bytes.size();
  const auto recount = static_cast<uint64_t>(static_cast<double>(bytes_max_) * limits::kDiskCacheRecountShare);
  if (bytes_ > bytes_max_ || written_since_count_ > recount) CountAndEvict();
  return absl::OkStatus();
}

absl::Status DiskCache::Write(const std::string& name, const std::string& bytes) {
  // Of no other process's choice, on this host or another.
  const std::string temporary =
      absl::StrCat(kTemporaryPrefix, absl::Hex(std::random_device{}()), "-", ::getpid(), "-", next_temporary_++);
  const auto fail = [&](int error) {
    ::unlinkat(fd_, temporary.c_str(), 0);
    return SystemError(absl::StrCat("cannot write to ", folder_), error);
  };
  Fd file(::openat(fd_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return SystemError(absl::StrCat("cannot write to ", folder_), errno);
  // Not fsync: what a crash of the machine leaves half written is recognised by its checksum.
  if (!WriteAll(file.get(), bytes)) return fail(errno);
  if (::renameat(fd_, temporary.c_str(), fd_, name.c_str()) != 0) return fail(errno);
  return absl::OkStatus();
}

void DiskCache::CountAndEvict() {
  written_since_count_ = 0;
  const int listing = ::openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* folder = listing < 0 ? nullptr : ::fdopendir(listing);
  if (folder == nullptr) {
    if (listing >= 0) ::close(listing);
    return;
  }
  std::vector<FileInFolder> files;
  uint64_t bytes = 0;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    const bool temporary = absl::StartsWith(name, kTemporaryPrefix);
    if (!temporary && !absl::EndsWith(name, kEntrySuffix)) continue;  // not ours to delete
    struct stat info;
    if (::fstatat(fd_, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(info.st_mode)) continue;
    if (temporary) {
      if (IsOld(info.st_mtim)) ::unlinkat(fd_, name.c_str(), 0);
      continue;
    }
    files.push_back({name, static_cast<uint64_t>(info.st_size), info.st_mtim});
    bytes += files.back().bytes;
  }
  ::closedir(folder);
  size_t gone = 0;
  if (bytes > bytes_max_) {
    const auto keep = static_cast<uint64_t>(static_cast<double>(bytes_max_) * limits::kDiskCacheFillAfterEviction);
    std::sort(files.begin(), files.end(), UsedBefore);
    for (; gone < files.size() && bytes > keep; ++gone) {
      // Another process may have been faster; one that reads it keeps its open file.
      if (::unlinkat(fd_, files[gone].name.c_str(), 0) == 0) ++evictions_;
      bytes -= files[gone].bytes;
    }
  }
  bytes_ = bytes;
  entries_ = files.size() - gone;
}

}  // namespace landbridge
