// Compiled programs in a folder, one file each, shared by the processes that use it and kept when they end.
//
// Files hold native code, so the folder must belong to this process's user and nobody else may write to it; the same
// holds for each file. Files appear whole (written beside, then renamed) under the hash of their key. When the folder
// exceeds its size, the least recently used go. Any number of processes may share a folder; none waits for another.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/compile_service.h"
#include "compiler/compiler_limits.h"
#include "env/fd.h"
#include "proto/landbridge/compile_cache.pb.h"

namespace landbridge {

// Thread-safety: none. All calls block for the disk.
class DiskCache {
 public:
  // Makes the folder (mode 0700, with its parents) if it is missing. FAILED_PRECONDITION saying why it is not used: no
  // folder, not ours, or others may write to it.
  static absl::StatusOr<std::unique_ptr<DiskCache>> Open(std::string folder, uint64_t bytes_max);
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  // Null: not there. INVALID_ARGUMENT, naming the file and what is wrong with it, if what is there cannot be used.
  // What is found counts as just used.
  absl::StatusOr<std::shared_ptr<const CompiledProgram>> Find(const CompileKey& key);
  // Replaces what is there. FAILED_PRECONDITION with the system's reason when it cannot be written; nothing is left
  // behind then. OK without effect for a program that is too large (kDiskCacheEntryBytesMax).
  absl::Status Insert(const CompileKey& key, const CompiledProgram& program);

  // As last counted, and what this process has written since.
  uint64_t bytes() const { return bytes_; }
  uint64_t entries() const { return entries_; }
  uint64_t evictions() const { return evictions_; }

 private:
  DiskCache(std::string folder, Fd fd, uint64_t bytes_max)
      : folder_(std::move(folder)), fd_(std::move(fd)), bytes_max_(bytes_max) {}
  absl::Status Write(const std::string& name, const std::string& bytes);
  // Counts what is there, and deletes what is too much, and what writers that have died left behind.
  void CountAndEvict();

  const std::string folder_;
  const Fd fd_;  // everything is done below it, so that nobody can slip in another folder
  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  uint64_t entries_ = 0;
  uint64_t evictions_ = 0;
  uint64_t written_since_count_ = 0;
};

}  // namespace landbridge
