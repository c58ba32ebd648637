// Statuses on the control stream. What a message says beside code and text travels in payloads.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge::ctl {

// Decimal text. The client adds the Python traceback of that request to the message.
inline constexpr char kUserContextPayload[] = "type.googleapis.com/ifrt.UserContext";
// Decimal text of the ticket that failed first.
inline constexpr char kRootTicketPayload[] = "type.googleapis.com/landbridge.RootTicket";

absl::Status FromProto(const StatusProto& proto);
void ToProto(const absl::Status& status, StatusProto* proto);

// With `user_context` and `root` unless it has its own, or they are 0.
absl::Status WithOrigin(absl::Status status, uint64_t user_context, Ticket root);

}  // namespace landbridge::ctl
