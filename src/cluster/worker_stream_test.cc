#include "cluster/worker_stream.h"

#include <gtest/gtest.h>

#include <vector>

namespace landbridge {
namespace {

WorkerOp ReadOp(uint64_t id) {
  WorkerOp op;
  op.mutable_read()->set_read(id);
  return op;
}

std::vector<uint64_t> OpsIn(const std::string& payload) {
  ControlFrame frame;
  EXPECT_TRUE(frame.ParseFromString(payload));
  std::vector<uint64_t> ids;
  for (const WorkerOp& op : frame.ops()) ids.push_back(op.read().read());
  return ids;
}

std::string ReportFrame(uint64_t first, std::vector<uint64_t> watches, uint64_t ack) {
  ControlFrame frame;
  frame.set_first_seq(first);
  frame.set_ack(ack);
  for (uint64_t id : watches) frame.add_reports()->mutable_watched()->set_watch(id);
  return frame.SerializeAsString();
}

TEST(WorkerStreamTest, NothingLeavesBeforeTheConnection) {
  WorkerStream stream;
  stream.Push(ReadOp(1));
  EXPECT_FALSE(stream.needs_flush());
  ASSERT_TRUE(stream.Resume(0).ok());
  EXPECT_EQ(OpsIn(stream.NextFrame()), (std::vector<uint64_t>{1}));
  EXPECT_EQ(stream.NextFrame(), "");
}

TEST(WorkerStreamTest, ReplaysWhatWasNotAppliedAndOnlyThat) {
  WorkerStream stream;
  ASSERT_TRUE(stream.Resume(0).ok());
  for (uint64_t i = 1; i <= 5; ++i) stream.Push(ReadOp(i));
  EXPECT_EQ(OpsIn(stream.NextFrame()).size(), 5u);
  stream.OnDisconnect();
  stream.Push(ReadOp(6));
  ASSERT_TRUE(stream.Resume(3).ok());
  EXPECT_EQ(OpsIn(stream.NextFrame()), (std::vector<uint64_t>{4, 5, 6}));
}

TEST(WorkerStreamTest, ReportsAreAppliedOnceAndInOrder) {
  WorkerStream stream;
  ASSERT_TRUE(stream.Resume(0).ok());
  std::vector<uint64_t> seen;
  auto on_report = [&](const WorkerReport& report) { seen.push_back(report.watched().watch()); };
  auto on_heartbeat = [](const Heartbeat&) {};
  EXPECT_TRUE(stream.OnFrame(ReportFrame(1, {10, 11}, 0), on_heartbeat, on_report).ok());
  EXPECT_TRUE(stream.OnFrame(ReportFrame(2, {11, 12}, 0), on_heartbeat, on_report).ok());
  EXPECT_EQ(stream.OnFrame(ReportFrame(5, {99}, 0), on_heartbeat, on_report).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(seen, (std::vector<uint64_t>{10, 11, 12}));
  EXPECT_EQ(stream.applied_reports(), 3u);
  EXPECT_EQ(stream.OnFrame("\xff\xff", on_heartbeat, on_report).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.OnFrame(ReportFrame(0, {}, 77), on_heartbeat, on_report).code(),
            absl::StatusCode::kInvalidArgument);  // acknowledges what was never sent
}

TEST(WorkerStreamTest, ParksBeyondTheReplayBoundAndGoesOnAfterAcknowledgement) {
  WorkerStream stream(/*replay_bytes_max=*/40);
  ASSERT_TRUE(stream.Resume(0).ok());
  for (uint64_t i = 1; i <= 20; ++i) stream.Push(ReadOp(i));
  EXPECT_GT(stream.parked(), 0u);
  auto ignore_heartbeat = [](const Heartbeat&) {};
  auto ignore_report = [](const WorkerReport&) {};
  std::vector<uint64_t> all;
  uint64_t sent = 0;
  for (int round = 0; round < 20 && all.size() < 20; ++round) {
    for (std::string frame = stream.NextFrame(); !frame.empty(); frame = stream.NextFrame()) {
      for (uint64_t id : OpsIn(frame)) all.push_back(id), ++sent;
    }
    ASSERT_TRUE(stream.OnFrame(ReportFrame(0, {}, sent), ignore_heartbeat, ignore_report).ok());
  }
  ASSERT_EQ(all.size(), 20u);
  for (uint64_t i = 0; i < 20; ++i) EXPECT_EQ(all[i], i + 1);
  EXPECT_EQ(stream.parked(), 0u);
}

}  // namespace
}  // namespace landbridge
