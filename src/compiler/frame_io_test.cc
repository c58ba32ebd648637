#include "compiler/frame_io.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "base/limits.h"

namespace landbridge {
namespace {

class FrameTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds_), 0); }
  void TearDown() override {
    for (int fd : fds_) ::close(fd);
  }
  int fds_[2];
};

TEST_F(FrameTest, LargeAndEmptyFrames) {
  std::string large(20u << 20, 'y');  // more than a socket holds
  std::thread writer([&] {
    FrameChannel channel(fds_[0], fds_[0], -1);
    EXPECT_TRUE(channel.Write(large).ok());
    EXPECT_TRUE(channel.Write("").ok());
  });
  FrameChannel channel(fds_[1], fds_[1], -1);
  auto first = channel.Read();
  auto second = channel.Read();
  writer.join();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(*first, large);
  EXPECT_EQ(*second, "");
}

TEST_F(FrameTest, AnnouncedLengthIsChecked) {
  uint64_t length = limits::kCompileFrameBytesMax + 1;
  ASSERT_EQ(::write(fds_[0], &length, sizeof(length)), static_cast<ssize_t>(sizeof(length)));
  FrameChannel channel(fds_[1], fds_[1], -1);
  EXPECT_EQ(channel.Read().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FrameTest, DeadlineStopAndEnd) {
  FrameChannel channel(fds_[1], fds_[1], -1);
  EXPECT_EQ(channel.Read(MonotonicNow() + 5 * kMillisecond).status().code(), absl::StatusCode::kAborted);
  int stop = ::eventfd(1, EFD_CLOEXEC);
  FrameChannel stoppable(fds_[1], fds_[1], stop);
  EXPECT_EQ(stoppable.Read().status().code(), absl::StatusCode::kCancelled);
  ::close(stop);
  ::shutdown(fds_[0], SHUT_RDWR);
  EXPECT_EQ(channel.Read().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(channel.Write("x").code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace landbridge
