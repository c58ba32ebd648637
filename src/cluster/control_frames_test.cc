#include "cluster/control_frames.h"

#include <gtest/gtest.h>

#include "proto/landbridge/control.pb.h"

namespace landbridge {
namespace {

TEST(ControlFramesTest, JoinedBytesAreTheMessage) {
  WorkerOp a, b;
  a.mutable_read()->set_read(7);
  b.mutable_delete_()->add_arrays(300);
  Heartbeat heartbeat;
  heartbeat.set_number(9);
  ControlFrame frame;
  ASSERT_TRUE(frame.ParseFromString(JoinControlFrame(
      5, 1000, kControlFrameOps, {a.SerializeAsString(), b.SerializeAsString()}, heartbeat.SerializeAsString())));
  EXPECT_EQ(frame.first_seq(), 5u);
  EXPECT_EQ(frame.ack(), 1000u);
  ASSERT_EQ(frame.ops_size(), 2);
  EXPECT_EQ(frame.ops(0).read().read(), 7u);
  EXPECT_EQ(frame.ops(1).delete_().arrays(0), 300u);
  EXPECT_EQ(frame.heartbeat().number(), 9u);
  EXPECT_EQ(frame.reports_size(), 0);
}

TEST(ControlFramesTest, NothingInside) {
  ControlFrame frame;
  ASSERT_TRUE(frame.ParseFromString(JoinControlFrame(8, 0, kControlFrameReports, {}, "")));
  EXPECT_EQ(frame.first_seq(), 0u);
  EXPECT_EQ(frame.ack(), 0u);
  EXPECT_FALSE(frame.has_heartbeat());
}

}  // namespace
}  // namespace landbridge
