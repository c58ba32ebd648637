#include "sharding/reshard.h"

#include <algorithm>
#include <tuple>
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
          absl::FunctionRef<DeviceLocation(DeviceId)> location, const ReshardOptions& options)
      : dims_(dims), source_(source), target_(target), location_(location), options_(options) {}

  absl::StatusOr<ReshardPlan> Plan() {
    LB_RETURN_IF_ERROR(AddContext(source_.Validate(dims_), "source"));
    LB_RETURN_IF_ERROR(AddContext(target_.Validate(dims_), "target"));
    if (options_.usable != nullptr && options_.usable->size() != source_.num_shards()) {
      return absl::InvalidArgumentError("reshard: wrong number of usable flags");
    }
    FindLocations();
    plan_.targets.reserve(target_.num_shards());
    if (source_.HasBoxes() && target_.HasBoxes()) {
      GroupHolders();
      for (uint32_t shard = 0; shard < target_.num_shards(); ++shard) LB_RETURN_IF_ERROR(PlanTarget(shard));
    } else {
      LB_RETURN_IF_ERROR(PlanShardToShard());
    }
    FindEdges();
    return std::move(plan_);
  }

 private:
  struct Tile {
    std::vector<uint32_t> holders;  // usable ones
    uint32_t any = 0;               // some holder, usable or not
  };
  // Where a piece could come from, the smaller the better: how far, when its worker could begin, its own load.
  struct Rank {
    Distance distance = kOtherSlice;
    int64_t when = 0;
    int64_t load = 0;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };

  void FindLocations() {
    for (DeviceId device : source_.devices()) source_at_.push_back(location_(device));
    for (DeviceId device : target_.devices()) target_at_.push_back(location_(device));
  }

  bool Usable(uint32_t shard) const { return options_.usable == nullptr || (*options_.usable)[shard]; }

  Distance DistanceOf(uint32_t from, uint32_t to) const {
    if (source_.devices()[from] == target_.devices()[to]) return kSameDevice;
    return DistanceBetween(source_at_[from], target_at_[to]);
  }
  static Distance DistanceBetween(const DeviceLocation& from, const DeviceLocation& to) {
    if (from.worker == to.worker) return kSameWorker;
    return from.slice == to.slice ? kSameSlice : kOtherSlice;
  }

  void Count(Distance distance, int64_t elements) {
    switch (distance) {
      case kSameDevice: plan_.elements_same_device += elements; break;
      case kSameWorker: plan_.elements_same_worker += elements; break;
      case kSameSlice: plan_.elements_same_slice += elements; break;
      case kOtherSlice: plan_.elements_between_slices += elements; break;
    }
  }

  // Where positions are unknown, shards can only move as they are.
  absl::Status PlanShardToShard() {
    if (!source_.SamePartitioning(target_)) {
      return absl::UnimplementedError(absl::StrCat(
          "reshard from ", source_.ToString(), " to ", target_.ToString(),
          ": the positions of shards are not known; give the array a NamedSharding with a jitted identity first"));
    }
    for (uint32_t shard = 0; shard < target_.num_shards(); ++shard) {
      ReshardTarget out;
      out.shard = shard;
      LB_ASSIGN_OR_RETURN(out.dims, target_.ShardDims(dims_, shard));
      const IndexBox whole = IndexBox::Whole(out.dims);
      if (!Usable(shard)) {
        out.unavailable = shard;
      } else if (MayKeep(shard, shard)) {
        out.kept = shard;
        Count(kSameDevice, whole.Elements());
      } else if (whole.Elements() > 0) {
        Count(DistanceOf(shard, shard), whole.Elements());
        out.pieces.push_back({shard, false, whole, whole});
        ++plan_.pieces;
      }
      plan_.targets.push_back(std::move(out));
    }
    return absl::OkStatus();
  }

  bool MayKeep(uint32_t source, uint32_t target) const {
    return options_.keep_in_place && source_.memory() == target_.memory() &&
           source_.devices()[source] == target_.devices()[target];
  }

  void GroupHolders() {
    size_t tiles = 1;
    for (int64_t t : source_.IsFullyReplicated() ? Dims() : source_.tiles()) tiles *= static_cast<size_t>(t);
    tiles_.resize(tiles);
    load_.resize(source_.num_shards(), 0);
    for (uint32_t shard = 0; shard < source_.num_shards(); ++shard) {
      Tile& tile = tiles_[source_.IsFullyReplicated() ? 0 : static_cast<size_t>(source_.TileOf(shard))];
      tile.any = shard;
      if (Usable(shard)) tile.holders.push_back(shard);
      source_on_device_.emplace(source_.devices()[shard], shard);
    }
  }

  // The nearest usable holder; of those the one whose worker has the least to send.
  std::optional<uint32_t> Choose(const Tile& tile, uint32_t to) const {
    std::optional<uint32_t> best;
    Rank best_rank;
    for (uint32_t holder : tile.holders) {
      const Distance distance = DistanceOf(holder, to);
      const int64_t when = distance <= kSameWorker ? 0 : BusyUntil(source_at_[holder].worker);
      const Rank rank{distance, when, load_[holder]};
      if (!best || rank < best_rank) {
        best = holder;
        best_rank = rank;
      }
    }
    return best;
  }

  // Time is counted in elements sent by one worker after the other.
  int64_t BusyUntil(int64_t worker) const {
    auto it = busy_until_.find(worker);
    return it == busy_until_.end() ? 0 : it->second;
  }
  // Returns when it has arrived.
  int64_t Send(int64_t worker, int64_t ready, int64_t elements) {
    int64_t& until = busy_until_[worker];
    until = std::max(until, ready) + elements;
    return until;
  }

  // Of the earlier targets with this box in the slice, the one that could hand it over first.
  uint32_t ChooseCopy(const std::vector<uint32_t>& copies, uint32_t to) const {
    uint32_t best = copies[0];
    Rank best_rank;
    for (uint32_t at : copies) {
      const Distance distance = DistanceBetween(target_at_[at], target_at_[to]);
      const Rank rank{distance, distance == kSameWorker ? 0 : CopyReady(at)};
      if (rank < best_rank) {
        best = at;
        best_rank = rank;
      }
    }
    return best;
  }
  int64_t CopyReady(uint32_t target) const { return std::max(ready_at_[target], BusyUntil(target_at_[target].worker)); }

  absl::Status PlanTarget(uint32_t shard) {
    ReshardTarget out;
    out.shard = shard;
    ready_at_.push_back(0);
    from_elsewhere_.push_back(false);
    LB_ASSIGN_OR_RETURN(const IndexBox box, target_.Box(dims_, shard));
    out.dims = box.dims();
    auto on_device = source_on_device_.find(target_.devices()[shard]);
    if (on_device != source_on_device_.end() && Usable(on_device->second) && MayKeep(on_device->second, shard)) {
      LB_ASSIGN_OR_RETURN(const IndexBox there, source_.Box(dims_, on_device->second));
      if (there == box) {
        out.kept = on_device->second;
        Count(kSameDevice, box.Elements());
        plan_.targets.push_back(std::move(out));
        return absl::OkStatus();
      }
    }
    if (box.Elements() > 0) LB_RETURN_IF_ERROR(FindPieces(box, &out));
    plan_.targets.push_back(std::move(out));
    return absl::OkStatus();
  }

  absl::Status FindPieces(const IndexBox& box, ReshardTarget* out) {
    const uint32_t shard = out->shard;
    const DeviceLocation& at = target_at_[shard];
    std::vector<uint32_t>& copies = copies_[{at.slice, box}];
    std::optional<uint32_t> copy;
    if (!copies.empty()) copy = ChooseCopy(copies, shard);
    if (copy && from_elsewhere_[*copy] && target_at_[*copy].worker == at.worker) {
      TakeAllOf(*copy, out);  // and whoever needs it next can as well ask that one
      return absl::OkStatus();
    }
    LB_RETURN_IF_ERROR(Cut(box, out));
    if (out->unavailable) return absl::OkStatus();
    bool far = false, here = false;
    int64_t when = 0;
    for (const ReshardPiece& piece : out->pieces) {
      const Distance distance = DistanceOf(piece.shard, shard);
      far |= distance == kOtherSlice;
      here |= distance <= kSameWorker;
      from_elsewhere_[shard] = from_elsewhere_[shard] || distance > kSameWorker;
      when = std::max(when, BusyUntil(source_at_[piece.shard].worker));
    }
    if (copy && !here && (far || CopyReady(*copy) < when)) {
      out->pieces.clear();
      TakeAllOf(*copy, out);
    } else {
      TakeEach(copy, out);
    }
    copies.push_back(shard);
    return absl::OkStatus();
  }

  // What would come from another slice, and is or will be in this one, is passed on.
  void TakeEach(std::optional<uint32_t> copy, ReshardTarget* out) {
    const uint32_t shard = out->shard;
    for (ReshardPiece& piece : out->pieces) {
      Distance distance = DistanceOf(piece.shard, shard);
      int64_t from = source_at_[piece.shard].worker, ready = 0;
      const int64_t elements = piece.target_box.Elements();
      if (distance == kOtherSlice && copy) {
        piece.shard = *copy;
        piece.of_target = true;
        piece.source_box = piece.target_box;
        distance = kSameSlice;
        from = target_at_[*copy].worker;
        ready = ready_at_[*copy];
      } else {
        load_[piece.shard] += elements;
      }
      if (distance > kSameWorker) ready_at_[shard] = std::max(ready_at_[shard], Send(from, ready, elements));
      Count(distance, elements);
    }
    plan_.pieces += out->pieces.size();
  }

  void TakeAllOf(uint32_t copy, ReshardTarget* out) {
    const IndexBox whole = IndexBox::Whole(out->dims);
    out->pieces.push_back({copy, true, whole, whole});
    ++plan_.pieces;
    const Distance distance = DistanceBetween(target_at_[copy], target_at_[out->shard]);
    Count(distance, whole.Elements());
    from_elsewhere_[out->shard] = true;
    ready_at_[out->shard] =
        distance == kSameWorker ? ready_at_[copy] : Send(target_at_[copy].worker, ready_at_[copy], whole.Elements());
  }

  absl::Status TooManyPieces() const {
    return absl::ResourceExhaustedError(absl::StrCat("reshard from ", source_.ToString(), " to ", target_.ToString(),
                                                     " needs more than ", limits::kReshardPiecesMax,
                                                     " pieces; go through an intermediate sharding"));
  }

  // The tiles of the source that meet the box, each from its nearest holder.
  absl::Status Cut(const IndexBox& box, ReshardTarget* out) {
    const size_t rank = dims_.size();
    const bool one_tile = source_.IsFullyReplicated();
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
      const Tile& tile = tiles_[static_cast<size_t>(number)];
      const std::optional<uint32_t> from = Choose(tile, out->shard);
      if (!from) {
        out->unavailable = tile.any;
        out->pieces.clear();
        return absl::OkStatus();
      }
      if (plan_.pieces + out->pieces.size() >= limits::kReshardPiecesMax) return TooManyPieces();
      out->pieces.push_back({*from, false, overlap.RelativeTo(origin), overlap.RelativeTo(box.start)});
      size_t i = rank;
      while (i-- > 0) {
        if (++at[i] <= last_tile[i]) break;
        at[i] = first_tile[i];
      }
      if (i == static_cast<size_t>(-1)) return absl::OkStatus();
    }
  }

  void FindEdges() {
    absl::flat_hash_map<std::tuple<int64_t, int64_t, bool>, size_t> numbers;
    for (uint32_t t = 0; t < plan_.targets.size(); ++t) {
      const ReshardTarget& target = plan_.targets[t];
      for (uint32_t p = 0; p < target.pieces.size(); ++p) {
        const ReshardPiece& piece = target.pieces[p];
        const int64_t from = (piece.of_target ? target_at_ : source_at_)[piece.shard].worker;
        const int64_t to = target_at_[target.shard].worker;
        if (from == to) continue;
        auto [it, first] = numbers.try_emplace({from, to, piece.of_target}, plan_.edges.size());
        if (first) plan_.edges.push_back({from, to, piece.of_target, {}});
        plan_.edges[it->second].pieces.push_back({t, p});
      }
    }
  }

  absl::Span<const int64_t> dims_;
  const Sharding& source_;
  const Sharding& target_;
  absl::FunctionRef<DeviceLocation(DeviceId)> location_;
  const ReshardOptions& options_;
  std::vector<DeviceLocation> source_at_, target_at_;
  std::vector<Tile> tiles_;
  absl::flat_hash_map<DeviceId, uint32_t> source_on_device_;
  std::vector<int64_t> load_;  // elements taken from each source shard
  // Targets so far that have a box, or will, by slice and box.
  absl::flat_hash_map<std::pair<int, IndexBox>, std::vector<uint32_t>> copies_;
  absl::flat_hash_map<int64_t, int64_t> busy_until_;  // by worker
  std::vector<int64_t> ready_at_;                     // by target ...
  std::vector<bool> from_elsewhere_;                  // ... got some of it from another worker
  ReshardPlan plan_;
};

}  // namespace

absl::StatusOr<ReshardPlan> PlanReshard(absl::Span<const int64_t> dims, const Sharding& source, const Sharding& target,
                                        absl::FunctionRef<DeviceLocation(DeviceId)> location,
                                        const ReshardOptions& options) {
  return Planner(dims, source, target, location, options).Plan();
}

}  // namespace landbridge
