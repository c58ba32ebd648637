// What turns one sharding into another: for each new shard, the pieces of old shards that make it.
//
// Thread-safety: pure functions of immutable values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "sharding/sharding.h"

namespace landbridge {

struct DeviceLocation {
  int slice = 0;
  int64_t worker = 0;  // unique over all slices
};

struct ReshardPiece {
  uint32_t source_shard = 0;
  IndexBox source_box;  // in the source shard's coordinates
  IndexBox target_box;  // in the target shard's coordinates; same dims
};

struct ReshardTarget {
  uint32_t shard = 0;
  Dims dims;
  // Disjoint; they cover the shard exactly. Empty for shards without elements, copies and unavailable ones.
  std::vector<ReshardPiece> pieces;
  // The same box as this earlier target on the same worker, whose bytes come from elsewhere: copy it there.
  std::optional<uint32_t> copy_of;
  // No usable holder of something that it needs: one of the shards that had it.
  std::optional<uint32_t> unavailable;
};

struct ReshardPlan {
  std::vector<ReshardTarget> targets;  // one per shard of the destination, in order
  // Elements moved, by how far. Copies (copy_of) count as within the worker.
  int64_t elements_same_device = 0, elements_same_worker = 0, elements_same_slice = 0, elements_between_slices = 0;
};

// Sources are chosen by nearness: same device, same worker, same slice, any; holders that are equally near take
// turns. `usable` says which source shards may be read (null: all). `share_within_worker`: fetch a box once per
// worker and copy it there. INVALID_ARGUMENT if a sharding does not fit the shape; UNIMPLEMENTED if the positions of
// shards are unknown and the partitionings differ; RESOURCE_EXHAUSTED above limits::kReshardPiecesMax pieces.
absl::StatusOr<ReshardPlan> PlanReshard(absl::Span<const int64_t> dims, const Sharding& source,
                                        const Sharding& target,
                                        absl::FunctionRef<DeviceLocation(DeviceId)> location,
                                        const std::vector<bool>* usable = nullptr,
                                        bool share_within_worker = true);

}  // namespace landbridge
