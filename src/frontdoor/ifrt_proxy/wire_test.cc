#include "frontdoor/ifrt_proxy/wire.h"

#include "absl/strings/escaping.h"
#include "base/limits.h"
#include "frontdoor/ifrt_proxy/init_response.h"
#include "frontdoor/ifrt_proxy/plugin_program.h"
#include "frontdoor/ifrt_proxy/user_contexts.h"
#include "frontdoor/ifrt_proxy/version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

xla::ifrt::proxy::GrpcGetVersionRequest Window(int low, int high, int serdes_low, int serdes_high) {
  xla::ifrt::proxy::GrpcGetVersionRequest request;
  request.mutable_min_version()->set_protocol_version(low);
  request.mutable_min_version()->set_ifrt_serdes_version_number(serdes_low);
  request.mutable_max_version()->set_protocol_version(high);
  request.mutable_max_version()->set_ifrt_serdes_version_number(serdes_high);
  return request;
}

TEST(Version, TheHighestThatBothSpeak) {
  auto version = NegotiateVersion(Window(16, 25, 0, 3));  // jaxlib 0.10.2
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->protocol_version(), 25);
  EXPECT_EQ(version->ifrt_serdes_version_number(), 3);
  version = NegotiateVersion(Window(15, 22, 0, 0));  // 0.8.2
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->protocol_version(), 22);
  EXPECT_EQ(version->ifrt_serdes_version_number(), 0);
  version = NegotiateVersion(Window(16, 99, 0, 99));
  ASSERT_TRUE(version.ok());
  EXPECT_EQ(version->protocol_version(), kProtocolVersionMax);
  EXPECT_EQ(version->ifrt_serdes_version_number(), kSerdesVersionMax);
}

TEST(Version, AClientOutsideHearsBothRanges) {
  for (const auto& window : {Window(26, 30, 0, 3), Window(3, 14, 0, 3), Window(16, 25, 6, 9)}) {
    const absl::Status status = NegotiateVersion(window).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("15 to 25"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("0 to 5"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(window.min_version().protocol_version(), " to ",
                                                                      window.max_version().protocol_version())));
  }
}

TEST(Wire, OfPayloadsOnlyTheUserContextTravels) {
  absl::Status status = WithUserContext(absl::ResourceExhaustedError("full"), 12);
  status.SetPayload("type.googleapis.com/landbridge.RootTicket", absl::Cord("4"));
  const tensorflow::StatusProto proto = wire::ToProto(status);
  EXPECT_EQ(proto.code(), 8);
  EXPECT_EQ(proto.message(), "full");
  ASSERT_EQ(proto.payload().size(), 1u);
  EXPECT_EQ(proto.payload().at("type.googleapis.com/ifrt.UserContext"), "12");
  tensorflow::StatusProto strange;
  strange.set_code(4711);
  EXPECT_EQ(wire::FromProto(strange).code(), absl::StatusCode::kUnknown);
}

TEST(Wire, LayoutText) {
  EXPECT_EQ(wire::DefaultLayoutText(DType::kF32, 2), "{1,0}");
  EXPECT_EQ(wire::DefaultLayoutText(DType::kF32, 0), "{}");
  EXPECT_EQ(wire::DefaultLayoutText(DType::kS4, 3), "{2,1,0:E(4)}");
}

xla::ifrt::ShardingProto Wrap(const char* type, const google::protobuf::Message& message) {
  xla::ifrt::ShardingProto proto;
  proto.mutable_serialized_sharding()->set_type_name(type);
  proto.mutable_serialized_sharding()->set_data(message.SerializeAsString());
  return proto;
}

TEST(Wire, ShardingsThereAndBack) {
  xla::ifrt::HloShardingProto hlo;
  for (int id : {4, 5, 6, 7}) hlo.mutable_devices()->add_device_ids(id);
  hlo.mutable_xla_op_sharding()->set_type(xla::OpSharding::OTHER);
  for (int dim : {2, 1, 2}) hlo.mutable_xla_op_sharding()->add_tile_assignment_dimensions(dim);
  hlo.mutable_xla_op_sharding()->set_replicate_on_last_tile_dim(true);
  for (int dim : {2, 2}) hlo.mutable_xla_op_sharding()->add_iota_reshape_dims(dim);
  for (int dim : {0, 1}) hlo.mutable_xla_op_sharding()->add_iota_transpose_perm(dim);
  hlo.set_memory_kind("pinned_host");
  auto sharding = wire::ParseSharding(Wrap("xla::ifrt::HloSharding", hlo));
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  EXPECT_EQ((*sharding)->num_shards(), 4u);
  EXPECT_EQ((*sharding)->memory(), MemoryKind::kPinnedHost);
  EXPECT_EQ(*(*sharding)->ShardDims(Dims{8, 3}, 1), (Dims{4, 3}));
  xla::ifrt::ShardingProto back;
  wire::SetSharding(**sharding, &back);
  auto again = wire::ParseSharding(back);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(**again == **sharding);
}

TEST(Wire, ConcreteEven) {
  xla::ifrt::ConcreteEvenShardingProto even;
  for (int id : {3, 2}) even.mutable_devices()->add_device_ids(id);
  even.mutable_shape()->add_dims(6);
  even.mutable_shard_shape()->add_dims(3);
  auto sharding = wire::ParseSharding(Wrap("xla::ifrt::ConcreteEvenSharding", even));
  ASSERT_TRUE(sharding.ok()) << sharding.status();
  EXPECT_EQ((*sharding)->devices()[0], DeviceId(3));
  EXPECT_EQ(*(*sharding)->ShardDims(Dims{6}, 0), (Dims{3}));
}

TEST(Wire, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(wire::ParseSharding(Wrap("xla::ifrt::Fancy", xla::ifrt::HloShardingProto())).status().code(),
            absl::StatusCode::kInvalidArgument);
  xla::ifrt::ShardingProto garbage;
  garbage.mutable_serialized_sharding()->set_type_name("xla::ifrt::HloSharding");
  garbage.mutable_serialized_sharding()->set_data("\xff\xff\xff");
  EXPECT_EQ(wire::ParseSharding(garbage).status().code(), absl::StatusCode::kInvalidArgument);
  xla::ifrt::ShapeProto shape;
  for (int i = 0; i <= limits::kRankMax; ++i) shape.add_dims(1);
  EXPECT_EQ(wire::ParseDims(shape).status().code(), absl::StatusCode::kInvalidArgument);
  shape.Clear();
  shape.add_dims(-1);
  EXPECT_EQ(wire::ParseDims(shape).status().code(), absl::StatusCode::kInvalidArgument);
  xla::ifrt::DTypeProto dtype;
  dtype.set_kind(13);
  EXPECT_EQ(wire::ParseDType(dtype).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PluginProgram, Reshard) {
  xla::OpSharding op;  // replicated
  const std::string one = absl::StrCat(R"({"devices":{"device_ids":[0,1]},"xla_hlo_sharding":")",
                                       absl::Base64Escape(op.SerializeAsString()), R"("})");
  auto program =
      ParsePluginProgram(absl::StrCat(R"(__serialized_plugin_program {"reshardRequest":{"donateInput":true,)",
                                      R"("inSharding":[)", one, R"(],"outSharding":[)", one, "]}}"));
  ASSERT_TRUE(program.ok()) << program.status();
  const auto& reshard = std::get<ReshardProgram>(*program);
  EXPECT_TRUE(reshard.donate);
  ASSERT_EQ(reshard.in.size(), 1u);
  EXPECT_THAT(reshard.out[0]->devices(), ElementsAre(DeviceId(0), DeviceId(1)));
}

TEST(PluginProgram, Questions) {
  auto memory =
      ParsePluginProgram(R"(__serialized_plugin_program {"landbridgeQuestion":{"memoryStats":{"device_id":3}}})");
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(std::get<MemoryQuestion>(std::get<Question>(*memory)).device, DeviceId(3));
  auto over = ParsePluginProgram(R"(__serialized_plugin_program {"landbridgeQuestion":{"hostCallsOver":{}}})");
  ASSERT_TRUE(over.ok()) << over.status();
  EXPECT_TRUE(std::holds_alternative<HostCallsOverQuestion>(std::get<Question>(*over)));
  auto serialize = ParsePluginProgram(
      R"(__serialized_plugin_program {"landbridgeQuestion":{"serialize":{"fingerprint":"00ff41"}}})");
  ASSERT_TRUE(serialize.ok()) << serialize.status();
  EXPECT_EQ(std::get<SerializeQuestion>(std::get<Question>(*serialize)).fingerprint, std::string("\0\xff"
                                                                                                 "A",
                                                                                                 3));
}

TEST(PluginProgram, ProgramsThatComeBack) {
  const std::string prefix = "__serialized_plugin_program landbridgeExecutable ";
  auto plain = ParsePluginProgram(prefix + "{\"device_ids\":[2,0]}\n{[[\n");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(std::get<ReturnedExecutable>(*plain).options, std::nullopt);
  EXPECT_THAT(std::get<ReturnedExecutable>(*plain).devices, ElementsAre(DeviceId(2), DeviceId(0)));
  EXPECT_EQ(std::get<ReturnedExecutable>(*plain).bytes, "{[[\n");
  auto with_options = ParsePluginProgram(prefix + "{\"device_ids\":[],\"options\":\"YWI=\"}\n");
  ASSERT_TRUE(with_options.ok()) << with_options.status();
  EXPECT_EQ(std::get<ReturnedExecutable>(*with_options).options, "ab");
  EXPECT_EQ(std::get<ReturnedExecutable>(*with_options).bytes, "");
  for (const std::string& bad :
       {std::string(""), std::string("{\"device_ids\":[]}"), std::string("\nbytes"), std::string("{}\nbytes"),
        std::string("{\"device_ids\":[-1]}\nbytes"), std::string("{\"device_ids\":[],\"options\":\"!\"}\nbytes"),
        std::string("{\"device_ids\":[],\"options\":1}\nbytes"), std::string(100'000, '[') + "\n"}) {
    const absl::Status status = ParsePluginProgram(prefix + bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Bad PluginProgram")) << bad.substr(0, 80);
  }
}

TEST(PluginProgram, ProgramsInANewerStableHlo) {
  const std::string prefix = "__serialized_plugin_program landbridgeProgram ";
  auto program = ParsePluginProgram(prefix + "{\"options\":\"YWI=\"}\nML\nIR");
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(std::get<NewerProgram>(*program).options, "ab");
  EXPECT_EQ(std::get<NewerProgram>(*program).bytes, "ML\nIR");
  auto question = ParsePluginProgram("__serialized_plugin_program landbridgeShardings {\"options\":\"YWI=\"}\nML\nIR");
  ASSERT_TRUE(question.ok()) << question.status();
  EXPECT_EQ(std::get<ShardingsQuestion>(*question).program.options, "ab");
  EXPECT_EQ(std::get<ShardingsQuestion>(*question).program.bytes, "ML\nIR");
  for (const std::string bad : {"", "{}", "{}\nMLIR", "{\"options\":1}\nMLIR", "[]\nMLIR"}) {
    EXPECT_THAT(std::string(ParsePluginProgram(prefix + bad).status().message()), HasSubstr("Bad PluginProgram"))
        << bad;
  }
}

TEST(PluginProgram, EverythingElseIsBad) {
  for (const std::string& text : std::vector<std::string>{
           "", "{}", "__serialized_plugin_program ", "__serialized_plugin_program [1]",
           R"(__serialized_plugin_program {"profileRequest":{}})",
           R"(__serialized_plugin_program {"landbridgeQuestion":{}})",
           R"(__serialized_plugin_program {"landbridgeQuestion":{"memoryStats":{}}})",
           R"(__serialized_plugin_program {"landbridgeQuestion":{"serialize":{}}})",
           R"(__serialized_plugin_program {"landbridgeQuestion":{"serialize":{"fingerprint":3}}})",
           R"(__serialized_plugin_program {"landbridgeQuestion":{"memoryStats":{"device_id":-1}}})",
           R"(__serialized_plugin_program {"landbridgeQuestion":{"memoryStats":{"device_id":1},"hostCallsOver":{}}})",
           R"(__serialized_plugin_program {"reshardRequest":{"inSharding":[],"outSharding":[]}})",
           R"(__serialized_plugin_program {"reshardRequest":{"inSharding":[{}],"outSharding":[{}]}})",
           "__serialized_plugin_program " + std::string(100'000, '[')}) {
    const absl::Status status = ParsePluginProgram(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Bad PluginProgram")) << text.substr(0, 80);
  }
}

TEST(InitResponse, DevicesMemoriesAttributes) {
  DeviceCatalog catalog;
  catalog.devices.resize(2);
  catalog.devices[0].memories = {MemoryKind::kDevice, MemoryKind::kPinnedHost};
  catalog.devices[1].id = DeviceId(1);
  catalog.devices[1].slice_index = 1;
  catalog.devices[1].worker_index = 1;
  const auto init = MakeInitResponse(catalog, 99);
  EXPECT_EQ(init.session_id(), 99u);
  EXPECT_EQ(init.platform_name(), "cpu");
  EXPECT_EQ(init.process_index(), 0u);
  EXPECT_EQ(init.runtime_type(), "landbridge");
  ASSERT_EQ(init.all_devices_size(), 2);
  EXPECT_THAT(init.addressable_device_ids(), ElementsAre(0, 1));
  EXPECT_THAT(init.primary_device_ids(), ElementsAre(0, 1));
  const auto& second = init.all_devices(1);
  EXPECT_EQ(second.attributes().attributes().at("slice_index").int64_value(), 1);
  EXPECT_EQ(second.attributes().attributes().at("virtual_task_index").int64_value(), 1);
  EXPECT_THAT(second.to_string(), HasSubstr("vtask=1"));
  EXPECT_THAT(second.to_string(), HasSubstr("slice=1"));
  EXPECT_THAT(second.to_string(), HasSubstr("coords=[0,0,0,0]"));
  EXPECT_EQ(second.debug_string(), "cpu:1");
  EXPECT_TRUE(second.has_default_memory_id());
  ASSERT_EQ(init.memories_size(), 3);
  EXPECT_EQ(init.memories(1).memory_space_kind(), "pinned_host");
  EXPECT_THAT(init.all_devices(0).memory_ids(), ElementsAre(0, 1));
  EXPECT_EQ(second.default_memory_id(), 2);
  EXPECT_EQ(init.client_attributes().version_number(), 0);
  EXPECT_TRUE(init.client_attributes().attributes().at("serialize_with_sdy").bool_value());
  EXPECT_FALSE(init.client_attributes().attributes().at("supports_executable_serialization").bool_value());
  EXPECT_TRUE(MakeInitResponse(catalog, 99, true)
                  .client_attributes()
                  .attributes()
                  .at("supports_executable_serialization")
                  .bool_value());
  EXPECT_THAT(init.client_attributes().attributes().at("stablehlo_current_version").int64_list_value().elements(),
              ElementsAre(1, 20, 0));
}

}  // namespace
}  // namespace landbridge
