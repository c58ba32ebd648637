#include "base/sha256.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace landbridge {
namespace {

TEST(Sha256, KnownVectors) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Raw("abc").size(), 32u);
}

TEST(Sha256, File) {
  std::string path = testing::TempDir() + "/sha256_test_file";
  std::ofstream(path) << "abc";
  auto hex = Sha256FileHex(path);
  ASSERT_TRUE(hex.ok()) << hex.status();
  EXPECT_EQ(*hex, Sha256Hex("abc"));
  std::remove(path.c_str());
  auto missing = Sha256FileHex(path);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(missing.status().message().find(path), absl::string_view::npos);
}

}  // namespace
}  // namespace landbridge
