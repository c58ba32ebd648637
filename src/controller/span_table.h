// Launches that span workers: which parts they have, and what the end of one means for the others.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "controller/cluster_table.h"

namespace landbridge::ctl {

struct Span {
  struct Part {
    Ticket ticket;
    Life* life = nullptr;   // null: lost
    uint64_t previous = 0;  // number of the span before it on this life
    bool ended = false;
  };
  uint64_t number = 0;  // the order in which spans start, everywhere
  SessionId session;
  absl::InlinedVector<Part, 4> parts;
  absl::Status failed;  // of the first part that failed
};

class SpanTable {
 public:
  // Its parts are to be added before the next event.
  Span& Add(SessionId session) {
    auto span = std::make_shared<Span>();
    span->number = next_++;
    span->session = session;
    latest_ = span;
    return *span;
  }
  void AddPart(Span& span, Ticket ticket, Life* life) {
    span.parts.push_back({ticket, life, life->last_span, false});
    life->last_span = span.number;
    by_ticket_.emplace(ticket, latest_);
  }
  // By the ticket of any part; null: none, or all of it has ended.
  std::shared_ptr<Span> Find(Ticket ticket) const {
    auto it = by_ticket_.find(ticket);
    return it == by_ticket_.end() ? nullptr : it->second;
  }
  void EndPart(Ticket ticket) {
    const std::shared_ptr<Span> span = Find(ticket);
    if (span == nullptr) return;
    bool over = true;
    for (Span::Part& part : span->parts) {
      if (part.ticket == ticket) part.ended = true;
      over = over && part.ended;
    }
    if (over) Erase(*span);
  }
  void Erase(const Span& span) {
    for (const Span::Part& part : span.parts) by_ticket_.erase(part.ticket);
  }
  void LoseLife(const Life* life) {
    for (auto& [ticket, span] : by_ticket_) {
      for (Span::Part& part : span->parts) {
        if (part.life == life) part.life = nullptr;
      }
    }
  }
  // In the order of their numbers.
  std::vector<std::shared_ptr<Span>> OfSession(SessionId session) const;

 private:
  uint64_t next_ = 1;
  std::shared_ptr<Span> latest_;
  absl::flat_hash_map<Ticket, std::shared_ptr<Span>> by_ticket_;
};

}  // namespace landbridge::ctl
