// A program's collectives, checked once and looked up many times.
//
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "proto/landbridge/collectives.pb.h"

namespace landbridge {

// What fits into a key of the data plane (see CollectiveKey).
inline constexpr int kCollectiveOpsMax = 1 << 14;
inline constexpr int kCollectiveRanksMax = 1 << 14;
inline constexpr int kCollectiveOperandsMax = 1 << 10;
inline constexpr int64_t kCollectiveOccurrencesMax = int64_t{1}
                                                     << 24;  // of one call in one launch: it stands in a loop

// Up to so many bytes (all operands) members' values are sent before they are asked for: reductions, all-gathers and
// all-to-alls, in which everybody needs something of everybody. So nobody is ahead of another by more than one
// occurrence, and what may come before it is wanted is bounded by the program ...
inline constexpr int64_t kCollectivePushBytesMax = 8 << 10;
// ... and its first collectives, up to so many bytes from all members of their groups together. Others are asked for.
inline constexpr int64_t kCollectivePushedBytesMax = 4 << 20;

// Operands of a small reduction travel one behind the other, so aligned.
constexpr int64_t AlignedOperand(int64_t bytes) { return (bytes + 63) / 64 * 64; }

struct CollectiveTensor {
  DType dtype = DType::kInvalid;
  int64_t elements = 0;
  int64_t bytes = 0;
};

struct CollectiveStep {
  CollectiveOp::Kind kind = CollectiveOp::KIND_UNSPECIFIED;
  CollectiveOp::Reduction reduction = CollectiveOp::NONE;
  std::string name;
  std::vector<CollectiveTensor> operands, results;
  int64_t operand_bytes = 0;  // in all
  // Ids have none. A permute has one group of all devices.
  int groups = -1;  // index into CollectiveProgram::groups()
  // What members bring is sent to those who need it before they ask (see kCollectivePushBytesMax).
  bool pushed = false;
  // Permutes only, by logical device; -1: none.
  std::vector<int32_t> target_of, source_of;
};

class CollectiveProgram {
 public:
  // INVALID_ARGUMENT for a table that contradicts itself, RESOURCE_EXHAUSTED for one beyond the limits above,
  // UNIMPLEMENTED for reductions that there are not.
  static absl::StatusOr<std::shared_ptr<const CollectiveProgram>> Make(const CollectiveTable& table);

  struct Place {
    int32_t group = -1;  // -1: the device takes no part
    int32_t rank = -1;
  };
  using Group = std::vector<int32_t>;  // logical devices by rank
  struct Groups {
    std::vector<Group> groups;
    std::vector<Place> place_of_device;
    bool equal = true;  // in size
  };

  int num_replicas() const { return num_replicas_; }
  int num_partitions() const { return num_partitions_; }
  int num_devices() const { return num_replicas_ * num_partitions_; }
  const std::vector<CollectiveStep>& steps() const { return steps_; }
  const std::vector<Groups>& groups() const { return groups_; }

 private:
  CollectiveProgram() = default;
  absl::Status AddGroups(const CollectiveGroups& groups);
  absl::Status AddStep(const CollectiveOp& op);
  absl::Status CheckShapes(const CollectiveStep& step) const;
  absl::Status AddPairs(const CollectiveOp& op, CollectiveStep& step);
  int EverybodyIndex();
  void ChoosePushed();
  int num_replicas_ = 1, num_partitions_ = 1;
  int everybody_ = -1;
  std::vector<Groups> groups_;
  std::vector<CollectiveStep> steps_;
};

}  // namespace landbridge
