// A folder of temporary files for what a plugin writes about a program that it compiles.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "env/fd.h"

namespace landbridge {

// Only this user can read it. It goes with the object; a compiler process that died leaves its folder behind, which the
// next one removes. Thread-safety: none.
class DumpFolder {
 public:
  // In $TMPDIR, else in /tmp. FAILED_PRECONDITION with the path and the system's reason.
  static absl::StatusOr<DumpFolder> Create();
  ~DumpFolder();
  DumpFolder(DumpFolder&& other) noexcept;
  DumpFolder& operator=(DumpFolder&&) = delete;

  const std::string& path() const { return path_; }
  // Of the files whose names end in `suffix`, the content of the alphabetically last (XLA numbers modules as they come).
  // FAILED_PRECONDITION if there is none.
  absl::StatusOr<std::string> ReadLast(absl::string_view suffix) const;

 private:
  DumpFolder(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}

  std::string path_;
  Fd lock_;  // of the folder; held as long as its process lives
};

// Removes folders that processes of this user left in `parent` when they died.
void RemoveAbandonedDumpFolders(const std::string& parent);

}  // namespace landbridge
