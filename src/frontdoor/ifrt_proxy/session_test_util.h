// A session's core between a fake of its shell and the controller over fake workers (fake_cluster.h): requests go in
// as messages, Pump lets everything happen that can, answers are looked at as messages. Not thread-safe.
#ifndef LANDBRIDGE_FRONTDOOR_IFRT_PROXY_SESSION_TEST_UTIL_H_
#define LANDBRIDGE_FRONTDOOR_IFRT_PROXY_SESSION_TEST_UTIL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontdoor/ifrt_proxy/fake_cluster.h"
#include "frontdoor/ifrt_proxy/session_core.h"
#include "frontdoor/ifrt_proxy/wire.h"
#include "gtest/gtest.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {

class FakeSessionHost final : public SessionHost {
 public:
  using IfrtResponse = xla::ifrt::proxy::IfrtResponse;

  void Respond(std::unique_ptr<IfrtResponse> response, bool) override {
    const uint64_t op = response->response_metadata().op_id();
    EXPECT_FALSE(responses.contains(op)) << "two responses to " << op;
    order.push_back(op);
    responses[op] = std::move(*response);
  }
  RequestId NewRequestId() override { return RequestId(next_request++); }
  void Compile(uint64_t token, absl::Cord program, std::string options, bool split) override {
    compiles[token] = {std::string(program), std::move(options)};
    last_split = split;
  }
  void FetchOptimisedProgram(uint64_t token, std::shared_ptr<const ProgramImage> image, OptimisedForm form) override {
    fetches[token] = std::move(image);
    last_form = form;
  }
  void AskShardings(uint64_t token, absl::Cord program, std::string options) override {
    sharding_questions[token] = {std::string(program), std::move(options)};
  }
  void SealProgram(uint64_t token, std::shared_ptr<const ProgramImage>, std::vector<DeviceId> devices) override {
    seals[token] = std::move(devices);
  }
  void OpenProgram(uint64_t token, absl::Cord sealed) override { opened[token] = std::string(sealed); }
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
  std::map<uint64_t, std::pair<std::string, std::string>> sharding_questions;
  std::map<uint64_t, std::vector<DeviceId>> seals;
  std::map<uint64_t, std::string> opened;
  bool last_split = false;
  OptimisedForm last_form = OptimisedForm::kText;
  std::map<uint64_t, std::string> stored, results;
  std::map<uint64_t, uint64_t> keys;  // handle -> key, for uploads that come later
  std::vector<uint64_t> discarded, dropped;
  uint64_t next_request = 1, next_key = 1;
};

class SessionTest : public ::testing::Test {
 protected:
  using IfrtRequest = xla::ifrt::proxy::IfrtRequest;
  using IfrtResponse = xla::ifrt::proxy::IfrtResponse;
  static constexpr uint64_t kServerHandles = uint64_t{1} << 48;  // handles that the server makes begin here

  SessionTest() : SessionTest(/*reads_modules=*/true) {}
  explicit SessionTest(bool reads_modules) {
    cluster_.controller.OpenSession(SessionId(1));
    SessionCore::Options options;
    options.session = SessionId(1);
    options.wire_id = 4242;
    options.unanswered_max = 100'000;
    options.request_bytes_max = 8 << 20;
    options.reads_modules = reads_modules;
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
    do {
      cluster_.Run();
    } while (cluster_.HandOverAnswers(*core_));
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
  FakeSessionHost host_;
  std::unique_ptr<SessionCore> core_;
  uint64_t op_ = 0;
  uint64_t buffer_ = 1'000'000;
};

}  // namespace landbridge

#endif  // LANDBRIDGE_FRONTDOOR_IFRT_PROXY_SESSION_TEST_UTIL_H_
