#include "frontdoor/ifrt_proxy/user_contexts.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace landbridge {

uint64_t CitedContext(const absl::Status& status) {
  if (status.ok()) return 0;
  absl::optional<absl::Cord> payload = status.GetPayload(kUserContextPayload);
  uint64_t id = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &id)) return 0;
  return id;
}

absl::Status WithUserContext(absl::Status status, uint64_t id) {
  if (status.ok() || id == 0 || status.GetPayload(kUserContextPayload).has_value()) return status;
  status.SetPayload(kUserContextPayload, absl::Cord(absl::StrCat(id)));
  return status;
}

UserContexts::Hold UserContexts::Begin(uint64_t id) {
  if (id == 0) return nullptr;
  ++held_;
  return Hold(new uint64_t(id), [this](const uint64_t* p) {
    const uint64_t retired = *p;
    delete p;
    if (!closed_) Retire(retired);
  });
}

void UserContexts::Cite(uint64_t id) {
  if (id == 0) return;
  if (!cited_.insert(id).second) return;
  cited_order_.push_back(id);
  while (cited_order_.size() > limits::kCitedContextsMax) {
    cited_.erase(cited_order_.front());
    cited_order_.pop_front();
  }
}

void UserContexts::Retire(uint64_t id) {
  --held_;
  if (!cited_.contains(id)) {
    released_.push_back(id);
    return;
  }
  kept_.push_back(id);
  while (kept_.size() > limits::kCitedContextsMax) {
    released_.push_back(kept_.front());
    kept_.pop_front();
  }
}

void UserContexts::Number(xla::ifrt::proxy::ResponseMetadata* metadata) {
  const int64_t number = next_number_++;
  metadata->set_seq_num(number);
  if (number == 0 || released_.empty()) return;  // the client ignores ids beside number 0
  metadata->mutable_destroyed_user_context_ids()->Assign(released_.begin(), released_.end());
  released_.clear();
}

}  // namespace landbridge
