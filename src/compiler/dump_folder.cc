#include "compiler/dump_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "env/file.h"

namespace landbridge {
namespace {

constexpr absl::string_view kDumpPrefix = "landbridge-compile-";

void RemoveTree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

// The folder itself, locked, as long as it is there under its name; -1 otherwise.
int LockFolder(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0 || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return -1;
  struct stat ours {
  }, named{};
  if (::fstat(fd.get(), &ours) != 0 || ::lstat(path.c_str(), &named) != 0 || ours.st_ino != named.st_ino ||
      ours.st_uid != ::geteuid()) {
    return -1;
  }
  return fd.Release();
}

}  // namespace

void RemoveAbandonedDumpFolders(const std::string& parent) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(parent, error), end; !error && entry != end; entry.increment(error)) {
    if (!absl::StartsWith(entry->path().filename().string(), kDumpPrefix)) continue;
    const std::string path = entry->path().string();
    const Fd lock(LockFolder(path));
    if (lock.get() >= 0) RemoveTree(path);
  }
}

absl::StatusOr<DumpFolder> DumpFolder::Create() {
  const char* named = std::getenv("TMPDIR");
  const std::string parent = named != nullptr && *named != '\0' ? named : "/tmp";
  [[maybe_unused]] static const bool removed = [&] {
    RemoveAbandonedDumpFolders(parent);
    return true;
  }();
  for (;;) {
    std::string path = absl::StrCat(parent, "/", kDumpPrefix, "XXXXXX");
    if (::mkdtemp(path.data()) == nullptr) {
      return absl::FailedPreconditionError(absl::StrCat("no temporary folder in ", parent, ": ", std::strerror(errno)));
    }
    // Another process may take a folder that nobody has locked yet for abandoned.
    if (const int lock = LockFolder(path); lock >= 0) return DumpFolder(std::move(path), lock);
  }
}

DumpFolder::DumpFolder(DumpFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})), lock_(other.lock_.Release()) {}

DumpFolder::~DumpFolder() {
  if (!path_.empty()) RemoveTree(path_);
}

absl::StatusOr<std::string> DumpFolder::ReadLast(absl::string_view suffix) const {
  std::string last;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    if (!absl::EndsWith(entry->path().filename().string(), suffix)) continue;
    last = std::max(last, entry->path().string());
  }
  if (last.empty()) return absl::FailedPreconditionError(absl::StrCat("no file in ", path_, " ends in ", suffix));
  return ReadFile(last);
}

}  // namespace landbridge
