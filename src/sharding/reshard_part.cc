#include "sharding/reshard_part.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge {
namespace {

absl::Status BadPlan(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("reshard plan: ", what));
}

void FillSharding(const Sharding& sharding, const absl::flat_hash_map<DeviceId, uint32_t>& numbers,
                  ShardingProto* proto) {
  for (DeviceId device : sharding.devices()) proto->add_devices(numbers.at(device));
  proto->set_memory(static_cast<MemoryKindProto>(sharding.memory()));
  absl::StatusOr<xla::OpSharding> op = sharding.ToOpSharding();
  if (op.ok()) {
    *proto->mutable_partitioning() = *std::move(op);
    return;
  }
  proto->mutable_dims()->Add(sharding.concrete_dims().begin(), sharding.concrete_dims().end());
  for (const Dims& dims : sharding.concrete_shard_dims()) {
    proto->add_shards()->mutable_dims()->Add(dims.begin(), dims.end());
  }
}

absl::StatusOr<Sharding::Ptr> ParseSharding(const ShardingProto& proto, int device_count) {
  std::vector<DeviceId> devices;
  for (uint32_t device : proto.devices()) {
    if (device >= static_cast<uint32_t>(device_count)) return BadPlan(absl::StrCat("there is no device ", device));
    devices.push_back(DeviceId(static_cast<int32_t>(device)));
  }
  if (!MemoryKindProto_IsValid(proto.memory())) return BadPlan("unknown memory kind");
  const auto memory = static_cast<MemoryKind>(proto.memory());
  if (proto.has_partitioning()) return Sharding::FromOpSharding(std::move(devices), memory, proto.partitioning());
  Dims dims(proto.dims().begin(), proto.dims().end());
  std::vector<Dims> shards;
  for (const ReshardShape& shape : proto.shards()) shards.emplace_back(shape.dims().begin(), shape.dims().end());
  if (shards.size() == 1) {
    return Sharding::ConcreteEven(std::move(devices), memory, std::move(dims), std::move(shards[0]), false);
  }
  return Sharding::Concrete(std::move(devices), memory, std::move(dims), std::move(shards));
}

void FillBox(const IndexBox& box, Box* proto) {
  proto->mutable_start()->Add(box.start.begin(), box.start.end());
  proto->mutable_limit()->Add(box.limit.begin(), box.limit.end());
}

void FillRef(BufferRef ref, BufferRefProto* proto) {
  proto->set_array(ref.array.value());
  proto->set_shard(ref.shard);
}

}  // namespace

ReshardPlanProto DefineReshard(absl::Span<const int64_t> dims, const Sharding& source, const Sharding& target,
                               absl::FunctionRef<PlacedDevice(DeviceId)> place, const ReshardOptions& options,
                               std::vector<int64_t>* workers) {
  ReshardPlanProto proto;
  workers->clear();
  absl::flat_hash_map<DeviceId, uint32_t> numbers;
  absl::flat_hash_map<int64_t, uint32_t> worker_numbers;
  for (const Sharding* sharding : {&source, &target}) {
    for (DeviceId device : sharding->devices()) {
      if (!numbers.emplace(device, static_cast<uint32_t>(proto.devices_size())).second) continue;
      const PlacedDevice placed = place(device);
      auto [it, first] = worker_numbers.emplace(placed.at.worker, static_cast<uint32_t>(workers->size()));
      if (first) {
        workers->push_back(placed.at.worker);
        proto.add_workers(placed.at.slice);
      }
      ReshardDevice* out = proto.add_devices();
      out->set_worker(it->second);
      out->set_ordinal(placed.ordinal);
    }
  }
  proto.mutable_dims()->Add(dims.begin(), dims.end());
  FillSharding(source, numbers, proto.mutable_source());
  FillSharding(target, numbers, proto.mutable_target());
  proto.set_keep_in_place(options.keep_in_place);
  for (uint32_t i = 0; options.usable != nullptr && i < options.usable->size(); ++i) {
    if (!(*options.usable)[i]) proto.add_unusable(i);
  }
  return proto;
}

absl::StatusOr<std::shared_ptr<const ReshardPart>> ReshardPart::Make(const ReshardPlanProto& definition) {
  for (const ReshardDevice& device : definition.devices()) {
    if (device.worker() >= static_cast<uint32_t>(definition.workers_size())) {
      return BadPlan(absl::StrCat("there is no worker ", device.worker()));
    }
  }
  if (definition.self() >= static_cast<uint32_t>(definition.workers_size()))
    return BadPlan("it is not for this worker");
  LB_ASSIGN_OR_RETURN(const Sharding::Ptr source, ParseSharding(definition.source(), definition.devices_size()));
  LB_ASSIGN_OR_RETURN(const Sharding::Ptr target, ParseSharding(definition.target(), definition.devices_size()));
  const Dims dims(definition.dims().begin(), definition.dims().end());
  auto device_at = [&](DeviceId device) -> const ReshardDevice& { return definition.devices(device.value()); };
  auto location = [&](DeviceId device) {
    const uint32_t worker = device_at(device).worker();
    return DeviceLocation{definition.workers(static_cast<int>(worker)), worker};
  };
  std::vector<bool> usable(source->num_shards(), true);
  for (uint32_t shard : definition.unusable()) {
    if (shard >= usable.size()) return BadPlan("a shard that is not there is called unusable");
    usable[shard] = false;
  }
  LB_ASSIGN_OR_RETURN(const ReshardPlan plan,
                      PlanReshard(dims, *source, *target, location, {&usable, definition.keep_in_place()}));

  auto part = std::make_shared<ReshardPart>();
  part->self_ = definition.self();
  part->memory_ = definition.target().memory();
  const auto self = static_cast<int64_t>(part->self_);
  for (uint32_t shard = 0; shard < source->num_shards(); ++shard) {
    if (device_at(source->devices()[shard]).worker() != part->self_) continue;
    part->source_here_.emplace(shard, static_cast<int>(part->source_here_.size()));
  }
  auto from_dims = [&](const ReshardPiece& piece) {
    return piece.of_target ? plan.targets[piece.shard].dims : *source->ShardDims(dims, piece.shard);
  };
  // target and piece -> edge and number in it, of those that end here.
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, std::pair<int32_t, uint32_t>> arrives;
  for (uint32_t e = 0; e < plan.edges.size(); ++e) {
    const ReshardEdge& edge = plan.edges[e];
    if (edge.from == self) {
      std::vector<Offer>& offers = part->out_edges_[e];
      for (const ReshardEdge::Piece& at : edge.pieces) {
        const ReshardPiece& piece = plan.targets[at.target].pieces[at.piece];
        offers.push_back({piece.shard, piece.of_target, from_dims(piece), piece.source_box});
      }
      part->pieces_ += offers.size();
    }
    if (edge.to != self) continue;
    const auto number = static_cast<int32_t>(part->in_edges_++);
    for (uint32_t i = 0; i < edge.pieces.size(); ++i) {
      arrives[{edge.pieces[i].target, edge.pieces[i].piece}] = {number, i};
    }
  }
  for (uint32_t t = 0; t < plan.targets.size(); ++t) {
    const ReshardTarget& planned = plan.targets[t];
    const ReshardDevice& device = device_at(target->devices()[planned.shard]);
    if (!planned.made() || device.worker() != part->self_) continue;
    Target& out = part->targets_.emplace_back();
    out.shard = planned.shard;
    out.ordinal = device.ordinal();
    out.dims = planned.dims;
    for (uint32_t p = 0; p < planned.pieces.size(); ++p) {
      const ReshardPiece& piece = planned.pieces[p];
      Piece& mine = out.pieces.emplace_back();
      mine.shard = piece.shard;
      mine.of_target = piece.of_target;
      mine.from_dims = from_dims(piece);
      mine.source_box = piece.source_box;
      mine.target_box = piece.target_box;
      if (auto it = arrives.find({t, p}); it != arrives.end()) std::tie(mine.edge, mine.number) = it->second;
    }
    part->pieces_ += out.pieces.size();
  }
  return std::shared_ptr<const ReshardPart>(std::move(part));
}

absl::StatusOr<BufferRef> ReshardPart::RefOf(const ReshardSource& source, uint64_t target, bool of_target,
                                             uint32_t shard) const {
  if (of_target) return BufferRef{ArrayId(target), shard};
  if (source.shards_size() == 0) return BufferRef{ArrayId(source.array()), shard};
  auto it = source_here_.find(shard);
  if (it == source_here_.end() || it->second >= source.shards_size()) {
    return BadPlan(absl::StrCat("no buffer is named for shard ", shard));
  }
  const BufferRefProto& ref = source.shards(it->second);
  return BufferRef{ArrayId(ref.array()), ref.shard()};
}

absl::StatusOr<MakeBuffers> ReshardPart::Expand(const ReshardReceive& receive) const {
  if (static_cast<size_t>(receive.edges_size()) != in_edges_) {
    return BadPlan(absl::StrCat(receive.edges_size(), " edges where ", in_edges_, " end"));
  }
  MakeBuffers make;
  make.set_ticket(receive.ticket());
  make.set_session(receive.session());
  make.set_user_context(receive.user_context());
  const auto& without = receive.without();
  for (const Target& target : targets_) {
    if (std::find(without.begin(), without.end(), target.shard) != without.end()) continue;
    MakeBuffer* buffer = make.add_buffers();
    FillRef({ArrayId(receive.target()), target.shard}, buffer->mutable_target()->mutable_ref());
    buffer->mutable_target()->set_device(target.ordinal);
    buffer->mutable_target()->set_memory(memory_);
    buffer->set_dtype(receive.dtype());
    buffer->mutable_dims()->Add(target.dims.begin(), target.dims.end());
    for (const Piece& mine : target.pieces) {
      landbridge::Piece* piece = buffer->add_pieces();
      if (!mine.source_box.Covers(mine.from_dims)) FillBox(mine.source_box, piece->mutable_source_box());
      if (!mine.target_box.Covers(target.dims)) FillBox(mine.target_box, piece->mutable_target_box());
      piece->mutable_source_dims()->Add(mine.from_dims.begin(), mine.from_dims.end());
      if (mine.edge < 0) {
        LB_ASSIGN_OR_RETURN(const BufferRef ref, RefOf(receive.source(), receive.target(), mine.of_target, mine.shard));
        FillRef(ref, piece->mutable_local());
        continue;
      }
      const ReshardEdgeProto& edge = receive.edges(mine.edge);
      RemoteSource* remote = piece->mutable_remote();
      remote->set_transfer(edge.transfer() + mine.number);
      remote->set_edge(edge.transfer());
      remote->set_incarnation(edge.incarnation());
      remote->set_space(receive.space());
      remote->set_data_address(edge.data_address());
    }
  }
  return make;
}

absl::StatusOr<std::vector<Publish>> ReshardPart::Expand(const ReshardSend& send) const {
  auto it = out_edges_.find(send.edge());
  if (it == out_edges_.end()) return BadPlan(absl::StrCat("edge ", send.edge(), " does not begin here"));
  std::vector<Publish> publications;
  publications.reserve(it->second.size());
  for (const Offer& offer : it->second) {
    Publish& publish = publications.emplace_back();
    publish.set_ticket(send.ticket());
    publish.set_transfer(send.transfer() + publications.size() - 1);
    LB_ASSIGN_OR_RETURN(const BufferRef ref, RefOf(send.source(), send.target(), offer.of_target, offer.shard));
    FillRef(ref, publish.mutable_ref());
    publish.mutable_dims()->Add(offer.from_dims.begin(), offer.from_dims.end());
    publish.set_dtype(send.dtype());
    if (!offer.box.Covers(offer.from_dims)) FillBox(offer.box, publish.mutable_box());
    publish.set_peer(send.peer());
    if (publications.size() == 1) publish.set_peer_address(send.peer_address());
  }
  return publications;
}

}  // namespace landbridge
