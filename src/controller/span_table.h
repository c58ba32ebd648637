// Launches that span workers: which parts they have, and what the end of one means for the others.
//
// In which order they start is agreed among the workers (worker/span_member.h); the controller says who numbers them.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "controller/cluster_table.h"
#include "controller/controller_limits.h"

namespace landbridge::ctl {

struct Span {
  struct Part {
    Ticket ticket;
    Life* life = nullptr;  // null: lost
    bool ended = false;
  };
  uint64_t id = 0;      // in client order
  uint64_t number = 0;  // what workers call it, once the first part was sent
  SessionId session;
  absl::InlinedVector<Part, 4> parts;
  absl::Status failed;  // of the first part that failed
};

// Who numbers launches that span workers, and for whom.
struct SpannerSeat {
  uint64_t epoch = 0;    // 0: there was no such launch yet
  Life* life = nullptr;  // null: nobody that could
  uint32_t next_log = 1;
};

class SpanTable {
 public:
  // Its parts are to be added before the next event.
  Span& Add(SessionId session) {
    auto span = std::make_shared<Span>();
    span->id = ++last_id_;
    span->session = session;
    latest_ = span;
    by_id_.emplace(span->id, span);
    return *span;
  }
  void AddPart(Span& span, Ticket ticket, Life* life) {
    span.parts.push_back({ticket, life, false});
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
    numbers_.erase(span.number);
    by_id_.erase(uint64_t{span.id});
  }
  // It is sent now.
  void Number(Span& span) {
    if (span.number != 0) return;
    span.number = next_number_++;
    numbers_.insert(span.number);
  }
  // All with lower numbers are over, on all workers.
  uint64_t horizon() const { return numbers_.empty() ? next_number_ : *numbers_.begin(); }
  // Workers remember what is above the horizon: no more numbers for now.
  bool Full() const { return next_number_ - horizon() >= limits::kSpansRememberedMax; }
  void LoseLife(const Life* life) {
    for (auto& [ticket, span] : by_ticket_) {
      for (Span::Part& part : span->parts) {
        if (part.life == life) part.life = nullptr;
      }
    }
  }
  // In client order.
  std::vector<std::shared_ptr<Span>> OfSession(SessionId session) const {
    std::vector<std::shared_ptr<Span>> spans;
    for (const auto& [id, span] : by_id_) {
      if (span->session == session) spans.push_back(span);
    }
    return spans;
  }

 private:
  uint64_t last_id_ = 0, next_number_ = 1;
  std::shared_ptr<Span> latest_;
  absl::flat_hash_map<Ticket, std::shared_ptr<Span>> by_ticket_;
  absl::btree_map<uint64_t, std::shared_ptr<Span>> by_id_;
  absl::btree_set<uint64_t> numbers_;  // of those that are not over
};

}  // namespace landbridge::ctl
