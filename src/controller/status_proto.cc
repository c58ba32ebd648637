#include "controller/status_proto.h"

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace landbridge::ctl {
namespace {

uint64_t PayloadNumber(const absl::Status& status, absl::string_view key) {
  auto payload = status.GetPayload(key);
  uint64_t number = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &number)) return 0;
  return number;
}

}  // namespace

absl::Status WithOrigin(absl::Status status, uint64_t user_context, Ticket root) {
  if (status.ok()) return status;
  if (user_context != 0 && !status.GetPayload(kUserContextPayload).has_value()) {
    status.SetPayload(kUserContextPayload, absl::Cord(absl::StrCat(user_context)));
  }
  if (root.valid() && !status.GetPayload(kRootTicketPayload).has_value()) {
    status.SetPayload(kRootTicketPayload, absl::Cord(absl::StrCat(root.value())));
  }
  return status;
}

absl::Status FromProto(const StatusProto& proto) {
  if (proto.code() == 0) return absl::OkStatus();
  const bool known = proto.code() > 0 && proto.code() <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  absl::Status status(known ? static_cast<absl::StatusCode>(proto.code()) : absl::StatusCode::kUnknown,
                      proto.message());
  return WithOrigin(std::move(status), proto.user_context(), Ticket(proto.root_ticket()));
}

void ToProto(const absl::Status& status, StatusProto* proto) {
  proto->set_code(static_cast<int>(status.code()));
  proto->set_message(std::string(status.message()));
  if (status.ok()) return;
  proto->set_user_context(PayloadNumber(status, kUserContextPayload));
  proto->set_root_ticket(PayloadNumber(status, kRootTicketPayload));
}

}  // namespace landbridge::ctl
