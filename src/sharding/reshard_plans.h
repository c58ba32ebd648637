// Reshard plans that the controller may name by number: this worker's part of each.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "sharding/reshard_limits.h"
#include "sharding/reshard_part.h"

namespace landbridge {

// The controller says what to forget, within limits::kReshardPlansMax and kReshardPlanPiecesMax; so both sides agree on
// what is here without asking. INVALID_ARGUMENT when it does not keep to that, or names a plan that is not here.
class ReshardPlans {
 public:
  absl::StatusOr<std::shared_ptr<const ReshardPart>> Use(const ReshardPlanRef& ref) {
    for (uint64_t id : ref.forget()) Forget(id);
    if (ref.has_definition()) {
      Forget(ref.id());
      if (parts_.size() >= limits::kReshardPlansMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("more than ", limits::kReshardPlansMax, " reshard plans are named"));
      }
      LB_ASSIGN_OR_RETURN(parts_[ref.id()], ReshardPart::Make(ref.definition()));
    }
    auto it = parts_.find(ref.id());
    if (it == parts_.end() || it->second == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("reshard plan ", ref.id(), " is not known here"));
    }
    return it->second;
  }
  size_t size() const { return parts_.size(); }

 private:
  void Forget(uint64_t id) { parts_.erase(id); }

  absl::flat_hash_map<uint64_t, std::shared_ptr<const ReshardPart>> parts_;
};

}  // namespace landbridge
