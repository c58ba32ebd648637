// What one call of a chained jit (DestructArray, Execute) costs the front door without gRPC: decoding, the session and
// its controller, encoding the answers.
#include <benchmark/benchmark.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "controller/benchmark_test_util.h"
#include "frontdoor/ifrt_proxy/session_core.h"
#include "frontdoor/ifrt_proxy/session_pipe.h"
#include "frontdoor/ifrt_proxy/wire.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {
namespace {

using xla::ifrt::proxy::IfrtRequest;
using xla::ifrt::proxy::IfrtResponse;

// One worker that is always faster; no client.
class World final : public QuietSink, public SessionHost {
 public:
  World() : controller({.space = 1}, this) {
    controller.DeclareDevices({{DeviceId(0), SlotId{SliceId(0), 0}, 0}});
    controller.OnWorkerUp(SlotId{SliceId(0), 0}, Incarnation(7), "address", "worker", 0);
    controller.OpenSession(SessionId(1));
  }

  void SendToWorker(Incarnation, WorkerOp op) override {
    if (op.has_launch()) ended.push_back(op.launch().ticket());
    if (op.has_upload()) ended.push_back(op.upload().ticket());
  }
  void Resolve(RequestId request, const absl::Status& status) override { resolved.emplace_back(request, status); }

  void Respond(std::unique_ptr<IfrtResponse> response, bool) override {
    last = std::move(response);
    encoded += last->SerializeAsString().size();
  }
  RequestId NewRequestId() override { return RequestId(next_request++); }
  void Compile(uint64_t token_in, absl::Cord, std::string, bool) override { token = token_in; }
  void FetchOptimisedProgram(uint64_t, std::shared_ptr<const ProgramImage>, OptimisedForm) override {}
  void AskShardings(uint64_t, absl::Cord, std::string) override {}
  void SealProgram(uint64_t, std::shared_ptr<const ProgramImage>, std::vector<DeviceId>) override {}
  void OpenProgram(uint64_t, absl::Cord) override {}
  absl::StatusOr<ClaimedUpload> ClaimUpload(uint64_t, int64_t bytes) override {
    return ClaimedUpload{++key, std::make_shared<const std::string>(static_cast<size_t>(bytes), 'x')};
  }
  absl::StatusOr<ClaimedUpload> ClaimString(uint64_t) override { return absl::UnimplementedError(""); }
  void DiscardUpload(uint64_t) override {}
  void DropUpload(uint64_t) override {}
  absl::Status PutResult(uint64_t, RequestId, ReadResult) override { return absl::OkStatus(); }

  // Reports what has ended, and lets the session hear of it.
  void EndAll(SessionCore& core) {
    WorkerReport report;
    for (uint64_t ticket : ended) report.mutable_progress()->add_tickets(ticket);
    ended.clear();
    controller.OnReport(Incarnation(7), report, 0);
    for (auto& [request, status] : std::exchange(resolved, {})) core.OnResolve(request, status);
  }

  std::vector<uint64_t> ended;
  std::deque<std::pair<RequestId, absl::Status>> resolved;
  std::unique_ptr<IfrtResponse> last;
  size_t encoded = 0;
  uint64_t next_request = 1, token = 0, key = 0;
  Controller controller;
};

class Client {
 public:
  explicit Client(int parameters) : core_({.session = SessionId(1)}, &world_.controller, &world_) {
    CatalogDevice device;
    device.id = DeviceId(0);
    catalog_.devices.push_back(device);
    core_.SetDevices(&catalog_);
    IfrtRequest compile;
    auto* program = compile.mutable_compile_request();
    program->mutable_program()->set_type_name("xla::ifrt::XlaProgram");
    program->mutable_compile_options()->set_type_name("xla::ifrt::XlaCompileOptions");
    program->mutable_compile_options()->set_data(xla::ifrt::XlaCompileOptionsProto().SerializeAsString());
    Receive(Encode(std::move(compile)));
    auto image = std::make_shared<ProgramImage>();
    image->envelope = std::make_shared<const std::string>("bytes");
    image->info.set_num_devices(1);
    auto describe = [](TensorInfo* tensor) {
      tensor->set_dtype(static_cast<int>(DType::kF32));
      tensor->set_device_bytes(4);
    };
    for (int i = 0; i < parameters; ++i) describe(image->info.add_parameters());
    describe(image->info.add_outputs());
    core_.OnCompiled(world_.token, SessionCore::Compiled{std::move(image)});
    executable_ = world_.last->compile_response().loaded_executable_handle();
    for (int i = 0; i < parameters; ++i) args_.push_back(Upload());
    world_.EndAll(core_);
  }

  // x = f(x, ...), as the client encodes it: drop the last result, then run.
  std::pair<std::string, std::string> EncodeCall() {
    IfrtRequest destruct, execute;
    if (last_ != 0) destruct.mutable_destruct_array_request()->add_array_handle(last_);
    auto* run = execute.mutable_loaded_executable_execute_request();
    run->set_loaded_executable_handle(executable_);
    for (uint64_t arg : args_) run->add_args_handles(arg);
    run->add_result_array_handle(++handle_);
    run->mutable_execute_options()->set_launch_id(static_cast<int32_t>(op_));
    last_ = std::exchange(args_[0], handle_);
    return {Encode(std::move(destruct)), Encode(std::move(execute))};
  }
  // As the lane's thread and the loop do.
  void Receive(const std::string& bytes) {
    auto received = std::make_unique<ReceivedRequest>();
    LB_CHECK(received->mutable_message()->ParseFromString(bytes));
    core_.OnRequest(*received->mutable_message(), 0);
  }
  void EndAll() {
    if (world_.ended.size() >= 64) world_.EndAll(core_);
  }

 private:
  std::string Encode(IfrtRequest request) {
    request.mutable_request_metadata()->set_op_id(++op_);
    request.mutable_request_metadata()->set_user_context_id(op_);
    return request.SerializeAsString();
  }
  uint64_t Upload() {
    xla::ifrt::SingleDeviceShardingProto single;
    IfrtRequest request;
    auto* make = request.mutable_make_array_from_host_buffer_request();
    wire::SetDType(DType::kF32, make->mutable_dtype());
    make->mutable_shape();
    make->mutable_sharding()->mutable_serialized_sharding()->set_type_name("xla::ifrt::SingleDeviceSharding");
    make->mutable_sharding()->mutable_serialized_sharding()->set_data(single.SerializeAsString());
    make->set_host_buffer_handle(++handle_);
    make->set_array_handle(handle_);
    Receive(Encode(std::move(request)));
    LB_CHECK(world_.last->response_metadata().status().code() == 0);
    return handle_;
  }

  World world_;
  DeviceCatalog catalog_;
  SessionCore core_;
  uint64_t executable_ = 0, op_ = 0, handle_ = 0, last_ = 0;
  std::vector<uint64_t> args_;
};

void BM_ChainedCall(benchmark::State& state) {
  Client client(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    state.PauseTiming();  // the client's part, for a batch
    std::vector<std::pair<std::string, std::string>> calls;
    for (int i = 0; i < 256; ++i) calls.push_back(client.EncodeCall());
    state.ResumeTiming();
    for (const auto& [destruct, execute] : calls) {
      client.Receive(destruct);
      client.Receive(execute);
      client.EndAll();
    }
  }
  state.SetItemsProcessed(state.iterations() * 256);
}
BENCHMARK(BM_ChainedCall)->Arg(1)->Arg(16)->Arg(200);

void BM_Decode(benchmark::State& state) {
  Client client(static_cast<int>(state.range(0)));
  const std::string execute = client.EncodeCall().second;
  for (auto _ : state) {
    auto received = std::make_unique<ReceivedRequest>();
    benchmark::DoNotOptimize(received->mutable_message()->ParseFromString(execute));
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(BM_Decode)->Arg(1)->Arg(16)->Arg(200);

}  // namespace
}  // namespace landbridge

BENCHMARK_MAIN();
