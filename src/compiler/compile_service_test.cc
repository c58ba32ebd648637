#include "compiler/compile_service.h"

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/dtype.h"
#include "base/sha256.h"
#include "collectives/collective_handler.h"
#include "collectives/engine_test_util.h"
#include "compiler/compile_service_test_util.h"
#include "compiler/load.h"
#include "compiler/program_text.h"
#include "custom_calls/handler_supply.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "pjrt/client.h"
#include "pjrt/test_support.h"
#include "pjrt/virtual_compute.h"
#include "proto/xla/hlo.pb.h"

namespace landbridge {
namespace {

using pjrt::Buffer;
using pjrt::HostSemantics;
using pjrt::Value;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

TEST_F(CompileServiceTest, OneDeviceProgramRunsAnywhere) {
  auto program = Value(CompileNow(*service_, Request(pjrt::kAddProgram)));
  const ExecutableInfo& info = program->info;
  EXPECT_EQ(info.name(), "jit_add");
  EXPECT_EQ(info.num_devices(), 1);
  EXPECT_TRUE(info.portable());
  ASSERT_EQ(info.parameters_size(), 2);
  EXPECT_EQ(info.parameters(1).dtype(), static_cast<int>(DType::kF32));
  EXPECT_THAT(info.parameters(1).device_dims(), ElementsAre(4));
  EXPECT_EQ(info.parameters(1).device_bytes(), 16);
  EXPECT_EQ(info.parameters(1).memory_kind(), "device");
  EXPECT_FALSE(info.parameters(0).has_sharding());
  ASSERT_EQ(info.outputs_size(), 1);
  EXPECT_THAT(info.outputs(0).global_dims(), ElementsAre(4));
  EXPECT_THAT(info.outputs(0).layout().minor_to_major(), ElementsAre(0));
  EXPECT_EQ(info.donated_parameters_size(), 0);
  EXPECT_FALSE(info.can_fail_on_one_shard());
  EXPECT_FALSE(info.has_side_effects());
  EXPECT_FALSE(info.has_collectives());
  EXPECT_EQ(info.memory_stats().argument_size_in_bytes(), 32);
  EXPECT_EQ(program->envelope_sha256, Sha256Raw(program->envelope));

  LoadedProgram loaded = Value(LoadEnvelope(*client_, program->envelope, {}));
  for (size_t d : {0u, 3u}) {
    Buffer a = Upload({1, 2, 3, 4}, d);
    Buffer b = Upload({10, 20, 30, 40}, d);
    Buffer* arguments[] = {&a, &b};
    auto result =
        Value(loaded.executable->ExecuteOnDevice(client_->devices()[d].handle, arguments, {.launch_id = NextLaunch()}));
    EXPECT_THAT(Download(result.outputs[0]), ElementsAre(11, 22, 33, 44));
  }
}

TEST_F(CompileServiceTest, MatmulHasFlops) {
  auto program = Value(CompileNow(*service_, Request(pjrt::kMatmulProgram)));
  EXPECT_EQ(program->info.flops_per_device(), 2.0 * 2 * 2 * 3);
  LoadedProgram loaded = Value(LoadEnvelope(*client_, program->envelope, {}));
  const float a[6] = {1, 2, 3, 4, 5, 6};
  const float b[6] = {1, 0, 0, 1, 1, 1};
  const pjrt::Memory& memory = *client_->devices()[0].default_memory;
  auto left = Value(client_->BufferFromHost(a, DType::kF32, {2, 3}, {}, memory, HostSemantics::kOnlyDuringCall));
  auto right = Value(client_->BufferFromHost(b, DType::kF32, {3, 2}, {}, memory, HostSemantics::kOnlyDuringCall));
  Buffer* arguments[] = {&left.buffer, &right.buffer};
  auto result =
      Value(loaded.executable->ExecuteOnDevice(client_->devices()[0].handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_THAT(Download(result.outputs[0]), ElementsAre(4, 5, 10, 11));
}

TEST_F(CompileServiceTest, FourDevicesInAnyOrder) {
  auto program = Value(CompileNow(*service_, Request(pjrt::kPsumProgram, 4)));
  EXPECT_EQ(program->info.num_devices(), 4);
  EXPECT_FALSE(program->info.portable());
  EXPECT_TRUE(program->info.has_collectives());
  EXPECT_THAT(program->info.collectives(), ElementsAre("all-reduce"));
  for (const std::vector<int>& order : {std::vector<int>{0, 1, 2, 3}, std::vector<int>{2, 0, 3, 1}}) {
    LoadedProgram loaded = Value(LoadEnvelope(*client_, program->envelope, order));
    EXPECT_EQ(loaded.executable->device_ids(), order);
    std::vector<Buffer> shards;
    std::vector<Buffer*> pointers;
    std::vector<absl::Span<Buffer* const>> lists;
    for (size_t i = 0; i < 4; ++i) {
      shards.push_back(
          Upload({static_cast<float>(2 * i), static_cast<float>(2 * i + 1)}, static_cast<size_t>(order[i])));
    }
    for (Buffer& shard : shards) pointers.push_back(&shard);
    for (size_t i = 0; i < 4; ++i) lists.push_back(absl::MakeConstSpan(&pointers[i], 1));
    for (auto& result : Value(loaded.executable->ExecuteAll(lists, {.launch_id = NextLaunch()}))) {
      EXPECT_THAT(Download(result.outputs[0]), ElementsAre(12, 16));
    }
  }
}

TEST_F(CompileServiceTest, ShardingsAndGlobalShapes) {
  auto program = Value(CompileNow(*service_, Request(pjrt::kShardedProgram, 4)));
  const ExecutableInfo& info = program->info;
  ASSERT_EQ(info.parameters_size(), 1);
  EXPECT_THAT(info.parameters(0).device_dims(), ElementsAre(2));
  EXPECT_THAT(info.parameters(0).global_dims(), ElementsAre(8));
  EXPECT_EQ(info.parameters(0).sharding().type(), xla::OpSharding::OTHER);
  EXPECT_THAT(info.parameters(0).sharding().tile_assignment_dimensions(), ElementsAre(4));
  ASSERT_EQ(info.outputs_size(), 2);
  EXPECT_THAT(info.outputs(0).global_dims(), ElementsAre(8));
  EXPECT_EQ(info.outputs(0).sharding().type(), xla::OpSharding::OTHER);
  EXPECT_EQ(info.outputs(1).sharding().type(), xla::OpSharding::REPLICATED);
  EXPECT_EQ(info.outputs(1).global_dims_size(), 0);
  EXPECT_EQ(info.outputs(1).device_bytes(), 4);
}

TEST_F(CompileServiceTest, ShardyModuleWithoutTheFlag) {
  CompileRequest request = Request(pjrt::kPsumProgram, 4);
  auto options = pjrt::TestCompileOptions(4);
  options.mutable_executable_build_options()->set_use_shardy_partitioner(false);
  request.compile_options = options.SerializeAsString();
  EXPECT_TRUE(Value(CompileNow(*service_, std::move(request)))->info.has_collectives());
}

TEST_F(CompileServiceTest, DonationIsKnownAndHappens) {
  auto program = Value(CompileNow(*service_, Request(pjrt::kDonateProgram)));
  EXPECT_THAT(program->info.donated_parameters(), ElementsAre(0));
  LoadedProgram loaded = Value(LoadEnvelope(*client_, program->envelope, {1}));
  Buffer input = Upload(std::vector<float>(4096, 3.0f), 1);
  Buffer* arguments[] = {&input};
  auto result =
      Value(loaded.executable->ExecuteOnDevice(client_->devices()[1].handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_EQ(Download(result.outputs[0])[17], 6.0f);
  EXPECT_TRUE(input.IsDeleted());
}

TEST_F(CompileServiceTest, MoreDevicesThanTheWarmClientHas) {
  std::string program = absl::StrReplaceAll(
      pjrt::kShardedProgram,
      {{"num_partitions = 4", "num_partitions = 16"}, {"\"d\"=4", "\"d\"=16"}, {"8xf32", "32xf32"}});
  auto result = Value(CompileNow(*service_, Request(program, 16)));
  EXPECT_EQ(result->info.num_devices(), 16);
  EXPECT_EQ(LoadEnvelope(*client_, result->envelope, {0, 1, 2, 3}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CompileServiceTest, LoadRefusesBadPlacements) {
  auto program = Value(CompileNow(*service_, Request(pjrt::kPsumProgram, 4)));
  for (const std::vector<int>& bad :
       {std::vector<int>{}, {0, 1, 2}, {0, 1, 2, 2}, {0, 1, 2, 4}, {-1, 0, 1, 2}, {0, 1, 2, 3, 0}}) {
    auto loaded = LoadEnvelope(*client_, program->envelope, bad);
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("jit_psum"));
  }
  std::string corrupt = program->envelope;
  corrupt[corrupt.size() / 2] = static_cast<char>(corrupt[corrupt.size() / 2] ^ 0x10);
  EXPECT_EQ(LoadEnvelope(*client_, corrupt, {0, 1, 2, 3}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadEnvelope(*client_, corrupt.substr(0, 100), {0, 1, 2, 3}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CompileServiceTest, UserErrors) {
  auto garbage = CompileNow(*service_, Request("this is no program"));
  EXPECT_EQ(garbage.status().code(), absl::StatusCode::kInvalidArgument);
  auto target = CompileNow(*service_, Request(pjrt::CustomCallProgram("nobody_has_this", 1)));
  EXPECT_EQ(target.status().code(), absl::StatusCode::kUnimplemented) << target.status();
  EXPECT_THAT(std::string(target.status().message()), HasSubstr("'nobody_has_this'"));
  for (const auto& status : {garbage.status(), target.status()}) {
    for (const char* word : {"INTERNAL", "NOT_FOUND", "DATA_LOSS", "DEADLINE_EXCEEDED"}) {
      EXPECT_FALSE(absl::StrContains(status.message(), word)) << status;
    }
  }
  CompileRequest bad_options = Request(pjrt::kAddProgram);
  bad_options.compile_options = "\xff\xff\xff";
  EXPECT_EQ(CompileNow(*service_, std::move(bad_options)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CompileServiceTest, VirtualComputeCompilesAndShips) {
  ASSERT_TRUE(pjrt::RegisterAndCheckVirtualCompute(*client_).ok());
  auto program = Value(CompileNow(*service_, Request(pjrt::CustomCallProgram(pjrt::kVirtualComputeTarget, 1000))));
  EXPECT_THAT(program->info.custom_call_targets(), ElementsAre(pjrt::kVirtualComputeTarget));
  EXPECT_TRUE(program->info.can_fail_on_one_shard());
  EXPECT_FALSE(program->info.has_side_effects());
  LoadedProgram loaded = Value(LoadEnvelope(*client_, program->envelope, {}));
  Buffer input = Upload(std::vector<float>(2048, 3.0f), 0);
  Buffer* arguments[] = {&input};
  auto result =
      Value(loaded.executable->ExecuteOnDevice(client_->devices()[0].handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_EQ(Download(result.outputs[0])[2047], 6.0f);
}

TEST_F(CompileServiceTest, TargetsOfLibrariesCompileWhereTheLibraryIs) {
  const CompileRequest request = Request(pjrt::CustomCallProgram("TestTriple", 1));
  auto refused = CompileNow(*service_, request);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()), AllOf(HasSubstr("'TestTriple'"), HasSubstr("--ffi_library")));

  CompileServiceOptions options = ServiceOptions();
  options.ffi_libraries = LB_TEST_HANDLERS;
  auto service = Value(CompileService::Start(options));
  auto program = Value(CompileNow(*service, request));
  EXPECT_THAT(program->info.custom_call_targets(), ElementsAre("TestTriple"));
  auto missing = LoadEnvelope(*client_, program->envelope, {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("'TestTriple'"));
  auto supply = Value(HandlerSupply::Create(client_, {Value(ParseFfiLibraries(LB_TEST_HANDLERS)), ""}));
  ASSERT_TRUE(supply->Supply({"TestTriple"}).ok());
  LoadedProgram loaded = Value(LoadEnvelope(*client_, program->envelope, {}));
  Buffer input = Upload(std::vector<float>(2048, 5.0f), 0);
  Buffer* arguments[] = {&input};
  auto result =
      Value(loaded.executable->ExecuteOnDevice(client_->devices()[0].handle, arguments, {.launch_id = NextLaunch()}));
  EXPECT_EQ(Download(result.outputs[0])[2047], 30.0f);  // and twice, by the program itself

  options.ffi_libraries = absl::StrCat(LB_TEST_HANDLERS, ":triple=NoSuchSymbol");
  auto broken = CompileNow(*Value(CompileService::Start(options)), Request(pjrt::kAddProgram));
  EXPECT_EQ(broken.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr("NoSuchSymbol"));
}

TEST_F(CompileServiceTest, CacheAndJoining) {
  auto service = Value(CompileService::Start(ServiceOptions()));
  constexpr int kCallers = 8;
  std::vector<std::promise<CompileResult>> promises(kCallers);
  for (int i = 0; i < kCallers; ++i) {
    CompileRequest request = Request(pjrt::kPsumProgram, 4);
    // Other devices each time: they do not count.
    xla::CompileOptionsProto options = pjrt::TestCompileOptions(4);
    options.mutable_executable_build_options()
        ->mutable_device_assignment()
        ->mutable_computation_devices(0)
        ->set_replica_device_ids(0, 100 + i);
    request.compile_options = options.SerializeAsString();
    service->Compile(std::move(request),
                     [&, i](CompileResult result) { promises[static_cast<size_t>(i)].set_value(std::move(result)); });
  }
  std::set<const CompiledProgram*> distinct;
  for (auto& promise : promises) distinct.insert(Value(promise.get_future().get()).get());
  // Kept alive by the cache, so equal addresses mean equal objects.
  EXPECT_EQ(distinct.size(), 1u);
  EXPECT_EQ(service->Stats().compiles, 1u);
  EXPECT_EQ(service->Stats().cache_hits, 7u);
  EXPECT_GT(service->Stats().cache_bytes, 0u);
  Value(CompileNow(*service, Request(pjrt::kPsumProgram, 4)));
  EXPECT_EQ(service->Stats().compiles, 1u);
}

// Its bytes are hashed and copied by a thread of the service: the call returns at once, and the answer comes there.
TEST_F(CompileServiceTest, LargeProgramsAreHandledElsewhere) {
  auto service = Value(CompileService::Start(ServiceOptions()));
  CompileRequest large = Request(absl::StrCat(pjrt::kAddProgram, "// ", std::string(8 << 20, 'x')));
  std::promise<std::thread::id> refused;
  large.test_fault = "no such fault";  // the child refuses it: the answer needs no compile
  service->Compile(large, [&](CompileResult) { refused.set_value(std::this_thread::get_id()); });
  EXPECT_NE(refused.get_future().get(), std::this_thread::get_id());
  large.test_fault.clear();
  auto program = Value(CompileNow(*service, large));
  EXPECT_EQ(program->info.name(), "jit_add");
  const uint64_t compiles = service->Stats().compiles;
  // A second time it is found, there too.
  std::promise<std::thread::id> found;
  service->Compile(large, [&](CompileResult result) {
    EXPECT_EQ(Value(std::move(result)), program);
    found.set_value(std::this_thread::get_id());
  });
  EXPECT_NE(found.get_future().get(), std::this_thread::get_id());
  EXPECT_EQ(service->Stats().compiles, compiles);
  // What has not begun when the service ends is told so.
  std::promise<absl::Status> closed;
  service->Compile(large, [&](CompileResult result) { closed.set_value(result.status()); });
  service.reset();
  const absl::Status end = closed.get_future().get();
  EXPECT_TRUE(end.ok() || absl::IsFailedPrecondition(end)) << end;
}

TEST_F(CompileServiceTest, TellsTheOptimisedProgram) {
  auto program = Value(CompileNow(*service_, Request(pjrt::kAddProgram)));
  auto fetch = [&](const std::string& envelope, OptimisedForm form = OptimisedForm::kModule) {
    std::promise<absl::StatusOr<std::string>> promise;
    service_->FetchOptimisedProgram(std::make_shared<const std::string>(envelope), Sha256Raw(envelope), form,
                                    [&](absl::StatusOr<std::string> text) { promise.set_value(std::move(text)); });
    return promise.get_future().get();
  };
  xla::HloModuleProto module;
  ASSERT_TRUE(module.ParseFromString(Value(fetch(program->envelope))));
  EXPECT_EQ(module.name(), "jit_add");
  EXPECT_EQ(module.host_program_shape().parameters_size(), 2);
  EXPECT_EQ(module.host_program_shape().result().dimensions(0), 4);
  std::string damaged = program->envelope;
  damaged.back() ^= 1;
  EXPECT_EQ(fetch(damaged).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string text = Value(fetch(program->envelope, OptimisedForm::kText));
  EXPECT_THAT(text, AllOf(StartsWith("HloModule jit_add, "), HasSubstr("ENTRY %main"), HasSubstr(" = f32[4]{0} add(")));
}

TEST_F(CompileServiceTest, TellsHowMarkedValuesWouldBeDivided) {
  auto ask = [&](const std::string& program, int partitions) {
    std::promise<absl::StatusOr<std::string>> promise;
    service_->AskShardings(Request(program, partitions),
                           [&](absl::StatusOr<std::string> answer) { promise.set_value(std::move(answer)); });
    return promise.get_future().get();
  };
  const std::string program = absl::StrReplaceAll(
      pjrt::kPsumProgram,
      {{"return %0", R"("stablehlo.custom_call"(%0) {call_target_name = "landbridge_inspect_sharding",
      has_side_effect = true, backend_config = "a \"name\""} : (tensor<2xf32>) -> ()
      "stablehlo.custom_call"(%arg0) {call_target_name = "landbridge_inspect_sharding", has_side_effect = true,
      backend_config = "argument"} : (tensor<8xf32>) -> ()
      return %0)"}});
  const uint64_t compiles = service_->Stats().compiles;
  const auto answer = nlohmann::json::parse(Value(ask(program, 4)));
  std::map<std::string, xla::OpSharding> found;
  for (const auto& one : answer["shardings"]) {
    std::string bytes;
    ASSERT_TRUE(absl::Base64Unescape(one[1].get<std::string>(), &bytes));
    ASSERT_TRUE(found[one[0].get<std::string>()].ParseFromString(bytes));
  }
  ASSERT_THAT(found, testing::SizeIs(2));
  EXPECT_EQ(found["a \"name\""].type(), xla::OpSharding::REPLICATED);
  EXPECT_EQ(found["argument"].type(), xla::OpSharding::OTHER);
  EXPECT_THAT(found["argument"].tile_assignment_dimensions(), ElementsAre(4));
  EXPECT_EQ(service_->Stats().compiles, compiles);  // nothing to keep
  EXPECT_EQ(ask("nonsense", 4).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ask(pjrt::kAddProgram, 1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ProgramTextTest, SaysWhatIsMissing) {
  EXPECT_EQ(ProgramText("no module", pjrt::TestPluginPath()).status().code(), absl::StatusCode::kUnimplemented);
  const char* python = std::getenv("LANDBRIDGE_PYTHON");
  const std::string before = python == nullptr ? "" : python;
  ::setenv("LANDBRIDGE_PYTHON", "/no/such/python", 1);
  const absl::Status none = ProgramText("", "").status();
  python == nullptr ? ::unsetenv("LANDBRIDGE_PYTHON") : ::setenv("LANDBRIDGE_PYTHON", before.c_str(), 1);
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(none.message()),
              AllOf(HasSubstr("/no/such/python (there is no such program)"), HasSubstr("pip install jaxlib")));
}

// What one service has compiled, the next finds on disk; what nobody should trust is compiled again.
TEST_F(CompileServiceTest, TheNextServiceFindsItOnDisk) {
  std::string folder = absl::StrCat(testing::TempDir(), "/compile_cache.XXXXXX");
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  CompileServiceOptions options = ServiceOptions();
  options.disk_cache_folder = folder;
  const std::vector<CompileRequest> requests = {Request(pjrt::kAddProgram), Request(pjrt::kPsumProgram, 4)};
  std::vector<std::string> compiled;
  {
    auto service = Value(CompileService::Start(options));
    for (const CompileRequest& request : requests) compiled.push_back(Value(CompileNow(*service, request))->envelope);
    EXPECT_EQ(CompileNow(*service, Request("nonsense")).status().code(), absl::StatusCode::kInvalidArgument);
    CompileRequest fault = Request(pjrt::kMatmulProgram);
    fault.test_fault = "abort";
    EXPECT_FALSE(CompileNow(*service, fault).ok());
    EXPECT_EQ(service->Stats().disk.misses, 3u);
  }
  {
    auto service = Value(CompileService::Start(options));
    for (size_t i = 0; i < requests.size(); ++i) {
      auto program = Value(CompileNow(*service, requests[i]));
      EXPECT_EQ(program->envelope, compiled[i]);
      EXPECT_EQ(Value(CompileNow(*service, requests[i])).get(), program.get());  // now in memory
    }
    // Refusals are not kept on disk.
    EXPECT_FALSE(CompileNow(*service, Request("nonsense")).ok());
    const CompileServiceStats stats = service->Stats();
    EXPECT_EQ(stats.compiles, 1u);
    EXPECT_EQ(stats.cache_hits, 2u);
    EXPECT_EQ(stats.disk.entries, 2u);
    EXPECT_EQ(stats.disk.hits, 2u);
    EXPECT_EQ(stats.disk.misses, 1u);

    LoadedProgram loaded = Value(LoadEnvelope(*client_, Value(CompileNow(*service, requests[0]))->envelope, {}));
    Buffer a = Upload({1, 2, 3, 4}, 2), b = Upload({10, 20, 30, 40}, 2);
    Buffer* arguments[] = {&a, &b};
    auto result =
        Value(loaded.executable->ExecuteOnDevice(client_->devices()[2].handle, arguments, {.launch_id = NextLaunch()}));
    EXPECT_THAT(Download(result.outputs[0]), ElementsAre(11, 22, 33, 44));
  }
  // With other flags for the compiler it is another program.
  options.environment = {"XLA_FLAGS=--xla_cpu_max_isa=SSE4_2"};
  {
    auto service = Value(CompileService::Start(options));
    Value(CompileNow(*service, requests[0]));
    EXPECT_EQ(service->Stats().disk.misses, 1u);
    EXPECT_EQ(service->Stats().compiles, 1u);
  }
  options.environment.clear();
  ASSERT_EQ(::chmod(folder.c_str(), 0777), 0);
  {
    auto service = Value(CompileService::Start(options));
    Value(CompileNow(*service, requests[0]));
    EXPECT_EQ(service->Stats().compiles, 1u);
    EXPECT_THAT(service->Stats().disk.off, HasSubstr("others may write to it"));
  }
}

// Two results, one a sum over all devices, on two workers of two devices each.
TEST_F(CompileServiceTest, SplitProgramsRunOnSeveralWorkers) {
  CompileRequest request = Request(pjrt::kShardedProgram, 4);
  const auto whole = Value(CompileNow(*service_, request));
  request.split = true;
  const auto split = Value(CompileNow(*service_, request));
  EXPECT_NE(split->envelope_sha256, whole->envelope_sha256);
  EXPECT_TRUE(split->info.split());
  EXPECT_FALSE(whole->info.split());
  EXPECT_EQ(split->info.num_devices(), 4);
  ASSERT_EQ(split->info.outputs_size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(split->info.outputs(i).SerializeAsString(), whole->info.outputs(i).SerializeAsString());
  }
  EXPECT_THAT(split->info.collectives(), ElementsAre("all-reduce"));

  LoadedProgram program = Value(LoadEnvelope(*client_, split->envelope, {1, 0}));
  ASSERT_NE(program.collectives, nullptr);
  TestWorkers workers(program.collectives, {0, 0, 1, 1});
  std::vector<CollectiveRegistration> launches;
  for (int w : {0, 1}) {
    absl::flat_hash_map<int32_t, int32_t> devices;
    for (int d : {2 * w, 2 * w + 1}) devices[client_->devices()[static_cast<size_t>(d)].id] = d;
    launches.emplace_back(500 + w, program.collectives, workers.run(w), devices);
  }
  std::vector<std::thread> threads;
  for (int d = 0; d < 4; ++d) {
    threads.emplace_back([&, d] {
      const auto i = static_cast<size_t>(d);
      Buffer input = Upload({static_cast<float>(2 * d), static_cast<float>(2 * d + 1)}, i);
      Buffer* argument = &input;
      auto result = Value(program.executable->ExecuteOnDevice(
          client_->devices()[i].handle, absl::MakeConstSpan(&argument, 1), {.launch_id = 500 + d / 2}));
      EXPECT_TRUE(result.done.Await().ok());
      EXPECT_THAT(Download(result.outputs[0]),
                  ElementsAre(4.0f * static_cast<float>(d), 4.0f * static_cast<float>(d) + 2));
      EXPECT_THAT(Download(result.outputs[1]), ElementsAre(28.0f));
    });
  }
  for (std::thread& thread : threads) thread.join();

  // Of one device: the same as ever.
  request = Request(pjrt::kAddProgram);
  request.split = true;
  EXPECT_FALSE(Value(CompileNow(*service_, request))->info.split());
}

TEST_F(CompileServiceTest, SecondPluginsProgramsAreRefusedHere) {
  std::string path = pjrt::TestSecondPluginPath();
  if (path.empty()) GTEST_SKIP() << "only one CPU plugin is installed";
  CompileServiceOptions options = ServiceOptions();
  options.plugin_path = path;
  auto service = Value(CompileService::Start(options));
  auto program = Value(CompileNow(*service, Request(pjrt::kAddProgram)));
  EXPECT_EQ(program->info.parameters_size(), 2);
  auto loaded = LoadEnvelope(*client_, program->envelope, {});
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("another build of the plugin"));
}

}  // namespace
}  // namespace landbridge
