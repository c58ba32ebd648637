#include "frontdoor/ifrt_proxy/hints.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/limits.h"
#include "base/status.h"

namespace landbridge {
namespace {

constexpr absl::string_view kPrefix = "landbridge_";
constexpr absl::string_view kWeight = "landbridge_weight";
constexpr absl::string_view kPriority = "landbridge_priority";
constexpr absl::string_view kPhase = "landbridge_phase";

// As text, whatever type the client gave it.
std::string TextOf(const xla::ifrt::AttributeMapProto::Value& value) {
  switch (value.value_case()) {
    case xla::ifrt::AttributeMapProto::Value::kStringValue: return value.string_value();
    case xla::ifrt::AttributeMapProto::Value::kInt64Value: return absl::StrCat(value.int64_value());
    case xla::ifrt::AttributeMapProto::Value::kFloatValue: return absl::StrCat(value.float_value());
    default: return "";
  }
}
std::string TextOf(const xla::OptionOverrideProto& value) {
  switch (value.value_case()) {
    case xla::OptionOverrideProto::kStringField: return value.string_field();
    case xla::OptionOverrideProto::kIntField: return absl::StrCat(value.int_field());
    case xla::OptionOverrideProto::kDoubleField: return absl::StrCat(value.double_field());
    default: return "";
  }
}

absl::StatusOr<int32_t> ParsePriority(const std::string& text) {
  int32_t priority = 0;
  if (!absl::SimpleAtoi(text, &priority) || priority > limits::kLaunchPriorityMax ||
      priority < -limits::kLaunchPriorityMax) {
    return absl::InvalidArgumentError(absl::StrCat(kPriority, " is '", text.substr(0, 40),
                                                   "', but must be a whole number from -", limits::kLaunchPriorityMax,
                                                   " to ", limits::kLaunchPriorityMax));
  }
  return priority;
}

absl::StatusOr<double> ParseWeight(const std::string& text) {
  double weight = 0;
  if (!absl::SimpleAtod(text, &weight) || !std::isfinite(weight) || weight < limits::kSessionWeightMin ||
      weight > limits::kSessionWeightMax) {
    return absl::InvalidArgumentError(absl::StrCat(kWeight, " is '", text.substr(0, 40),
                                                   "', but must be a number from ", limits::kSessionWeightMin, " to ",
                                                   limits::kSessionWeightMax));
  }
  return weight;
}

absl::StatusOr<PipelinePhase> ParsePhase(const std::string& text) {
  if (text == "forward") return PHASE_FORWARD;
  if (text == "backward") return PHASE_BACKWARD;
  return absl::InvalidArgumentError(
      absl::StrCat(kPhase, " is '", text.substr(0, 40), "', but must be 'forward' or 'backward'"));
}

}  // namespace

absl::StatusOr<SessionHints> ParseSessionHints(const xla::ifrt::AttributeMapProto& initialization_data) {
  SessionHints hints;
  const auto& attributes = initialization_data.attributes();
  if (auto it = attributes.find(std::string(kWeight)); it != attributes.end()) {
    LB_ASSIGN_OR_RETURN(hints.weight, ParseWeight(TextOf(it->second)));
  }
  if (auto it = attributes.find(std::string(kPriority)); it != attributes.end()) {
    LB_ASSIGN_OR_RETURN(hints.priority, ParsePriority(TextOf(it->second)));
  }
  return hints;
}

absl::StatusOr<ProgramHints> TakeProgramHints(xla::CompileOptionsProto* options) {
  ProgramHints hints;
  auto& overrides = *options->mutable_env_option_overrides();
  std::vector<std::string> ours;
  for (const auto& [name, value] : overrides) {
    if (absl::StartsWith(name, kPrefix)) ours.push_back(name);
  }
  for (const std::string& name : ours) {
    const std::string text = TextOf(overrides.at(name));
    overrides.erase(name);
    if (name == kPriority) {
      LB_ASSIGN_OR_RETURN(hints.priority, ParsePriority(text));
    } else if (name == kPhase) {
      LB_ASSIGN_OR_RETURN(hints.phase, ParsePhase(text));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("There is no compiler option ", name.substr(0, 60), "; there are ", kPriority, " and ", kPhase));
    }
  }
  return hints;
}

}  // namespace landbridge
