// The tracebacks that a client keeps for us: one per request that named a user context, until we name the id back.
//
// The client applies what numbered responses say in the order of their numbers; requests that it batches itself are
// outside that (session_core.cc leaves their responses unnumbered). An id is named back once per request, and only
// when no error can cite it any more: an error's text shows the traceback of the id in it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "proto/ifrt_proxy/ifrt_service.pb.h"

namespace landbridge {

// The payload of a status that cites a context; its value is the id in decimal.
inline constexpr char kUserContextPayload[] = "type.googleapis.com/ifrt.UserContext";

// 0: none.
uint64_t CitedContext(const absl::Status& status);
// Leaves a status alone that is OK, cites something already, or when id is 0.
absl::Status WithUserContext(absl::Status status, uint64_t id);

// Thread-safety: none. Outlives its holds.
class UserContexts {
 public:
  UserContexts() = default;
  UserContexts(const UserContexts&) = delete;
  UserContexts& operator=(const UserContexts&) = delete;
  ~UserContexts() { closed_ = true; }

  // One request's claim on its id; the last copy that goes retires it.
  using Hold = std::shared_ptr<const uint64_t>;
  // Null for id 0.
  Hold Begin(uint64_t id);

  // Some error cites the id: when retired it is kept back, with the last limits::kCitedContextsMax of its kind.
  void Cite(uint64_t id);
  void Cite(const absl::Status& status) { Cite(CitedContext(status)); }

  // For a successful response that takes a number.
  void Number(xla::ifrt::proxy::ResponseMetadata* metadata);

  size_t waiting() const { return released_.size(); }
  size_t kept_back() const { return kept_.size(); }
  size_t held() const { return held_; }

 private:
  void Retire(uint64_t id);

  bool closed_ = false;
  int64_t next_number_ = 0;
  size_t held_ = 0;
  std::vector<uint64_t> released_;       // to be named back
  absl::flat_hash_set<uint64_t> cited_;  // the newest ones
  std::deque<uint64_t> cited_order_;
  std::deque<uint64_t> kept_;
};

}  // namespace landbridge
