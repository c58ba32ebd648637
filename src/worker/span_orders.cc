#include "worker/span_orders.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/worker_limits.h"

namespace landbridge {
namespace {

constexpr uint64_t kLogEpoch = SpanMember::kLogEpoch;

SliceId LogOf(uint32_t log) { return SliceId(static_cast<int32_t>(log)); }
uint32_t NumberOf(SliceId log) { return static_cast<uint32_t>(log.value()); }

template <typename Field>
void LogsToProto(const std::vector<SliceId>& logs, Field* field) {
  for (SliceId log : logs) field->Add(NumberOf(log));
}
template <typename Field>
std::vector<SliceId> LogsFromProto(const Field& field) {
  std::vector<SliceId> logs;
  logs.reserve(static_cast<size_t>(field.size()));
  for (uint32_t log : field) logs.push_back(LogOf(log));
  return logs;
}

// Those that pass between a worker and the spanner; there are no others here.
OrderMail MailOf(const OrderMessage& message) {
  OrderMail mail;
  if (const auto* ready = std::get_if<Ready>(&message)) {
    OrderReady* proto = mail.mutable_ready();
    proto->set_log(NumberOf(ready->slice));
    proto->set_spanner_epoch(ready->spanner_epoch);
    proto->set_number(ready->ticket.value());
    LogsToProto(ready->slices, proto->mutable_logs());
    for (const After& after : ready->after) {
      OrderAfter* one = proto->add_after();
      one->set_number(after.ticket.value());
      one->set_data(after.data);
    }
  } else if (const auto* withdrawn = std::get_if<WithdrawnAt>(&message)) {
    mail.mutable_withdrawn()->set_log(NumberOf(withdrawn->slice));
    mail.mutable_withdrawn()->set_spanner_epoch(withdrawn->spanner_epoch);
    mail.mutable_withdrawn()->set_number(withdrawn->ticket.value());
  } else if (const auto* horizon = std::get_if<HorizonAt>(&message)) {
    mail.mutable_horizon()->set_log(NumberOf(horizon->slice));
    mail.mutable_horizon()->set_spanner_epoch(horizon->spanner_epoch);
    mail.mutable_horizon()->set_horizon(horizon->horizon.value());
  } else if (const auto* report = std::get_if<SliceReport>(&message)) {
    OrderReport* proto = mail.mutable_report();
    proto->set_log(NumberOf(report->slice));
    proto->set_spanner_epoch(report->spanner_epoch);
    proto->set_g_tail(report->g_tail);
    proto->set_g_seen(report->g_seen);
    proto->set_horizon(report->horizon.value());
    for (const SliceReport::Placed& placed : report->placed) {
      OrderReport::Placed* one = proto->add_placed();
      one->set_number(placed.ticket.value());
      one->set_g(placed.g);
      LogsToProto(placed.slices, one->mutable_logs());
    }
    for (Ticket number : report->withdrawn) proto->add_withdrawn(number.value());
  } else if (const auto* commit = std::get_if<Commit>(&message)) {
    mail.mutable_commit()->set_spanner_epoch(commit->spanner_epoch);
    mail.mutable_commit()->set_number(commit->ticket.value());
    mail.mutable_commit()->set_g(commit->g);
    mail.mutable_commit()->set_previous_g(commit->previous_g);
  }
  return mail;
}

Ready FromProto(const OrderReady& proto) {
  Ready ready{LogOf(proto.log()),          kLogEpoch, proto.spanner_epoch(), Ticket(proto.number()),
              LogsFromProto(proto.logs()), {}};
  for (const OrderAfter& after : proto.after()) ready.after.push_back({Ticket(after.number()), after.data()});
  return ready;
}

SliceReport FromProto(const OrderReport& proto) {
  SliceReport report;
  report.slice = LogOf(proto.log());
  report.epoch = kLogEpoch;
  report.spanner_epoch = proto.spanner_epoch();
  report.g_tail = proto.g_tail();
  report.g_seen = proto.g_seen();
  report.horizon = Ticket(proto.horizon());
  for (const OrderReport::Placed& placed : proto.placed()) {
    report.placed.push_back({Ticket(placed.number()), placed.g(), LogsFromProto(placed.logs())});
  }
  for (uint64_t number : proto.withdrawn()) report.withdrawn.emplace_back(number);
  return report;
}

bool SaneLog(uint32_t log) { return log > 0 && log <= static_cast<uint32_t>(INT32_MAX); }

}  // namespace

// ---------------------------------------------------------------- the controller's word

absl::Status SpanOrders::OnOp(const SpanOrder& op) {
  const auto wrong = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("the order of launches that span workers: ", what));
  };
  const Incarnation spanner_at(op.spanner());
  const bool here = spanner_at == self_;
  if (op.epoch() == 0 || op.epoch() < epoch_ || !spanner_at.valid()) return wrong("its epoch has passed");
  if (op.epoch() == epoch_ && spanner_at != spanner_at_) return wrong("two spanners of one epoch");
  if (!SaneLog(op.log()) || (member_.log().valid() && member_.log() != LogOf(op.log()))) {
    return wrong("this worker's log has another number");
  }
  if (members_.size() + static_cast<size_t>(op.members_size()) > limits::kSpanMembersMax)
    return wrong("too many members");
  for (const SpanWorker& member : op.members()) {
    if (!SaneLog(member.log()) || member.incarnation() == 0) return wrong("a member without a log");
  }
  if (op.epoch() > epoch_) {
    epoch_ = op.epoch();
    spanner_at_ = spanner_at;
    here_.clear();
    members_.clear();
    ToSequencers* const sink = this;
    spanner_ = here ? std::make_unique<Spanner>(epoch_, std::vector<SliceId>(), sink) : nullptr;
  }
  if (here) {
    for (const SpanWorker& member : op.members()) AddMember(LogOf(member.log()), Incarnation(member.incarnation()));
  } else {
    sink_->ListenTo(spanner_at);
  }
  member_.Join(LogOf(op.log()), epoch_);
  return absl::OkStatus();
}

void SpanOrders::AddMember(SliceId log, Incarnation who) {
  if (!members_.emplace(log, who).second) return;
  spanner_->AddSlice(log);
  if (who != self_) sink_->ListenTo(who);
}

void SpanOrders::OnPeerLost(Incarnation peer) {
  if (spanner_ == nullptr) return;
  for (auto it = members_.begin(); it != members_.end(); ++it) {
    if (it->second != peer) continue;
    const SliceId log = it->first;
    members_.erase(it);
    spanner_->OnSliceLost(log);
    return;
  }
}

std::vector<Ticket> SpanOrders::WaitingFor(Incarnation peer) const {
  if (spanner_ == nullptr) return peer == spanner_at_ ? member_.WaitingFor(SliceId()) : std::vector<Ticket>();
  for (const auto& [log, who] : members_) {
    if (who == peer) return member_.WaitingFor(log);
  }
  return {};
}

// ---------------------------------------------------------------- messages

void SpanOrders::ToSpanner(OrderMessage message) {
  if (fenced_) return;
  if (spanner_at_ == self_) {
    here_.push_back(std::move(message));
  } else {
    sink_->SendMail(spanner_at_, MailOf(message).SerializeAsString());
  }
}

void SpanOrders::ToSequencer(SliceId log, OrderMessage message) {
  if (fenced_) return;
  auto member = members_.find(log);
  if (member == members_.end()) return;
  if (member->second == self_) {
    here_.push_back(std::move(message));
  } else {
    sink_->SendMail(member->second, MailOf(message).SerializeAsString());
  }
}

bool SpanOrders::Advance() {
  if (here_.empty()) return false;
  while (!here_.empty()) {
    const OrderMessage message = std::move(here_.front());
    here_.pop_front();
    if (const auto* commit = std::get_if<Commit>(&message)) {
      member_.OnCommit(*commit);
    } else {
      HandToSpanner(message);
    }
  }
  return true;
}

void SpanOrders::HandToSpanner(const OrderMessage& message) {
  if (spanner_ == nullptr) return;
  if (const auto* ready = std::get_if<Ready>(&message)) spanner_->OnReady(*ready);
  if (const auto* withdrawn = std::get_if<WithdrawnAt>(&message)) spanner_->OnWithdrawn(*withdrawn);
  if (const auto* horizon = std::get_if<HorizonAt>(&message)) spanner_->OnHorizon(*horizon);
  if (const auto* report = std::get_if<SliceReport>(&message)) spanner_->OnSliceReport(*report);
}

absl::Status SpanOrders::CheckSender(uint32_t log, Incarnation from) const {
  auto member = members_.find(LogOf(log));
  if (spanner_ != nullptr && member != members_.end() && member->second == from) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("mail of ", from.ToString(), " about log ", log, ", which is not its"));
}

absl::Status SpanOrders::OnMail(Incarnation from, absl::string_view bytes) {
  if (fenced_) return absl::OkStatus();
  OrderMail mail;
  if (!mail.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("mail of ", from.ToString(), " does not parse"));
  }
  switch (mail.mail_case()) {
    case OrderMail::kReady:
      LB_RETURN_IF_ERROR(CheckSender(mail.ready().log(), from));
      spanner_->OnReady(FromProto(mail.ready()));
      break;
    case OrderMail::kWithdrawn:
      LB_RETURN_IF_ERROR(CheckSender(mail.withdrawn().log(), from));
      spanner_->OnWithdrawn({LogOf(mail.withdrawn().log()), kLogEpoch, mail.withdrawn().spanner_epoch(),
                             Ticket(mail.withdrawn().number())});
      break;
    case OrderMail::kHorizon:
      LB_RETURN_IF_ERROR(CheckSender(mail.horizon().log(), from));
      spanner_->OnHorizon(
          {LogOf(mail.horizon().log()), kLogEpoch, mail.horizon().spanner_epoch(), Ticket(mail.horizon().horizon())});
      break;
    case OrderMail::kReport:
      LB_RETURN_IF_ERROR(CheckSender(mail.report().log(), from));
      spanner_->OnSliceReport(FromProto(mail.report()));
      break;
    case OrderMail::kCommit: {
      if (from != spanner_at_) {
        return absl::InvalidArgumentError(absl::StrCat("mail of ", from.ToString(), ", which has not the spanner"));
      }
      const OrderCommit& commit = mail.commit();
      member_.OnCommit({commit.spanner_epoch(), kLogEpoch, Ticket(commit.number()), commit.g(), commit.previous_g()});
      break;
    }
    case OrderMail::MAIL_NOT_SET: return absl::InvalidArgumentError("empty mail");
  }
  return absl::OkStatus();
}

}  // namespace landbridge
