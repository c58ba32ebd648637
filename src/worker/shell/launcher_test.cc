#include "worker/shell/launcher.h"

#include "gtest/gtest.h"
#include "worker/shell/shell_limits.h"

namespace landbridge {
namespace {

ExecutableInfo Info(int64_t bytes, double flops = 0) {
  ExecutableInfo info;
  info.set_num_devices(1);
  info.add_parameters()->set_device_bytes(bytes / 2);
  info.add_outputs()->set_device_bytes(bytes - bytes / 2);
  info.set_flops_at_least(flops);
  return info;
}

pjrt::Traits InCaller(bool runs_in_caller) {
  pjrt::Traits traits;
  traits.runs_in_caller = runs_in_caller;
  return traits;
}
const pjrt::Traits kCpu = InCaller(true);

TEST(IssuesAtOnce, SmallProgramsRunInPlace) {
  EXPECT_TRUE(IssuesAtOnce(Info(limits::kRunInPlaceBytesMax), kCpu));
  EXPECT_FALSE(IssuesAtOnce(Info(limits::kRunInPlaceBytesMax + 1), kCpu));
  EXPECT_FALSE(IssuesAtOnce(Info(int64_t{1} << 62), kCpu));
  ExecutableInfo scratch = Info(limits::kRunInPlaceBytesMax);
  scratch.set_temp_bytes_per_device(1);
  EXPECT_FALSE(IssuesAtOnce(scratch, kCpu));
  EXPECT_FALSE(IssuesAtOnce(Info(8), InCaller(false)));
}

// However small, these can run for long, and the CPU plugin might do that in the thread that launches them.
TEST(IssuesAtOnce, NotWhatMayTakeLong) {
  ExecutableInfo loop = Info(8), call = Info(8), gang = Info(8);
  loop.set_has_loops(true);
  call.add_custom_call_targets("anything");
  gang.set_num_devices(2);
  EXPECT_FALSE(IssuesAtOnce(loop, kCpu));
  EXPECT_FALSE(IssuesAtOnce(call, kCpu));
  EXPECT_FALSE(IssuesAtOnce(gang, kCpu));
}

TEST(IssuesAtOnce, LargeProgramsRunOnThePluginsThreads) {
  ExecutableInfo large = Info(int64_t{1} << 40, limits::kCpuPluginThreadsFlops);
  large.set_has_loops(true);
  large.add_custom_call_targets("anything");
  EXPECT_TRUE(IssuesAtOnce(large, kCpu));
  while (large.parameters_size() <= limits::kIssueInPlaceArgumentsMax) large.add_parameters();
  EXPECT_FALSE(IssuesAtOnce(large, kCpu));
  EXPECT_FALSE(IssuesAtOnce(Info(int64_t{1} << 40, limits::kCpuPluginThreadsFlops - 1), kCpu));
}

}  // namespace
}  // namespace landbridge
