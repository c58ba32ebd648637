// One worker's end of the order of launches that span workers (scheduler.md, where a slice is what keeps a log: here each
// worker keeps one of its own).
//
// A launch that has all it needs here is reported to the spanner; when all its workers have reported it, the spanner
// numbers it (G) and says so. Each device starts what was numbered in the order of G; launches of this worker alone go
// past meanwhile. So a late launch holds up nobody, and no two wait for each other's parts.
//
// A launch may be reported while what makes its inputs is only reported as well: then it gets its G after that one.
//
// Launches are called by their numbers, which all parts have in common and which count in client order; the messages
// call them tickets.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "base/ids.h"
#include "worker/order_messages.h"

namespace landbridge {

class SpanMember {
 public:
  static constexpr uint64_t kLogEpoch = 1;  // a log has no other writer than the worker whose it is

  // `unordered`: launches ask nobody, and start as soon as they have what they need here. Then those whose parts become ready
  // in opposite orders on two workers wait for each other for ever, once as many as may run have started: it is what the
  // order is for, and tests show it.
  explicit SpanMember(ToTheSpanner* sink, bool unordered = false) : sink_(sink), unordered_(unordered) {}

  // This worker's log has the number `log` (always the same), and there is a spanner: a new one if the epoch is higher.
  void Join(SliceId log, uint64_t spanner_epoch);
  SliceId log() const { return log_; }  // 0: not joined

  // The part `ticket` of a launch. `logs`: of all its parts, ascending; `devices`: here.
  void Arrive(Ticket number, Ticket ticket, std::vector<SliceId> logs, std::vector<uint32_t> devices);
  // It has arrived before, or is over everywhere.
  bool Knows(Ticket number) const {
    return number < horizon_ || parts_.contains(number) || withdrawn_.contains(number);
  }
  // All it needs is here, but for its turn, and for inputs that `after` make, which are ready in this sense too. Once.
  void SetReady(Ticket number, std::vector<After> after);
  bool MayStart(Ticket number) const;
  void OnStarted(Ticket number);
  // It starts no more. Also of one that did not arrive.
  void OnDropped(Ticket number);
  // Those whose turn has come since the last call: tickets of their parts. Some may be named again.
  std::vector<Ticket> TakeStartable();

  void OnCommit(const Commit& message);
  // Launches below it are over everywhere.
  void OnHorizon(Ticket horizon);

  // Tickets of the parts that have not started, of launches that have one at `log` too; invalid: of all.
  std::vector<Ticket> WaitingFor(SliceId log) const;

  uint64_t g_tail() const { return g_tail_; }
  size_t waiting() const { return parts_.size(); }
  size_t remembered() const { return parts_.size() + placed_.size() + withdrawn_.size() + kept_.size(); }

 private:
  struct Part {
    Ticket ticket;
    std::vector<SliceId> logs;
    std::vector<uint32_t> devices;
    std::vector<After> after;
    bool ready = false;
    uint64_t g = 0;  // 0: none yet
  };
  struct Placed {
    Ticket number;
    std::vector<SliceId> logs;
  };

  void Report();
  void SendReady(Ticket number, const Part& part);
  void Place(const Commit& commit);
  bool FirstOnItsDevices(Ticket number, const Part& part) const;
  void Look(uint32_t device);

  ToTheSpanner* const sink_;
  const bool unordered_;
  SliceId log_;
  uint64_t spanner_epoch_ = 0;
  uint64_t g_tail_ = 0, g_seen_ = 0;
  Ticket horizon_, horizon_told_;
  absl::btree_map<Ticket, Part> parts_;  // not started
  // Until the horizon has passed them.
  absl::btree_map<uint64_t, Placed> placed_;  // by G
  absl::btree_map<Ticket, uint64_t> g_of_;    // of those
  absl::btree_set<Ticket> withdrawn_;
  std::map<uint64_t, Commit> kept_;                           // by previous G, which is not here yet
  absl::flat_hash_map<uint32_t, std::deque<Ticket>> queues_;  // per device: numbered and not started
  std::vector<Ticket> startable_;
};

}  // namespace landbridge
