// Uploads by file: the client writes DIR/lt_N, the proxy opens it and removes the name at once.
//
// The names hold no session, so two clients that share a directory would overwrite each other's files. Therefore a
// client may announce a folder of its own below it (the landbridge package does); those that do not take turns: while
// one such session lives, others are refused.
//
// A file is read, never mapped: its writer may still shorten it, which ends a process that looks at a mapping, but is
// an error to a read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"

namespace landbridge {

// The key of a client's initialization data that names its folder.
inline constexpr char kSharedFolderKey[] = "landbridge_shared_folder";

// Open at one time in a proxy, and at most half of the descriptors that its process may have.
inline constexpr uint64_t kUploadedFilesMax = 16'384;

using UploadedFilePtr = std::shared_ptr<const class UploadedFile>;

// A file that a client has written, whose name is gone.
//
// Thread-safety: any thread.
class UploadedFile {
 public:
  // Opens ROOT/FOLDER/lt_N (ROOT/lt_N without a folder), N the handle as a signed 32-bit number, and unlinks it. Links
  // are not followed; only a regular file of exactly `size` bytes will do. INVALID_ARGUMENT otherwise.
  // RESOURCE_EXHAUSTED when kUploadedFilesMax are open.
  static absl::StatusOr<UploadedFilePtr> Open(const std::string& root, const std::string& folder, uint64_t handle,
                                              int64_t size);
  ~UploadedFile();
  UploadedFile(const UploadedFile&) = delete;
  UploadedFile& operator=(const UploadedFile&) = delete;

  // All `bytes` from `offset` on, or INVALID_ARGUMENT: somebody has shortened the file since.
  absl::Status Read(uint64_t offset, char* to, size_t bytes) const;

 private:
  UploadedFile(int fd, std::string name) : fd_(fd), name_(std::move(name)) {}

  const int fd_;
  const std::string name_;
};

// Thread-safety: any thread.
class SharedDirectory {
 public:
  // `root` empty: uploads by file are refused.
  explicit SharedDirectory(std::string root) : root_(std::move(root)) {}

  // INVALID_ARGUMENT for a folder's name that is no plain name of at most 64 letters, digits, '-' and '_'. Empty: none.
  static absl::Status CheckFolder(absl::string_view folder);

  // `wire_id` and `peer` are what host-buffer calls show (see HostBuffers); `folder` has passed CheckFolder.
  void Open(SessionId session, uint64_t wire_id, std::string peer, std::string folder);
  // Removes the files that the session has left behind, and its folder.
  void Close(SessionId session);

  // See UploadedFile::Open. Nothing is touched for a foreign session (NOT_FOUND, as for other host-buffer calls).
  absl::StatusOr<UploadedFilePtr> OpenUpload(uint64_t wire_id, absl::string_view peer, uint64_t handle, int64_t size);
  uint64_t uploads() const { return uploads_.load(std::memory_order_relaxed); }

 private:
  struct Client {
    SessionId session;
    std::string peer;
    std::string folder;
  };

  const std::string root_;
  std::atomic<uint64_t> uploads_{0};  // opened
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Client> clients_ ABSL_GUARDED_BY(mutex_);  // by wire id
  SessionId root_owner_ ABSL_GUARDED_BY(mutex_);  // the session without a folder whose turn it is
};

}  // namespace landbridge
