// What is not the CPU plugin's: options by platform, and a plugin that looks like one for GPUs (testing/gpu_like_plugin.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "pjrt/client.h"
#include "pjrt/client_options.h"
#include "pjrt/key_value_store.h"
#include "pjrt/test_support.h"
#include "pjrt/topology.h"

namespace landbridge::pjrt {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Refusal(const std::string& option) { return std::string(ParsePluginOptions({option}).status().message()); }

TEST(PluginOptions, HaveTheTypesThatPluginsWant) {
  const AttributeMap options = Value(
      ParsePluginOptions({"memory_fraction=1", "visible_devices=3", "preallocate=false", "allocator=7", "new_int=-4",
                          "new_float=2.5", "new_bool=true", "new_text=a=b", "told:ints=1,2", "told_too:string=12"}));
  EXPECT_EQ(options.at("memory_fraction"), Attribute(1.0f));
  EXPECT_EQ(options.at("visible_devices"), Attribute(std::vector<int64_t>{3}));
  EXPECT_EQ(options.at("preallocate"), Attribute(false));
  EXPECT_EQ(options.at("allocator"), Attribute(std::string("7")));
  EXPECT_EQ(options.at("new_int"), Attribute(int64_t{-4}));
  EXPECT_EQ(options.at("new_float"), Attribute(2.5f));
  EXPECT_EQ(options.at("new_bool"), Attribute(true));
  EXPECT_EQ(options.at("new_text"), Attribute(std::string("a=b")));
  EXPECT_EQ(options.at("told"), Attribute(std::vector<int64_t>{1, 2}));
  EXPECT_EQ(options.at("told_too"), Attribute(std::string("12")));
  EXPECT_THAT(Refusal("preallocate=yes"), HasSubstr("preallocate: it takes true or false, not \"yes\""));
  EXPECT_THAT(Refusal("visible_devices=0,x"), HasSubstr("whole numbers"));
  EXPECT_THAT(Refusal("x:list=1"), HasSubstr("the type is string, int, ints, float or bool"));
  EXPECT_THAT(Refusal("nothing"), HasSubstr("NAME=VALUE"));
  EXPECT_THAT(ParsePluginOptions({"a=1", "a=2"}).status().message(), HasSubstr("twice"));
}

TEST(PluginOptions, ThePlaceInAGroupIsNotTheUsers) {
  Traits gpu, tpu;
  gpu.joins_processes = true;
  tpu.joins_by_environment = true;
  const AttributeMap user = {{"memory_fraction", 0.5f}};
  const AttributeMap made = Value(MakeClientOptions(gpu, 8, user, GroupPlace{1, 2}));
  EXPECT_EQ(made, (AttributeMap{{"memory_fraction", 0.5f}, {"node_id", int64_t{1}}, {"num_nodes", int64_t{2}}}));
  EXPECT_EQ(Value(MakeClientOptions(tpu, 4, {}, GroupPlace{1, 2})), AttributeMap());
  EXPECT_THAT(MakeClientOptions(gpu, 8, {{"node_id", int64_t{0}}}, GroupPlace{1, 2}).status().message(),
              HasSubstr("node_id: the workers of a slice agree on it"));
  // Who only compiles leaves the memory to others.
  const AttributeMap compiles = MakeCompileClientOptions(gpu, 8, 2, user);
  EXPECT_EQ(compiles.at("preallocate"), Attribute(false));
  EXPECT_EQ(compiles.count("memory_fraction"), 0u);
  EXPECT_EQ(compiles.at("enable_mock_nccl"), Attribute(true));
}

// Fails all, or waits.
class TestStore : public KeyValueStore {
 public:
  absl::Status Put(absl::string_view key, absl::string_view value) override {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    values_[std::string(key)] = std::string(value);
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> Get(absl::string_view key, DurationNs timeout) override {
    auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !failure_.ok() || values_.contains(std::string(key));
    };
    absl::MutexLock lock(&mutex_);
    longest_ = std::max(longest_, timeout);
    mutex_.Await(absl::Condition(&over));
    if (!failure_.ok()) return failure_;
    return values_[std::string(key)];
  }
  absl::StatusOr<std::string> TryGet(absl::string_view key) override {
    absl::MutexLock lock(&mutex_);
    if (!failure_.ok()) return failure_;
    auto it = values_.find(std::string(key));
    if (it == values_.end()) return absl::NotFoundError("not there");
    return it->second;
  }
  void Fail(absl::Status failure) {
    absl::MutexLock lock(&mutex_);
    failure_ = std::move(failure);
  }
  DurationNs longest() {
    absl::MutexLock lock(&mutex_);
    return longest_;
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::string> values_;
  absl::Status failure_;
  DurationNs longest_ = 0;
};

class GpuLikeTest : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("LANDBRIDGE_TEST_CPU_PLUGIN", TestPluginPath().c_str(), 1);
    ::setenv("LANDBRIDGE_TEST_GPUS", "2", 1);
    PreparePluginEnvironment(2);
    plugin_ = Value(Plugin::Load(LB_GPU_LIKE_PLUGIN));
  }
  absl::StatusOr<std::unique_ptr<Client>> Make(int node, int nodes, KeyValueStore* store) {
    Plugin::ClientOptions options;
    options.options = Value(MakeClientOptions(plugin_->traits(), 2, {}, GroupPlace{node, nodes}));
    return plugin_->CreateClient(options, store);
  }
  std::shared_ptr<Plugin> plugin_;
};

TEST_F(GpuLikeTest, TraitsAreProbed) {
  const Traits& gpu = plugin_->traits();
  EXPECT_EQ(gpu.platform, "cuda");
  EXPECT_EQ(gpu.ffi_platform, "CUDA");
  EXPECT_TRUE(gpu.joins_processes && gpu.has_memory_stats);
  EXPECT_FALSE(gpu.host_memory || gpu.host_handlers || gpu.makes_devices || gpu.runs_in_caller);
  const Traits& cpu = Value(Plugin::Load(TestPluginPath()))->traits();
  EXPECT_EQ(cpu.platform, "cpu");
  EXPECT_EQ(cpu.ffi_platform, "Host");
  EXPECT_TRUE(cpu.host_memory && cpu.host_handlers && cpu.makes_devices && cpu.runs_in_caller);
  EXPECT_FALSE(cpu.joins_processes || cpu.has_memory_stats || cpu.describes_topologies);

  auto refused = plugin_->CreateClient(Plugin::CpuOptions(2));
  EXPECT_THAT(refused.status().message(), HasSubstr("cpu_device_count"));
  auto client = Value(plugin_->CreateClient({}));
  EXPECT_EQ(client->devices().size(), 2u);
  EXPECT_EQ(Value(client->MemoryLimitBytes(client->devices()[0])), int64_t{1} << 30);
  EXPECT_EQ(client->devices()[0].FindMemory("unpinned_host"), nullptr);
  EXPECT_NE(client->devices()[0].FindMemory("pinned_host"), nullptr);
  EXPECT_EQ(Topology::Create(plugin_, "any", {}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(GpuLikeTest, ClientsOfTwoProcessesBecomeOne) {
  TestStore store;
  absl::StatusOr<std::unique_ptr<Client>> made[2];
  std::thread other([&] { made[1] = Make(1, 2, &store); });
  made[0] = Make(0, 2, &store);
  other.join();
  for (int node : {0, 1}) {
    ASSERT_TRUE(made[node].ok()) << made[node].status();
    const Client& client = **made[node];
    EXPECT_EQ(client.process_index(), node);
    EXPECT_THAT(client.global_device_ids(), ElementsAre(0, 1, 2, 3));
    ASSERT_EQ(client.devices().size(), 2u);
    EXPECT_EQ(client.devices()[0].id, 2 * node);
  }
  EXPECT_EQ(store.longest(), 300 * kSecond) << "the plugin's own limits arrive";
}

TEST_F(GpuLikeTest, AFailureOfTheStoreIsTheClients) {
  TestStore store;
  absl::StatusOr<std::unique_ptr<Client>> made;
  std::thread waits([&] { made = Make(0, 2, &store); });
  store.Fail(absl::UnavailableError("the formation has ended"));
  waits.join();
  EXPECT_EQ(made.status().code(), absl::StatusCode::kUnavailable) << made.status();
  EXPECT_THAT(made.status().message(), HasSubstr("the formation has ended"));
}

}  // namespace
}  // namespace landbridge::pjrt
