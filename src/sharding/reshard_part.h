// A reshard plan as it travels, and one worker's part of it. The controller sends the question; every worker finds the
// same answer (reshard.h is deterministic) and keeps what concerns itself: which shards it makes, and what it sends.
//
// Thread-safety: pure functions and immutable values.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"
#include "sharding/reshard.h"

namespace landbridge {

// Where a device is, for a plan: its worker's number in the plan comes from `worker`, which is unique over all slices.
struct PlacedDevice {
  DeviceLocation at;
  uint32_t ordinal = 0;  // at its worker
};

// The question as a message, for any of the workers (`self` is not set). `workers` gets the workers of the message, in
// its order. Shardings must fit `dims`.
ReshardPlanProto DefineReshard(absl::Span<const int64_t> dims, const Sharding& source, const Sharding& target,
                               absl::FunctionRef<PlacedDevice(DeviceId)> place, const ReshardOptions& options,
                               std::vector<int64_t>* workers);

// Thread-safety: immutable.
class ReshardPart {
 public:
  // INVALID_ARGUMENT for a message that makes no sense; otherwise as PlanReshard.
  static absl::StatusOr<std::shared_ptr<const ReshardPart>> Make(const ReshardPlanProto& definition);

  // The same things in explicit form: one node for all shards that the worker makes, and one publication per piece.
  // INVALID_ARGUMENT if the message does not fit the plan.
  absl::StatusOr<MakeBuffers> Expand(const ReshardReceive& receive) const;
  absl::StatusOr<std::vector<Publish>> Expand(const ReshardSend& send) const;

  size_t pieces() const { return pieces_; }  // kept here
  uint32_t self() const { return self_; }

 private:
  struct Piece {
    uint32_t shard = 0;
    bool of_target = false;
    int32_t edge = -1;    // in_edges_; -1: from this worker
    uint32_t number = 0;  // in that edge
    Dims from_dims;       // of the shard that it is taken from
    IndexBox source_box, target_box;
  };
  struct Target {
    uint32_t shard = 0, ordinal = 0;
    Dims dims;
    std::vector<Piece> pieces;
  };
  struct Offer {
    uint32_t shard = 0;
    bool of_target = false;
    Dims from_dims;
    IndexBox box;
  };

  absl::StatusOr<BufferRef> RefOf(const ReshardSource& source, uint64_t target, bool of_target, uint32_t shard) const;

  uint32_t self_ = 0;
  MemoryKindProto memory_ = MEMORY_DEVICE;
  std::vector<Target> targets_;
  size_t in_edges_ = 0;
  absl::flat_hash_map<uint32_t, std::vector<Offer>> out_edges_;  // by number in the plan
  absl::flat_hash_map<uint32_t, int> source_here_;               // source shard -> its place among those of this worker
  size_t pieces_ = 0;
};

}  // namespace landbridge
