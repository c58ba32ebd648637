#include "compiler/program_cache.h"

#include <gtest/gtest.h>

#include "base/limits.h"

namespace landbridge {
namespace {

std::shared_ptr<const CompiledProgram> ProgramOf(size_t bytes) {
  auto program = std::make_shared<CompiledProgram>();
  program->envelope = std::string(bytes, 'x');
  return program;
}

TEST(ProgramCache, LeastRecentlyUsedGoes) {
  ProgramCache cache(100'000, kSecond);
  for (const char* key : {"a", "b", "c"}) cache.Insert(key, ProgramOf(30'000));
  EXPECT_EQ(cache.size(), 3u);
  EXPECT_NE(cache.Find("a"), nullptr);  // b is the oldest now
  cache.Insert("d", ProgramOf(30'000));
  EXPECT_EQ(cache.Find("b"), nullptr);
  for (const char* key : {"a", "c", "d"}) EXPECT_NE(cache.Find(key), nullptr) << key;
  EXPECT_LE(cache.bytes(), 100'000u);
  cache.Insert("huge", ProgramOf(200'000));
  EXPECT_EQ(cache.Find("huge"), nullptr);
  EXPECT_EQ(cache.size(), 3u);
  size_t before = cache.bytes();
  cache.Insert("a", ProgramOf(30'000));  // there already
  EXPECT_EQ(cache.bytes(), before);
  cache.Insert("big", ProgramOf(90'000));
  EXPECT_EQ(cache.size(), 1u);
}

TEST(ProgramCache, FailuresExpireAndAreBounded) {
  ProgramCache cache(0, 10 * kSecond);
  cache.InsertFailure("a", absl::AbortedError("slow"), 0);
  EXPECT_EQ(cache.FindFailure("a", 9 * kSecond).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(cache.FindFailure("b", 0).ok());
  EXPECT_TRUE(cache.FindFailure("a", 10 * kSecond).ok());
  for (size_t i = 0; i <= limits::kCompileNegativeCacheEntriesMax; ++i) {
    cache.InsertFailure(std::to_string(i), absl::AbortedError("slow"), kSecond);
  }
  size_t kept = 0;
  for (size_t i = 0; i <= limits::kCompileNegativeCacheEntriesMax; ++i) {
    if (!cache.FindFailure(std::to_string(i), kSecond).ok()) ++kept;
  }
  EXPECT_EQ(kept, limits::kCompileNegativeCacheEntriesMax);
}

}  // namespace
}  // namespace landbridge
