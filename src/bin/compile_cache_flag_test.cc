#include "bin/compile_cache_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CompileCacheFlag : public ::testing::Test {
 protected:
  void SetUp() override {
    ::unsetenv("LANDBRIDGE_COMPILE_CACHE");
    ::unsetenv("XDG_CACHE_HOME");
    ::setenv("HOME", "/home/u", 1);
  }
  // The folder, where there is nothing to say about it.
  static std::string Folder(absl::string_view flag = "", absl::string_view scratch = "") {
    absl::StatusOr<CompileCachePlace> place = PlaceCompileCache(flag, scratch, "--xla_cpu_max_isa=AVX2");
    EXPECT_TRUE(place.ok()) << place.status();
    EXPECT_THAT(place->notices, IsEmpty());
    return place->folder;
  }
};

TEST_F(CompileCacheFlag, TheFirstThatSaysSomething) {
  EXPECT_EQ(Folder(), "/home/u/.cache/landbridge/compile_cache");
  ::setenv("XDG_CACHE_HOME", "/fast/", 1);
  EXPECT_EQ(Folder(), "/fast/landbridge/compile_cache");
  ::setenv("XDG_CACHE_HOME", "relative", 1);  // to be ignored, says the standard
  EXPECT_EQ(Folder(), "/home/u/.cache/landbridge/compile_cache");
  EXPECT_EQ(Folder("", "/scratch/"), "/scratch/landbridge_compile_cache");
  EXPECT_EQ(Folder("", "file:///scratch"), "/scratch/landbridge_compile_cache");
  ::setenv("LANDBRIDGE_COMPILE_CACHE", "/from/variable", 1);
  EXPECT_EQ(Folder("", "/scratch"), "/from/variable");
  EXPECT_EQ(Folder("file:///from/flag/", "/scratch"), "/from/flag");
  EXPECT_EQ(Folder("off"), "");
  ::setenv("LANDBRIDGE_COMPILE_CACHE", "off", 1);
  EXPECT_EQ(Folder("", "/scratch"), "");
  EXPECT_EQ(Folder("/from/flag"), "/from/flag");
}

TEST_F(CompileCacheFlag, BucketsAndNoHome) {
  absl::StatusOr<CompileCachePlace> bucket = PlaceCompileCache("", "gs://bucket/x", "");
  ASSERT_TRUE(bucket.ok());
  EXPECT_EQ(bucket->folder, "/home/u/.cache/landbridge/compile_cache");
  EXPECT_THAT(bucket->notices, ElementsAre(HasSubstr("--gcs_scratch_location=gs://bucket/x has no effect")));
  EXPECT_THAT(PlaceCompileCache("gs://bucket", "", "").status().message(),
              HasSubstr("--compile_cache=gs://bucket: a local"));
  ::setenv("LANDBRIDGE_COMPILE_CACHE", "s3://bucket", 1);
  EXPECT_THAT(PlaceCompileCache("", "", "").status().message(), HasSubstr("LANDBRIDGE_COMPILE_CACHE=s3://bucket"));
  ::unsetenv("LANDBRIDGE_COMPILE_CACHE");
  ::unsetenv("HOME");
  absl::StatusOr<CompileCachePlace> nowhere = PlaceCompileCache("", "", "");
  ASSERT_TRUE(nowhere.ok());
  EXPECT_EQ(nowhere->folder, "");
  EXPECT_THAT(nowhere->notices, ElementsAre(HasSubstr("in memory only")));
}

TEST_F(CompileCacheFlag, DumpsNeedCompiles) {
  absl::StatusOr<CompileCachePlace> dumps = PlaceCompileCache("/somewhere", "", "--xla_dump_to=/tmp/x");
  ASSERT_TRUE(dumps.ok());
  EXPECT_EQ(dumps->folder, "");
  EXPECT_THAT(dumps->notices, ElementsAre(HasSubstr("dumps")));
}

}  // namespace
}  // namespace landbridge
