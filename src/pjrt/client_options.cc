#include "pjrt/client_options.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace landbridge::pjrt {
namespace {

enum class OptionType { kString, kInt, kInts, kFloat, kBool };

struct KnownOption {
  absl::string_view name;
  OptionType type;
};
// Of the CUDA and ROCm plugins, and of libtpu.
constexpr KnownOption kKnownOptions[] = {
    {"abort_collectives_on_failure", OptionType::kBool},
    {"allocator", OptionType::kString},
    {"asynchronous", OptionType::kBool},
    {"collective_memory_size", OptionType::kInt},
    {"enable_mock_nccl", OptionType::kBool},
    {"executable_compatibility_check_on_deserialization", OptionType::kBool},
    {"max_inflight_computations", OptionType::kInt},
    {"maximum_premapped_buffer_size_for_transfers_in_bytes", OptionType::kInt},
    {"memory_fraction", OptionType::kFloat},
    {"ml_framework_name", OptionType::kString},
    {"ml_framework_version", OptionType::kString},
    {"mock_gpu_topology", OptionType::kString},
    {"num_premapped_partitions", OptionType::kInt},
    {"partition_index", OptionType::kInt},
    {"pinned_host_allocation_mode", OptionType::kString},
    {"platform_name", OptionType::kString},
    {"preallocate", OptionType::kBool},
    {"premapped_buffer_size", OptionType::kInt},
    {"should_stage_host_to_device_transfers", OptionType::kBool},
    {"skip_megascale_pjrt_client", OptionType::kBool},
    {"throttle_low_priority_host_transfers", OptionType::kBool},
    {"tpu_allow_async_allocations", OptionType::kBool},
    {"use_global_tpu_system", OptionType::kBool},
    {"use_tf_pjrt_client", OptionType::kBool},
    {"use_tfrt_gpu_client", OptionType::kBool},
    {"visible_devices", OptionType::kInts},
};

constexpr std::pair<absl::string_view, OptionType> kTypeNames[] = {{"string", OptionType::kString},
                                                                   {"int", OptionType::kInt},
                                                                   {"ints", OptionType::kInts},
                                                                   {"float", OptionType::kFloat},
                                                                   {"bool", OptionType::kBool}};

std::optional<OptionType> TypeOfName(absl::string_view name) {
  for (const KnownOption& known : kKnownOptions) {
    if (known.name == name) return known.type;
  }
  return std::nullopt;
}

OptionType TypeOfLook(absl::string_view value) {
  int64_t integer = 0;
  float number = 0;
  if (value == "true" || value == "false") return OptionType::kBool;
  if (absl::SimpleAtoi(value, &integer)) return OptionType::kInt;
  if (absl::SimpleAtof(value, &number)) return OptionType::kFloat;
  return OptionType::kString;
}

absl::StatusOr<Attribute> ParseValue(OptionType type, absl::string_view option, absl::string_view value) {
  auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("--plugin_option=", option, ": ", what, ", not \"", value, "\""));
  };
  switch (type) {
    case OptionType::kString: return std::string(value);
    case OptionType::kBool:
      if (value != "true" && value != "false") return wrong("it takes true or false");
      return value == "true";
    case OptionType::kInt: {
      int64_t integer = 0;
      if (!absl::SimpleAtoi(value, &integer)) return wrong("it takes a whole number");
      return integer;
    }
    case OptionType::kFloat: {
      float number = 0;
      if (!absl::SimpleAtof(value, &number)) return wrong("it takes a number");
      return number;
    }
    case OptionType::kInts: break;
  }
  std::vector<int64_t> list;
  for (absl::string_view item : absl::StrSplit(value, ',')) {
    int64_t integer = 0;
    if (!absl::SimpleAtoi(item, &integer)) return wrong("it takes whole numbers with commas between them");
    list.push_back(integer);
  }
  return list;
}

}  // namespace

absl::StatusOr<AttributeMap> ParsePluginOptions(absl::Span<const std::string> options) {
  AttributeMap map;
  for (const std::string& option : options) {
    const std::pair<absl::string_view, absl::string_view> split = absl::StrSplit(option, absl::MaxSplits('=', 1));
    std::pair<absl::string_view, absl::string_view> name = absl::StrSplit(split.first, absl::MaxSplits(':', 1));
    if (option.find('=') == std::string::npos || name.first.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--plugin_option=", option, ": expected NAME=VALUE or NAME:TYPE=VALUE"));
    }
    OptionType type = TypeOfName(name.first).value_or(TypeOfLook(split.second));
    if (!name.second.empty()) {
      bool found = false;
      for (const auto& [text, named] : kTypeNames) {
        if (name.second != text) continue;
        type = named;
        found = true;
      }
      if (!found) {
        return absl::InvalidArgumentError(
            absl::StrCat("--plugin_option=", option, ": the type is string, int, ints, float or bool"));
      }
    }
    LB_ASSIGN_OR_RETURN(Attribute value, ParseValue(type, split.first, split.second));
    if (!map.emplace(std::string(name.first), std::move(value)).second) {
      return absl::InvalidArgumentError(absl::StrCat("--plugin_option=", option, ": it is given twice"));
    }
  }
  return map;
}

absl::StatusOr<AttributeMap> MakeClientOptions(const Traits& traits, int device_count, const AttributeMap& of_user,
                                               std::optional<GroupPlace> group) {
  AttributeMap options;
  if (traits.makes_devices) options["cpu_device_count"] = int64_t{device_count};
  if (group.has_value() && traits.joins_processes) {
    for (const char* name : {"node_id", "num_nodes"}) {
      if (of_user.count(name) == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--plugin_option=", name, ": the workers of a slice agree on it themselves; leave it out"));
    }
    options["node_id"] = int64_t{group->node_id};
    options["num_nodes"] = int64_t{group->num_nodes};
  }
  for (const auto& [name, value] : of_user) options[name] = value;
  return options;
}

AttributeMap MakeCompileClientOptions(const Traits& traits, int device_count, int nodes, const AttributeMap& of_user) {
  AttributeMap options;
  if (traits.makes_devices) options["cpu_device_count"] = int64_t{device_count};
  for (const auto& [name, value] : of_user) options[name] = value;
  if (!traits.joins_processes) return options;
  options["preallocate"] = false;
  options.erase("memory_fraction");
  if (nodes > 1) {
    // No process of these is there: the plugin stands in for them, since nothing runs here.
    options["node_id"] = int64_t{0};
    options["num_nodes"] = int64_t{nodes};
    options["enable_mock_nccl"] = true;
  }
  return options;
}

}  // namespace landbridge::pjrt
