#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "frontdoor/ifrt_proxy/session_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using xla::ifrt::proxy::IfrtRequest;
using xla::ifrt::proxy::IfrtResponse;

class SessionProgramsTest : public SessionTest {};

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

TEST_F(SessionProgramsTest, TellsTheMemoryOfADevice) {
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

IfrtRequest WitnessRequest(const std::string& devices) {
  IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
  request.mutable_compile_request()->mutable_program()->set_data(
      absl::StrCat(R"(__serialized_plugin_program {"landbridgeWitness":{"devices":)", devices, "}}"));
  return request;
}

TEST_F(SessionProgramsTest, AWitnessTakesAnyArrayAndLeavesItAlone) {
  Make(1, "ab");
  const IfrtResponse compiled = Call(WitnessRequest("2"));
  ASSERT_TRUE(StatusOf(compiled).ok()) << StatusOf(compiled);
  EXPECT_EQ(compiled.compile_response().num_devices(), 2);
  const uint64_t witness = compiled.compile_response().loaded_executable_handle();
  IfrtRequest metadata;
  metadata.mutable_loaded_executable_metadata_request()->set_loaded_executable_handle(witness);
  // By this error the client takes it that it does not know whether an argument was donated.
  EXPECT_TRUE(Call(metadata).loaded_executable_metadata_response().has_donated_input_indices_error());
  const IfrtResponse run = Call(ExecuteRequest(witness, {1}, {}, true));
  ASSERT_TRUE(StatusOf(run).ok()) << StatusOf(run);
  EXPECT_EQ(run.loaded_executable_execute_response().outputs_size(), 0);
  IfrtRequest fetch;
  fetch.mutable_loaded_executable_fetch_execute_result_request()->set_result_status_handle(
      run.loaded_executable_execute_response().status_handle());
  EXPECT_TRUE(StatusOf(Call(fetch)).ok());
  EXPECT_EQ(*Read(1), "ab");
  for (const char* devices : {"0", "-1", "5", "70000", "99999999999999999999", "\"2\"", "null"}) {
    EXPECT_EQ(StatusOf(Call(WitnessRequest(devices))).code(), absl::StatusCode::kInvalidArgument) << devices;
  }
  EXPECT_EQ(core_->counts().pending, 0u);
}

TEST_F(SessionProgramsTest, TellsTheOptimisedProgram) {
  const uint64_t executable = Compile("f", {0}, 4);
  const uint64_t op = Send(TextRequest(executable));
  ASSERT_EQ(host_.fetches.size(), 1u);
  EXPECT_FALSE(Answered(op));
  core_->OnOptimisedProgram(host_.fetches.begin()->first, std::string("YSBtb2R1bGU="));
  EXPECT_EQ(host_.responses[op].loaded_executable_human_readable_program_text_response().human_readable_program_text(),
            "YSBtb2R1bGU=");
  EXPECT_EQ(host_.last_form, OptimisedForm::kModule);
}

class StockSessionTest : public SessionTest {
 protected:
  StockSessionTest() : SessionTest(/*reads_modules=*/false) {}
};

TEST_F(StockSessionTest, IsToldTheTextItself) {
  const uint64_t op = Send(TextRequest(Compile("f", {0}, 4)));
  EXPECT_EQ(host_.last_form, OptimisedForm::kText);
  core_->OnOptimisedProgram(host_.fetches.begin()->first, std::string("HloModule f"));
  EXPECT_EQ(host_.responses[op].loaded_executable_human_readable_program_text_response().human_readable_program_text(),
            "HloModule f");
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

TEST_F(SessionProgramsTest, GivesProgramsToClientsThatKeepThem) {
  const uint64_t op = Send(CompileRequestFor({2}));
  core_->OnCompiled(host_.compiles.rbegin()->first, SessionCore::Compiled{Image("f", 1, 4, 1, false)});
  const IfrtResponse compiled = host_.responses[op];
  EXPECT_EQ(compiled.compile_response().fingerprint_value().size(), 32u);
  const uint64_t asked = Send(QuestionRequest(SealedQuestion(compiled)));
  ASSERT_EQ(host_.seals.size(), 1u);
  EXPECT_THAT(host_.seals.begin()->second, ElementsAre(DeviceId(2)));
  EXPECT_FALSE(Answered(asked));
  core_->OnAnswer(host_.seals.begin()->first, std::string(R"({"program":"c2VhbGVk"})"));
  EXPECT_EQ(Call(TextRequest(host_.responses[asked].compile_response().loaded_executable_handle()))
                .loaded_executable_human_readable_program_text_response()
                .human_readable_program_text(),
            R"({"program":"c2VhbGVk"})");
  // One that cannot be kept, and one that is not there.
  const uint64_t again = Send(QuestionRequest(SealedQuestion(compiled)));
  core_->OnAnswer(host_.seals.rbegin()->first, absl::UnimplementedError("it calls functions"));
  EXPECT_EQ(StatusOf(host_.responses[again]).code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(StatusOf(Call(QuestionRequest(R"({"serialize":{"fingerprint":"abcd"}})"))).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionProgramsTest, TakesProgramsBack) {
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

TEST_F(SessionProgramsTest, CompilesProgramsInANewerStableHlo) {
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

TEST_F(SessionProgramsTest, TellsHowMarkedValuesAreDivided) {
  IfrtRequest request;
  request.mutable_compile_request()->mutable_program()->set_type_name("xla::ifrt::PluginProgram");
  const std::string options = xla::CompileOptionsProto().SerializeAsString();
  auto ask = [&](const std::string& bytes) {
    request.mutable_compile_request()->mutable_program()->set_data(absl::StrCat(
        R"(__serialized_plugin_program landbridgeShardings {"options":")", absl::Base64Escape(bytes), "\"}\nMLIR"));
    return Send(request);
  };
  const uint64_t op = ask(options);
  ASSERT_EQ(host_.sharding_questions.size(), 1u);
  EXPECT_EQ(host_.sharding_questions.begin()->second, std::pair(std::string("MLIR"), options));
  EXPECT_FALSE(Answered(op));
  core_->OnAnswer(host_.sharding_questions.begin()->first, std::string(R"({"shardings":[]})"));
  EXPECT_EQ(Call(TextRequest(host_.responses[op].compile_response().loaded_executable_handle()))
                .loaded_executable_human_readable_program_text_response()
                .human_readable_program_text(),
            R"({"shardings":[]})");
  const uint64_t again = ask(options);
  core_->OnAnswer(host_.sharding_questions.rbegin()->first, absl::InvalidArgumentError("it does not compile"));
  EXPECT_EQ(StatusOf(host_.responses[again]).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(StatusOf(host_.responses[ask("not options")]).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(SessionProgramsTest, SaysWhenLaunchesThatMayCallTheClientAreOver) {
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

TEST_F(SessionProgramsTest, CompileNormalisesTheAssignment) {
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

TEST_F(SessionProgramsTest, ProgramsOverSeveralWorkersAreCompiledForThat) {
  Send(CompileRequestFor({0, 1}));
  EXPECT_FALSE(host_.last_split);
  Send(CompileRequestFor({0, 2}));  // of two slices
  EXPECT_TRUE(host_.last_split);
}

TEST_F(SessionProgramsTest, CompileRefusals) {
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

TEST_F(SessionProgramsTest, MetadataIsComplete) {
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

TEST_F(SessionProgramsTest, FirstExecuteAnswersOutputsLaterOnesTakeHandles) {
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

TEST_F(SessionProgramsTest, ADoomedFirstExecuteSucceedsAndItsArraysCarryTheError) {
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

TEST_F(SessionProgramsTest, StatusFutures) {
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

}  // namespace
}  // namespace landbridge
