#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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

class SessionArraysTest : public SessionTest {};

TEST_F(SessionArraysTest, UploadAndReadBack) {
  Make(1, "abcd");
  EXPECT_TRUE(Ready({1}).ok());
  EXPECT_EQ(*Read(1), "abcd");
  Destruct({1});
  EXPECT_EQ(cluster_.controller.counts().arrays, 0u);
  EXPECT_EQ(core_->counts().arrays, 0u);
}

TEST_F(SessionArraysTest, ARequestMayComeBeforeItsBytes) {
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

TEST_F(SessionArraysTest, RequestsThatWaitAreCounted) {
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

TEST_F(SessionArraysTest, ReplicatedUploadAndShards) {
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

TEST_F(SessionArraysTest, BadUploadsPoisonTheirArraysAndConsumeTheBuffers) {
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

TEST_F(SessionArraysTest, CopyBetweenSlicesAndLoss) {
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

TEST_F(SessionArraysTest, RemapReordersShards) {
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

TEST_F(SessionArraysTest, ReshardByRequestAndByPluginProgram) {
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

TEST_F(SessionArraysTest, DeleteKeepsTheHandle) {
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

TEST_F(SessionArraysTest, ErrorArrays) {
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

TEST_F(SessionArraysTest, StringArraysLiveInTheDoor) {
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

}  // namespace
}  // namespace landbridge
