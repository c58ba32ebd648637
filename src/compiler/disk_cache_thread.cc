#include "compiler/disk_cache_thread.h"

#include <utility>

#include "base/log.h"

namespace landbridge {

DiskCacheThread::DiskCacheThread(std::string folder, uint64_t bytes_max) {
  stats_.folder = folder;
  thread_ = std::thread([this, folder = std::move(folder), bytes_max] { Run(folder, bytes_max); });
}

DiskCacheThread::~DiskCacheThread() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wakes_.notify_all();
  thread_.join();
  for (Lookup& lookup : lookups_) lookup.found(nullptr);
}

void DiskCacheThread::Find(CompileKey key, Found found) {
  std::lock_guard<std::mutex> lock(mutex_);
  lookups_.push_back({std::move(key), std::move(found)});
  wakes_.notify_one();
}

void DiskCacheThread::Insert(CompileKey key, std::shared_ptr<const CompiledProgram> program) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!stats_.off.empty()) return;
  if (writes_.size() >= limits::kDiskCacheWritesMax) {
    ++stats_.writes_skipped;
    return;
  }
  writes_.push_back({std::move(key), std::move(program)});
  wakes_.notify_one();
}

DiskCacheStats DiskCacheThread::Stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return stats_;
}

void DiskCacheThread::Run(const std::string& folder, uint64_t bytes_max) {
  std::unique_ptr<DiskCache> cache;
  if (absl::StatusOr<std::unique_ptr<DiskCache>> opened = DiskCache::Open(folder, bytes_max); opened.ok()) {
    cache = *std::move(opened);
    LogInfo("compile cache on disk: ", folder, ", ", cache->entries(), " programs, ", cache->bytes(),
            " bytes of at most ", bytes_max);
    Count(*cache);
  } else {
    LogWarning("the compile cache on disk is off: ", opened.status().message());
    std::lock_guard<std::mutex> lock(mutex_);
    stats_.off = std::string(opened.status().message());
    writes_.clear();
  }
  for (;;) {
    std::unique_lock<std::mutex> lock(mutex_);
    wakes_.wait(lock, [this] { return stopping_ || !lookups_.empty() || !writes_.empty(); });
    if (!stopping_ && !lookups_.empty()) {
      Lookup lookup = std::move(lookups_.front());
      lookups_.pop_front();
      lock.unlock();
      LookUp(cache.get(), std::move(lookup));
    } else if (!writes_.empty()) {
      const Write write = std::move(writes_.front());
      writes_.pop_front();
      lock.unlock();
      Store(*cache, write);
    } else {
      return;
    }
  }
}

void DiskCacheThread::LookUp(DiskCache* cache, Lookup lookup) {
  std::shared_ptr<const CompiledProgram> program;
  if (cache != nullptr) {
    absl::StatusOr<std::shared_ptr<const CompiledProgram>> found = cache->Find(lookup.key);
    if (!found.ok()) LogWarning("compile cache on disk: ignoring ", found.status().message());
    if (found.ok()) program = *std::move(found);
    std::lock_guard<std::mutex> lock(mutex_);
    ++(!found.ok() ? stats_.refused : program != nullptr ? stats_.hits : stats_.misses);
  }
  lookup.found(std::move(program));
}

void DiskCacheThread::Store(DiskCache& cache, const Write& write) {
  const absl::Status status = cache.Insert(write.key, *write.program);
  if (!status.ok() && !write_failed_) {
    LogWarning("compile cache on disk: ", status.message(),
               "; programs are kept in memory only until that works again");
  }
  write_failed_ = !status.ok();
  Count(cache);
  std::lock_guard<std::mutex> lock(mutex_);
  ++(status.ok() ? stats_.writes : stats_.write_failures);
}

void DiskCacheThread::Count(const DiskCache& cache) {
  std::lock_guard<std::mutex> lock(mutex_);
  stats_.bytes = cache.bytes();
  stats_.entries = cache.entries();
  stats_.evictions = cache.evictions();
}

}  // namespace landbridge
