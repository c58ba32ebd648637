#include "frontdoor/ifrt_proxy/shared_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
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
  return absl::InvalidArgumentError(absl::StrCat(what, " '", name, "' in the shared directory: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const char>> MapUploadedFile(const std::string& root, const std::string& folder,
                                                            uint64_t handle, int64_t size) {
  const std::string name = absl::StrCat("lt_", static_cast<int32_t>(static_cast<uint32_t>(handle)));
  const Fd dir(OpenFolder(root, folder));
  if (dir.get() < 0) return SystemError("Cannot open", folder.empty() ? root : absl::StrCat(root, "/", folder));
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

absl::Status SharedDirectory::CheckFolder(absl::string_view folder) {
  constexpr size_t kBytesMax = 64;
  const bool plain = std::all_of(folder.begin(), folder.end(),
                                 [](char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_'; });
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

absl::StatusOr<std::shared_ptr<const char>> SharedDirectory::Map(uint64_t wire_id, absl::string_view peer,
                                                                 uint64_t handle, int64_t size) {
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
  absl::StatusOr<std::shared_ptr<const char>> mapped = MapUploadedFile(root_, folder, handle, size);
  if (mapped.ok()) uploads_.fetch_add(1, std::memory_order_relaxed);
  return mapped;
}

}  // namespace landbridge
