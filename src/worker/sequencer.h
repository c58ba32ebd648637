// The order of launches on one slice: candidates in, order log out (scheduler.md). Alone appends to the log. With
// one worker per slice it lives in that worker and costs no message; the state machine is the same.
//
// Pure: no clock, lock or I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"

namespace landbridge {

// What a launch is to a pipeline: a forward one leaves activations on its devices, which a backward one uses up.
enum class Phase : uint8_t { kNone, kForward, kBackward };

struct Candidate {
  Ticket ticket;
  SessionId session;
  int priority = 0;
  double weight = 1;  // of the session, for shares
  Phase phase = Phase::kNone;
  std::vector<uint32_t> devices;    // of the slice
  DurationNs estimated_run_ns = 0;  // 0: unknown
  bool side_effects = false;
  TimeNs ready_since = 0;
};

struct LogEntry {
  uint64_t place = 0;  // 1, 2, ... per epoch
  Ticket ticket;
  std::vector<uint32_t> devices;
};

// Picks among runnable candidates. Deterministic: same inputs, same log (I8).
class SchedulingPolicy {
 public:
  virtual ~SchedulingPolicy() = default;
  // Whether the candidate has to wait although its devices have room.
  virtual bool Holds(const Candidate&, TimeNs) { return false; }
  virtual bool OverBudget(const Candidate&) const { return false; }  // the reason for it, for Explain
  // Index of the best of `candidates` (never empty). Changes nothing.
  virtual size_t Pick(const std::vector<const Candidate*>& candidates, TimeNs now) const = 0;
  virtual void OnPlaced(const Candidate&, TimeNs) {}
  virtual void OnFinished(const Candidate&, DurationNs /*run_ns*/) {}
  virtual void OnDropped(const Candidate&) {}  // it will never be placed
  virtual void OnSessionEnded(SessionId) {}
};

std::unique_ptr<SchedulingPolicy> MakeClientOrderPolicy();  // lowest ticket first
// Priority, then ticket. Of each session, priority and set of devices, what waits gets a turn every `patience` at
// least, if that is not 0.
std::unique_ptr<SchedulingPolicy> MakePriorityPolicy(DurationNs patience = 0);
// The session that has had the least device time for its weight first, then priority, then ticket. A session that was
// idle does not save up time.
std::unique_ptr<SchedulingPolicy> MakeSharePolicy();
// Backward launches first, then ticket. Forward launches wait while `budget` of their session have been placed on the
// device without their backward one: submitted in any order, a pipeline keeps `budget` micro-batches alive on a device.
// If a device had nothing to run for `stall` meanwhile (the hints are wrong, or the backward launches will never come),
// one may go, and counting begins anew.
std::unique_ptr<SchedulingPolicy> MakeBackwardFirstPolicy(int budget, DurationNs stall);

class Sequencer {
 public:
  struct Options {
    int placed_launches_max = 16;         // K's upper bound, per device
    DurationNs placed_run_time = 0;       // K launches are worth this much estimated run time
    DurationNs placed_pair_run_time = 0;  // behind one that is shorter than this another one is placed
    int placed_while_unknown = 2;
    // When others went past the policy's first choice for so long, because it lacked room, its devices are kept free for
    // it: else a gang might never find room on all its devices at once. 0: never.
    DurationNs age_limit = 0;
  };
  Sequencer(Options options, std::unique_ptr<SchedulingPolicy> policy, uint64_t epoch);
  ~Sequencer();

  void SetPolicy(std::unique_ptr<SchedulingPolicy> policy);  // from the next decision on
  void AddCandidate(Candidate candidate);                    // is runnable now
  void Withdraw(Ticket ticket);                              // no longer a candidate, for now
  void OnDropped(const Candidate& launch);                   // neither placed nor a candidate, and never will be
  void OnSessionEnded(SessionId session);
  void OnFinished(Ticket ticket, DurationNs run_ns);
  // Appends what fits; returns the new entries in order.
  std::vector<LogEntry> Place(TimeNs now);
  // Appends it now, a candidate or not, whatever K and the policy say: its place was decided elsewhere.
  LogEntry PlaceNow(Candidate launch, TimeNs now);

  uint64_t epoch() const;
  uint64_t tail() const;              // place of the last entry
  bool Placed(Ticket ticket) const;   // in the log and unfinished
  uint64_t done_through() const;      // every entry up to this place has finished
  int placed(uint32_t device) const;  // unfinished entries of the device
  size_t candidates() const;
  // Whether K leaves room for it on `device` (for Explain).
  bool HasRoom(const Candidate& candidate, uint32_t device) const;
  bool OverBudget(const Candidate& candidate) const;  // see SchedulingPolicy
  // The most forward launches of one session without their backward one that the log held for the device.
  int activations_peak(uint32_t device) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
