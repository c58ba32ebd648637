// Who takes part in a collective of an HLO module.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/xla/hlo.pb.h"

namespace landbridge::hlo {

// A module's logical devices, numbered replica * partitions + partition.
struct LogicalDevices {
  int replicas = 1;
  int partitions = 1;
  int count() const { return replicas * partitions; }
};

// Disjoint lists of logical devices. The position in a list is the rank.
using DeviceGroups = std::vector<std::vector<int32_t>>;

// `instruction`: all-reduce, all-gather, reduce-scatter or all-to-all, with its participants in any of XLA's encodings;
// none at all means everybody. INVALID_ARGUMENT naming the instruction for lists that name a device twice or one that
// is not there, for groups of unequal size (of anything but an all-reduce), and for meshes that do not fit.
absl::StatusOr<DeviceGroups> ReadDeviceGroups(const xla::HloInstructionProto& instruction, LogicalDevices devices);

struct DevicePair {
  int32_t source = 0;
  int32_t target = 0;
  friend bool operator==(const DevicePair&, const DevicePair&) = default;
};
// Of a collective-permute, for all replicas (or partitions) at once. No device is source or target twice.
absl::StatusOr<std::vector<DevicePair>> ReadDevicePairs(const xla::HloInstructionProto& instruction,
                                                        LogicalDevices devices);

}  // namespace landbridge::hlo
