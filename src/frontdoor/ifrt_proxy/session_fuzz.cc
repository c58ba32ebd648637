// Requests of a client that may be anything, through a whole session with a controller and workers: each is answered once
// at most, and a closed session leaves nothing.
#include <memory>
#include <set>

#include "base/log.h"
#include "frontdoor/ifrt_proxy/fake_cluster.h"
#include "frontdoor/ifrt_proxy/session_core.h"
#include "frontdoor/ifrt_proxy/wire.h"
#include "proto/xla/compile_options.pb.h"
#include "testing/fuzz.h"
#include "testing/fuzz_proto.h"

namespace landbridge::fuzz {
namespace {

using xla::ifrt::proxy::IfrtRequest;
using xla::ifrt::proxy::IfrtResponse;

class Host final : public SessionHost {
 public:
  void Respond(std::unique_ptr<IfrtResponse> response, bool) override {
    LB_CHECK(open.erase(response->response_metadata().op_id()) == 1);
  }
  RequestId NewRequestId() override { return RequestId(next_request++); }
  void Compile(uint64_t token, absl::Cord, std::string options, bool) override {
    xla::CompileOptionsProto proto;
    LB_CHECK(proto.ParseFromString(options));
    const auto& build = proto.executable_build_options();
    compiles.emplace_back(token, static_cast<int>(std::max<int64_t>(build.num_replicas(), 1) *
                                                  std::max<int64_t>(build.num_partitions(), 1)));
  }
  void FetchOptimisedProgram(uint64_t token, std::shared_ptr<const ProgramImage>, OptimisedForm) override {
    fetches.push_back(token);
  }
  void AskShardings(uint64_t token, absl::Cord, std::string) override { seals.push_back(token); }
  void SealProgram(uint64_t token, std::shared_ptr<const ProgramImage>, std::vector<DeviceId>) override {
    seals.push_back(token);
  }
  void OpenProgram(uint64_t token, absl::Cord) override { compiles.emplace_back(token, 1); }
  absl::StatusOr<ClaimedUpload> ClaimUpload(uint64_t handle, int64_t expected) override {
    LB_CHECK(expected >= 0);
    if (handle % 5 == 4) return absl::InvalidArgumentError("no such buffer");
    ClaimedUpload claimed;
    claimed.key = next_key++;
    if (handle % 2 == 0 && expected <= 4096) {
      claimed.bytes = std::make_shared<const std::string>(static_cast<size_t>(expected), 'b');
    }
    return claimed;
  }
  absl::StatusOr<ClaimedUpload> ClaimString(uint64_t handle) override { return ClaimUpload(handle, 16); }
  void DiscardUpload(uint64_t) override {}
  void DropUpload(uint64_t key) override { LB_CHECK(key > 0 && key < next_key); }
  absl::Status PutResult(uint64_t, RequestId, ReadResult) override { return absl::OkStatus(); }

  std::set<uint64_t> open;
  std::vector<std::pair<uint64_t, int>> compiles;
  std::vector<uint64_t> fetches, seals;
  uint64_t next_request = 1, next_key = 1;
};

std::shared_ptr<ProgramImage> Image(int devices, uint64_t kind) {
  auto image = std::make_shared<ProgramImage>();
  image->envelope = std::make_shared<const std::string>("envelope");
  image->sha256 = std::string(32, 'x');
  image->info.set_name(kind % 4 == 0 ? "fail" : "f");
  image->info.set_num_devices(devices);
  image->info.set_num_replicas(1);
  image->info.set_num_partitions(devices);
  for (TensorInfo* tensor : {image->info.add_parameters(), image->info.add_outputs(), image->info.add_outputs()}) {
    tensor->set_dtype(static_cast<int32_t>(DType::kU8));
    tensor->add_global_dims(4);
    tensor->add_device_dims(4 / devices);
    tensor->set_device_bytes(4 / devices);
    if (devices > 1) {
      tensor->mutable_sharding()->set_type(xla::OpSharding::OTHER);
      tensor->mutable_sharding()->add_tile_assignment_dimensions(devices);
      tensor->mutable_sharding()->add_iota_reshape_dims(devices);
      tensor->mutable_sharding()->add_iota_transpose_perm(0);
    }
  }
  if (kind % 2 == 0) image->info.add_donated_parameters(0);
  return image;
}

xla::ifrt::Serialized Serialized(const char* type, const google::protobuf::Message& message) {
  xla::ifrt::Serialized out;
  out.set_type_name(type);
  out.set_data(message.SerializeAsString());
  return out;
}

xla::ifrt::ShardingProto SingleDevice(int device) {
  xla::ifrt::SingleDeviceShardingProto single;
  single.set_device_id(device);
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = Serialized("xla::ifrt::SingleDeviceSharding", single);
  return proto;
}
xla::ifrt::ShardingProto Over(std::vector<int> devices, bool divided) {
  xla::ifrt::HloShardingProto hlo;
  for (int id : devices) hlo.mutable_devices()->add_device_ids(id);
  if (divided) {
    hlo.mutable_xla_op_sharding()->set_type(xla::OpSharding::OTHER);
    hlo.mutable_xla_op_sharding()->add_tile_assignment_dimensions(static_cast<int64_t>(devices.size()));
    hlo.mutable_xla_op_sharding()->add_iota_reshape_dims(static_cast<int64_t>(devices.size()));
    hlo.mutable_xla_op_sharding()->add_iota_transpose_perm(0);
  }
  xla::ifrt::ShardingProto proto;
  *proto.mutable_serialized_sharding() = Serialized("xla::ifrt::HloSharding", hlo);
  return proto;
}
xla::ifrt::Serialized Options(std::vector<int> devices) {
  xla::ifrt::XlaCompileOptionsProto wrapped;
  auto* build = wrapped.mutable_compile_options()->mutable_executable_build_options();
  build->set_num_replicas(1);
  build->set_num_partitions(static_cast<int64_t>(devices.size()));
  build->mutable_device_assignment()->set_replica_count(1);
  build->mutable_device_assignment()->set_computation_count(static_cast<int32_t>(devices.size()));
  for (int id : devices) build->mutable_device_assignment()->add_computation_devices()->add_replica_device_ids(id);
  return Serialized("xla::ifrt::XlaCompileOptions", wrapped);
}

// Serialized parts often are one of these, so that made-up requests get past the decoding.
std::vector<std::string> Parts() {
  return {"xla::ifrt::HloSharding",
          "xla::ifrt::SingleDeviceSharding",
          Over({0, 1}, true).serialized_sharding().data(),
          Over({2, 3}, false).serialized_sharding().data(),
          SingleDevice(1).serialized_sharding().data(),
          "xla::ifrt::XlaProgram",
          "xla::ifrt::XlaCompileOptions",
          Options({0, 1}).data(),
          Options({2}).data(),
          "device",
          "pinned_host",
          "xla::ifrt::PluginProgram",
          R"(__serialized_plugin_program {"reshardRequest":{"inSharding":[{"devices":{"device_ids":[0,1]},)"
          R"("xla_hlo_sharding":""}],"outSharding":[{"devices":{"device_ids":[2]},"xla_hlo_sharding":""}]}})"};
}

class Run {
 public:
  Run() {
    cluster.controller.OpenSession(SessionId(1));
    cluster.pull = [this](Incarnation, const Upload& upload, std::function<void(absl::StatusOr<std::string>)> done) {
      pulls.emplace_back(upload.image_bytes(), std::move(done));
    };
    SessionCore::Options options;
    options.session = SessionId(1);
    core = std::make_unique<SessionCore>(options, &cluster.controller, &host);
    for (int i = 0; i < 4; ++i) {
      CatalogDevice device;
      device.id = DeviceId(i);
      catalog.devices.push_back(device);
    }
  }
  void Send(IfrtRequest request) {
    request.mutable_request_metadata()->set_op_id(++op);
    host.open.insert(op);
    core->OnRequest(request, 0);
  }
  void Pump() {
    do {
      cluster.Run();
      for (uint64_t key : std::exchange(cluster.wanted, {}))
        cluster.controller.OnHostBytes(key, absl::UnavailableError("gone"));
    } while (cluster.HandOverAnswers(*core));
  }
  void Pulled(bool well) {
    if (pulls.empty()) return;
    auto [bytes, done] = std::move(pulls.back());
    pulls.pop_back();
    if (well && bytes <= 4096) {
      done(std::string(static_cast<size_t>(bytes), 'p'));
    } else {
      done(absl::UnavailableError("the pull broke"));
    }
  }
  void Compiled(uint64_t kind) {
    if (!host.fetches.empty()) {
      core->OnOptimisedProgram(host.fetches.back(), std::string("module"));
      host.fetches.pop_back();
    }
    if (!host.seals.empty()) {
      core->OnAnswer(host.seals.back(), std::string("{}"));
      host.seals.pop_back();
    }
    if (host.compiles.empty()) return;
    const auto [token, devices] = host.compiles.back();
    host.compiles.pop_back();
    if (kind % 8 == 7 || 4 % devices != 0) {
      core->OnCompiled(token, absl::InvalidArgumentError("it does not compile"));
    } else {
      core->OnCompiled(token, SessionCore::Compiled{Image(devices, kind), {DeviceId(static_cast<int32_t>(kind % 9))}});
    }
  }

  FakeCluster cluster;
  DeviceCatalog catalog;
  Host host;
  std::unique_ptr<SessionCore> core;
  std::vector<std::pair<int64_t, std::function<void(absl::StatusOr<std::string>)>>> pulls;
  uint64_t op = 0;
};

std::string RawStep(const IfrtRequest& request) {
  return std::string(1, '\0') + WithLength(request.SerializeAsString());
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  constexpr uint64_t kServer = uint64_t{1} << 48;
  std::vector<IfrtRequest> requests;
  auto add = [&]() -> IfrtRequest& { return requests.emplace_back(); };
  add().mutable_init_request();
  for (uint64_t handle : {2, 6}) {
    auto* make = add().mutable_make_array_from_host_buffer_request();
    make->mutable_dtype()->set_kind(static_cast<int>(DType::kU8));
    make->mutable_shape()->add_dims(4);
    *make->mutable_sharding() = SingleDevice(handle == 2 ? 0 : 1);
    make->set_host_buffer_handle(handle);
    make->set_array_handle(handle);
  }
  auto* assemble = add().mutable_assemble_array_from_single_device_arrays_request();
  assemble->mutable_shape()->add_dims(8);
  *assemble->mutable_sharding() = Over({0, 1}, true);
  assemble->add_single_device_array_handles(2);
  assemble->add_single_device_array_handles(6);
  assemble->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_REUSE_INPUT);
  assemble->set_result_handle(7);
  auto* compile = add().mutable_compile_request();
  compile->mutable_program()->set_type_name("xla::ifrt::XlaProgram");
  *compile->mutable_compile_options() = Options({0});
  std::string steps;
  for (const IfrtRequest& request : requests) steps += RawStep(request);
  steps += "\x03\x01\x02";
  requests.clear();
  add().mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(kServer);
  auto* execute = add().mutable_loaded_executable_execute_request();
  execute->set_loaded_executable_handle(kServer);
  execute->add_args_handles(2);
  execute->mutable_execute_options()->set_fill_status(true);
  auto* again = add().mutable_loaded_executable_execute_request();
  *again = *execute;
  again->add_result_array_handle(8);
  again->add_result_array_handle(9);
  again->set_result_status_handle(10);
  auto* copy = add().mutable_copy_arrays_request();
  copy->add_array_handles(8);
  copy->add_device_ids(2);
  copy->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY);
  copy->add_result_handles(11);
  add().mutable_copy_to_host_buffer_request()->set_array_handle(11);
  add().mutable_check_value_ready_request()->add_value_handles(11);
  add().mutable_check_future_request()->set_future_handle(10);
  add().mutable_disassemble_into_single_device_arrays_request()->set_array_handle(7);
  auto* remap = add().mutable_remap_arrays_request();
  remap->add_array_handles(7);
  for (auto* spec : {remap->mutable_plan()->add_input_specs(), remap->mutable_plan()->add_output_specs()}) {
    spec->mutable_dtype()->set_kind(static_cast<int>(DType::kU8));
    spec->mutable_shape()->add_dims(8);
    *spec->mutable_sharding() = Over({0, 1}, true);
  }
  auto* mapping = remap->mutable_plan()->add_mappings();
  for (auto* field : {mapping->mutable_from_start(), mapping->mutable_to_start()}) field->Add(0);
  for (auto* field : {mapping->mutable_from_end(), mapping->mutable_to_end()}) field->Add(2);
  for (auto* field : {mapping->mutable_from_step(), mapping->mutable_to_step()}) field->Add(1);
  remap->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_DONATE_INPUT);
  remap->add_result_handles(12);
  auto* reshard = add().mutable_reshard_arrays_request();
  reshard->add_array_handles(12);
  *reshard->add_array_specs() = remap->plan().output_specs(0);
  *reshard->mutable_array_specs(0)->mutable_sharding() = Over({2, 3}, true);
  reshard->set_copy_semantics(xla::ifrt::proto::ARRAY_COPY_SEMANTICS_ALWAYS_COPY);
  reshard->add_result_handles(13);
  add().mutable_delete_array_request()->add_array_handle(13);
  add().mutable_destruct_array_request()->add_array_handle(13);
  for (const IfrtRequest& request : requests) steps += RawStep(request) + "\x02";
  auto* text = add().mutable_make_array_from_host_buffer_request();
  *text = *requests[0].mutable_make_array_from_host_buffer_request();
  IfrtRequest strings;
  auto* make = strings.mutable_make_array_from_host_buffer_request();
  make->mutable_dtype()->set_kind(static_cast<int>(DType::kString));
  *make->mutable_sharding() = SingleDevice(0);
  make->set_host_buffer_handle(3);
  make->set_array_handle(3);
  std::string random;
  for (int i = 0; i < 900; ++i) random.push_back(static_cast<char>(i * 7919 >> 3));
  return {steps, RawStep(strings) + "\x06\x02" + steps, random};
}

void FuzzOne(absl::string_view input) {
  static const MessageMaker maker(Parts());
  Choices choices(input);
  Run run;
  while (!choices.empty()) {
    switch (choices.Below(8)) {
      case 0: {
        IfrtRequest request;
        const absl::string_view bytes = choices.Text();
        if (request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) run.Send(std::move(request));
        break;
      }
      case 1: {
        IfrtRequest request;
        maker.Fill(choices, &request);
        run.Send(std::move(request));
        break;
      }
      case 2: run.Pump(); break;
      case 3: run.Compiled(choices.Byte()); break;
      case 4: run.Pulled(choices.Below(4) != 0); break;
      case 5:
        if (choices.Below(16) == 0) run.cluster.Kill(static_cast<int>(choices.Below(2)));
        break;
      case 6:
        if (choices.Flag()) {
          run.core->OnStringBytes(choices.Below(16), std::string(choices.Text()));
        } else {
          run.core->OnStringBytes(choices.Below(16), absl::UnavailableError("the client has gone"));
        }
        break;
      default: run.core->SetDevices(&run.catalog); break;
    }
  }
  run.core->SetDevices(&run.catalog);
  run.cluster.controller.CloseSession(SessionId(1), absl::CancelledError("the end"));
  run.core.reset();
  while (!run.pulls.empty()) run.Pulled(false);
  run.cluster.Run();
  const Controller::Counts counts = run.cluster.controller.counts();
  LB_CHECK(counts.arrays == 0 && counts.executables == 0 && counts.requests == 0 && counts.sessions == 0);
}

}  // namespace landbridge::fuzz
