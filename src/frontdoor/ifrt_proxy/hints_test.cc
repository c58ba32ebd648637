#include "frontdoor/ifrt_proxy/hints.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge {
namespace {

using ::testing::HasSubstr;

xla::CompileOptionsProto Options(const std::string& name, const std::string& text) {
  xla::CompileOptionsProto options;
  (*options.mutable_env_option_overrides())[name].set_string_field(text);
  (*options.mutable_env_option_overrides())["xla_other"].set_bool_field(true);
  return options;
}

TEST(HintsTest, ProgramsSayPriorityAndPhaseAndXlaDoesNotSeeIt) {
  xla::CompileOptionsProto options = Options("landbridge_phase", "backward");
  (*options.mutable_env_option_overrides())["landbridge_priority"].set_int_field(-7);
  const absl::StatusOr<ProgramHints> hints = TakeProgramHints(&options);
  ASSERT_TRUE(hints.ok()) << hints.status();
  EXPECT_EQ(hints->phase, PHASE_BACKWARD);
  EXPECT_EQ(hints->priority, -7);
  EXPECT_EQ(options.env_option_overrides_size(), 1);
  EXPECT_TRUE(options.env_option_overrides().contains("xla_other"));
  options = Options("landbridge_phase", "forward");
  EXPECT_EQ(TakeProgramHints(&options)->phase, PHASE_FORWARD);
  EXPECT_FALSE(TakeProgramHints(&options)->priority.has_value());  // taken out by now
  EXPECT_EQ(TakeProgramHints(&options)->phase, PHASE_NONE);
}

TEST(HintsTest, WrongWishesOfProgramsAreNamed) {
  const std::pair<const char*, const char*> wrong[] = {{"landbridge_phase", "sideways"},
                                                       {"landbridge_priority", "1.5"},
                                                       {"landbridge_priority", "1000001"},
                                                       {"landbridge_priority", ""},
                                                       {"landbridge_colour", "blue"}};
  for (const auto& [name, text] : wrong) {
    xla::CompileOptionsProto options = Options(name, text);
    const absl::Status status = TakeProgramHints(&options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  }
}

TEST(HintsTest, SessionsSayWeightAndPriority) {
  xla::ifrt::AttributeMapProto data;
  EXPECT_EQ(ParseSessionHints(data)->weight, 1);
  EXPECT_EQ(ParseSessionHints(data)->priority, 0);
  (*data.mutable_attributes())["landbridge_weight"].set_string_value("2.5");
  (*data.mutable_attributes())["landbridge_priority"].set_int64_value(3);
  (*data.mutable_attributes())["landbridge_package"].set_string_value("0.1");
  EXPECT_EQ(ParseSessionHints(data)->weight, 2.5);
  EXPECT_EQ(ParseSessionHints(data)->priority, 3);
  for (const char* wrong : {"0", "-1", "nan", "inf", "1e9", "much", ""}) {
    (*data.mutable_attributes())["landbridge_weight"].set_string_value(wrong);
    const absl::Status status = ParseSessionHints(data).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("landbridge_weight is '"));
  }
}

}  // namespace
}  // namespace landbridge
