#include "frontdoor/ifrt_proxy/plugin_program.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/limits.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace landbridge {
namespace {

using nlohmann::json;

absl::Status Bad(absl::string_view why) { return absl::InvalidArgumentError(absl::StrCat("Bad PluginProgram: ", why)); }

// Deep nesting would exhaust the stack of a recursive reader.
bool NestsDeeply(absl::string_view text) {
  int depth = 0;
  for (char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > 64) return true;
  }
  return false;
}

absl::StatusOr<std::vector<DeviceId>> ParseDeviceIds(const json& ids) {
  if (!ids.is_array() || ids.size() > limits::kDevicesMax) return Bad("device_ids are a list");
  std::vector<DeviceId> list;
  for (const json& id : ids) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      return Bad("device ids are non-negative integers");
    }
    list.push_back(DeviceId(static_cast<int32_t>(id.get<int64_t>())));
  }
  return list;
}

absl::StatusOr<Sharding::Ptr> ParseOne(const json& value) {
  if (!value.is_object()) return Bad("a sharding is not an object");
  auto devices = value.find("devices");
  auto op = value.find("xla_hlo_sharding");
  if (devices == value.end() || !devices->is_object() || op == value.end() || !op->is_string()) {
    return Bad("a sharding needs devices and xla_hlo_sharding");
  }
  auto ids = devices->find("device_ids");
  if (ids == devices->end()) return Bad("devices need a list device_ids");
  LB_ASSIGN_OR_RETURN(std::vector<DeviceId> list, ParseDeviceIds(*ids));
  std::string bytes;
  xla::OpSharding sharding;
  if (!absl::Base64Unescape(op->get<std::string>(), &bytes) || !sharding.ParseFromString(bytes)) {
    return Bad("xla_hlo_sharding is not the base64 form of a sharding");
  }
  MemoryKind memory = MemoryKind::kDevice;
  auto kind = value.find("memory_kind");
  if (kind != value.end() && !kind->is_null()) {
    if (!kind->is_string()) return Bad("memory_kind is not a string");
    absl::StatusOr<MemoryKind> parsed = ParseMemoryKind(kind->get<std::string>());
    if (!parsed.ok()) return Bad(parsed.status().message());
    memory = *parsed;
  }
  absl::StatusOr<Sharding::Ptr> made = Sharding::FromOpSharding(std::move(list), memory, sharding);
  if (!made.ok()) return Bad(made.status().message());
  return made;
}

absl::StatusOr<std::vector<Sharding::Ptr>> ParseList(const json& request, const char* key) {
  auto list = request.find(key);
  if (list == request.end() || !list->is_array()) return Bad(absl::StrCat(key, " is missing"));
  if (list->size() > limits::kHandleIdsPerRequestMax) return Bad("too many arrays");
  std::vector<Sharding::Ptr> shardings;
  for (const json& one : *list) {
    absl::StatusOr<Sharding::Ptr> sharding = ParseOne(one);
    if (!sharding.ok()) return sharding.status();
    shardings.push_back(*std::move(sharding));
  }
  return shardings;
}

absl::StatusOr<Question> ParseQuestion(const json& value) {
  if (value.is_object() && value.size() == 1) {
    if (value.contains("hostCallsOver")) return HostCallsOverQuestion{};
    auto memory = value.find("memoryStats");
    if (memory != value.end() && memory->is_object()) {
      auto device = memory->find("device_id");
      if (device == memory->end() || !device->is_number_integer() || device->get<int64_t>() < 0 ||
          device->get<int64_t>() > INT32_MAX) {
        return Bad("memoryStats needs a device_id");
      }
      return MemoryQuestion{DeviceId(static_cast<int32_t>(device->get<int64_t>()))};
    }
    auto serialize = value.find("serialize");
    if (serialize != value.end() && serialize->is_object()) {
      auto fingerprint = serialize->find("fingerprint");
      if (fingerprint == serialize->end() || !fingerprint->is_string()) return Bad("serialize needs a fingerprint");
      return SerializeQuestion{absl::HexStringToBytes(fingerprint->get<std::string>())};
    }
  }
  return Bad("landbridgeQuestion is one of memoryStats, hostCallsOver, serialize");
}

absl::StatusOr<WitnessProgram> ParseWitness(const json& value) {
  auto devices = value.find("devices");
  if (!value.is_object() || devices == value.end() || !devices->is_number_integer() || devices->get<int64_t>() < 1 ||
      devices->get<int64_t>() > limits::kDevicesMax) {
    return Bad("landbridgeWitness needs a number of devices");
  }
  return WitnessProgram{devices->get<int>()};
}

// A line of JSON, and bytes behind it.
absl::StatusOr<json> TakeHead(absl::string_view kind, absl::string_view* data) {
  const size_t end = data->find('\n');
  const absl::string_view line = data->substr(0, end);
  if (end == absl::string_view::npos || NestsDeeply(line)) return Bad(absl::StrCat(kind, " has no line of its own"));
  json head = json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!head.is_object()) return Bad(absl::StrCat("what follows ", kind, " is not a JSON object"));
  data->remove_prefix(end + 1);
  return head;
}

absl::StatusOr<std::string> ParseOptions(const json& options) {
  std::string bytes;
  if (!options.is_string() || !absl::Base64Unescape(options.get<std::string>(), &bytes)) {
    return Bad("options are not in base64");
  }
  return bytes;
}

// The last `count` bytes of `data`.
absl::Cord TakeLast(std::string data, size_t count) {
  const size_t before = data.size() - count;
  absl::Cord bytes(std::move(data));
  bytes.RemovePrefix(before);
  return bytes;
}

absl::StatusOr<NewerProgram> ParseNewer(absl::string_view kind, std::string whole, size_t left) {
  absl::string_view data = absl::string_view(whole).substr(whole.size() - left);
  LB_ASSIGN_OR_RETURN(const json head, TakeHead(kind, &data));
  auto options = head.find("options");
  if (options == head.end()) return Bad(absl::StrCat(kind, " needs options"));
  NewerProgram program;
  LB_ASSIGN_OR_RETURN(program.options, ParseOptions(*options));
  program.bytes = TakeLast(std::move(whole), data.size());
  return program;
}

absl::StatusOr<ReturnedExecutable> ParseReturned(std::string whole, size_t left) {
  absl::string_view data = absl::string_view(whole).substr(whole.size() - left);
  LB_ASSIGN_OR_RETURN(const json head, TakeHead("landbridgeExecutable", &data));
  ReturnedExecutable returned;
  if (auto options = head.find("options"); options != head.end()) {
    LB_ASSIGN_OR_RETURN(returned.options, ParseOptions(*options));
  }
  auto ids = head.find("device_ids");
  if (ids == head.end()) return Bad("landbridgeExecutable needs a list device_ids");
  LB_ASSIGN_OR_RETURN(returned.devices, ParseDeviceIds(*ids));
  returned.bytes = TakeLast(std::move(whole), data.size());
  return returned;
}

}  // namespace

absl::StatusOr<PluginProgram> ParsePluginProgram(std::string whole) {
  absl::string_view data = whole;
  if (!absl::ConsumePrefix(&data, "__serialized_plugin_program ")) return Bad("unknown encoding");
  if (absl::ConsumePrefix(&data, "landbridgeExecutable ")) return ParseReturned(std::move(whole), data.size());
  if (absl::ConsumePrefix(&data, "landbridgeProgram ")) {
    return ParseNewer("landbridgeProgram", std::move(whole), data.size());
  }
  if (absl::ConsumePrefix(&data, "landbridgeShardings ")) {
    LB_ASSIGN_OR_RETURN(NewerProgram program, ParseNewer("landbridgeShardings", std::move(whole), data.size()));
    return ShardingsQuestion{std::move(program)};
  }
  if (NestsDeeply(data)) return Bad("the JSON text nests too deeply");
  const json document = json::parse(data.begin(), data.end(), nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) return Bad("it is not a JSON object");
  if (auto value = document.find("landbridgeQuestion"); value != document.end()) {
    LB_ASSIGN_OR_RETURN(Question question, ParseQuestion(*value));
    return question;
  }
  if (auto value = document.find("landbridgeWitness"); value != document.end()) {
    LB_ASSIGN_OR_RETURN(WitnessProgram witness, ParseWitness(*value));
    return witness;
  }
  auto reshard = document.find("reshardRequest");
  if (reshard == document.end()) {
    const std::string key = document.empty() ? "" : document.begin().key();
    return Bad(absl::StrCat("request '", absl::CHexEscape(key.substr(0, 100)),
                            "' is not supported by landbridge; reshardRequest is"));
  }
  if (!reshard->is_object()) return Bad("reshardRequest is not an object");
  ReshardProgram program;
  auto donate = reshard->find("donateInput");
  if (donate != reshard->end()) {
    if (!donate->is_boolean()) return Bad("donateInput is not a truth value");
    program.donate = donate->get<bool>();
  }
  absl::StatusOr<std::vector<Sharding::Ptr>> in = ParseList(*reshard, "inSharding");
  if (!in.ok()) return in.status();
  absl::StatusOr<std::vector<Sharding::Ptr>> out = ParseList(*reshard, "outSharding");
  if (!out.ok()) return out.status();
  if (in->size() != out->size() || in->empty()) return Bad("inSharding and outSharding must be equally long lists");
  program.in = *std::move(in);
  program.out = *std::move(out);
  return program;
}

}  // namespace landbridge
