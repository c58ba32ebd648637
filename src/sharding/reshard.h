// What turns one sharding into another: for each new shard, the pieces that make it, and which bytes travel between
// which workers. Deterministic: whoever asks the same question, in whatever process, gets the same answer.
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
  uint32_t shard = 0;      // of the source ...
  bool of_target = false;  // ... or an earlier shard of the target, which holds the same box
  IndexBox source_box;     // in that shard's coordinates
  IndexBox target_box;     // in the target shard's coordinates; same dims
};

struct ReshardTarget {
  uint32_t shard = 0;
  Dims dims;
  // Disjoint; they cover the shard exactly. Empty for shards without elements, kept and unavailable ones.
  std::vector<ReshardPiece> pieces;
  // This source shard is the new shard, where it is. Only with keep_in_place.
  std::optional<uint32_t> kept;
  // No usable holder of something that it needs: one of the shards that had it.
  std::optional<uint32_t> unavailable;

  bool made() const { return !kept && !unavailable; }
};

// What goes from one worker to another. Pieces of source shards and pieces of target shards (passed on by a worker that
// got them itself) have edges of their own, since those of the second kind exist only when the first have arrived.
struct ReshardEdge {
  int64_t from = 0, to = 0;  // workers
  bool passed_on = false;
  struct Piece {
    uint32_t target = 0;  // index in ReshardPlan::targets ...
    uint32_t piece = 0;   // ... and in its pieces
  };
  std::vector<Piece> pieces;
};

struct ReshardPlan {
  std::vector<ReshardTarget> targets;  // one per shard of the destination, in order
  std::vector<ReshardEdge> edges;      // in the order in which targets need them
  // Elements moved, by how far.
  int64_t elements_same_device = 0, elements_same_worker = 0, elements_same_slice = 0, elements_between_slices = 0;
  size_t pieces = 0;
};

struct ReshardOptions {
  const std::vector<bool>* usable = nullptr;  // which source shards may be read; null: all
  bool keep_in_place = false;                 // what is where it is wanted need not be copied
};

// Exactly what a worker lacks travels to it, and what a slice lacks comes into it once:
//  - sources are chosen by nearness: same device, same worker, same slice, any;
//  - a box that several devices of a worker need, and that comes from elsewhere, comes once and is copied there;
//  - a box that several workers of a slice need, and that comes from other slices, comes to one of them, which passes
//    it on (in a binomial tree: whoever could send first);
//  - of holders that are equally near, the worker with the least to send so far is taken.
// Whoever passes on comes earlier in `targets` than who gets it, so there is no cycle.
//
// INVALID_ARGUMENT if a sharding does not fit the shape; UNIMPLEMENTED if the positions of shards are unknown and the
// partitionings differ; RESOURCE_EXHAUSTED above limits::kReshardPiecesMax pieces.
absl::StatusOr<ReshardPlan> PlanReshard(absl::Span<const int64_t> dims, const Sharding& source, const Sharding& target,
                                        absl::FunctionRef<DeviceLocation(DeviceId)> location,
                                        const ReshardOptions& options = {});

}  // namespace landbridge
