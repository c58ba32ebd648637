// Folders whose files are trusted: they belong to this process's user, and nobody else may write there.
//
// Thread-safety: all functions from any thread; they block for the disk.
#pragma once

#include <sys/stat.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "env/fd.h"

namespace landbridge {

// A descriptor of the folder, which is made (mode 0700, with its parents) if it is missing; what is done below it is done in
// the folder that was looked at. FAILED_PRECONDITION: no folder, not ours, or others may write to it.
absl::StatusOr<Fd> OpenPrivateFolder(const std::string& folder);

// Empty: nobody but us can have written there.
std::string WhyNotOurs(const struct stat& info);

absl::Status SystemError(absl::string_view what, int error);  // FAILED_PRECONDITION
// Shorter than `size` if the file ends before.
absl::StatusOr<std::string> ReadAll(int fd, size_t size);
// For a file that becomes another one by renaming: of no other process's choice, on this host or another. Old ones that
// begin so were left behind (disk_cache.h removes them).
inline constexpr absl::string_view kTemporaryPrefix = ".new-";
std::string TemporaryName();

}  // namespace landbridge
