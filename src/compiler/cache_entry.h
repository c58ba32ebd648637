// The sealed form in which compiled programs rest in the cache on disk. They are native code: what is not exactly what
// was asked for is refused before anything else sees it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/compile_service.h"
#include "proto/landbridge/compile_cache.pb.h"

namespace landbridge {

constexpr uint32_t kCacheEntryFormatVersion = 1;

// 32 bytes.
std::string HashOf(const CompileKey& key);
// What of `have` is not as in `want`, for people; empty: nothing.
std::string Difference(const CompileKey& have, const CompileKey& want);

std::string SealCacheEntry(const CompileKey& key, const CompiledProgram& program);

// INVALID_ARGUMENT, naming what is wrong, for anything truncated, corrupt, of another format or for another key.
absl::StatusOr<std::shared_ptr<const CompiledProgram>> OpenCacheEntry(absl::string_view bytes, const CompileKey& key);

}  // namespace landbridge
