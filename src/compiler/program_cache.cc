#include "compiler/program_cache.h"

#include <iterator>
#include <utility>

#include "base/limits.h"

namespace landbridge {

size_t ProgramCache::BytesOf(const CompiledProgram& program) {
  constexpr size_t kOverhead = 1024;  // nodes, key, and the parsed metadata's own bookkeeping
  return program.envelope.size() + 2 * program.info.ByteSizeLong() + kOverhead;
}

std::shared_ptr<const CompiledProgram> ProgramCache::Find(const std::string& key) {
  auto it = by_key_.find(key);
  if (it == by_key_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->program;
}

void ProgramCache::Insert(const std::string& key, std::shared_ptr<const CompiledProgram> program) {
  const size_t bytes = BytesOf(*program);
  if (bytes > bytes_max_ || by_key_.contains(key)) return;
  while (bytes_ + bytes > bytes_max_) {
    bytes_ -= BytesOf(*entries_.back().program);
    by_key_.erase(entries_.back().key);
    entries_.pop_back();
  }
  entries_.push_front(Entry{key, std::move(program)});
  by_key_[key] = entries_.begin();
  bytes_ += bytes;
}

absl::Status ProgramCache::FindFailure(const std::string& key, TimeNs now) {
  auto it = failures_.find(key);
  if (it == failures_.end()) return absl::OkStatus();
  if (it->second.until <= now) {
    failures_.erase(it);
    return absl::OkStatus();
  }
  return it->second.status;
}

void ProgramCache::InsertFailure(const std::string& key, absl::Status status, TimeNs now) {
  if (failures_.size() >= limits::kCompileNegativeCacheEntriesMax) {
    for (auto it = failures_.begin(); it != failures_.end();) {
      if (it->second.until <= now) {
        failures_.erase(it++);
      } else {
        ++it;
      }
    }
    if (failures_.size() >= limits::kCompileNegativeCacheEntriesMax) failures_.erase(failures_.begin());
  }
  failures_[key] = Failure{std::move(status), now + negative_time_};
}

}  // namespace landbridge
