// The cache on disk with a thread of its own, so that nobody else waits for a disk.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "compiler/compile_service.h"
#include "compiler/disk_cache.h"

namespace landbridge {

// Thread-safety: all members from any thread.
class DiskCacheThread {
 public:
  // The folder is opened by the thread; that it cannot be used is one line in the log, and nothing is found then.
  DiskCacheThread(std::string folder, uint64_t bytes_max);
  // Lookups that wait are answered with null; programs that wait are written.
  ~DiskCacheThread();

  using Found = absl::AnyInvocable<void(std::shared_ptr<const CompiledProgram>)>;
  // `found` runs exactly once, on the thread or in the destructor; null: not there, or not usable (one line in the log).
  // It may block for others' compute, not for this thread.
  void Find(CompileKey key, Found found);
  // Writes it when no lookup waits.
  void Insert(CompileKey key, std::shared_ptr<const CompiledProgram> program);

  DiskCacheStats Stats() const;

 private:
  struct Lookup {
    CompileKey key;
    Found found;
  };
  struct Write {
    CompileKey key;
    std::shared_ptr<const CompiledProgram> program;
  };
  void Run(const std::string& folder, uint64_t bytes_max);
  void LookUp(DiskCache* cache, Lookup lookup);
  void Store(DiskCache& cache, const Write& write);
  void Count(const DiskCache& cache);

  mutable std::mutex mutex_;
  std::condition_variable wakes_;
  // Guarded by mutex_:
  bool stopping_ = false;
  std::deque<Lookup> lookups_;
  std::deque<Write> writes_;
  DiskCacheStats stats_;

  bool write_failed_ = false;  // the last one; of the thread
  std::thread thread_;
};

}  // namespace landbridge
