#include "sharding/reshard.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge {
namespace {

// How far a piece travels; smaller is nearer.
enum Distance { kSameDevice = 0, kSameWorker, kSameSlice, kOtherSlice };

class Planner {
 public:
  Planner(absl::Span<const int64_t> dims, const Sharding& source, const Sharding& target,
          absl::FunctionRef<DeviceLocation(DeviceId)> location, const std::vector<bool>* usable, bool share)
      : dims_(dims), source_(source), target_(target), location_(location), usable_(usable), share_(share) {}

  absl::StatusOr<ReshardPlan> Plan() {
    LB_RETURN_IF_ERROR(AddContext(source_.Validate(dims_), "source"));
    LB_RETURN_IF_ERROR(AddContext(target_.Validate(dims_), "target"));
    if (usable_ != nullptr && usable_->size() != source_.num_shards()) {
      return absl::InvalidArgumentError("reshard: wrong number of usable flags");
    }
    FindLocations();
    if (!source_.HasBoxes() || !target_.HasBoxes()) return PlanShardToShard();
    GroupHolders();
    ReshardPlan plan;
    plan.targets.reserve(target_.num_shards());
    for (uint32_t shard = 0; shard < target_.num_shards(); ++shard) {
      LB_RETURN_IF_ERROR(PlanTarget(shard, &plan));
    }
    return plan;
  }

 private:
  void FindLocations() {
    for (DeviceId device : source_.devices()) source_at_.push_back(location_(device));
    for (DeviceId device : target_.devices()) target_at_.push_back(location_(device));
  }

  bool Usable(uint32_t shard) const { return usable_ == nullptr || (*usable_)[shard]; }

  Distance DistanceOf(uint32_t from, uint32_t to) const {
    if (source_.devices()[from] == target_.devices()[to]) return kSameDevice;
    if (source_at_[from].worker == target_at_[to].worker) return kSameWorker;
    if (source_at_[from].slice == target_at_[to].slice) return kSameSlice;
    return kOtherSlice;
  }

  static void Count(Distance distance, int64_t elements, ReshardPlan* plan) {
    switch (distance) {
      case kSameDevice: plan->elements_same_device += elements; break;
      case kSameWorker: plan->elements_same_worker += elements; break;
      case kSameSlice: plan->elements_same_slice += elements; break;
      case kOtherSlice: plan->elements_between_slices += elements; break;
    }
  }

  // Where positions are unknown, shards can only move as they are.
  absl::StatusOr<ReshardPlan> PlanShardToShard() {
    if (!source_.SamePartitioning(target_)) {
      return absl::UnimplementedError(absl::StrCat(
          "reshard from ", source_.ToString(), " to ", target_.ToString(),
          ": the positions of shards are not known; give the array a NamedSharding with a jitted identity first"));
    }
    ReshardPlan plan;
    for (uint32_t shard = 0; shard < target_.num_shards(); ++shard) {
      ReshardTarget out;
      out.shard = shard;
      LB_ASSIGN_OR_RETURN(out.dims, target_.ShardDims(dims_, shard));
      IndexBox whole = IndexBox::Whole(out.dims);
      if (!Usable(shard)) {
        out.unavailable = shard;
      } else if (whole.Elements() > 0) {
        Count(DistanceOf(shard, shard), whole.Elements(), &plan);
        out.pieces.push_back({shard, whole, whole});
      }
      plan.targets.push_back(std::move(out));
    }
    return plan;
  }

  struct Tile {
    std::vector<uint32_t> holders;   // usable ones
    uint32_t any = 0;                // some holder, usable or not
    // Turns, by distance: of the holders that are equally near.
    uint32_t turn = 0;
  };

  void GroupHolders() {
    size_t tiles = 1;
    for (int64_t t : source_.IsFullyReplicated() ? Dims() : source_.tiles()) tiles *= static_cast<size_t>(t);
    tiles_.resize(tiles);
    for (uint32_t shard = 0; shard < source_.num_shards(); ++shard) {
      Tile& tile = tiles_[source_.IsFullyReplicated() ? 0 : static_cast<size_t>(source_.TileOf(shard))];
      tile.any = shard;
      if (Usable(shard)) tile.holders.push_back(shard);
    }
  }

  // The nearest usable holder. Those equally near take turns, so that replicas share the load.
  std::optional<uint32_t> Choose(Tile& tile, uint32_t to) {
    Distance best = kOtherSlice;
    uint32_t count = 0;
    for (uint32_t holder : tile.holders) {
      const Distance distance = DistanceOf(holder, to);
      if (count == 0 || distance < best) {
        best = distance;
        count = 1;
      } else if (distance == best) {
        ++count;
      }
    }
    if (count == 0) return std::nullopt;
    uint32_t pick = count == 1 ? 0 : tile.turn++ % count;
    for (uint32_t holder : tile.holders) {
      if (DistanceOf(holder, to) == best && pick-- == 0) return holder;
    }
    return std::nullopt;  // not reached
  }

  absl::Status PlanTarget(uint32_t shard, ReshardPlan* plan) {
    ReshardTarget out;
    out.shard = shard;
    LB_ASSIGN_OR_RETURN(IndexBox box, target_.Box(dims_, shard));
    out.dims = box.dims();
    if (box.Elements() == 0) {
      plan->targets.push_back(std::move(out));
      return absl::OkStatus();
    }
    if (share_ && target_.num_shards() > 1) {
      auto [it, first] = fetched_.try_emplace({target_at_[shard].worker, box}, shard);
      // Only what came from elsewhere is worth a second copy in place of a second fetch.
      if (!first && fetched_from_elsewhere_[it->second]) {
        out.copy_of = it->second;
        Count(target_.devices()[it->second] == target_.devices()[shard] ? kSameDevice : kSameWorker, box.Elements(), plan);
        plan->targets.push_back(std::move(out));
        return absl::OkStatus();
      }
      fetched_from_elsewhere_.resize(target_.num_shards());
    }
    bool elsewhere = false;
    const size_t rank = dims_.size();
    const bool one_tile = source_.IsFullyReplicated();
    // Tiles of the source that meet the box, dimension by dimension.
    Dims first_tile(rank, 0), last_tile(rank, 0), tile_size(rank, 0);
    for (size_t i = 0; i < rank; ++i) {
      tile_size[i] = one_tile ? dims_[i] : CeilDivide(dims_[i], source_.tiles()[i]);
      first_tile[i] = box.start[i] / tile_size[i];
      last_tile[i] = (box.limit[i] - 1) / tile_size[i];
    }
    Dims at = first_tile;
    while (true) {
      int64_t number = 0;
      IndexBox overlap = box;
      Dims origin(rank);
      for (size_t i = 0; i < rank; ++i) {
        number = number * (one_tile ? 1 : source_.tiles()[i]) + at[i];
        origin[i] = at[i] * tile_size[i];
        overlap.start[i] = std::max(box.start[i], origin[i]);
        overlap.limit[i] = std::min(box.limit[i], origin[i] + tile_size[i]);
      }
      Tile& tile = tiles_[static_cast<size_t>(number)];
      std::optional<uint32_t> from = Choose(tile, shard);
      if (!from) {
        out.unavailable = tile.any;
        break;
      }
      if (++pieces_ > limits::kReshardPiecesMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("reshard from ", source_.ToString(), " to ", target_.ToString(), " needs more than ",
                         limits::kReshardPiecesMax, " pieces; go through an intermediate sharding"));
      }
      elsewhere |= DistanceOf(*from, shard) > kSameWorker;
      out.pieces.push_back({*from, overlap.RelativeTo(origin), overlap.RelativeTo(box.start)});
      size_t i = rank;
      while (i-- > 0) {
        if (++at[i] <= last_tile[i]) break;
        at[i] = first_tile[i];
      }
      if (i == static_cast<size_t>(-1)) break;
    }
    if (out.unavailable) {
      out.pieces.clear();
    } else {
      for (const ReshardPiece& piece : out.pieces) {
        Count(DistanceOf(piece.source_shard, shard), piece.source_box.Elements(), plan);
      }
      if (!fetched_from_elsewhere_.empty()) fetched_from_elsewhere_[shard] = elsewhere;
    }
    plan->targets.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Span<const int64_t> dims_;
  const Sharding& source_;
  const Sharding& target_;
  absl::FunctionRef<DeviceLocation(DeviceId)> location_;
  const std::vector<bool>* usable_;
  bool share_;
  std::vector<DeviceLocation> source_at_, target_at_;
  std::vector<Tile> tiles_;
  absl::flat_hash_map<std::pair<int64_t, IndexBox>, uint32_t> fetched_;  // (worker, box) -> first target
  std::vector<bool> fetched_from_elsewhere_;                            // by target shard
  size_t pieces_ = 0;
};

}  // namespace

absl::StatusOr<ReshardPlan> PlanReshard(absl::Span<const int64_t> dims, const Sharding& source, const Sharding& target,
                                        absl::FunctionRef<DeviceLocation(DeviceId)> location,
                                        const std::vector<bool>* usable, bool share_within_worker) {
  return Planner(dims, source, target, location, usable, share_within_worker).Plan();
}

}  // namespace landbridge
