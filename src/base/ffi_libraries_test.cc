#include "base/ffi_libraries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace landbridge {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

TEST(FfiLibraries, PathsAndTargets) {
  EXPECT_THAT(*ParseFfiLibraries(""), IsEmpty());
  auto specs = ParseFfiLibraries("/a/librms.so:rms_norm=RmsNorm:rms_norm_bwd=Bwd:same,/b/other.so");
  ASSERT_TRUE(specs.ok()) << specs.status();
  ASSERT_EQ(specs->size(), 2u);
  EXPECT_EQ((*specs)[0].path, "/a/librms.so");
  EXPECT_THAT((*specs)[0].targets,
              ElementsAre(Pair("rms_norm", "RmsNorm"), Pair("rms_norm_bwd", "Bwd"), Pair("same", "same")));
  EXPECT_EQ((*specs)[1].path, "/b/other.so");
  EXPECT_THAT((*specs)[1].targets, IsEmpty());
}

TEST(FfiLibraries, MistakesAreNamed) {
  const std::string long_name(kFfiNameBytesMax + 1, 'x');
  const std::string many = absl::StrCat("/a", std::string(kFfiLibrariesMax, ','));
  for (const auto& [flag, part] : std::vector<std::pair<std::string, std::string>>{
           {",", "no path"},
           {"/a.so,", "no path"},
           {":t=S", "no path"},
           {"/a.so:", "target of /a.so has no name"},
           {"/a.so:t=", "symbol of /a.so has no name"},
           {"/a.so:=S", "target of /a.so has no name"},
           {"/a.so:t\"=S", "character"},
           {"/a.so:t=S,/b.so:t=S", "'t' is named twice"},
           {"/a.so:landbridge_virtual_compute=S", "belongs to Landbridge"},
           {"/a.so:" + long_name, "at most 256"},
           {many, "no path"},
       }) {
    auto specs = ParseFfiLibraries(flag);
    EXPECT_EQ(specs.status().code(), absl::StatusCode::kInvalidArgument) << flag;
    EXPECT_THAT(std::string(specs.status().message()), HasSubstr(part)) << flag;
    EXPECT_THAT(std::string(specs.status().message()), HasSubstr("PATH:TARGET=SYMBOL")) << flag;
  }
  std::string libraries = "/a";
  for (size_t i = 0; i < kFfiLibrariesMax; ++i) libraries += ",/a";
  EXPECT_THAT(std::string(ParseFfiLibraries(libraries).status().message()), HasSubstr("65 libraries"));
}

TEST(FfiLibraries, AbsolutePathsOfFilesThatAreThere) {
  const std::string folder = testing::TempDir();
  ASSERT_EQ(::chdir(folder.c_str()), 0);
  std::ofstream("some.so") << "x";
  char here[4096];
  ASSERT_NE(::getcwd(here, sizeof(here)), nullptr);
  EXPECT_EQ(AbsoluteFfiLibraries("some.so:t=S,some.so:u").value_or("?"),
            absl::StrCat(here, "/some.so:t=S,", here, "/some.so:u=u"));
  EXPECT_EQ(AbsoluteFfiLibraries("").value_or("?"), "");
  EXPECT_THAT(std::string(AbsoluteFfiLibraries("none.so").status().message()), HasSubstr("none.so"));
}

}  // namespace
}  // namespace landbridge
