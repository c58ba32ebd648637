// Launches that span workers.
#include <algorithm>
#include <utility>

#include "base/split_mix.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {

bool Controller::Impl::SpanMustWait(const Launch& launch) const {
  const std::shared_ptr<ctl::Span> span = spans_.Find(Ticket(launch.ticket()));
  if (span == nullptr || !span->failed.ok()) return false;
  if (span->number == 0 && spans_.Full()) return true;
  return std::any_of(span->parts.begin(), span->parts.end(),
                     [](const ctl::Span::Part& part) { return part.life == nullptr || !part.life->up; });
}

void Controller::Impl::BeforeSpanSent(Life* life, Launch* launch) {
  const std::shared_ptr<ctl::Span> span = spans_.Find(Ticket(launch->ticket()));
  if (span == nullptr) return;
  LaunchSpan* message = launch->mutable_span();
  spans_.Number(*span);
  // Of another number than any other thing that this proxy names on the data plane.
  message->set_space(SplitMix(options_.space ^ SplitMix(span->number)));
  message->set_number(span->number);
  message->set_horizon(spans_.horizon());
  if (span->failed.ok()) {
    for (const ctl::Span::Part& part : span->parts) JoinSpans(part.life);
  } else {
    ctl::ToProto(span->failed, message->mutable_failed());
  }
  for (const ctl::Span::Part& part : span->parts) {
    SpanWorker* worker = message->add_workers();
    if (part.life == nullptr || !part.life->up) continue;  // it has failed, then
    NameSpanWorker(life, *part.life, worker);
  }
}

void Controller::Impl::NameSpanWorker(Life* to, const Life& who, SpanWorker* worker) const {
  worker->set_incarnation(who.incarnation.value());
  worker->set_log(who.log);
  worker->set_slice(static_cast<uint32_t>(cluster_.slots()[static_cast<size_t>(who.slot)].id.slice.value()));
  if (&who != to && to->peers.insert(who.incarnation).second) worker->set_data_address(who.data_address);
}

void Controller::Impl::JoinSpans(Life* life) {
  if (life->log != 0) return;
  life->log = spanner_.next_log++;
  if (spanner_.life == nullptr) return SeatSpanner();
  TellSpanner({life});
  TellSpanOrder(life, {});
}

// The spanner hears of members before they can hear of it.
void Controller::Impl::TellSpanner(const std::vector<Life*>& members) { TellSpanOrder(spanner_.life, members); }

void Controller::Impl::TellSpanOrder(Life* life, const std::vector<Life*>& members) {
  WorkerOp op;
  SpanOrder* order = op.mutable_span_order();
  order->set_epoch(spanner_.epoch);
  order->set_log(life->log);
  order->set_spanner(spanner_.life->incarnation.value());
  if (life != spanner_.life && life->peers.insert(spanner_.life->incarnation).second) {
    order->set_spanner_address(spanner_.life->data_address);
  }
  for (Life* member : members) NameSpanWorker(life, *member, order->add_members());
  dispatcher_.SendNow(life, std::move(op));
}

// On the first of those that have a log, or else on nobody.
void Controller::Impl::SeatSpanner() {
  std::vector<Life*> members;
  for (ctl::ClusterTable::Slot& slot : cluster_.slots()) {
    if (slot.life->up && slot.life->log != 0) members.push_back(slot.life.get());
  }
  spanner_.life = members.empty() ? nullptr : members.front();
  if (spanner_.life == nullptr) return;
  ++spanner_.epoch;
  TellSpanner(members);
  for (Life* member : members) {
    if (member != spanner_.life) TellSpanOrder(member, {});
  }
}

// The others would wait for it for ever.
void Controller::Impl::FailSpan(Ticket ticket, const absl::Status& why) {
  const std::shared_ptr<ctl::Span> span = spans_.Find(ticket);
  if (span == nullptr || !span->failed.ok()) return;
  span->failed = why;
  for (const ctl::Span::Part& part : span->parts) {
    if (part.ticket == ticket || part.life == nullptr || !part.life->up) continue;
    const ctl::Node* node = nodes_.Find(part.ticket);
    if (node != nullptr && !node->sent) continue;  // it goes out as failed
    WorkerOp op;
    op.mutable_abort_launch()->set_ticket(part.ticket.value());
    ctl::ToProto(why, op.mutable_abort_launch()->mutable_why());
    dispatcher_.SendNow(part.life, std::move(op));
  }
  recheck_spans_ = true;
}

// Nothing of the session is sent any more; what was sent is cancelled by itself where it has not begun.
void Controller::Impl::DropSpans(SessionId session, const absl::Status& why) {
  for (const std::shared_ptr<ctl::Span>& span : spans_.OfSession(session)) {
    for (const ctl::Span::Part& part : span->parts) {
      if (part.life == nullptr) continue;
      const ctl::Node* node = nodes_.Find(part.ticket);
      if (node != nullptr && !node->sent) continue;
      WorkerOp op;
      op.mutable_abort_launch()->set_ticket(part.ticket.value());
      ctl::ToProto(why, op.mutable_abort_launch()->mutable_why());
      dispatcher_.SendNow(part.life, std::move(op));
    }
    spans_.Erase(*span);
  }
}

}  // namespace landbridge
