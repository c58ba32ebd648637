#include "resource_manager/instance_type.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/limits.h"

namespace landbridge {
namespace {

struct TpuType {
  absl::string_view name;
  int chips_per_host;
  int devices_per_chip;
  int dimensions;
};
// "1t": machines with one chip.
constexpr TpuType kTpuTypes[] = {{"tpuv4", 4, 1, 3},    {"tpuv5", 4, 1, 3},  {"tpuv5p", 4, 1, 3},   {"tpuv5e", 4, 1, 2},
                                 {"tpuv5e1t", 1, 1, 2}, {"tpuv6e", 4, 1, 2}, {"tpuv6e1t", 1, 1, 2}, {"tpu7x", 4, 2, 3}};

}  // namespace

std::string InstanceType::ToString() const {
  return absl::StrCat(text, " (", workers_per_slice, workers_per_slice == 1 ? " worker of " : " workers of ",
                      devices_per_worker, devices_per_worker == 1 ? " device)" : " devices)");
}

absl::StatusOr<InstanceType> ParseInstanceType(absl::string_view text) {
  auto bad = [&](absl::string_view why) {
    std::vector<absl::string_view> tpus;
    for (const TpuType& tpu : kTpuTypes) tpus.push_back(tpu.name);
    return absl::InvalidArgumentError(absl::StrCat(
        "--instance_type=", text.substr(0, 100), ": ", why,
        "; expected platform:D (one worker of D devices) or platform:WxD (W workers of D devices) with platform cpu, "
        "cuda or gpu, or a TPU type with its topology, e.g. tpuv6e:4x4 (types: ",
        absl::StrJoin(tpus, ", "), ")"));
  };
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  if (parts.size() != 2 || parts[0].empty() || parts[1].empty()) return bad("not of the form type:shape");
  std::vector<int> sizes;
  int64_t product = 1;
  for (absl::string_view number : absl::StrSplit(parts[1], 'x')) {
    int size = 0;
    if (number.empty() || number[0] == '+' || !absl::SimpleAtoi(number, &size) || size <= 0) {
      return bad("the shape must be made of positive numbers with x between them");
    }
    product *= size;
    sizes.push_back(size);
    if (product > limits::kDevicesMax || sizes.size() > 3) {
      return bad(absl::StrCat("more than ", limits::kDevicesMax, " devices or three numbers in one slice"));
    }
  }
  InstanceType type;
  type.text = std::string(text);
  if (parts[0] == "cpu" || parts[0] == "cuda" || parts[0] == "gpu") {
    if (sizes.size() > 2) return bad("this platform takes one or two numbers");
    type.platform = parts[0] == "gpu" ? "cuda" : parts[0];
    type.workers_per_slice = sizes.size() == 2 ? sizes[0] : 1;
    type.devices_per_worker = sizes.back();
    return type;
  }
  for (const TpuType& tpu : kTpuTypes) {
    if (parts[0] != tpu.name) continue;
    if (static_cast<int>(sizes.size()) != tpu.dimensions) {
      return bad(absl::StrCat(tpu.name, " topologies have ", tpu.dimensions, " numbers"));
    }
    const int chips = static_cast<int>(product);
    const int per_host = std::min(chips, tpu.chips_per_host);
    if (chips % per_host != 0) return bad(absl::StrCat(chips, " chips do not fill hosts of ", per_host));
    type.platform = "tpu";
    type.workers_per_slice = chips / per_host;
    type.devices_per_worker = per_host * tpu.devices_per_chip;
    return type;
  }
  return bad(absl::StrCat("unknown platform \"", parts[0], "\""));
}

}  // namespace landbridge
