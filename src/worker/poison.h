// What a buffer holds instead of data: the status of whatever failed first, and whose it was. One object is shared by
// all that it spreads to.
//
// Thread-safety: immutable values.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge {

struct Poison {
  absl::Status status;        // never OK
  Ticket root;                // the launch or transfer that failed first
  uint64_t user_context = 0;  // of the request that made it
};
using PoisonPtr = std::shared_ptr<const Poison>;

// `root` and `user_context` hold unless the status says (see PoisonStatus) that it comes from elsewhere.
PoisonPtr MakePoison(const absl::Status& status, Ticket root, uint64_t user_context);
PoisonPtr PoisonFromProto(const StatusProto& proto, Ticket root, uint64_t user_context);

StatusProto PoisonToProto(const Poison& poison);
// The status with root and user context as a payload, so that they survive a way that only knows absl::Status.
absl::Status PoisonStatus(const Poison& poison);

// A plain status without a root.
StatusProto StatusToProto(const absl::Status& status);
absl::Status StatusFromProto(const StatusProto& proto);  // never OK: a missing code is an error of the sender

}  // namespace landbridge
