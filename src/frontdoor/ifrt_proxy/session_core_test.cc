#include "frontdoor/ifrt_proxy/session_core.h"

#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "frontdoor/ifrt_proxy/fake_cluster.h"
#include "frontdoor/ifrt_proxy/wire.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using xla::ifrt::proxy::IfrtRequest;
using xla::ifrt::proxy::IfrtResponse;

constexpr uint64_t kServerHandles = uint64_t{1} << 48;

class FakeHost final : public SessionHost {
 public:
  void Respond(std::unique_ptr<IfrtResponse> response, bool) override {
    const uint64_t op = response->response_metadata().op_id();
    EXPECT_FALSE(responses.contains(op)) << "two responses to " << op;
    order.push_back(op);
    responses[op] = std::move(*response);
  }
  RequestId NewRequestId() override { return RequestId(next_request++); }
  void Compile(uint64_t token, std::string program, std::string options, bool split) override {
    compiles[token] = {std::move(program), std::move(options)};
    last_split = split;
  }
  void FetchOptimisedProgram(uint64_t token, std::shared_ptr<const ProgramImage> image) override {
    fetches[token] = std::move(image);
  }
  void SealProgram(uint64_t token, std::shared_ptr<const ProgramImage>, std::vector<DeviceId> devices) override {
    seals[token] = std::move(devices);
  }
  void OpenProgram(uint64_t token, std::string sealed) override { opened[token] = std::move(sealed); }
  absl::StatusOr<ClaimedUpload> ClaimUpload(uint64_t handle, int64_t expected) override {
    ClaimedUpload claimed;
    claimed.key = next_key++;
    auto it = stored.find(handle);
    if (it != stored.end()) {
      if (static_cast<int64_t>(it->second.size()) != expected) {
        stored.erase(it);
        return absl::InvalidArgumentError("size");
      }
      claimed.bytes = std::make_shared<const std::string>(it->second);
      stored.erase(it);
    } else {
      keys[handle] = claimed.key;
    }
    return claimed;
  }
  absl::StatusOr<ClaimedUpload> ClaimString(uint64_t handle) override {
    auto it = stored.find(handle);
    return ClaimUpload(handle, it == stored.end() ? 0 : static_cast<int64_t>(it->second.size()));
  }
  void DiscardUpload(uint64_t handle) override {
    stored.erase(handle);
    discarded.push_back(handle);
  }
  void DropUpload(uint64_t key) override { dropped.push_back(key); }
  absl::Status PutResult(uint64_t handle, RequestId, ReadResult result) override {
    if (results.contains(handle)) return absl::InvalidArgumentError("exists");
    results[handle] = std::move(result.data);
    return absl::OkStatus();
  }

  std::map<uint64_t, IfrtResponse> responses;
  std::vector<uint64_t> order;
  std::map<uint64_t, std::pair<std::string, std::string>> compiles;
  std::map<uint64_t, std::shared_ptr<const ProgramImage>> fetches;
  std::map<uint64_t, std::vector<DeviceId>> seals;
  std::map<uint64_t, std::string> opened;
  bool last_split = false;
  std::map<uint64_t, std::string> stored, results;
  std::map<uint64_t, uint64_t> keys;  // handle -> key, for uploads that come later
  std::vector<uint64_t> discarded, dropped;
  uint64_t next_request = 1, next_key = 1;
};

class SessionCoreTest : public ::testing::Test {
 protected:
  SessionCoreTest() {
    cluster_.controller.OpenSession(SessionId(1));
    SessionCore::Options options;
    options.session = SessionId(1);
    options.wire_id = 4242;
    options.unanswered_max = 100'000;
    options.request_bytes_max = 8 << 20;
    options.has_package = true;
    core_ = std::make_unique<SessionCore>(options, &cluster_.controller, &host_);
    for (int i = 0; i < 4; ++i) {
      CatalogDevice device;
      device.id = DeviceId(i);
      device.slice_index = i / 2;
      catalog_.devices.push_back(device);
    }
    core_->SetDevices(&catalog_);
  }

  void Pump() {
    for (bool more = true; more;) {
      more = false;
      cluster_.Run();
      while (!cluster_.resolved.empty()) {
        auto [id, status] = cluster_.resolved.front();
        cluster_.resolved.pop_front();
        core_->OnResolve(id, status);
        more = true;
      }
      while (!cluster_.reads.empty()) {
        auto [id, result] = std::move(cluster_.reads.front());
        cluster_.reads.pop_front();
        core_->OnResolveRead(id, std::move(result));
        more = true;
      }
    }
  }

  uint64_t Send(IfrtRequest request, uint64_t context = 0) {
    const uint64_t op = ++op_;
    request.mutable_request_metadata()->set_op_id(op);
    request.mutable_request_metadata()->set_user_context_id(context);
    request.ByteSizeLong();  // as the session's pipe does
    core_->OnRequest(request, 0);
    return op;
  }
  bool Answered(uint64_t op) const { return host_.responses.contains(op); }
  // Sends, pumps, and wants an answer.
  IfrtResponse Call(IfrtRequest request, uint64_t context = 0) {
    const uint64_t op = Send(std::move(request), context);
    Pump();
    EXPECT_TRUE(Answered(op));
    return host_.responses[op];
  }
  static absl::Status StatusOf(const IfrtResponse& response) {
    return wire::FromProto(response.response_metadata().status());
  }

  static xla::ifrt::ShardingProto Single(int device) {
    xla::ifrt::SingleDeviceShardingProto single;
    single.set_device_id(device);
    xla::ifrt::ShardingProto proto;
    proto.mutable_serialized_sharding()->set_type_name("xla::ifrt::SingleDeviceSharding");
    proto.mutable_serialized_sharding()->set_data(single.SerializeAsString());
    return proto;
  }
  // Over the devices: rows divided, or replicated.
  static xla::ifrt::ShardingProto Hlo(const std::vector<int>& devices, bool divided) {
    xla::ifrt::HloShardingProto hlo;
    for (int id : devices) hlo.mutable_devices()->add_device_ids(id);
    if (divided) {
      hlo.mutable_xla_op_sharding()->set_type(xla::OpSharding::OTHER);
      hlo.mutable_xla_op_sharding()->add_tile_assignment_dimensions(static_cast<int64_t>(devices.size()));
      hlo.mutable_xla_op_sharding()->add_iota_reshape_dims(static_cast<int64_t>(devices.size()));
      hlo.mutable_xla_op_sharding()->add_iota_transpose_perm(0);
    }
    xla::ifrt::ShardingProto proto;
    proto.mutable_serialized_sharding()->set_type_name("xla::ifrt::HloSharding");
    proto.mutable_serialized_sharding()->set_data(hlo.SerializeAsString());
    return proto;
  }
  static xla::ifrt::ArraySpecProto Spec(DType dtype, std::vector<int64_t> dims, xla::ifrt::ShardingProto sharding) {
    xla::ifrt::ArraySpecProto spec;
    wire::SetDType(dtype, spec.mutable_dtype());
    wire::SetDims(dims, spec.mutable_shape());
    *spec.mutable_sharding() = std::move(sharding);
    return spec;
  }

  static IfrtRequest MakeRequest(uint64_t handle, DType dtype, std::vector<int64_t> dims,
                                 xla::ifrt::ShardingProto sharding) {
    IfrtRequest request;
    auto* make = request.mutable_make_array_from_host_buffer_request();
    wire::SetDType(dtype, make->mutable_dtype());
    wire::SetDims(dims, make->mutable_shape());
    *make->mutable_sharding() = std::move(sharding);
    make->set_host_buffer_handle(handle);
    make->set_array_handle(handle);
    return request;
  }
  // An array of one byte per element on one device.
  uint64_t Make(uint64_t handle, const std::string& bytes, int device = 0, uint64_t context = 0) {
    host_.stored[handle] = bytes;
    const IfrtResponse response =
        Call(MakeRequest(handle, DType::kU8, {static_cast<int64_t>(bytes.size())}, Single(device)), context);
    EXPECT_TRUE(StatusOf(response).ok()) << StatusOf(response);
    EXPECT_EQ(response.make_array_from_host_buffer_response().array_handle(), handle);
    return handle;
  }
  absl::StatusOr<std::string> Read(uint64_t array) {
    const uint64_t buffer = ++buffer_;
    IfrtRequest request;
    request.mutable_copy_to_host_buffer_request()->set_array_handle(array);
    request.mutable_copy_to_host_buffer_request()->set_host_buffer_handle(buffer);
    const IfrtResponse response = Call(request);
    if (!StatusOf(response).ok()) return StatusOf(response);
    EXPECT_TRUE(response.has_copy_to_host_buffer_response());
    EXPECT_TRUE(host_.results.contains(buffer));
    return host_.results[buffer];
  }
  absl::Status Ready(const std::vector<uint64_t>& handles) {
    IfrtRequest request;
    request.mutable_check_value_ready_request();
    for (uint64_t handle : handles) request.mutable_check_value_ready_request()->add_value_handles(handle);
    const IfrtResponse response = Call(request);
    EXPECT_EQ(StatusOf(response).ok(), response.has_check_value_ready_response());
    return StatusOf(response);
  }
  IfrtResponse Destruct(const std::vector<uint64_t>& handles, uint64_t context = 0) {
    IfrtRequest request;
    for (uint64_t handle : handles) request.mutable_destruct_array_request()->add_array_handle(handle);
    return Call(request, context);
  }

  static xla::ifrt::Serialized CompileOptions(const std::vector<int>& devices) {
    xla::ifrt::XlaCompileOptionsProto wrapped;
    auto* build = wrapped.mutable_compile_options()->mutable_executable_build_options();
    build->set_num_replicas(1);
    build->set_num_partitions(static_cast<int64_t>(devices.size()));
    build->mutable_device_assignment()->set_replica_count(1);
    build->mutable_device_assignment()->set_computation_count(static_cast<int32_t>(devices.size()));
    for (int id : devices) {
      build->mutable_device_assignment()->add_computation_devices()->add_replica_device_ids(id);
    }
    xla::ifrt::Serialized serialized;
    serialized.set_type_name("xla::ifrt::XlaCompileOptions");
    serialized.set_data(wrapped.SerializeAsString());
    return serialized;
  }
  static IfrtRequest CompileRequestFor(const std::vector<int>& devices) {
    IfrtRequest request;
    request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::XlaProgram");
    request.mutable_compile_request()->mutable_program()->set_data("module");
    *request.mutable_compile_request()->mutable_compile_options() = CompileOptions(devices);
    return request;
  }
  // A program of one u8[n] parameter and as many outputs like it, which copies.
  std::shared_ptr<ProgramImage> Image(const std::string& name, int devices, int64_t n, int outputs, bool donates) {
    auto image = std::make_shared<ProgramImage>();
    image->envelope = std::make_shared<const std::string>("envelope");
    image->sha256 = std::string(32, 'x');
    image->info.set_name(name);
    image->info.set_num_devices(devices);
    image->info.set_num_replicas(1);
    image->info.set_num_partitions(devices);
    auto describe = [&](TensorInfo* tensor) {
      tensor->set_dtype(static_cast<int32_t>(DType::kU8));
      tensor->add_global_dims(n);
      tensor->add_device_dims(n / devices);
      tensor->set_device_bytes(n / devices);
      tensor->mutable_layout()->add_minor_to_major(0);
      tensor->set_memory_kind("device");
      if (devices > 1) {
        tensor->mutable_sharding()->set_type(xla::OpSharding::OTHER);
        tensor->mutable_sharding()->add_tile_assignment_dimensions(devices);
        tensor->mutable_sharding()->add_iota_reshape_dims(devices);
        tensor->mutable_sharding()->add_iota_transpose_perm(0);
      }
    };
    describe(image->info.add_parameters());
    for (int i = 0; i < outputs; ++i) describe(image->info.add_outputs());
    if (donates) image->info.add_donated_parameters(0);
    (*image->info.mutable_cost()->mutable_properties())["flops"] = 12;
    return image;
  }
  uint64_t Compile(const std::string& name, const std::vector<int>& devices, int64_t n, int outputs = 1,
                   bool donates = false) {
    const uint64_t op = Send(CompileRequestFor(devices));
    EXPECT_FALSE(Answered(op));
    const uint64_t token = host_.compiles.rbegin()->first;
    core_->OnCompiled(token, SessionCore::Compiled{Image(name, static_cast<int>(devices.size()), n, outputs, donates)});
    Pump();
    EXPECT_TRUE(StatusOf(host_.responses[op]).ok()) << StatusOf(host_.responses[op]);
    return host_.responses[op].compile_response().loaded_executable_handle();
  }
  IfrtRequest ExecuteRequest(uint64_t executable, std::vector<uint64_t> args, std::vector<uint64_t> results = {},
                             bool status = false, uint64_t status_handle = 0) {
    IfrtRequest request;
    auto* execute = request.mutable_loaded_executable_execute_request();
    execute->set_loaded_executable_handle(executable);
    for (uint64_t arg : args) execute->add_args_handles(arg);
    for (uint64_t result : results) execute->add_result_array_handle(result);
    execute->mutable_execute_options()->set_fill_status(status);
    execute->set_result_status_handle(status_handle);
    return request;
  }

  FakeCluster cluster_;
  DeviceCatalog catalog_;
  FakeHost host_;
  std::unique_ptr<SessionCore> core_;
  uint64_t op_ = 0;
  uint64_t buffer_ = 1'000'000;
};

TEST_F(SessionCoreTest, InitWaitsForTheDevicesAndIsNotNumbered) {
  FakeHost host;
  SessionCore core({SessionId(1), 7, 25, {}, ""}, &cluster_.controller, &host);
  IfrtRequest request;
  request.mutable_request_metadata()->set_op_id(1);
  request.mutable_init_request();
  core.OnRequest(request, 0);
  EXPECT_THAT(host.responses, IsEmpty());
  core.SetDevices(&catalog_);
  ASSERT_TRUE(host.responses.contains(1));
  EXPECT_EQ(host.responses[1].init_response().session_id(), 7u);
  EXPECT_EQ(host.responses[1].init_response().all_devices_size(), 4);
  EXPECT_FALSE(host.responses[1].response_metadata().has_seq_num());
}

TEST_F(SessionCoreTest, AnInitThatWaitsForLongHearsWhyAndWhereTheLogIs) {
  FakeHost host;
  SessionCore core({SessionId(1), 7, 25, {}, "/logs/proxy.log"}, &cluster_.controller, &host);
  IfrtRequest request;
  request.mutable_init_request();
  for (uint64_t op = 1; op <= 2; ++op) {
    request.mutable_request_metadata()->set_op_id(op);
    core.OnRequest(request, static_cast<TimeNs>(op) * kSecond);
  }
  core.ExpireInits(1 * kSecond, absl::UnavailableError("no slices yet"));
  ASSERT_EQ(host.responses.size(), 1u);
  EXPECT_EQ(host.responses[1].response_metadata().status().code(), 14);
  EXPECT_EQ(host.responses[1].response_metadata().status().message(), "no slices yet [log: /logs/proxy.log]");
  core.SetDevices(&catalog_);
  EXPECT_TRUE(host.responses[2].has_init_response());
}

IfrtRequest TextRequest(uint64_t executable) {
  IfrtRequest request;
  request.mutable_loaded_executable_human_readable_program_text_request()->set_loaded_executable_handle(executable);
  return request;
}

IfrtRequest QuestionRequest(const std::string& question) {
  IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
  request.mutable_compile_request()->mutable_program()->set_data(
      absl::StrCat(R"(__serialized_plugin_program {"landbridgeQuestion":)", question, "}"));
  return request;
}

TEST_F(SessionCoreTest, TellsTheMemoryOfADevice) {
  const IfrtResponse compiled = Call(QuestionRequest(R"({"memoryStats":{"device_id":3}})"));
  ASSERT_TRUE(StatusOf(compiled).ok()) << StatusOf(compiled);
  const uint64_t question = compiled.compile_response().loaded_executable_handle();
  const IfrtResponse answer = Call(TextRequest(question));
  EXPECT_EQ(answer.loaded_executable_human_readable_program_text_response().human_readable_program_text(),
            R"({"bytes_in_use":101,"bytes_limit":1000,"peak_bytes_in_use":500})");
  const IfrtResponse unknown = Call(QuestionRequest(R"({"memoryStats":{"device_id":77}})"));
  EXPECT_EQ(StatusOf(unknown).code(), absl::StatusCode::kInvalidArgument);
  // Not a program that could be run.
  EXPECT_EQ(StatusOf(Call(ExecuteRequest(question, {}))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->counts().pending, 0u);
}

TEST_F(SessionCoreTest, TellsTheOptimisedProgram) {
  const uint64_t executable = Compile("f", {0}, 4);
  const uint64_t op = Send(TextRequest(executable));
  ASSERT_EQ(host_.fetches.size(), 1u);
  EXPECT_FALSE(Answered(op));
  core_->OnOptimisedProgram(host_.fetches.begin()->first, std::string("a module"));
  EXPECT_EQ(host_.responses[op].loaded_executable_human_readable_program_text_response().human_readable_program_text(),
            absl::Base64Escape("a module"));
}

std::string SealedQuestion(const IfrtResponse& compiled) {
  return absl::StrCat(R"({"serialize":{"fingerprint":")",
                      absl::BytesToHexString(compiled.compile_response().fingerprint_value()), R"("}})");
}

IfrtRequest ReturnedRequest(const std::string& head, const std::string& bytes) {
  IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
  request.mutable_compile_request()->mutable_program()->set_data(
      absl::StrCat("__serialized_plugin_program landbridgeExecutable ", head, "\n", bytes));
  return request;
}

TEST_F(SessionCoreTest, GivesProgramsToClientsThatKeepThem) {
  const uint64_t op = Send(CompileRequestFor({2}));
  core_->OnCompiled(host_.compiles.rbegin()->first, SessionCore::Compiled{Image("f", 1, 4, 1, false)});
  const IfrtResponse compiled = host_.responses[op];
  EXPECT_EQ(compiled.compile_response().fingerprint_value().size(), 32u);
  const uint64_t asked = Send(QuestionRequest(SealedQuestion(compiled)));
  ASSERT_EQ(host_.seals.size(), 1u);
  EXPECT_THAT(host_.seals.begin()->second, ElementsAre(DeviceId(2)));
  EXPECT_FALSE(Answered(asked));
  core_->OnSealed(host_.seals.begin()->first, std::string("sealed"));
  EXPECT_EQ(Call(TextRequest(host_.responses[asked].compile_response().loaded_executable_handle()))
                .loaded_executable_human_readable_program_text_response()
                .human_readable_program_text(),
            absl::StrCat("{\"program\":\"", absl::Base64Escape("sealed"), "\"}"));
  // One that cannot be kept, and one that is not there.
  const uint64_t again = Send(QuestionRequest(SealedQuestion(compiled)));
  core_->OnSealed(host_.seals.rbegin()->first, absl::UnimplementedError("it calls functions"));
  EXPECT_EQ(StatusOf(host_.responses[again]).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(StatusOf(Call(QuestionRequest(R"({"serialize":{"fingerprint":"abcd"}})"))).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionCoreTest, TakesProgramsBack) {
  auto load = [&](const std::string& head, int devices, std::vector<DeviceId> sealed_on) {
    const uint64_t op = Send(ReturnedRequest(head, "line\nother line"));
    EXPECT_EQ(host_.opened.rbegin()->second, "line\nother line");
    core_->OnCompiled(host_.opened.rbegin()->first,
                      SessionCore::Compiled{Image("f", devices, 4, 1, false), std::move(sealed_on)});
    return host_.responses[op];
  };
  auto devices = [&](const IfrtResponse& response) {
    EXPECT_TRUE(StatusOf(response).ok()) << StatusOf(response);
    const auto& ids = response.compile_response().addressable_device_ids();
    return std::vector<int>(ids.begin(), ids.end());
  };
  // Where it was, if that is among the devices offered or these are not as many; else on those.
  EXPECT_THAT(devices(load(R"({"device_ids":[0,1,2,3]})", 1, {DeviceId(2)})), ElementsAre(2));
  EXPECT_THAT(devices(load(R"({"device_ids":[0]})", 1, {DeviceId(2)})), ElementsAre(0));
  EXPECT_THAT(devices(load(R"({"device_ids":[3,2]})", 2, {DeviceId(2), DeviceId(3)})), ElementsAre(2, 3));
  EXPECT_THAT(devices(load(R"({"device_ids":[]})", 1, {DeviceId(1)})), ElementsAre(1));
  // As compile options say.
  xla::CompileOptionsProto options;
  auto* build = options.mutable_executable_build_options();
  build->set_num_replicas(1);
  build->set_num_partitions(1);
  build->mutable_device_assignment()->add_computation_devices()->add_replica_device_ids(3);
  const std::string head =
      absl::StrCat(R"({"device_ids":[0],"options":")", absl::Base64Escape(options.SerializeAsString()), R"("})");
  const IfrtResponse loaded = load(head, 1, {DeviceId(2)});
  EXPECT_THAT(devices(loaded), ElementsAre(3));
  // It runs, and can be kept again.
  Make(50, "abcd");
  EXPECT_TRUE(StatusOf(Call(ExecuteRequest(loaded.compile_response().loaded_executable_handle(), {50}))).ok());
  EXPECT_FALSE(loaded.compile_response().fingerprint_value().empty());
  for (const auto& [bad, count, where] : std::vector<std::tuple<std::string, int, std::vector<DeviceId>>>{
           {head, 2, {DeviceId(0), DeviceId(1)}},
           {R"({"device_ids":[1,1]})", 2, {DeviceId(0), DeviceId(1)}},
           {R"({"device_ids":[]})", 1, {DeviceId(77)}},
           {R"({"device_ids":[]})", 2, {DeviceId(1)}}}) {
    EXPECT_EQ(StatusOf(load(bad, count, where)).code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(core_->counts().pending, 0u);
}

TEST_F(SessionCoreTest, CompilesProgramsInANewerStableHlo) {
  IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
  xla::CompileOptionsProto options;
  options.mutable_executable_build_options()
      ->mutable_device_assignment()
      ->add_computation_devices()
      ->add_replica_device_ids(2);
  auto ask = [&](const std::string& bytes) {
    request.mutable_compile_request()->mutable_program()->set_data(absl::StrCat(
        R"(__serialized_plugin_program landbridgeProgram {"options":")", absl::Base64Escape(bytes), "\"}\nMLIR"));
    return Send(request);
  };
  const uint64_t op = ask(options.SerializeAsString());
  ASSERT_EQ(host_.compiles.size(), 1u);
  EXPECT_EQ(host_.compiles.begin()->second.first, "MLIR");
  core_->OnCompiled(host_.compiles.begin()->first, SessionCore::Compiled{Image("f", 1, 4, 1, false)});
  EXPECT_THAT(host_.responses[op].compile_response().addressable_device_ids(), ElementsAre(2));
  EXPECT_EQ(StatusOf(host_.responses[ask("not options")]).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionCoreTest, SaysWhenLaunchesThatMayCallTheClientAreOver) {
  const uint64_t op = Send(CompileRequestFor({0}));
  auto image = Image("f", 1, 4, 1, false);
  image->info.set_calls_host(true);
  core_->OnCompiled(host_.compiles.rbegin()->first, SessionCore::Compiled{image});
  const uint64_t executable = host_.responses[op].compile_response().loaded_executable_handle();
  Make(50, "abcd");
  EXPECT_TRUE(StatusOf(Call(QuestionRequest(R"({"hostCallsOver":{}})"))).ok());
  Send(ExecuteRequest(executable, {50}));
  const uint64_t asked = Send(QuestionRequest(R"({"hostCallsOver":{}})"));
  EXPECT_FALSE(Answered(asked));
  Pump();
  ASSERT_TRUE(Answered(asked));
  EXPECT_EQ(Call(TextRequest(host_.responses[asked].compile_response().loaded_executable_handle()))
                .loaded_executable_human_readable_program_text_response()
                .human_readable_program_text(),
            "{}");
}

TEST_F(SessionCoreTest, ClientsWithoutThePackageHearThatTheyNeedIt) {
  FakeHost host;
  SessionCore core({SessionId(1), 7, 25, {}, ""}, &cluster_.controller, &host);
  core.SetDevices(&catalog_);
  IfrtRequest request = CompileRequestFor({0});
  request.mutable_request_metadata()->set_op_id(1);
  core.OnRequest(request, 0);
  core.OnCompiled(host.compiles.rbegin()->first, SessionCore::Compiled{Image("f", 1, 4, 1, false)});
  request = TextRequest(host.responses[1].compile_response().loaded_executable_handle());
  request.mutable_request_metadata()->set_op_id(2);
  core.OnRequest(request, 0);
  const auto& status = host.responses[2].loaded_executable_human_readable_program_text_response().status();
  EXPECT_EQ(status.code(), 12);
  EXPECT_THAT(status.message(), HasSubstr("pip install landbridge"));
}

TEST_F(SessionCoreTest, UploadAndReadBack) {
  Make(1, "abcd");
  EXPECT_TRUE(Ready({1}).ok());
  EXPECT_EQ(*Read(1), "abcd");
  Destruct({1});
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
  EXPECT_EQ(core_->counts().arrays, 0u);
}

TEST_F(SessionCoreTest, ARequestMayComeBeforeItsBytes) {
  const IfrtResponse made = Call(MakeRequest(3, DType::kU8, {2}, Single(1)));
  EXPECT_TRUE(StatusOf(made).ok());
  IfrtRequest check;
  check.mutable_check_value_ready_request()->add_value_handles(3);
  const uint64_t op = Send(check);
  Pump();
  EXPECT_FALSE(Answered(op));
  ASSERT_THAT(cluster_.wanted, ElementsAre(host_.keys[3]));
  cluster_.controller.OnHostBytes(host_.keys[3], std::string("xy"));
  Pump();
  EXPECT_TRUE(Answered(op));
  EXPECT_EQ(*Read(3), "xy");
}

TEST_F(SessionCoreTest, RequestsThatWaitAreCounted) {
  Send(MakeRequest(7, DType::kU8, {3}, Single(1)));  // whose bytes do not come yet
  IfrtRequest ready, read;
  ready.mutable_check_value_ready_request()->add_value_handles(7);
  read.mutable_copy_to_host_buffer_request()->set_array_handle(7);
  std::vector<uint64_t> waiting;
  for (int i = 0; i < 100'000; ++i) waiting.push_back(Send(ready));
  Pump();
  EXPECT_EQ(host_.responses.size(), 1u);  // of the upload
  for (const IfrtRequest& more : {ready, read}) {
    const absl::Status refused = StatusOf(Call(more));
    EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("100000 requests of this session wait"));
  }
  // What needs no waiting goes on, and the others get their answers.
  Make(8, "xyz");
  cluster_.controller.OnHostBytes(host_.keys.at(7), std::string("abc"));
  Pump();
  for (uint64_t op : waiting) ASSERT_TRUE(Answered(op) && StatusOf(host_.responses[op]).ok());
  EXPECT_EQ(*Read(7), "abc");
}

TEST_F(SessionCoreTest, ReplicatedUploadAndShards) {
  host_.stored[1] = "rr";
  EXPECT_TRUE(StatusOf(Call(MakeRequest(1, DType::kU8, {2}, Hlo({0, 1}, false)))).ok());
  EXPECT_EQ(*Read(1), "rr");
  IfrtRequest request;
  auto* make = request.mutable_make_arrays_from_host_buffer_shards_request();
  auto* spec = make->add_specs();
  *spec->mutable_array_spec() = Spec(DType::kU8, {4}, Hlo({0, 1}, true));
  for (int i = 0; i < 2; ++i) {
    spec->add_addressable_shard_indices()->add_indices(i);
    auto* buffer = spec->add_host_buffers();
    wire::SetDType(DType::kU8, buffer->mutable_dtype());
    buffer->mutable_shape()->add_dims(2);
    buffer->set_host_buffer_handle(static_cast<uint64_t>(10 + i));
    host_.stored[static_cast<uint64_t>(10 + i)] = i == 0 ? "ab" : "cd";
  }
  make->add_array_handles(10);
  const IfrtResponse response = Call(request);
  ASSERT_TRUE(StatusOf(response).ok()) << StatusOf(response);
  EXPECT_THAT(response.make_arrays_from_host_buffer_shards_response().array_handles(), ElementsAre(10));
  // Its parts, and the whole again from them.
  IfrtRequest disassemble;
  disassemble.mutable_disassemble_into_single_device_arrays_request()->set_array_handle(10);
  disassemble.mutable_disassemble_into_single_device_arrays_request()->set_copy_semantics(
      xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  for (uint64_t handle : {20, 21}) {
    disassemble.mutable_disassemble_into_single_device_arrays_request()->add_result_handles(handle);
  }
  EXPECT_TRUE(StatusOf(Call(disassemble)).ok());
  EXPECT_EQ(*Read(20), "ab");
  EXPECT_EQ(*Read(21), "cd");
  EXPECT_THAT(std::string(Read(10).status().message()), HasSubstr("fully replicated"));
  IfrtRequest assemble;
  auto* a = assemble.mutable_assemble_array_from_single_device_arrays_request();
  a->mutable_shape()->add_dims(4);
  *a->mutable_sharding() = Hlo({0, 1}, true);
  a->add_single_device_array_handles(20);
  a->add_single_device_array_handles(21);
  a->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  a->set_result_handle(30);
  const IfrtResponse whole = Call(assemble);
  ASSERT_TRUE(StatusOf(whole).ok()) << StatusOf(whole);
  EXPECT_EQ(whole.assemble_array_from_single_device_arrays_response().array_handle(), 30u);
  EXPECT_TRUE(Ready({30}).ok());
  Destruct({1, 10, 20, 21, 30});
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
}

TEST_F(SessionCoreTest, BadUploadsPoisonTheirArraysAndConsumeTheBuffers) {
  host_.stored[1] = "abc";
  const IfrtResponse wrong_size = Call(MakeRequest(1, DType::kU8, {4}, Single(0)));
  EXPECT_EQ(StatusOf(wrong_size).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ready({1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(host_.stored.contains(1));

  host_.stored[2] = "abcd";
  IfrtRequest request = MakeRequest(2, DType::kU8, {4}, Single(0));
  request.mutable_make_array_from_host_buffer_request()->mutable_dtype()->set_kind(13);
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(host_.stored.contains(2));

  // No such device.
  host_.stored[3] = "abcd";
  EXPECT_FALSE(StatusOf(Call(MakeRequest(3, DType::kU8, {4}, Single(99)))).ok());
  EXPECT_FALSE(Ready({3}).ok());

  // A size that would not fit the machine, before anything is allocated.
  EXPECT_FALSE(StatusOf(Call(MakeRequest(4, DType::kF64, {int64_t{1} << 40, int64_t{1} << 40}, Single(0)))).ok());
  EXPECT_THAT(host_.discarded, ::testing::Contains(4));

  // Not replicated.
  EXPECT_FALSE(StatusOf(Call(MakeRequest(5, DType::kU8, {4}, Hlo({0, 1}, true)))).ok());
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
}

TEST_F(SessionCoreTest, UnknownHandlesAreTheUsersMistake) {
  for (const absl::Status& status : {Ready({77}), Read(77).status(), StatusOf(Destruct({77}))}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Unknown array handle: 77"));
  }
  EXPECT_TRUE(Ready({}).ok());
}

TEST_F(SessionCoreTest, AResultHandleCannotBeUsedTwice) {
  Make(1, "a");
  Make(2, "b");
  host_.stored[1] = "c";
  EXPECT_FALSE(StatusOf(Call(MakeRequest(1, DType::kU8, {1}, Single(0)))).ok());
  EXPECT_EQ(*Read(1), "a");
  Destruct({1, 2});
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
}

// The numbers of both sides would meet: a result of an execution would take the place of the client's array.
TEST_F(SessionCoreTest, AClientCannotTakeTheServersHandles) {
  host_.stored[1] = "abcd";
  const absl::Status status = StatusOf(Call([&] {
    IfrtRequest request = MakeRequest(1, DType::kU8, {4}, Single(0));
    request.mutable_make_array_from_host_buffer_request()->set_array_handle(kServerHandles + 2);
    return request;
  }()));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("below 2^48"));
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
  EXPECT_FALSE(Ready({kServerHandles + 2}).ok());

  const uint64_t executable = Compile("f", {0}, 4);
  const uint64_t array = Make(2, "abcd");
  const size_t futures = core_->counts().futures;
  EXPECT_EQ(StatusOf(Call(ExecuteRequest(executable, {array}, {3}, true, kServerHandles + 5))).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->counts().futures, futures);
  EXPECT_FALSE(Ready({3}).ok());  // its result says why
  EXPECT_EQ(cluster_.launches, 0u);
}

TEST_F(SessionCoreTest, CompileNormalisesTheAssignment) {
  const uint64_t op = Send(CompileRequestFor({3, 2}));
  ASSERT_EQ(host_.compiles.size(), 1u);
  xla::CompileOptionsProto options;
  ASSERT_TRUE(options.ParseFromString(host_.compiles[1].second));
  EXPECT_EQ(host_.compiles[1].first, "module");
  const auto& assignment = options.executable_build_options().device_assignment();
  ASSERT_EQ(assignment.computation_devices_size(), 2);
  EXPECT_THAT(assignment.computation_devices(0).replica_device_ids(), ElementsAre(0));
  EXPECT_THAT(assignment.computation_devices(1).replica_device_ids(), ElementsAre(1));
  EXPECT_EQ(options.executable_build_options().device_ordinal(), -1);
  core_->OnCompiled(1, SessionCore::Compiled{Image("f", 2, 4, 1, false)});
  const auto& response = host_.responses[op].compile_response();
  EXPECT_GE(response.loaded_executable_handle(), kServerHandles);
  EXPECT_EQ(response.name(), "f");
  EXPECT_EQ(response.num_devices(), 2);
  EXPECT_THAT(response.addressable_device_ids(), ElementsAre(3, 2));
  EXPECT_THAT(response.device_ids(), ElementsAre(3, 2));
  IfrtRequest check;
  check.mutable_check_future_request()->set_future_handle(response.ready_future_handle());
  const IfrtResponse ready = Call(check);
  EXPECT_TRUE(ready.has_check_future_response());
  EXPECT_TRUE(ready.response_metadata().has_seq_num());
  EXPECT_FALSE(StatusOf(Call(check)).ok());  // reading is destructive
}

TEST_F(SessionCoreTest, ProgramsOverSeveralWorkersAreCompiledForThat) {
  Send(CompileRequestFor({0, 1}));
  EXPECT_FALSE(host_.last_split);
  Send(CompileRequestFor({0, 2}));  // of two slices
  EXPECT_TRUE(host_.last_split);
}

TEST_F(SessionCoreTest, CompileRefusals) {
  EXPECT_EQ(StatusOf(Call(CompileRequestFor({0, 0}))).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusOf(Call(CompileRequestFor({0, 99}))).code(), absl::StatusCode::kInvalidArgument);
  IfrtRequest request = CompileRequestFor({0});
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::CustomCallProgram");
  EXPECT_THAT(std::string(StatusOf(Call(request)).message()), HasSubstr("PjRtCompiler requires an HloProgram"));
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
  EXPECT_THAT(std::string(StatusOf(Call(request)).message()), HasSubstr("Bad PluginProgram"));
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::IfrtIRProgram");
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kUnimplemented);
  request = CompileRequestFor({0});
  request.mutable_compile_request()->add_host_callbacks("x");
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kUnimplemented);
  request = CompileRequestFor({0});
  request.mutable_compile_request()->mutable_compile_options()->set_data("\xff");
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kInvalidArgument);
  const uint64_t op = Send(CompileRequestFor({0}));
  core_->OnCompiled(host_.compiles.rbegin()->first, absl::InvalidArgumentError("syntax"));
  EXPECT_EQ(StatusOf(host_.responses[op]).message(), "syntax");
}

TEST_F(SessionCoreTest, MetadataIsComplete) {
  const uint64_t executable = Compile("f", {0, 1}, 4, 2, true);
  IfrtRequest request;
  request.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(executable);
  const auto metadata = Call(request).loaded_executable_metadata_response();
  EXPECT_EQ(metadata.parameter_shardings().shardings_size(), 1);
  EXPECT_EQ(metadata.output_shardings().shardings_size(), 2);
  ASSERT_EQ(metadata.output_memory_kinds().memory_kind_lists_size(), 1);
  EXPECT_THAT(metadata.output_memory_kinds().memory_kind_lists(0).memory_kinds(), ElementsAre("device", "device"));
  EXPECT_EQ(metadata.parameter_layouts_list().layouts_size(), 1);
  EXPECT_EQ(metadata.output_layouts_list().layouts_size(), 2);
  EXPECT_THAT(metadata.donated_input_indices().donated_input_indices(), ElementsAre(0));
  EXPECT_EQ(metadata.compiled_memory_stats_error().code(), 12);
  IfrtRequest cost;
  cost.mutable_loaded_executable_cost_analysis_request()->set_loaded_executable_handle(executable);
  EXPECT_EQ(Call(cost).loaded_executable_cost_analysis_response().attributes().attributes().at("flops").float_value(),
            12.0f);
  cost.mutable_loaded_executable_cost_analysis_request()->set_loaded_executable_handle(1);
  const IfrtResponse bad = Call(cost);  // inside the answer, or the client aborts
  EXPECT_TRUE(StatusOf(bad).ok());
  EXPECT_EQ(bad.loaded_executable_cost_analysis_response().status().code(), 3);
  request.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(1);
  EXPECT_FALSE(StatusOf(Call(request)).ok());
}

TEST_F(SessionCoreTest, FirstExecuteAnswersOutputsLaterOnesTakeHandles) {
  Make(1, "ab");
  const uint64_t executable = Compile("f", {0}, 2);
  const auto first = Call(ExecuteRequest(executable, {1})).loaded_executable_execute_response();
  EXPECT_EQ(first.status_handle(), 0u);
  ASSERT_EQ(first.outputs_size(), 1);
  EXPECT_EQ(first.outputs(0).dtype().kind(), static_cast<int>(DType::kU8));
  EXPECT_THAT(first.outputs(0).shape().dims(), ElementsAre(2));
  EXPECT_EQ(first.outputs(0).sharding().serialized_sharding().type_name(), "xla::ifrt::HloSharding");
  EXPECT_GE(first.outputs(0).array_handle(), kServerHandles);
  EXPECT_EQ(*Read(first.outputs(0).array_handle()), "ab");
  const IfrtResponse later = Call(ExecuteRequest(executable, {1}, {50}));
  EXPECT_EQ(later.loaded_executable_execute_response().outputs_size(), 0);
  EXPECT_EQ(*Read(50), "ab");
  EXPECT_EQ(cluster_.launches, 2u);
  // The wrong number of results, of arguments; a status handle that nobody wants.
  EXPECT_FALSE(StatusOf(Call(ExecuteRequest(executable, {1}, {51, 52}))).ok());
  EXPECT_FALSE(Ready({51}).ok());
  EXPECT_FALSE(StatusOf(Call(ExecuteRequest(executable, {1, 1}, {53}))).ok());
  EXPECT_FALSE(StatusOf(Call(ExecuteRequest(executable, {1}, {54}, false, 60))).ok());
  Destruct({1, 50, 51, 52, 53, 54, first.outputs(0).array_handle()});
  IfrtRequest destruct;
  destruct.mutable_loaded_executable_destruct_request()->set_loaded_executable_handle(executable);
  EXPECT_TRUE(StatusOf(Call(destruct)).ok());
  EXPECT_FALSE(StatusOf(Call(destruct)).ok());
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
  EXPECT_EQ(cluster_.controller.counts().executables, 0u);
  EXPECT_EQ(core_->counts().arrays, 0u);
}

TEST_F(SessionCoreTest, ADoomedFirstExecuteSucceedsAndItsArraysCarryTheError) {
  const uint64_t executable = Compile("f", {0}, 2);
  const IfrtResponse first = Call(ExecuteRequest(executable, {99}), /*context=*/5);
  EXPECT_TRUE(StatusOf(first).ok());
  ASSERT_EQ(first.loaded_executable_execute_response().outputs_size(), 1);
  const uint64_t output = first.loaded_executable_execute_response().outputs(0).array_handle();
  const absl::Status status = Ready({output});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CitedContext(status), 5u);
  // It works afterwards, and errors spread.
  Make(1, "ab");
  EXPECT_TRUE(StatusOf(Call(ExecuteRequest(executable, {1}, {2}))).ok());
  EXPECT_EQ(*Read(2), "ab");
  EXPECT_FALSE(StatusOf(Call(ExecuteRequest(executable, {output}, {3}))).ok());
  EXPECT_EQ(CitedContext(Ready({3})), 5u);
}

TEST_F(SessionCoreTest, StatusFutures) {
  Make(1, "ab");
  const uint64_t executable = Compile("f", {0}, 2);
  cluster_.paused = true;
  const IfrtResponse first = Call(ExecuteRequest(executable, {1}, {}, true));
  const uint64_t status = first.loaded_executable_execute_response().status_handle();
  EXPECT_GE(status, kServerHandles);
  IfrtRequest fetch;
  fetch.mutable_loaded_executable_fetch_execute_result_request()->set_result_status_handle(status);
  const uint64_t op = Send(fetch);
  Pump();
  EXPECT_FALSE(Answered(op));
  EXPECT_FALSE(StatusOf(Call(fetch)).ok());  // one reader only
  cluster_.paused = false;
  Pump();
  ASSERT_TRUE(Answered(op));
  EXPECT_TRUE(host_.responses[op].has_loaded_executable_fetch_execute_result_response());
  EXPECT_FALSE(StatusOf(Call(fetch)).ok());
  // The client's own handle; a program that fails; the older way of asking.
  const uint64_t failing = Compile("fail", {0}, 2);
  Call(ExecuteRequest(failing, {1}, {40}, true, 70));
  IfrtRequest check;
  check.mutable_check_future_request()->set_future_handle(70);
  EXPECT_EQ(StatusOf(Call(check)).message(), "the program failed");
  EXPECT_FALSE(Ready({40}).ok());
  EXPECT_EQ(core_->counts().futures, 2u);  // the ready futures of the two compiles
}

TEST_F(SessionCoreTest, CopyBetweenSlicesAndLoss) {
  Make(1, "abc", 0);
  IfrtRequest copy;
  auto* c = copy.mutable_copy_arrays_request();
  c->add_array_handles(1);
  c->add_device_ids(2);
  c->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY);
  c->add_result_handles(2);
  EXPECT_TRUE(StatusOf(Call(copy)).ok());
  EXPECT_EQ(*Read(2), "abc");
  c->set_memory_kind("lagoon");
  c->set_result_handles(0, 3);
  EXPECT_EQ(StatusOf(Call(copy)).code(), absl::StatusCode::kInvalidArgument);
  cluster_.Kill(0);
  Pump();
  EXPECT_EQ(Read(1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(*Read(2), "abc");
}

TEST_F(SessionCoreTest, RemapReordersShards) {
  host_.stored[1] = "rr";
  Call(MakeRequest(1, DType::kU8, {2}, Hlo({0, 1}, false)));
  IfrtRequest request;
  auto* remap = request.mutable_remap_arrays_request();
  remap->add_array_handles(1);
  remap->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  *remap->mutable_plan()->add_input_specs() = Spec(DType::kU8, {2}, Hlo({0, 1}, false));
  *remap->mutable_plan()->add_output_specs() = Spec(DType::kU8, {2}, Hlo({1, 0}, false));
  auto* mapping = remap->mutable_plan()->add_mappings();
  for (int i : {0, 1}) {
    mapping->add_from_start(i);
    mapping->add_from_end(i + 1);
    mapping->add_from_step(1);
    mapping->add_to_start(1 - i);
    mapping->add_to_end(2 - i);
    mapping->add_to_step(1);
  }
  remap->add_result_handles(2);
  EXPECT_TRUE(StatusOf(Call(request)).ok()) << StatusOf(Call(request));
  EXPECT_EQ(*Read(2), "rr");
  mapping->set_from_end(0, int64_t{1} << 60);
  remap->set_result_handles(0, 3);
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kInvalidArgument);
  mapping->set_from_end(0, 1);
  mapping->set_from_step(0, 0);
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionCoreTest, ReshardByRequestAndByPluginProgram) {
  Make(1, "abcd", 0);
  IfrtRequest request;
  auto* reshard = request.mutable_reshard_arrays_request();
  reshard->add_array_handles(1);
  *reshard->add_array_specs() = Spec(DType::kU8, {4}, Single(2));
  reshard->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY);
  reshard->add_result_handles(2);
  EXPECT_TRUE(StatusOf(Call(request)).ok()) << StatusOf(Call(request));
  EXPECT_EQ(*Read(2), "abcd");

  IfrtRequest compile;
  compile.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
  auto sharding = [](int device) {
    return absl::StrCat(R"({"devices":{"device_ids":[)", device, R"(]},"xla_hlo_sharding":"","memory_kind":"device"})");
  };
  compile.mutable_compile_request()->mutable_program()->set_data(
      absl::StrCat(R"(__serialized_plugin_program {"reshardRequest":{"donateInput":false,"inSharding":[)", sharding(0),
                   R"(],"outSharding":[)", sharding(3), "]}}"));
  const IfrtResponse compiled = Call(compile);
  ASSERT_TRUE(StatusOf(compiled).ok()) << StatusOf(compiled);
  EXPECT_EQ(compiled.compile_response().num_devices(), 1);
  const uint64_t executable = compiled.compile_response().loaded_executable_handle();
  IfrtRequest metadata;
  metadata.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(executable);
  EXPECT_EQ(Call(metadata).loaded_executable_metadata_response().output_shardings().shardings_size(), 1);
  const IfrtResponse run = Call(ExecuteRequest(executable, {1}, {}, true));
  ASSERT_TRUE(StatusOf(run).ok()) << StatusOf(run);
  ASSERT_EQ(run.loaded_executable_execute_response().outputs_size(), 1);
  EXPECT_THAT(run.loaded_executable_execute_response().outputs(0).shape().dims(), ElementsAre(4));
  EXPECT_EQ(*Read(run.loaded_executable_execute_response().outputs(0).array_handle()), "abcd");
  IfrtRequest fetch;
  fetch.mutable_loaded_executable_fetch_execute_result_request()->set_result_status_handle(
      run.loaded_executable_execute_response().status_handle());
  EXPECT_TRUE(StatusOf(Call(fetch)).ok());
}

TEST_F(SessionCoreTest, DeleteKeepsTheHandle) {
  Make(1, "ab");
  IfrtRequest is_deleted;
  is_deleted.mutable_is_array_deleted_request()->set_array_handle(1);
  EXPECT_FALSE(Call(is_deleted).is_array_deleted_response().deleted());
  IfrtRequest del;
  del.mutable_delete_array_request()->add_array_handle(1);
  const IfrtResponse deleted = Call(del);
  EXPECT_FALSE(deleted.response_metadata().has_seq_num());
  EXPECT_TRUE(Call(is_deleted).is_array_deleted_response().deleted());
  EXPECT_FALSE(Ready({1}).ok());
  const IfrtResponse destructed = Destruct({1});
  EXPECT_TRUE(destructed.has_destruct_array_response());
  EXPECT_FALSE(destructed.response_metadata().has_seq_num());
  IfrtRequest check;  // the future outlives the array
  check.mutable_check_future_request()->set_future_handle(deleted.delete_array_response().deletion_future_handle());
  const IfrtResponse checked = Call(check);
  EXPECT_TRUE(checked.has_check_future_response());
  EXPECT_FALSE(checked.response_metadata().has_seq_num());
  del.mutable_delete_array_request()->add_array_handle(88);  // unknown: the future fails, not the request
  const IfrtResponse unknown = Call(del);
  EXPECT_TRUE(StatusOf(unknown).ok());
  check.mutable_check_future_request()->set_future_handle(unknown.delete_array_response().deletion_future_handle());
  EXPECT_FALSE(StatusOf(Call(check)).ok());
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
}

TEST_F(SessionCoreTest, ErrorArrays) {
  IfrtRequest request;
  auto* make = request.mutable_make_error_arrays_request();
  make->mutable_error()->set_code(8);
  make->mutable_error()->set_message("no room");
  *make->add_array_specs() = Spec(DType::kU8, {2}, Single(0));
  make->add_array_handles(1);
  EXPECT_TRUE(StatusOf(Call(request)).ok());
  EXPECT_EQ(Ready({1}).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Read(1).status().message(), "no room");
}

TEST_F(SessionCoreTest, StringArraysLiveInTheDoor) {
  xla::ifrt::proto::StringArrayContents contents;
  contents.add_strings("hello");
  contents.add_strings("there");
  const std::string bytes = contents.SerializeAsString();
  host_.stored[1] = bytes;
  EXPECT_TRUE(StatusOf(Call(MakeRequest(1, DType::kString, {2}, Single(0)))).ok());
  EXPECT_EQ(*Read(1), bytes);
  // Bytes that come later.
  EXPECT_TRUE(StatusOf(Call(MakeRequest(2, DType::kString, {2}, Single(1)))).ok());
  IfrtRequest check;
  check.mutable_check_value_ready_request()->add_value_handles(2);
  check.mutable_check_value_ready_request()->add_value_handles(1);
  const uint64_t op = Send(check);
  EXPECT_FALSE(Answered(op));
  core_->OnStringBytes(host_.keys[2], bytes);
  EXPECT_TRUE(Answered(op));
  IfrtRequest assemble;
  auto* a = assemble.mutable_assemble_array_from_single_device_arrays_request();
  a->mutable_shape()->add_dims(4);
  *a->mutable_sharding() = Hlo({0, 1}, true);
  a->add_single_device_array_handles(1);
  a->add_single_device_array_handles(2);
  a->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  a->set_result_handle(3);
  EXPECT_TRUE(StatusOf(Call(assemble)).ok());
  IfrtRequest disassemble;
  auto* d = disassemble.mutable_disassemble_into_single_device_arrays_request();
  d->set_array_handle(3);
  d->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  d->add_result_handles(4);
  d->add_result_handles(5);
  EXPECT_TRUE(StatusOf(Call(disassemble)).ok());
  EXPECT_EQ(*Read(5), bytes);
  IfrtRequest shard;
  shard.mutable_fully_replicated_shard_request()->set_array_handle(4);
  shard.mutable_fully_replicated_shard_request()->set_copy_semantics(
      xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  shard.mutable_fully_replicated_shard_request()->set_result_handle(6);
  EXPECT_TRUE(StatusOf(Call(shard)).ok());
  EXPECT_EQ(*Read(6), bytes);
  // No program takes them.
  const uint64_t executable = Compile("f", {0}, 2);
  Call(ExecuteRequest(executable, {1}, {7}));
  EXPECT_THAT(std::string(Ready({7}).message()), HasSubstr("strings"));
  IfrtRequest del;
  del.mutable_delete_array_request()->add_array_handle(6);
  Call(del);
  EXPECT_FALSE(Read(6).ok());
  EXPECT_TRUE(StatusOf(Destruct({1, 2, 3, 4, 5, 6, 7})).ok());
}

TEST_F(SessionCoreTest, LayoutsAreInstant) {
  IfrtRequest request;
  auto* get = request.mutable_get_default_layout_request();
  wire::SetDType(DType::kBF16, get->mutable_dtype());
  get->add_dims(3);
  get->add_dims(4);
  const uint64_t op = Send(request);
  ASSERT_TRUE(Answered(op));
  EXPECT_EQ(host_.responses[op].get_default_layout_response().serialized_pjrt_layout(), "{1,0}");
}

TEST_F(SessionCoreTest, EveryOtherRequestIsAnsweredTheWayTheClientNeeds) {
  IfrtRequest request;
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kUnimplemented);  // not set, or unknown
  request.mutable_bitcast_arrays_request()->add_result_handles(9);
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Ready({9}).code(), absl::StatusCode::kUnimplemented);
  request.mutable_loaded_executable_human_readable_program_text_request();
  EXPECT_EQ(Call(request).loaded_executable_human_readable_program_text_response().status().code(), 3);
  request.mutable_loaded_executable_mpmd_metadata_request();
  EXPECT_EQ(Call(request).loaded_executable_mpmd_metadata_response().mpmd_compiled_memory_stats_error().code(), 12);
  request.mutable_loaded_executable_mpmd_cost_analysis_request();
  EXPECT_EQ(Call(request).loaded_executable_mpmd_cost_analysis_response().status().code(), 12);
  request.mutable_loaded_host_callback_poll_request();
  EXPECT_FALSE(Call(request).loaded_host_callback_poll_response().has_host_callback_execution_handle());
  request.mutable_loaded_host_callback_return_request()->set_result_host_buffer_handle(5);
  EXPECT_FALSE(StatusOf(Call(request)).ok());
  EXPECT_THAT(host_.discarded, ElementsAre(5));
  request.mutable_loaded_executable_is_deleted_request();
  EXPECT_FALSE(Call(request).loaded_executable_is_deleted_response().is_deleted());
  request.mutable_loaded_executable_delete_request();
  const uint64_t future = Call(request).loaded_executable_delete_response().future_handle();
  request.mutable_check_future_request()->set_future_handle(future);
  EXPECT_EQ(StatusOf(Call(request)).code(), absl::StatusCode::kUnimplemented);
  auto* assignment = request.mutable_get_default_device_assignment_request();
  assignment->set_num_replicas(2);
  assignment->set_num_partitions(2);
  EXPECT_EQ(Call(request).get_default_device_assignment_response().device_assignment().computation_devices_size(), 2);
  request.mutable_get_default_device_assignment_request()->set_num_replicas(uint64_t{1} << 63);
  EXPECT_FALSE(StatusOf(Call(request)).ok());
}

// ---------------------------------------------------------------- user contexts

class ContextTest : public SessionCoreTest {
 protected:
  // The ids that all responses so far name back, in the order of their numbers; checks the numbers.
  std::vector<uint64_t> Released() {
    std::vector<uint64_t> ids;
    int64_t next = 0;
    for (uint64_t op : host_.order) {
      const auto& metadata = host_.responses[op].response_metadata();
      if (!metadata.has_seq_num()) continue;
      EXPECT_EQ(metadata.seq_num(), next++);
      EXPECT_EQ(metadata.status().code(), 0);
      ids.insert(ids.end(), metadata.destroyed_user_context_ids().begin(), metadata.destroyed_user_context_ids().end());
    }
    return ids;
  }
  void Flush() {
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(Ready({}).ok());
  }
};

TEST_F(ContextTest, ALaunchKeepsItsContextUntilItIsDone) {
  Make(1, "ab");
  const uint64_t executable = Compile("f", {0}, 2);
  cluster_.paused = true;
  Call(ExecuteRequest(executable, {1}), /*context=*/11);
  Flush();
  EXPECT_THAT(Released(), IsEmpty());
  cluster_.paused = false;
  Pump();
  Flush();
  EXPECT_THAT(Released(), ElementsAre(11));
  Flush();
  EXPECT_THAT(Released(), ElementsAre(11));
  EXPECT_EQ(core_->counts().contexts_held, 0u);
}

TEST_F(ContextTest, AnUploadKeepsItsContextUntilItAndItsUsersAreGone) {
  const uint64_t executable = Compile("f", {0}, 2);
  Make(1, "ab", 0, /*context=*/21);
  Flush();
  EXPECT_THAT(Released(), IsEmpty());
  cluster_.paused = true;
  Call(ExecuteRequest(executable, {1}), /*context=*/22);
  Destruct({1});
  Flush();
  EXPECT_THAT(Released(), IsEmpty());
  cluster_.paused = false;
  Pump();
  Flush();
  EXPECT_THAT(Released(), ::testing::UnorderedElementsAre(21, 22));
}

TEST_F(ContextTest, AFailureIsShownWithItsContextAndKeepsIt) {
  Make(1, "ab");
  const uint64_t executable = Compile("fail", {0}, 2);
  Call(ExecuteRequest(executable, {1}, {5}), /*context=*/31);
  EXPECT_EQ(CitedContext(Ready({5})), 31u);
  Destruct({5});
  Flush();
  EXPECT_THAT(Released(), Not(::testing::Contains(31)));
  EXPECT_EQ(core_->counts().contexts_kept_back, 1u);
}

TEST_F(ContextTest, SixtyThousandCallsLeaveNothing) {
  Make(1, "ab");
  const uint64_t executable = Compile("f", {0}, 2);
  uint64_t previous =
      Call(ExecuteRequest(executable, {1}), 1'000).loaded_executable_execute_response().outputs(0).array_handle();
  for (uint64_t i = 1; i < 60'000; ++i) {
    Send(ExecuteRequest(executable, {previous}, {100 + i}), 1'000 + i);
    IfrtRequest destruct;
    destruct.mutable_destruct_array_request()->add_array_handle(previous);
    Send(destruct, 1'000 + i);
    previous = 100 + i;
    if (i % 1'000 == 0) Pump();
  }
  Pump();
  Destruct({previous});
  Flush();
  const std::vector<uint64_t> released = Released();
  EXPECT_EQ(released.size(), 60'000u);
  EXPECT_EQ(std::set<uint64_t>(released.begin(), released.end()).size(), 60'000u);
  EXPECT_EQ(core_->counts().contexts_held, 0u);
  EXPECT_EQ(cluster_.controller.counts().arrays, 1u);
}

// ---------------------------------------------------------------- whatever comes

// Random messages: small ids so that they meet, broken submessages, everything in any order. Each is answered at
// most once and nothing falls over.
TEST_F(SessionCoreTest, ARequestAboveTheLimitIsRefusedByName) {
  IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_data(std::string(9 << 20, 'x'));
  const absl::Status status = StatusOf(Call(request));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pass large constants as arguments"));
  EXPECT_TRUE(StatusOf(Call(MakeRequest(7, DType::kF32, {2}, Single(0)))).ok());
}

TEST_F(SessionCoreTest, RandomRequestsAreSurvived) {
  std::mt19937_64 random(20261101);
  auto pick = [&](uint64_t n) { return random() % n; };
  auto handle = [&]() -> uint64_t {
    switch (pick(5)) {
      case 0: return 0;
      case 1: return kServerHandles + pick(8);
      case 2: return random();
      default: return 1 + pick(12);
    }
  };
  auto bytes = [&](size_t max) {
    std::string text(pick(max), '\0');
    for (char& c : text) c = static_cast<char>(random());
    return text;
  };
  auto sharding = [&] {
    switch (pick(5)) {
      case 0: return Single(static_cast<int>(pick(6)));
      case 1: return Hlo({0, 1}, true);
      case 2: return Hlo({2, 3}, false);
      case 3: return Hlo({static_cast<int>(pick(5)), static_cast<int>(pick(5))}, pick(2) == 0);
      default: {
        xla::ifrt::ShardingProto proto;
        proto.mutable_serialized_sharding()->set_type_name("xla::ifrt::HloSharding");
        proto.mutable_serialized_sharding()->set_data(bytes(40));
        return proto;
      }
    }
  };
  auto dims = [&](xla::ifrt::ShapeProto* shape) {
    for (uint64_t i = pick(3); i > 0; --i) {
      shape->add_dims(pick(8) == 0 ? static_cast<int64_t>(random()) : static_cast<int64_t>(pick(5)));
    }
  };
  auto semantics = [&] { return static_cast<xla::ifrt::proto::ArrayCopySemantics>(pick(5)); };
  const DType dtypes[] = {DType::kU8, DType::kF32, DType::kString, DType::kS4, DType::kToken};
  auto spec = [&](xla::ifrt::ArraySpecProto* proto) {
    wire::SetDType(dtypes[pick(5)], proto->mutable_dtype());
    dims(proto->mutable_shape());
    *proto->mutable_sharding() = sharding();
  };
  Compile("f", {0}, 2, 1, true);
  Compile("fail", {2, 3}, 4, 2);
  size_t answered = 0;
  for (int round = 0; round < 30'000; ++round) {
    IfrtRequest request;
    switch (pick(19)) {
      case 0: {
        auto* make = request.mutable_make_array_from_host_buffer_request();
        wire::SetDType(dtypes[pick(5)], make->mutable_dtype());
        dims(make->mutable_shape());
        *make->mutable_sharding() = sharding();
        const uint64_t buffer = handle();
        make->set_host_buffer_handle(buffer);
        make->set_array_handle(pick(3) == 0 ? handle() : buffer);
        if (pick(4) == 0) make->mutable_byte_strides()->add_strides(static_cast<int64_t>(random()));
        if (pick(2) == 0) host_.stored[buffer] = std::string(pick(5), 'q');
        break;
      }
      case 1: {
        auto* make = request.mutable_make_arrays_from_host_buffer_shards_request();
        for (uint64_t i = pick(3); i > 0; --i) {
          auto* one = make->add_specs();
          spec(one->mutable_array_spec());
          for (uint64_t j = pick(3); j > 0; --j) {
            one->add_addressable_shard_indices()->add_indices(static_cast<int64_t>(pick(4)) - 1);
            auto* buffer = one->add_host_buffers();
            wire::SetDType(dtypes[pick(5)], buffer->mutable_dtype());
            dims(buffer->mutable_shape());
            buffer->set_host_buffer_handle(handle());
          }
          make->add_array_handles(handle());
        }
        break;
      }
      case 2: {
        auto* make = request.mutable_make_error_arrays_request();
        make->mutable_error()->set_code(static_cast<int32_t>(pick(20)) - 1);
        spec(make->add_array_specs());
        make->add_array_handles(handle());
        break;
      }
      case 3: {
        auto* assemble = request.mutable_assemble_array_from_single_device_arrays_request();
        dims(assemble->mutable_shape());
        *assemble->mutable_sharding() = sharding();
        for (uint64_t i = pick(3); i > 0; --i) assemble->add_single_device_array_handles(handle());
        assemble->set_copy_semantics(semantics());
        assemble->set_result_handle(handle());
        break;
      }
      case 4: {
        auto* disassemble = request.mutable_disassemble_into_single_device_arrays_request();
        disassemble->set_array_handle(handle());
        disassemble->set_copy_semantics(semantics());
        for (uint64_t i = pick(3); i > 0; --i) disassemble->add_result_handles(handle());
        break;
      }
      case 5: {
        request.mutable_fully_replicated_shard_request()->set_array_handle(handle());
        request.mutable_fully_replicated_shard_request()->set_copy_semantics(semantics());
        request.mutable_fully_replicated_shard_request()->set_result_handle(handle());
        break;
      }
      case 6: {
        auto* copy = request.mutable_copy_arrays_request();
        for (uint64_t i = pick(3); i > 0; --i) copy->add_array_handles(handle());
        for (uint64_t i = pick(3); i > 0; --i) copy->add_device_ids(static_cast<int32_t>(pick(6)));
        if (pick(2) == 0) copy->set_memory_kind(pick(2) == 0 ? "" : "pinned_host");
        copy->set_copy_semantics(semantics());
        for (uint64_t i = pick(3); i > 0; --i) copy->add_result_handles(handle());
        break;
      }
      case 7: {
        auto* remap = request.mutable_remap_arrays_request();
        remap->add_array_handles(handle());
        spec(remap->mutable_plan()->add_input_specs());
        spec(remap->mutable_plan()->add_output_specs());
        auto* mapping = remap->mutable_plan()->add_mappings();
        mapping->set_in_array(static_cast<int32_t>(pick(3)) - 1);
        for (auto* field : {mapping->mutable_from_start(), mapping->mutable_from_end(), mapping->mutable_from_step(),
                            mapping->mutable_to_start(), mapping->mutable_to_end(), mapping->mutable_to_step()}) {
          field->Add(static_cast<int64_t>(pick(4)));
        }
        remap->set_copy_semantics(semantics());
        remap->add_result_handles(handle());
        break;
      }
      case 8: {
        auto* reshard = request.mutable_reshard_arrays_request();
        reshard->add_array_handles(handle());
        spec(reshard->add_array_specs());
        reshard->set_copy_semantics(semantics());
        reshard->add_result_handles(handle());
        break;
      }
      case 9: {
        request.mutable_copy_to_host_buffer_request()->set_array_handle(handle());
        request.mutable_copy_to_host_buffer_request()->set_host_buffer_handle(handle());
        if (pick(2) == 0) {
          request.mutable_copy_to_host_buffer_request()->mutable_byte_strides()->add_strides(
              static_cast<int64_t>(pick(6)) - 1);
        }
        break;
      }
      case 10:
        for (uint64_t i = pick(4); i > 0; --i) request.mutable_delete_array_request()->add_array_handle(handle());
        request.mutable_delete_array_request();
        break;
      case 11:
        for (uint64_t i = pick(4); i > 0; --i) request.mutable_destruct_array_request()->add_array_handle(handle());
        request.mutable_destruct_array_request();
        break;
      case 12:
        for (uint64_t i = pick(4); i > 0; --i) request.mutable_check_value_ready_request()->add_value_handles(handle());
        request.mutable_check_value_ready_request();
        break;
      case 13: request.mutable_check_future_request()->set_future_handle(handle()); break;
      case 14: request.mutable_is_array_deleted_request()->set_array_handle(handle()); break;
      case 15: {
        auto* execute = request.mutable_loaded_executable_execute_request();
        execute->set_loaded_executable_handle(kServerHandles + pick(8));
        for (uint64_t i = pick(3); i > 0; --i) execute->add_args_handles(handle());
        for (uint64_t i = pick(3); i > 0; --i) execute->add_result_array_handle(handle());
        execute->mutable_execute_options()->set_fill_status(pick(2) == 0);
        if (pick(3) == 0) execute->set_result_status_handle(handle());
        if (pick(4) == 0) {
          execute->mutable_execute_options()->add_non_donatable_input_indices(static_cast<int32_t>(pick(4)) - 1);
        }
        if (pick(8) == 0) execute->add_device_ids(static_cast<int32_t>(pick(6)));
        break;
      }
      case 16: {
        request = CompileRequestFor({static_cast<int>(pick(5))});
        if (pick(2) == 0) request.mutable_compile_request()->mutable_compile_options()->set_data(bytes(60));
        break;
      }
      case 17:
        request.mutable_loaded_executable_fetch_execute_result_request()->set_result_status_handle(handle());
        break;
      default:
        if (!request.ParseFromString(bytes(60))) request.Clear();
        if (request.has_init_request()) request.Clear();
        break;
    }
    Send(request, pick(3) == 0 ? 1 + pick(50) : 0);
    if (pick(10) == 0) {
      Pump();
      for (auto& [token, program] : host_.compiles) core_->OnCompiled(token, absl::InvalidArgumentError("no"));
      host_.compiles.clear();
      answered += host_.responses.size();
      host_.responses.clear();
      host_.order.clear();
      host_.results.clear();
    }
  }
  EXPECT_GT(answered, 20'000u);
  cluster_.controller.CloseSession(SessionId(1), absl::CancelledError("end"));
  core_.reset();
  cluster_.Run();
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
  EXPECT_EQ(cluster_.controller.counts().executables, 0u);
}

}  // namespace
}  // namespace landbridge
