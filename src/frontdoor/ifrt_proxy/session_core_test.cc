#include <random>
#include <string>
#include <vector>

#include "frontdoor/ifrt_proxy/session_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using xla::ifrt::proxy::IfrtRequest;
using xla::ifrt::proxy::IfrtResponse;

class SessionCoreTest : public SessionTest {};

TEST_F(SessionCoreTest, InitWaitsForTheDevicesAndIsNotNumbered) {
  FakeSessionHost host;
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
  FakeSessionHost host;
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

// ---------------------------------------------------------------- whatever comes

TEST_F(SessionCoreTest, ARequestAboveTheLimitIsRefusedByName) {
  IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_data(std::string(9 << 20, 'x'));
  const absl::Status status = StatusOf(Call(request));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("pass large constants as arguments"));
  EXPECT_TRUE(StatusOf(Call(MakeRequest(7, DType::kF32, {2}, Single(0)))).ok());
}

// Random messages: small ids so that they meet, broken submessages, everything in any order. Each is answered at
// most once and nothing falls over.
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
