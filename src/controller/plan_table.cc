#include "controller/plan_table.h"

#include <algorithm>

#include "base/log.h"
#include "base/status.h"
#include "controller/cluster_table.h"
#include "sharding/reshard_limits.h"

namespace landbridge::ctl {

const Plan::Worker& Plan::At(int slot) const {
  auto it = std::find_if(workers.begin(), workers.end(), [slot](const Worker& worker) { return worker.slot == slot; });
  LB_CHECK(it != workers.end());
  return *it;
}

bool Plan::IsLocal(const ReshardPiece& piece, int slot) const {
  const Worker& worker = At(slot);
  const std::vector<uint32_t>& here = piece.of_target ? worker.makes : worker.source;
  return std::find(here.begin(), here.end(), piece.shard) != here.end();
}

absl::StatusOr<PlanPtr> PlanTable::Get(const Dims& dims, const Sharding::Ptr& source, const Sharding::Ptr& target,
                                       bool keep_in_place, const std::vector<bool>* usable) {
  const Question question{dims, source, target, keep_in_place};
  if (usable != nullptr) return Make(question, usable);
  if (auto it = by_question_.find(question); it != by_question_.end()) {
    latest_.splice(latest_.begin(), latest_, it->second);
    return it->second->second;
  }
  LB_ASSIGN_OR_RETURN(PlanPtr plan, Make(question, nullptr));
  latest_.emplace_front(question, plan);
  by_question_.emplace(question, latest_.begin());
  pieces_ += plan->plan.pieces;
  while (latest_.size() > 1 && (latest_.size() > limits::kReshardPlansMax || pieces_ > limits::kReshardPlanPiecesMax)) {
    pieces_ -= latest_.back().second->plan.pieces;
    by_question_.erase(latest_.back().first);
    latest_.pop_back();
  }
  return plan;
}

absl::StatusOr<PlanPtr> PlanTable::Make(const Question& question, const std::vector<bool>* usable) {
  const ReshardOptions options{usable, question.keep_in_place};
  auto plan = std::make_shared<Plan>();
  auto location = [this](DeviceId device) { return cluster_->LocationOf(device); };
  LB_ASSIGN_OR_RETURN(plan->plan, PlanReshard(question.dims, *question.source, *question.target, location, options));
  auto place = [this](DeviceId device) {
    return PlacedDevice{cluster_->LocationOf(device), cluster_->At(device).ordinal};
  };
  std::vector<int64_t> slots;
  plan->definition = DefineReshard(question.dims, *question.source, *question.target, place, options, &slots);
  absl::flat_hash_map<int, uint32_t> numbers;
  for (int64_t slot : slots) {
    numbers.emplace(static_cast<int>(slot), static_cast<uint32_t>(plan->workers.size()));
    plan->workers.emplace_back().slot = static_cast<int>(slot);
  }
  auto at = [&](const Sharding& sharding, uint32_t shard) -> Plan::Worker& {
    return plan->workers[numbers.at(cluster_->At(sharding.devices()[shard]).slot)];
  };
  for (uint32_t shard = 0; shard < question.source->num_shards(); ++shard) {
    at(*question.source, shard).source.push_back(shard);
  }
  for (const ReshardTarget& target : plan->plan.targets) {
    plan->keeps |= !target.made();
    if (!target.made()) continue;
    Plan::Worker& worker = at(*question.target, target.shard);
    worker.makes.push_back(target.shard);
    for (const ReshardPiece& piece : target.pieces) {
      worker.uses_source |= !piece.of_target && at(*question.source, piece.shard).slot == worker.slot;
    }
  }
  for (uint32_t e = 0; e < plan->plan.edges.size(); ++e) {
    plan->workers[numbers.at(static_cast<int>(plan->plan.edges[e].to))].edges_in.push_back(e);
  }
  plan->id = next_id_++;
  return PlanPtr(std::move(plan));
}

void PlansTold::Name(const Plan& plan, int slot, ReshardPlanRef* ref) {
  ref->set_id(plan.id);
  if (auto it = by_id_.find(plan.id); it != by_id_.end()) {
    latest_.splice(latest_.begin(), latest_, it->second);
    return;
  }
  *ref->mutable_definition() = plan.definition;
  ref->mutable_definition()->set_self(static_cast<uint32_t>(&plan.At(slot) - plan.workers.data()));
  latest_.push_front({plan.id, plan.plan.pieces});
  by_id_.emplace(plan.id, latest_.begin());
  pieces_ += plan.plan.pieces;
  while (latest_.size() > 1 && (latest_.size() > limits::kReshardPlansMax || pieces_ > limits::kReshardPlanPiecesMax)) {
    ref->add_forget(latest_.back().id);
    pieces_ -= latest_.back().pieces;
    by_id_.erase(latest_.back().id);
    latest_.pop_back();
  }
}

}  // namespace landbridge::ctl
