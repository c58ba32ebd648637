#include "base/metrics.h"

#include "gtest/gtest.h"

namespace landbridge {
namespace {

TEST(Metrics, PrometheusText) {
  MetricsRegistry registry;
  registry.GetCounter("lb_frames_total", "Frames read.", {{"peer", "a\"b\\c\n"}}).Add(3);
  registry.GetCounter("lb_frames_total", "Frames read.", {{"peer", "z"}}).Add();
  Gauge& gauge = registry.GetGauge("lb_devices", "Devices.");
  gauge.Set(5);
  gauge.Add(-1);
  EXPECT_EQ(&registry.GetGauge("lb_devices", ""), &gauge);
  EXPECT_EQ(registry.PrometheusText(),
            "# HELP lb_devices Devices.\n# TYPE lb_devices gauge\nlb_devices 4\n"
            "# HELP lb_frames_total Frames read.\n# TYPE lb_frames_total counter\n"
            "lb_frames_total{peer=\"a\\\"b\\\\c\\n\"} 3\nlb_frames_total{peer=\"z\"} 1\n");
}

}  // namespace
}  // namespace landbridge
