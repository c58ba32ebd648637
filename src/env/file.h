// Small files. Blocking: not for the hot path.
//
// Thread-safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace landbridge {

// All of them. False with errno set.
bool WriteAll(int fd, absl::string_view bytes);

// Errors name the path and the system's reason (FAILED_PRECONDITION; INVALID_ARGUMENT when there is no such file).
// A file longer than `bytes_max` is refused before it is read.
absl::StatusOr<std::string> ReadFile(const std::string& path, uint64_t bytes_max = uint64_t{1} << 30);
// Readers see the old or the new content, never a part; the content is on disk when this returns.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view content, int mode = 0644);
absl::Status MakeDirectories(const std::string& path, int mode = 0755);
bool FileExists(const std::string& path);

// An advisory lock on a file, held for the life of the object and released by the kernel when the process dies. The
// holder's pid is in the file.
class FileLock {
 public:
  // FAILED_PRECONDITION, naming the holder's pid, when another process has it.
  static absl::StatusOr<std::unique_ptr<FileLock>> TryLock(const std::string& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

// Pid of the process that holds the lock; 0: nobody.
int FileLockHolder(const std::string& path);

}  // namespace landbridge
