#include "cluster/lease_times.h"

#include "gtest/gtest.h"

namespace landbridge {
namespace {

TEST(LeaseTimes, FormulasOfTheRules) {
  LeaseTimes times;
  times.heartbeat = 250 * kMillisecond;
  times.worst_delay = 300 * kMillisecond;
  times.lease = 2400 * kMillisecond;
  times.reconnect = 500 * kMillisecond;
  // L >= 1.1 (k H / 0.9 + D): k = 6 needs 2.163 s, k = 7 needs 2.469 s.
  EXPECT_NEAR(static_cast<double>(MinLease(6, times.heartbeat, times.worst_delay)), 2.1633e9, 1e6);
  EXPECT_NEAR(static_cast<double>(MinLease(7, times.heartbeat, times.worst_delay)), 2.4689e9, 1e6);
  EXPECT_EQ(LostHeartbeatsTolerated(times), 6);
  EXPECT_NEAR(static_cast<double>(StartWindow(times)), 1.2467e9, 1e6);  // 1.222 (B + H) + 1.1 D
  EXPECT_NEAR(static_cast<double>(WaitForOthersLease(times)), 2.9333e9, 1e6);
  EXPECT_NEAR(static_cast<double>(DrainGrace(times, 10 * kSecond, 2 * kSecond)), 15.2717e9, 1e6);
  EXPECT_NEAR(static_cast<double>(DispatchedMustEndWithin(times)), 2.1818e9, 1e6);
}

TEST(LeaseTimes, DefaultsKeepTheRules) {
  const LeaseTimes times;
  EXPECT_TRUE(times.Validate().ok());
  EXPECT_GE(LostHeartbeatsTolerated(times), 6);
  EXPECT_LE(times.lease + times.heartbeat, 2700 * kMillisecond);  // a hang is seen within 3 s
}

TEST(LeaseTimes, ShortLeaseIsRefusedWithTheCure) {
  LeaseTimes times;
  times.lease = 500 * kMillisecond;
  const absl::Status status = times.Validate();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("use at least 942 ms"), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace landbridge
