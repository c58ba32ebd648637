// What a worker has to do with the order of launches that span workers: its own end of it (span_member.h), and the spanner
// (spanner.h) if the controller has put it here. Turns their messages into mail for other workers, and back; those that
// stay here go nowhere.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"
#include "proto/landbridge/order.pb.h"
#include "worker/span_member.h"
#include "worker/spanner.h"
#include "worker/worker_core.h"

namespace landbridge {

class SpanOrders : private ToTheSpanner, private ToSequencers {
 public:
  SpanOrders(Incarnation self, WorkerSink* sink, bool unordered = false)
      : self_(self), sink_(sink), member_(this, unordered) {}

  SpanMember& member() { return member_; }
  const SpanMember& member() const { return member_; }

  // Of the controller. INVALID_ARGUMENT: it makes no sense, and nothing has changed.
  absl::Status OnOp(const SpanOrder& op);
  // Of another worker. INVALID_ARGUMENT: no message that it may send; nothing has changed.
  absl::Status OnMail(Incarnation from, absl::string_view bytes);
  void OnPeerLost(Incarnation peer);
  // Launches here that do not start without mail of the peer: tickets of their parts.
  std::vector<Ticket> WaitingFor(Incarnation peer) const;
  void Fence() { fenced_ = true; }
  // What the two here have said to each other. False: nothing.
  bool Advance();

  bool has_spanner() const { return spanner_ != nullptr; }
  size_t remembered() const { return member_.remembered() + (spanner_ == nullptr ? 0 : spanner_->remembered()); }

 private:
  void ToSpanner(OrderMessage message) override;
  void ToSequencer(SliceId log, OrderMessage message) override;
  void AddMember(SliceId log, Incarnation who);
  void HandToSpanner(const OrderMessage& message);
  absl::Status CheckSender(uint32_t log, Incarnation from) const;

  const Incarnation self_;
  WorkerSink* const sink_;
  SpanMember member_;
  bool fenced_ = false;
  uint64_t epoch_ = 0;
  Incarnation spanner_at_;
  std::unique_ptr<Spanner> spanner_;  // if it is here
  std::map<SliceId, Incarnation> members_;
  std::deque<OrderMessage> here_;  // between the two
};

}  // namespace landbridge
