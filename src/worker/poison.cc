#include "worker/poison.h"

#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace landbridge {
namespace {

// Decimal text; the controller uses the same names.
constexpr char kRootPayload[] = "type.googleapis.com/landbridge.RootTicket";
constexpr char kContextPayload[] = "type.googleapis.com/ifrt.UserContext";

uint64_t TakeNumber(absl::Status* status, const char* url, uint64_t otherwise) {
  const auto payload = status->GetPayload(url);
  if (!payload) return otherwise;
  status->ErasePayload(url);
  uint64_t number = 0;
  return absl::SimpleAtoi(std::string(*payload), &number) ? number : otherwise;
}

absl::Status NotOk(const absl::Status& status) {
  if (!status.ok()) return status;
  return absl::InvalidArgumentError("a failure was announced without saying which");
}

}  // namespace

PoisonPtr MakePoison(const absl::Status& status, Ticket root, uint64_t user_context) {
  auto poison = std::make_shared<Poison>();
  poison->status = NotOk(status);
  poison->root = root;
  poison->user_context = user_context;
  poison->root = Ticket(TakeNumber(&poison->status, kRootPayload, root.value()));
  poison->user_context = TakeNumber(&poison->status, kContextPayload, user_context);
  return poison;
}

PoisonPtr PoisonFromProto(const StatusProto& proto, Ticket root, uint64_t user_context) {
  if (proto.root_ticket() != 0) root = Ticket(proto.root_ticket());
  if (proto.user_context() != 0) user_context = proto.user_context();
  return MakePoison(StatusFromProto(proto), root, user_context);
}

StatusProto PoisonToProto(const Poison& poison) {
  StatusProto proto = StatusToProto(poison.status);
  proto.set_root_ticket(poison.root.value());
  proto.set_user_context(poison.user_context);
  return proto;
}

absl::Status PoisonStatus(const Poison& poison) {
  absl::Status status = poison.status;
  if (poison.root.valid()) status.SetPayload(kRootPayload, absl::Cord(absl::StrCat(poison.root.value())));
  if (poison.user_context != 0) status.SetPayload(kContextPayload, absl::Cord(absl::StrCat(poison.user_context)));
  return status;
}

StatusProto StatusToProto(const absl::Status& status) {
  StatusProto proto;
  proto.set_code(static_cast<int>(status.code()));
  proto.set_message(std::string(status.message()));
  return proto;
}

absl::Status StatusFromProto(const StatusProto& proto) {
  const auto code = static_cast<absl::StatusCode>(proto.code());
  return NotOk(absl::Status(code, proto.message()));
}

}  // namespace landbridge
