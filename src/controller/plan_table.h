// Reshard plans: worked out once for each question, and told to a worker once.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "sharding/reshard.h"
#include "sharding/reshard_part.h"

namespace landbridge::ctl {

class ClusterTable;

// Immutable; workers are slots of the ClusterTable.
struct Plan {
  uint64_t id = 0;
  ReshardPlan plan;
  ReshardPlanProto definition;  // without `self`
  struct Worker {
    int slot = 0;
    std::vector<uint32_t> source;    // shards of the source that are there
    std::vector<uint32_t> makes;     // shards of the target that are made there
    std::vector<uint32_t> edges_in;  // numbers in plan.edges
    bool uses_source = false;        // makes take something of `source`
  };
  std::vector<Worker> workers;  // as numbered in the definition
  bool keeps = false;           // some shard stays where it is, or is not there

  const Worker& At(int slot) const;  // one of them
  // A piece of something that is made at `slot` is taken from there.
  bool IsLocal(const ReshardPiece& piece, int slot) const;
};
using PlanPtr = std::shared_ptr<const Plan>;

// The plans used lately, within limits::kReshardPlansMax and kReshardPlanPiecesMax.
class PlanTable {
 public:
  explicit PlanTable(const ClusterTable* cluster) : cluster_(cluster) {}

  // Devices must be known. Errors as PlanReshard. Plans for some of the shards only (`usable`) are not kept.
  absl::StatusOr<PlanPtr> Get(const Dims& dims, const Sharding::Ptr& source, const Sharding::Ptr& target,
                              bool keep_in_place, const std::vector<bool>* usable);
  size_t size() const { return by_question_.size(); }
  uint64_t made() const { return next_id_ - 1; }

 private:
  struct Question {
    Dims dims;
    Sharding::Ptr source, target;
    bool keep_in_place = false;
    friend bool operator==(const Question& a, const Question& b) {
      return a.keep_in_place == b.keep_in_place && a.dims == b.dims && *a.source == *b.source && *a.target == *b.target;
    }
    template <typename H>
    friend H AbslHashValue(H h, const Question& q) {
      return H::combine(std::move(h), q.dims, q.source->hash(), q.target->hash(), q.keep_in_place);
    }
  };
  using Latest = std::list<std::pair<Question, PlanPtr>>;  // the last used one first

  absl::StatusOr<PlanPtr> Make(const Question& question, const std::vector<bool>* usable);

  const ClusterTable* const cluster_;
  uint64_t next_id_ = 1;
  size_t pieces_ = 0;
  Latest latest_;
  absl::flat_hash_map<Question, Latest::iterator> by_question_;
};

// What one worker was told: it knows these plans by their numbers.
class PlansTold {
 public:
  // Names the plan for that worker: with its definition if it does not know it (any more).
  void Name(const Plan& plan, int slot, ReshardPlanRef* ref);

 private:
  struct Told {
    uint64_t id = 0;
    size_t pieces = 0;
  };
  size_t pieces_ = 0;
  std::list<Told> latest_;
  absl::flat_hash_map<uint64_t, std::list<Told>::iterator> by_id_;
};

}  // namespace landbridge::ctl
