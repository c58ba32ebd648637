#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "env/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/shell/worker_process_test_util.h"

namespace landbridge {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

// Adds two arrays of `rows` by 16 floats, sharded by rows over four devices.
std::string AddProgram(int rows) {
  return absl::StrCat(R"(
module @jit_add attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  sdy.mesh @mesh = <["d"=4]>
  func.func public @main(%arg0: tensor<)",
                      rows, R"(x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>},
                         %arg1: tensor<)",
                      rows, R"(x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>})
      -> (tensor<)",
                      rows, R"(x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"d"}, {}]>}) {
    %0 = stablehlo.add %arg0, %arg1 : tensor<)",
                      rows, R"(x16xf32>
    return %0 : tensor<)",
                      rows, R"(x16xf32>
  }
})");
}

TEST_F(WorkerProcessTest, AddsOnFourDevicesAndGivesEverythingBack) {
  StartAll();
  EXPECT_EQ(info_.device_count(), kDevices);
  EXPECT_EQ(*ReadFile(port_file_), worker_->control_address() + "\n");
  for (const bool large : {false, true}) {
    const int rows = large ? 8192 : 64;  // a shard of 128 KiB is pulled, one of 1 KiB rides along
    const std::vector<int64_t> dims = {rows / kDevices, 16};
    const size_t count = static_cast<size_t>(dims[0] * dims[1]);
    const uint64_t base = large ? 100 : 10;
    const uint64_t executable = Load(AddProgram(rows), kDevices, /*by_pull=*/large);
    for (uint32_t shard = 0; shard < kDevices; ++shard) {
      UploadShard(base, shard, shard, Ramp(count, static_cast<float>(shard)), dims);
      UploadShard(base + 1, shard, shard, Ramp(count, 10.0f * static_cast<float>(shard)), dims);
    }
    const uint64_t ticket = LaunchOp(executable, kDevices, {base, base + 1}, base + 2);
    Send();
    for (uint32_t shard = 0; shard < kDevices; ++shard) {
      auto values = ReadShard(base + 2, shard, dims);
      ASSERT_TRUE(values.ok()) << values.status();
      std::vector<float> want = Ramp(count, static_cast<float>(shard));
      const std::vector<float> other = Ramp(count, 10.0f * static_cast<float>(shard));
      for (size_t i = 0; i < count; ++i) want[i] += other[i];
      EXPECT_EQ(*values, want) << "shard " << shard << (large ? ", large" : ", small");
    }
    EXPECT_TRUE(loads_.at(executable).ok());
    EXPECT_TRUE(RunUntil([&] { return done_.contains(ticket); }));
    for (uint64_t array : {base, base + 1, base + 2}) Delete(array);
    WorkerOp unload;
    unload.mutable_unload()->set_executable(executable);
    Push(unload);
    Send();
  }
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse() << " bytes in use";
  EXPECT_TRUE(failed_.empty());
}

TEST_F(WorkerProcessTest, ADonatedLoopOfAThousandSteps) {
  StartAll();
  const uint64_t executable = Load(kIncrementProgram, 1);
  UploadShard(1, 0, 0, std::vector<float>(64, 5.0f), {64});
  const int kSteps = 1000;
  const TimeNs start = loop_.Now();
  for (int i = 0; i < kSteps; ++i) {
    LaunchOp(executable, 1, {static_cast<uint64_t>(1 + i)}, static_cast<uint64_t>(2 + i), /*donate=*/true);
  }
  const uint64_t last = last_ticket_;
  Send();
  auto values = ReadShard(1 + kSteps, 0, {64});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_THAT(*values, Each(5.0f + kSteps));
  EXPECT_TRUE(RunUntil([&] { return done_.contains(last); }));
  std::printf("1000 donated steps: %.1f us each\n", static_cast<double>(loop_.Now() - start) / kSteps / 1000);
  // The donated ones are gone with their launches; one buffer of 64 floats is left.
  heartbeat_.Clear();
  EXPECT_TRUE(RunUntil([&] { return heartbeat_.devices_size() > 0 && BytesInUse() < 1024; }));
  Delete(1 + kSteps);
  Send();
  EXPECT_TRUE(WaitForNoBytes()) << BytesInUse();
}

TEST_F(WorkerProcessTest, APoisonedUploadPoisonsWhatDependsOnIt) {
  StartAll();
  const uint64_t executable = Load(pjrt::kAddProgram, 1);
  UploadShard(1, 0, 0, {1, 2, 3, 4}, {4});
  WorkerOp op;  // array 2: its bytes never come
  Upload& upload = *op.mutable_upload();
  upload.set_ticket(++last_ticket_);
  Target& target = *upload.add_targets();
  target.mutable_ref()->set_array(2);
  upload.set_dtype(static_cast<int>(DType::kF32));
  upload.add_dims(4);
  upload.set_image_bytes(16);
  upload.set_key(77);
  Push(op);
  LaunchOp(executable, 1, {1, 2}, 3);
  LaunchOp(executable, 1, {3, 1}, 4);
  WorkerOp data;
  data.mutable_upload_data()->set_key(77);
  data.mutable_upload_data()->mutable_error()->set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
  data.mutable_upload_data()->mutable_error()->set_message("no room for the client's bytes");
  Push(data);
  Send();
  for (uint64_t array : {2, 3, 4}) {
    auto values = ReadShard(array, 0, {4});
    EXPECT_EQ(values.status().code(), absl::StatusCode::kResourceExhausted) << array;
    EXPECT_THAT(std::string(values.status().message()), HasSubstr("no room for the client's bytes")) << array;
  }
  auto values = ReadShard(1, 0, {4});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(WorkerProcessTest, TheLimitOfADeviceIsResourceExhaustedAndTheWorkerLives) {
  StartAll(/*device_memory_limit=*/1 << 20);
  const std::vector<int64_t> big = {1 << 19};  // 2 MiB
  UploadShard(1, 0, 0, Ramp(1 << 19, 0), big);
  Send();
  auto values = ReadShard(1, 0, big);
  EXPECT_EQ(values.status().code(), absl::StatusCode::kResourceExhausted) << values.status();
  // It goes on.
  UploadShard(2, 0, 1, {1, 2, 3}, {3});
  Send();
  values = ReadShard(2, 0, {3});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{1, 2, 3}));
}

TEST_F(WorkerProcessTest, ADamagedProgramIsRefusedAndItsOutputsPoisoned) {
  StartAll();
  WorkerOp op;
  op.mutable_load()->set_executable(5);
  op.mutable_load()->set_size(100);
  op.mutable_load()->set_inline_envelope(std::string(100, 'x'));
  op.mutable_load()->set_sha256(Sha256Raw("something else"));
  op.mutable_load()->mutable_info()->set_num_devices(1);
  op.mutable_load()->mutable_info()->set_portable(true);
  Push(op);
  Send();
  ASSERT_TRUE(RunUntil([&] { return loads_.contains(5); }));
  EXPECT_EQ(loads_[5].code(), absl::StatusCode::kInvalidArgument) << loads_[5];
  EXPECT_THAT(std::string(loads_[5].message()), HasSubstr("checksum"));
}

TEST_F(WorkerProcessTest, ABrokenStreamIsResumedAndNothingIsAppliedTwice) {
  StartAll();
  const uint64_t executable = Load(pjrt::kDonateProgram, 1);
  const std::vector<float> x = Ramp(4096, 1);
  UploadShard(1, 0, 0, x, {4096});
  Send();
  ASSERT_TRUE(ReadShard(1, 0, {4096}).ok());
  for (int i = 0; i < 20; ++i) {
    LaunchOp(executable, 1, {static_cast<uint64_t>(1 + i)}, static_cast<uint64_t>(2 + i), true);
    if (i % 10 == 5) {
      Send();
      // A gap in the numbers: the worker closes the connection, and the proxy comes back on a new one.
      const int resumed = resumed_;
      agent_->SendControl(member_, JoinControlFrame(1'000'000, stream_.applied_reports(), kControlFrameOps,
                                                    {WorkerOp().SerializeAsString()}, ""));
      ASSERT_TRUE(RunUntil([&] { return resumed_ > resumed; }));
    }
  }
  Send();
  EXPECT_EQ(resumed_, 3);
  auto values = ReadShard(21, 0, {4096});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ((*values)[3], x[3] * std::pow(2.0f, 20.0f));
}

TEST_F(WorkerProcessTest, DrainsWhenAskedAndEndsWhenTheHolderLeaves) {
  StartAll();
  worker_->Drain("a test");
  ASSERT_TRUE(RunUntil([&] { return !draining_.empty(); }));
  EXPECT_EQ(draining_, "a test");
  EXPECT_FALSE(stopped_.has_value()) << "a holder is still here";
  agent_->Leave();
  ASSERT_TRUE(RunUntil([&] { return stopped_.has_value(); }));
  EXPECT_TRUE(stopped_->ok()) << *stopped_;
}

TEST_F(WorkerProcessTest, ALostHolderIsFencedAndTheNextOneServed) {
  StartAll();
  const uint64_t executable = Load(pjrt::kAddProgram, 1);
  UploadShard(1, 0, 0, {1, 2, 3, 4}, {4});
  LaunchOp(executable, 1, {1, 1}, 2);
  Send();
  ASSERT_TRUE(ReadShard(2, 0, {4}).ok());
  // An upload whose bytes never come must not keep the slice.
  WorkerOp endless;
  Upload& upload = *endless.mutable_upload();
  upload.set_ticket(++last_ticket_);
  upload.add_targets()->mutable_ref()->set_array(50);
  upload.set_dtype(static_cast<int>(DType::kF32));
  upload.add_dims(1 << 20);
  upload.set_image_bytes(4 << 20);
  upload.set_key(4711);
  upload.set_pulled(true);
  Push(endless);
  Send();
  ASSERT_TRUE(RunUntil([&] { return BytesInUse() >= 4 << 20; }));
  // The proxy falls silent; another one asks for the slice.
  agent_.reset();
  std::unique_ptr<dataplane::DataPlane> old_plane = std::move(plane_);
  flowing_ = false;
  stream_ = WorkerStream();
  StartHolder();
  ASSERT_TRUE(RunUntil([&] { return flowing_; }));
  // Nothing of the old holder is left, and array ids start anew.
  heartbeat_.Clear();
  ASSERT_TRUE(RunUntil([&] { return heartbeat_.devices_size() > 0; }));
  EXPECT_EQ(BytesInUse(), 0);
  UploadShard(1, 0, 0, {7, 8}, {2});
  Send();
  auto values = ReadShard(1, 0, {2});
  ASSERT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(*values, (std::vector<float>{7, 8}));
  old_plane->Shutdown();
}

TEST_F(WorkerProcessTest, ShutdownWaitsForWhatRuns) {
  StartAll();
  const uint64_t executable = Load(pjrt::CustomCallProgram(pjrt::kVirtualComputeTarget, 400'000), 1);
  UploadShard(1, 0, 0, Ramp(2048, 0), {2048});
  LaunchOp(executable, 1, {1}, 2);
  Send();
  ASSERT_TRUE(RunUntil([] { return pjrt::VirtualComputePending() > 0; }));
  EXPECT_TRUE(worker_->Shutdown(30 * kSecond));
  EXPECT_EQ(pjrt::VirtualComputePending(), 0);
}

TEST(WorkerProcessStart, AMissingPluginIsSaid) {
  Loop loop;
  WorkerOptions options;
  options.resource_manager_address = "127.0.0.1:1";
  options.plugin_path = "/nowhere/plugin.so";
  auto worker = WorkerProcess::Start(&loop, options, [](const absl::Status&) {});
  EXPECT_EQ(worker.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(worker.status().message()), HasSubstr("/nowhere/plugin.so"));
}

}  // namespace
}  // namespace landbridge
