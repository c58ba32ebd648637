// Compiled programs in memory, bounded in bytes; and programs that killed their compiler, for a while.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/time.h"
#include "compiler/compile_service.h"

namespace landbridge {

// Thread-safety: none. Time comes in as an argument.
class ProgramCache {
 public:
  ProgramCache(size_t bytes_max, DurationNs negative_time) : bytes_max_(bytes_max), negative_time_(negative_time) {}

  // Null if it is not here. A hit becomes the youngest.
  std::shared_ptr<const CompiledProgram> Find(const std::string& key);
  // Drops the oldest to make room. A program larger than the whole cache is not kept.
  void Insert(const std::string& key, std::shared_ptr<const CompiledProgram> program);
  size_t bytes() const { return bytes_; }
  size_t size() const { return entries_.size(); }

  // OK if nothing is known against `key`.
  absl::Status FindFailure(const std::string& key, TimeNs now);
  void InsertFailure(const std::string& key, absl::Status status, TimeNs now);

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const CompiledProgram> program;
  };
  struct Failure {
    absl::Status status;
    TimeNs until;
  };
  static size_t BytesOf(const CompiledProgram& program);
  const size_t bytes_max_;
  const DurationNs negative_time_;
  size_t bytes_ = 0;
  std::list<Entry> entries_;  // youngest first
  absl::flat_hash_map<std::string, std::list<Entry>::iterator> by_key_;
  absl::flat_hash_map<std::string, Failure> failures_;
};

}  // namespace landbridge
