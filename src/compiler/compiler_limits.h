// Sizes and times of the compiler room; those that other rooms use too are in base/limits.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace landbridge::limits {

// --- The compile cache on disk (disk_cache.h).
constexpr uint64_t kDiskCacheBytesDefault = uint64_t{4} << 30;  // of one folder
constexpr uint64_t kDiskCacheBytesMin = uint64_t{1} << 20;      // what can be asked for
constexpr uint64_t kDiskCacheEntryBytesMax = 256u << 20;        // larger programs are kept in memory only
constexpr size_t kDiskCacheWritesMax = 64;  // programs that wait to be written; more are not kept on disk
// When the folder is full, the least recently used go until this share of it is taken.
constexpr double kDiskCacheFillAfterEviction = 0.9;
// Other processes fill the folder too: it is counted again after this share of it has been written by ours.
constexpr double kDiskCacheRecountShare = 1.0 / 16;
constexpr DurationNs kDiskCacheTemporaryAgeMax = 3600 * kSecond;  // then its writer is taken for dead

// --- Programs as text (program_text.h).
constexpr DurationNs kProgramTextTime = 60 * kSecond;

}  // namespace landbridge::limits
