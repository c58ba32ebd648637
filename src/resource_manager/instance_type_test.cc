#include "resource_manager/instance_type.h"

#include "gtest/gtest.h"

namespace landbridge {
namespace {

TEST(InstanceType, Shapes) {
  auto one = ParseInstanceType("cpu:4");
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->platform, "cpu");
  EXPECT_EQ(one->workers_per_slice, 1);
  EXPECT_EQ(one->devices_per_worker, 4);
  EXPECT_EQ(one->ToString(), "cpu:4 (1 worker of 4 devices)");
  auto two = ParseInstanceType("cpu:2x4");
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->workers_per_slice, 2);
  EXPECT_EQ(two->devices_per_worker, 4);
  EXPECT_EQ(ParseInstanceType("gpu:8")->platform, "cuda");
  auto v6 = ParseInstanceType("tpuv6e:4x4");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->platform, "tpu");
  EXPECT_EQ(v6->workers_per_slice, 4);
  EXPECT_EQ(v6->devices_per_worker, 4);
  EXPECT_EQ(ParseInstanceType("tpuv6e:1x1")->workers_per_slice, 1);
  EXPECT_EQ(ParseInstanceType("tpuv5e1t:2x4")->workers_per_slice, 8);
  EXPECT_EQ(ParseInstanceType("tpuv4:2x2x2")->workers_per_slice, 2);
  EXPECT_EQ(ParseInstanceType("tpu7x:2x2x1")->devices_per_worker, 8);
}

TEST(InstanceType, RefusalsNameTheTextAndTheForms) {
  for (const char* text : {"", "cpu", "cpu:", ":4", "cpu:0", "cpu:-1", "cpu:x4", "cpu:4x", "cpu:+4", "cpu:2x2x2",
                           "tpuv6e:4", "tpuv4:2x2", "tpuv9:2x2", "cpu:99999999999", "cpu:70000", "cpu:4:4"}) {
    auto parsed = ParseInstanceType(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(parsed.status().message().find(std::string("--instance_type=") + text), absl::string_view::npos) << text;
    EXPECT_NE(parsed.status().message().find("tpuv6e:4x4"), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace landbridge
