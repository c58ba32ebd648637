#include "compiler/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "compiler/cache_entry.h"
#include "compiler/private_folder.h"
#include "env/fd.h"
#include "env/file.h"

namespace landbridge {
namespace {

constexpr absl::string_view kEntrySuffix = ".program";

std::string FileName(const CompileKey& key) { return absl::StrCat(absl::BytesToHexString(HashOf(key)), kEntrySuffix); }

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
  LB_ASSIGN_OR_RETURN(Fd fd, OpenPrivateFolder(folder));
  std::unique_ptr<DiskCache> cache(new DiskCache(std::move(folder), std::move(fd), bytes_max));
  cache->CountAndEvict();
  return cache;
}

absl::StatusOr<std::shared_ptr<const CompiledProgram>> DiskCache::Find(const CompileKey& key) {
  const std::string name = FileName(key);
  // Without O_NONBLOCK a pipe of that name would hold us up.
  const Fd file(::openat(fd_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
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
  const std::string temporary = TemporaryName();
  const auto fail = [&](int error) {
    ::unlinkat(fd_.get(), temporary.c_str(), 0);
    return SystemError(absl::StrCat("cannot write to ", folder_), error);
  };
  Fd file(::openat(fd_.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.get() < 0) return SystemError(absl::StrCat("cannot write to ", folder_), errno);
  // Not fsync: what a crash of the machine leaves half written is recognised by its checksum.
  if (!WriteAll(file.get(), bytes)) return fail(errno);
  if (::renameat(fd_.get(), temporary.c_str(), fd_.get(), name.c_str()) != 0) return fail(errno);
  return absl::OkStatus();
}

void DiskCache::CountAndEvict() {
  written_since_count_ = 0;
  const int listing = ::openat(fd_.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
    if (::fstatat(fd_.get(), name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0 || S_ISDIR(info.st_mode)) continue;
    if (temporary) {
      if (IsOld(info.st_mtim)) ::unlinkat(fd_.get(), name.c_str(), 0);
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
      if (::unlinkat(fd_.get(), files[gone].name.c_str(), 0) == 0) ++evictions_;
      bytes -= files[gone].bytes;
    }
  }
  bytes_ = bytes;
  entries_ = files.size() - gone;
}

}  // namespace landbridge
