#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/cluster_options.h"

namespace landbridge::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ClusterOptions, RangesNameTheOptionAndItsLimits) {
  ClusterOptions options;
  EXPECT_TRUE(Validate(options).ok());
  options.slices = 0;
  EXPECT_EQ(Validate(options).message(), "--slices is 0, but must lie between 1 and 1024");
  options.slices = 64;
  options.workers_per_slice = 17;
  EXPECT_THAT(std::string(Validate(options).message()), HasSubstr("would start 1088 workers"));
  options.workers_per_slice = 16;
  EXPECT_TRUE(Validate(options).ok());
  options.proxy_port = 65536;
  EXPECT_THAT(std::string(Validate(options).message()), HasSubstr("--port is 65536"));
}

TEST(ClusterOptions, ServersAreStartedWithPathwaysFlags) {
  ClusterOptions options;
  options.slices = 2;
  options.devices_per_worker = 8;
  options.plugin = "/p.so";
  options.worker_flags = {"--extra=1"};
  EXPECT_THAT(ResourceManagerSpec(options, "/bin", "/s").argv,
              ElementsAre("/bin/landbridge-server", "--node_type=resource_manager", "--server_port=0",
                          "--port_file=/s/ports/resource-manager", "--instance_type=cpu:8", "--instance_count=2"));
  const ServerSpec worker = WorkerSpec(options, "/bin", "/s", "h:1", 1, 0);
  EXPECT_EQ(worker.name, "worker-1-0");
  EXPECT_EQ(worker.log_path, "/s/logs/worker-1-0.log");
  EXPECT_THAT(worker.argv, Contains("--resource_manager_address=h:1"));
  EXPECT_THAT(worker.argv, Contains("--pjrt_plugin=/p.so"));
  EXPECT_THAT(worker.argv, Contains("--worker_name=worker-1-0"));
  EXPECT_THAT(worker.argv, Contains("--slice_hint=1"));
  EXPECT_EQ(worker.argv.back(), "--extra=1");
  options.workers_per_slice = 2;
  EXPECT_THAT(ResourceManagerSpec(options, "/bin", "/s").argv, Contains("--instance_type=cpu:2x8"));
  options.platform = "cuda";
  EXPECT_THAT(ResourceManagerSpec(options, "/bin", "/s").argv, Contains("--instance_type=cuda:2x8"));
  options.proxy_port = 29000;
  EXPECT_THAT(ProxySpec(options, "/bin", "/s", "h:1").argv, Contains("--server_port=29000"));
}

TEST(ClusterOptions, SimulatedWorkersAreOneProcess) {
  ClusterOptions options;
  options.slices = 1280;
  options.devices_per_worker = 8;
  EXPECT_EQ(Validate(options).message(), "--slices is 1280, but must lie between 1 and 1024");
  options.simulated = true;
  EXPECT_TRUE(Validate(options).ok());
  options.worker_flags = {"--launch_us=5"};
  const ServerSpec spec = SimulatedWorkersSpec(options, "/bin", "/s", "h:1");
  EXPECT_EQ(spec.name, "simulated-workers");
  EXPECT_THAT(spec.argv,
              ElementsAre("/bin/landbridge-simulated-workers", "--resource_manager_address=h:1", "--workers=1280",
                          "--devices=8", "--port_file=/s/ports/simulated-workers", "--launch_us=5"));
  options.one_process = true;
  EXPECT_THAT(std::string(Validate(options).message()), HasSubstr("exclude each other"));
}

TEST(ClusterOptions, OneProcessStandsInForTheProxy) {
  ClusterOptions options;
  options.slices = 3;
  options.workers_per_slice = 2;
  options.plugin = "/p.so";
  const ServerSpec one = OneProcessSpec(options, "/bin", "/s");
  EXPECT_EQ(one.name, "proxy");
  EXPECT_THAT(one.argv, ElementsAre("/bin/landbridge-one", "--instance_type=cpu:2x4", "--instance_count=3",
                                    "--server_port=0", "--port_file=/s/ports/proxy", "--pjrt_plugin=/p.so"));
}

}  // namespace
}  // namespace landbridge::cli
