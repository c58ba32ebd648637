// Launches that span workers.
#include <algorithm>
#include <utility>

#include "base/split_mix.h"
#include "controller/controller_impl.h"
#include "controller/status_proto.h"

namespace landbridge {

namespace ctl {

std::vector<std::shared_ptr<Span>> SpanTable::OfSession(SessionId session) const {
  std::vector<std::shared_ptr<Span>> spans;
  for (const auto& [ticket, span] : by_ticket_) {
    if (span->session == session && span->parts[0].ticket == ticket) spans.push_back(span);
  }
  std::sort(spans.begin(), spans.end(), [](const auto& a, const auto& b) { return a->number < b->number; });
  return spans;
}

}  // namespace ctl

namespace {

SpanPlace PlaceOf(const ctl::Span& span, const ctl::Span::Part& part) {
  SpanPlace place;
  place.set_number(span.number);
  place.set_previous(part.previous);
  return place;
}

}  // namespace

bool Controller::Impl::NeedsAbsentPart(const Launch& launch) const {
  const std::shared_ptr<ctl::Span> span = spans_.Find(Ticket(launch.ticket()));
  if (span == nullptr || !span->failed.ok()) return false;
  return std::any_of(span->parts.begin(), span->parts.end(),
                     [](const ctl::Span::Part& part) { return part.life == nullptr || !part.life->up; });
}

void Controller::Impl::BeforeSpanSent(Life* life, Launch* launch) {
  const std::shared_ptr<ctl::Span> span = spans_.Find(Ticket(launch->ticket()));
  if (span == nullptr) return;
  LaunchSpan* message = launch->mutable_span();
  // Of another number than any other thing that this proxy names on the data plane.
  message->set_space(SplitMix(options_.space ^ SplitMix(span->number)));
  for (const ctl::Span::Part& part : span->parts) {
    if (part.ticket == Ticket(launch->ticket())) *message->mutable_place() = PlaceOf(*span, part);
    SpanWorker* worker = message->add_workers();
    if (part.life == nullptr || !part.life->up) continue;  // it has failed, then
    worker->set_incarnation(part.life->incarnation.value());
    if (part.life != life && life->peers.insert(part.life->incarnation).second) {
      worker->set_data_address(part.life->data_address);
    }
  }
  if (!span->failed.ok()) ctl::ToProto(span->failed, message->mutable_failed());
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
      WorkerOp op;
      if (node != nullptr && !node->sent) {
        *op.mutable_void_span()->mutable_place() = PlaceOf(*span, part);
        if (!part.life->up) {
          part.life->void_spans.push_back(PlaceOf(*span, part));
          continue;
        }
      } else {
        op.mutable_abort_launch()->set_ticket(part.ticket.value());
        ctl::ToProto(why, op.mutable_abort_launch()->mutable_why());
      }
      dispatcher_.SendNow(part.life, std::move(op));
    }
    spans_.Erase(*span);
  }
}

}  // namespace landbridge
