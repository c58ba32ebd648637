#include "env/memory_trimmer.h"

#include <gtest/gtest.h>

namespace landbridge {
namespace {

TEST(MemoryTrimmerTest, OncePerIdleTime) {
  MemoryTrimmer trimmer(300 * kMillisecond);
  EXPECT_FALSE(trimmer.Tick(0, 1 * kSecond));  // nothing was done yet
  EXPECT_FALSE(trimmer.Tick(1, 2 * kSecond));
  EXPECT_FALSE(trimmer.Tick(2, 2200 * kMillisecond));  // still at work
  EXPECT_FALSE(trimmer.Tick(2, 2400 * kMillisecond));
  EXPECT_TRUE(trimmer.Tick(2, 2500 * kMillisecond));
  EXPECT_FALSE(trimmer.Tick(2, 9 * kSecond));
  EXPECT_FALSE(trimmer.Tick(3, 10 * kSecond));
  EXPECT_TRUE(trimmer.Tick(3, 11 * kSecond));
}

}  // namespace
}  // namespace landbridge
