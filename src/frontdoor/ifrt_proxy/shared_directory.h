// Uploads by file: the client writes DIR/lt_N, the proxy maps it and removes the name at once.
//
// The names hold no session, so two clients that share a directory would overwrite each other's files. Therefore a
// client may announce a folder of its own below it (the landbridge package does); those that do not take turns: while
// one such session lives, others are refused.
//
// A file that its writer shortens later would hurt whoever reads the mapping, so the directory is for clients that
// are trusted, and off unless the operator names it.
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

// Maps ROOT/FOLDER/lt_N (ROOT/lt_N without a folder), N the handle as a signed 32-bit number, and unlinks it. Links are not followed; only a
// regular file of exactly `size` bytes will do. INVALID_ARGUMENT otherwise.
//
// Thread-safety: any thread.
absl::StatusOr<std::shared_ptr<const char>> MapUploadedFile(const std::string& root, const std::string& folder,
                                                            uint64_t handle, int64_t size);

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

  // See MapUploadedFile. Nothing is touched for a foreign session (NOT_FOUND, as for other host-buffer calls).
  absl::StatusOr<std::shared_ptr<const char>> Map(uint64_t wire_id, absl::string_view peer, uint64_t handle,
                                                  int64_t size);
  uint64_t uploads() const { return uploads_.load(std::memory_order_relaxed); }

 private:
  struct Client {
    SessionId session;
    std::string peer;
    std::string folder;
  };

  const std::string root_;
  std::atomic<uint64_t> uploads_{0};   // mapped
  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Client> clients_ ABSL_GUARDED_BY(mutex_);  // by wire id
  SessionId root_owner_ ABSL_GUARDED_BY(mutex_);  // the session without a folder whose turn it is
};

}  // namespace landbridge
