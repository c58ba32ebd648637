#include "compiler/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/sha256.h"
#include "compiler/cache_entry.h"
#include "compiler/disk_cache_thread.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

using Program = std::shared_ptr<const CompiledProgram>;

CompileKey SomeKey(absl::string_view program = "a program") {
  CompileKey key;
  key.set_program_sha256(Sha256Raw(program));
  key.set_compile_options("options");
  key.set_plugin_sha256(std::string(64, 'a'));
  key.set_compiler_sha256(std::string(64, 'b'));
  key.set_cpu_model("Some CPU");
  key.set_cpu_features("avx avx2");
  key.add_environment("XLA_FLAGS=--x");
  key.set_envelope_format_version(2);
  return key;
}

// Different bytes for different seeds.
Program SomeProgram(size_t bytes = 1000, int seed = 1) {
  auto program = std::make_shared<CompiledProgram>();
  for (size_t i = 0; i < bytes; ++i) program->envelope += static_cast<char>(i * 31 + static_cast<size_t>(seed) * 7);
  program->envelope_sha256 = Sha256Raw(program->envelope);
  program->info.set_name(absl::StrCat("jit_", seed));
  program->info.set_num_devices(4);
  return program;
}

class DiskCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/disk_cache.XXXXXX");
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    parent_ = pattern;
    folder_ = parent_ + "/made/on/demand";
  }

  std::unique_ptr<DiskCache> Open(uint64_t bytes_max = 1 << 20) {
    absl::StatusOr<std::unique_ptr<DiskCache>> cache = DiskCache::Open(folder_, bytes_max);
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  static Program Found(DiskCache& cache, const CompileKey& key) {
    absl::StatusOr<Program> found = cache.Find(key);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? *found : nullptr;
  }
  // Why it was refused; empty: it was not.
  static std::string Refused(DiskCache& cache, const CompileKey& key) {
    absl::StatusOr<Program> found = cache.Find(key);
    return std::string(found.status().message());
  }
  std::set<std::string> Files() const {
    std::set<std::string> files;
    DIR* folder = ::opendir(folder_.c_str());
    while (const dirent* entry = ::readdir(folder)) {
      if (std::string name = entry->d_name; name != "." && name != "..") files.insert(std::move(name));
    }
    ::closedir(folder);
    return files;
  }
  std::string PathOf(const CompileKey& key) const {
    for (const std::string& name : Files()) {
      if (absl::StartsWith(name, Hex(HashOf(key)))) return folder_ + "/" + name;
    }
    return "";
  }
  static std::string Hex(const std::string& bytes) {
    std::string text;
    for (const char c : bytes) absl::StrAppend(&text, absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    return text;
  }
  static std::string Read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream content;
    content << file.rdbuf();
    return content.str();
  }
  static void Write(const std::string& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
    ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  }
  // As if last used so long ago.
  void Age(const CompileKey& key, int seconds) const { AgeFile(PathOf(key), seconds); }
  static void AgeFile(const std::string& path, int seconds) {
    const timespec then{::time(nullptr) - seconds, 0};
    const timespec times[2] = {then, then};
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }

  std::string parent_, folder_;
};

TEST_F(DiskCacheTest, WhatIsKeptIsFoundByTheNext) {
  const Program program = SomeProgram();
  {
    auto cache = Open();
    EXPECT_EQ(Found(*cache, SomeKey()), nullptr);
    ASSERT_TRUE(cache->Insert(SomeKey(), *program).ok());
  }
  auto cache = Open();
  EXPECT_EQ(cache->entries(), 1u);
  EXPECT_GT(cache->bytes(), 1000u);
  const Program found = Found(*cache, SomeKey());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->envelope, program->envelope);
  EXPECT_EQ(found->envelope_sha256, program->envelope_sha256);
  EXPECT_EQ(found->info.SerializeAsString(), program->info.SerializeAsString());
  EXPECT_EQ(Found(*cache, SomeKey("another")), nullptr);
  struct stat info;
  ASSERT_EQ(::stat(folder_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
  ASSERT_EQ(::stat(PathOf(SomeKey()).c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(Files().size(), 1u);  // no temporary ones
}

// What differs in a key makes another file; a file that lies under the name of another key is named for what it is.
TEST_F(DiskCacheTest, ForeignFilesAreRefused) {
  const struct {
    std::function<void(CompileKey&)> change;
    const char* says;
  } kCases[] = {
      {[](CompileKey& key) { key.set_plugin_sha256("c"); }, "another build of the plugin"},
      {[](CompileKey& key) { key.set_compiler_sha256("c"); }, "another build of landbridge-compiler"},
      {[](CompileKey& key) { key.set_cpu_model("Other"); }, "another CPU ('Some CPU')"},
      {[](CompileKey& key) { key.set_cpu_features("avx"); }, "another CPU"},
      {[](CompileKey& key) { key.set_xla_flags("--y"); }, "other XLA_FLAGS"},
      {[](CompileKey& key) { key.set_program_sha256("p"); }, "another program"},
      {[](CompileKey& key) { key.set_compile_options("other"); }, "other compile options"},
      {[](CompileKey& key) { key.set_split(true); }, "other compile options"},
      {[](CompileKey& key) { key.set_environment(0, "A=b"); }, "other compile options"},
      {[](CompileKey& key) { key.set_envelope_format_version(3); }, "other compile options"},
  };
  auto cache = Open();
  ASSERT_TRUE(cache->Insert(SomeKey(), *SomeProgram()).ok());
  const std::string path = PathOf(SomeKey());
  for (const auto& c : kCases) {
    CompileKey other = SomeKey();
    c.change(other);
    EXPECT_EQ(Found(*cache, other), nullptr) << c.says;
    const std::string there = absl::StrCat(folder_, "/", Hex(HashOf(other)), ".program");
    Write(there, Read(path));
    EXPECT_THAT(Refused(*cache, other), HasSubstr(c.says));
    EXPECT_THAT(Refused(*cache, other), HasSubstr(there));
    // What is compiled in its stead takes its place.
    ASSERT_TRUE(cache->Insert(other, *SomeProgram(1000, 2)).ok());
    EXPECT_EQ(Found(*cache, other)->info.name(), "jit_2");
  }
}

TEST_F(DiskCacheTest, EveryTruncationAndEveryFlippedByteIsRefused) {
  auto cache = Open();
  ASSERT_TRUE(cache->Insert(SomeKey(), *SomeProgram()).ok());
  const std::string path = PathOf(SomeKey());
  const std::string whole = Read(path);
  for (size_t size = 0; size < whole.size(); size += size < 64 ? 1 : 37) {
    Write(path, whole.substr(0, size));
    EXPECT_NE(Refused(*cache, SomeKey()), "") << size;
  }
  for (size_t at = 0; at < whole.size(); at += at < 64 ? 1 : 23) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    Write(path, flipped);
    EXPECT_NE(Refused(*cache, SomeKey()), "") << at;
  }
  Write(path, whole);
  EXPECT_NE(Found(*cache, SomeKey()), nullptr);
}

TEST_F(DiskCacheTest, AnotherFormatIsNamed) {
  auto cache = Open();
  ASSERT_TRUE(cache->Insert(SomeKey(), *SomeProgram()).ok());
  const std::string path = PathOf(SomeKey());
  CacheEntry entry;
  ASSERT_TRUE(entry.ParseFromString(Read(path)));
  entry.set_format_version(kCacheEntryFormatVersion + 1);
  Write(path, entry.SerializeAsString());
  EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr(absl::StrCat("format ", kCacheEntryFormatVersion + 1)));
  entry.set_magic(1);
  Write(path, entry.SerializeAsString());
  EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr("no compiled program of Landbridge's"));
}

TEST_F(DiskCacheTest, OnlyFilesThatNobodyElseCanHaveWritten) {
  auto cache = Open();
  ASSERT_TRUE(cache->Insert(SomeKey(), *SomeProgram()).ok());
  const std::string path = PathOf(SomeKey());
  ASSERT_EQ(::chmod(path.c_str(), 0620), 0);
  EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr("others may write to it (mode 0620)"));
  ASSERT_EQ(::chmod(path.c_str(), 0602), 0);
  EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr("others may write"));
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_NE(Found(*cache, SomeKey()), nullptr);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr("belongs to user 65534"));
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  }
  const std::string elsewhere = parent_ + "/elsewhere";
  ASSERT_EQ(::rename(path.c_str(), elsewhere.c_str()), 0);
  ASSERT_EQ(::symlink(elsewhere.c_str(), path.c_str()), 0);
  EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr("cannot be opened"));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);  // must not hold us up
  EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr("no regular file"));
  ASSERT_EQ(::unlink(path.c_str()), 0);
  ASSERT_EQ(::mkdir(path.c_str(), 0700), 0);
  EXPECT_THAT(Refused(*cache, SomeKey()), HasSubstr("no regular file"));
}

TEST_F(DiskCacheTest, OnlyFoldersThatNobodyElseCanWriteTo) {
  Open();
  for (const mode_t mode : {0720, 0702, 01777}) {
    ASSERT_EQ(::chmod(folder_.c_str(), mode), 0);
    const absl::Status refused = DiskCache::Open(folder_, 1 << 20).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(refused.message(), HasSubstr("is not safe for native code: others may write to it"));
  }
  ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
  EXPECT_TRUE(DiskCache::Open(folder_, 1 << 20).ok());
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(folder_.c_str(), 65534, 65534), 0);
    EXPECT_THAT(DiskCache::Open(folder_, 1 << 20).status().message(), HasSubstr("belongs to user 65534"));
  }
  Write(parent_ + "/file", "x");
  for (const char* below : {"/file", "/file/below"}) {
    const absl::Status refused = DiskCache::Open(parent_ + below, 1 << 20).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition) << refused;
    EXPECT_THAT(refused.message(), HasSubstr(parent_ + "/file"));
  }
}

TEST_F(DiskCacheTest, TheLeastRecentlyUsedGo) {
  auto cache = Open(11'000);  // of a good 2,270 bytes each: four, after eviction too
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(cache->Insert(SomeKey(absl::StrCat(i)), *SomeProgram(2000, i)).ok());
    Age(SomeKey(absl::StrCat(i)), 100 - i);  // 0 is the oldest
  }
  ASSERT_NE(Found(*cache, SomeKey("0")), nullptr);  // no longer
  ASSERT_TRUE(cache->Insert(SomeKey("4"), *SomeProgram(2000, 4)).ok());
  EXPECT_EQ(cache->evictions(), 1u);
  EXPECT_EQ(Found(*cache, SomeKey("1")), nullptr);
  for (const char* kept : {"0", "2", "3", "4"}) EXPECT_NE(Found(*cache, SomeKey(kept)), nullptr) << kept;
  EXPECT_EQ(cache->entries(), 4u);
  EXPECT_LE(cache->bytes(), 11'000u);
  // Larger than everything: not kept, and nothing goes for it.
  ASSERT_TRUE(cache->Insert(SomeKey("huge"), *SomeProgram(20'000)).ok());
  EXPECT_EQ(Found(*cache, SomeKey("huge")), nullptr);
  EXPECT_EQ(cache->entries(), 4u);
  // A smaller size counts at once; what is not ours stays, what died while it wrote goes when it is old.
  Write(folder_ + "/README", std::string(50'000, 'x'));
  Write(folder_ + "/.new-old", "x");
  AgeFile(folder_ + "/.new-old", 2 * 3600);
  Write(folder_ + "/.new-young", "x");
  cache = Open(5'000);
  EXPECT_LE(cache->bytes(), 5'000u);
  EXPECT_EQ(cache->entries() + 2, Files().size());
  EXPECT_EQ(Files().count("README") + Files().count(".new-young"), 2u);
}

// RLIMIT_FSIZE stands in for a full disk: writes fail in the middle of a file.
TEST_F(DiskCacheTest, AFullDiskLeavesNothingBehind) {
  auto cache = Open();
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{500, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status full = cache->Insert(SomeKey(), *SomeProgram());
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(full.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(full.message(), HasSubstr(folder_));
  EXPECT_TRUE(Files().empty());
  EXPECT_TRUE(cache->Insert(SomeKey(), *SomeProgram()).ok());
  EXPECT_NE(Found(*cache, SomeKey()), nullptr);
}

// Two caches as in two processes, on few keys and little room: whatever is found is whole and right.
TEST_F(DiskCacheTest, SeveralAtATimeShareAFolder) {
  constexpr int kKeys = 8, kRounds = 300;
  std::atomic<int> hits{0};
  auto work = [&](int self) {
    auto cache = Open(9'000);
    for (int i = 0; i < kRounds; ++i) {
      const int k = (i * 5 + self * 3) % kKeys;
      const CompileKey key = SomeKey(absl::StrCat(k));
      if (const Program found = Found(*cache, key)) {
        ++hits;
        ASSERT_EQ(found->envelope, SomeProgram(2000, k)->envelope);
      } else {
        const absl::Status status = cache->Insert(key, *SomeProgram(2000, k));
        ASSERT_TRUE(status.ok()) << status;
      }
    }
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  EXPECT_GT(hits, 0);
  auto cache = Open(9'000);
  EXPECT_LE(cache->bytes(), 9'000u);
  EXPECT_EQ(cache->entries(), Files().size());
}

Program FindNow(DiskCacheThread& thread, const CompileKey& key) {
  std::promise<Program> promise;
  thread.Find(key, [&](Program found) { promise.set_value(std::move(found)); });
  return promise.get_future().get();
}

TEST_F(DiskCacheTest, TheThreadWritesWhatWaitsWhenItEnds) {
  {
    DiskCacheThread thread(folder_, 1 << 20);
    for (int i = 0; i < 10; ++i) thread.Insert(SomeKey(absl::StrCat(i)), SomeProgram(1000, i));
  }
  DiskCacheThread thread(folder_, 1 << 20);
  for (int i = 0; i < 10; ++i) {
    const Program found = FindNow(thread, SomeKey(absl::StrCat(i)));
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->info.name(), absl::StrCat("jit_", i));
  }
  EXPECT_EQ(FindNow(thread, SomeKey("none")), nullptr);
  Write(PathOf(SomeKey("3")), "nonsense");
  testing::internal::CaptureStderr();
  EXPECT_EQ(FindNow(thread, SomeKey("3")), nullptr);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("compile cache on disk: ignoring " + PathOf(SomeKey("3"))));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  const DiskCacheStats stats = thread.Stats();
  EXPECT_EQ(stats.hits, 10u);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.refused, 1u);
  EXPECT_EQ(stats.entries, 10u);
}

TEST_F(DiskCacheTest, AFolderThatCannotBeUsedCostsOneLine) {
  Write(parent_ + "/file", "x");
  testing::internal::CaptureStderr();
  DiskCacheThread thread(parent_ + "/file", 1 << 20);
  EXPECT_EQ(FindNow(thread, SomeKey()), nullptr);
  thread.Insert(SomeKey(), SomeProgram());
  EXPECT_EQ(FindNow(thread, SomeKey()), nullptr);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("the compile cache on disk is off: "));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  EXPECT_THAT(thread.Stats().off, HasSubstr(parent_ + "/file"));
  EXPECT_EQ(thread.Stats().hits + thread.Stats().misses + thread.Stats().refused, 0u);
}

// A folder that vanished stands in for one that is read-only, which root does not notice.
TEST_F(DiskCacheTest, WritesThatFailCostOneLine) {
  DiskCacheThread thread(folder_, 1 << 20);
  EXPECT_EQ(FindNow(thread, SomeKey()), nullptr);
  ASSERT_EQ(::rmdir(folder_.c_str()), 0);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) thread.Insert(SomeKey(absl::StrCat(i)), SomeProgram());
  while (thread.Stats().write_failures < 3) std::this_thread::yield();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("cannot write to " + folder_ + ": No such file"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1);
  EXPECT_EQ(FindNow(thread, SomeKey("1")), nullptr);
}

TEST_F(DiskCacheTest, LookupsThatWaitAreAnsweredWhenItEnds) {
  std::atomic<int> answered{0};
  {
    DiskCacheThread thread(folder_, 1 << 20);
    for (int i = 0; i < 100; ++i) {
      thread.Find(SomeKey(absl::StrCat(i)), [&](Program found) {
        EXPECT_EQ(found, nullptr);
        ++answered;
      });
    }
  }
  EXPECT_EQ(answered, 100);
}

}  // namespace
}  // namespace landbridge
