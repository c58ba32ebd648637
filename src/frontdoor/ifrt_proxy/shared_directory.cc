#include "frontdoor/ifrt_proxy/shared_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "env/fd.h"

namespace landbridge {
namespace {

std::atomic<uint64_t> open_files{0};  // descriptors are the process's, whatever the directory

// The doors need descriptors, too.
uint64_t FilesMax() {
  static const uint64_t max = [] {
    struct rlimit descriptors = {};
    if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0) return kUploadedFilesMax;
    return std::min<uint64_t>(kUploadedFilesMax, descriptors.rlim_cur / 2);
  }();
  return max;
}

bool OneMoreFile() {
  if (open_files.fetch_add(1, std::memory_order_relaxed) < FilesMax()) return true;
  open_files.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

// `folder` of `root`, or `root` itself. A link in place of the folder is not followed. -1: errno says why.
int OpenFolder(const std::string& root, const std::string& folder) {
  const int fd = ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0 || folder.empty()) return fd;
  const Fd opened(fd);
  return ::openat(opened.get(), folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

// Files of uploads that never came to their end.
void RemoveUploads(const std::string& root, const std::string& folder) {
  const int fd = OpenFolder(root, folder);
  if (fd < 0) return;
  DIR* entries = ::fdopendir(fd);
  if (entries == nullptr) {
    ::close(fd);
    return;
  }
  while (const dirent* entry = ::readdir(entries)) {
    if (absl::StartsWith(entry->d_name, "lt_")) ::unlinkat(fd, entry->d_name, 0);
  }
  ::closedir(entries);
}

absl::Status SystemError(absl::string_view what, absl::string_view name) {
  return absl::InvalidArgumentError(
      absl::StrCat(what, " '", name, "' in the shared directory: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<UploadedFilePtr> UploadedFile::Open(const std::string& root, const std::string& folder, uint64_t handle,
                                                   int64_t size) {
  std::string name = absl::StrCat("lt_", static_cast<int32_t>(static_cast<uint32_t>(handle)));
  const Fd dir(OpenFolder(root, folder));
  if (dir.get() < 0) return SystemError("Cannot open", folder.empty() ? root : absl::StrCat(root, "/", folder));
  Fd file(::openat(dir.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return SystemError("Cannot open", name);
  ::unlinkat(dir.get(), name.c_str(), 0);
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0) return SystemError("Cannot look at", name);
  if (!S_ISREG(info.st_mode) || size < 0 || info.st_size != size) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' in the shared directory holds ", info.st_size,
                                                   " bytes instead of ", size, " or is no regular file"));
  }
  if (!OneMoreFile()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this proxy holds ", FilesMax(),
                     " files of uploads, its limit: let some transfers end before the next, or let "
                     "only large ones go by file (IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_THRESHOLD_BYTES)"));
  }
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return UploadedFilePtr(new UploadedFile(file.Release(), std::move(name)));
}

UploadedFile::~UploadedFile() {
  ::close(fd_);
  open_files.fetch_sub(1, std::memory_order_relaxed);
}

absl::Status UploadedFile::Read(uint64_t offset, char* to, size_t bytes) const {
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, to, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("Cannot read", name_);
    if (got == 0) {
      return absl::InvalidArgumentError(absl::StrCat("'", name_, "' in the shared directory was cut short to ", offset,
                                                     " bytes while it was read: its client must leave it as it is"));
    }
    to += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status SharedDirectory::CheckFolder(absl::string_view folder) {
  constexpr size_t kBytesMax = 64;
  const bool plain = std::all_of(folder.begin(), folder.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
  });
  if (plain && folder.size() <= kBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("\"", kSharedFolderKey, "\" must be a name of at most ", kBytesMax,
                                                 " letters, digits, '-' and '_'"));
}

void SharedDirectory::Open(SessionId session, uint64_t wire_id, std::string peer, std::string folder) {
  if (root_.empty()) return;
  absl::MutexLock lock(&mutex_);
  clients_[wire_id] = {session, std::move(peer), std::move(folder)};
}

void SharedDirectory::Close(SessionId session) {
  std::string folder;
  bool owned_root = false;
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = clients_.begin(); it != clients_.end(); ++it) {
      if (it->second.session != session) continue;
      folder = it->second.folder;
      clients_.erase(it);
      break;
    }
    owned_root = root_owner_ == session;
  }
  if (!folder.empty()) {
    RemoveUploads(root_, folder);
    ::rmdir(absl::StrCat(root_, "/", folder).c_str());
  }
  if (owned_root) {
    RemoveUploads(root_, "");
    absl::MutexLock lock(&mutex_);
    root_owner_ = SessionId();
  }
}

absl::StatusOr<UploadedFilePtr> SharedDirectory::OpenUpload(uint64_t wire_id, absl::string_view peer, uint64_t handle,
                                                            int64_t size) {
  if (root_.empty()) {
    return absl::UnimplementedError(
        "this proxy has no shared directory for uploads: start it with --shared_transfer_directory, or unset "
        "IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY in the client");
  }
  std::string folder;
  {
    absl::MutexLock lock(&mutex_);
    auto it = clients_.find(wire_id);
    if (it == clients_.end() || it->second.peer != peer) {
      return absl::NotFoundError("Unknown session for a host buffer");
    }
    folder = it->second.folder;
    if (!folder.empty()) {
      // Its own: nobody else writes there.
    } else if (!root_owner_.valid()) {
      root_owner_ = it->second.session;
    } else if (root_owner_ != it->second.session) {
      return absl::FailedPreconditionError(absl::StrCat(
          "another session uploads through the shared directory ", root_,
          ", and the names of its files would be ours: install the landbridge package in the client, which takes a "
          "folder of its own there, or unset IFRT_PROXY_GRPC_LARGE_TRANSFER_OPTIMIZATION_DIRECTORY"));
    }
  }
  absl::StatusOr<UploadedFilePtr> file = UploadedFile::Open(root_, folder, handle, size);
  if (file.ok()) uploads_.fetch_add(1, std::memory_order_relaxed);
  return file;
}

}  // namespace landbridge
