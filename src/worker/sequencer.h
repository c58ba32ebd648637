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

struct Candidate {
  Ticket ticket;
  SessionId session;
  int priority = 0;
  std::vector<uint32_t> devices;       // of the slice
  DurationNs estimated_run_ns = 0;     // 0: unknown
  bool side_effects = false;
  TimeNs ready_since = 0;
};

struct LogEntry {
  uint64_t place = 0;                  // 1, 2, ... per epoch
  Ticket ticket;
  std::vector<uint32_t> devices;
};

// Picks among runnable candidates whose devices all have room. Deterministic: same inputs and seed, same log (I8).
class SchedulingPolicy {
 public:
  virtual ~SchedulingPolicy() = default;
  // Index into `eligible` (never empty).
  virtual size_t Pick(const std::vector<const Candidate*>& eligible, TimeNs now) = 0;
  virtual void OnFinished(const Candidate& launch, DurationNs run_ns) = 0;
};

std::unique_ptr<SchedulingPolicy> MakeClientOrderPolicy();                // lowest ticket first
std::unique_ptr<SchedulingPolicy> MakePriorityPolicy();                   // priority, then ticket
// The session that has had the least device time for its weight first, then priority, then ticket. Sessions that
// are not listed weigh 1. A session that was idle does not save up time.
std::unique_ptr<SchedulingPolicy> MakeSharePolicy(std::vector<std::pair<SessionId, double>> weights = {});

class Sequencer {
 public:
  struct Options {
    int placed_launches_max = 16;      // K's upper bound, per device
    DurationNs placed_run_time = 0;    // K launches are worth this much estimated run time
    int placed_while_unknown = 2;
    // A candidate that has been runnable for so long goes first, and its devices are kept free for it: else a gang
    // might never find room on all its devices at once. 0: never.
    DurationNs age_limit = 0;
  };
  Sequencer(Options options, std::unique_ptr<SchedulingPolicy> policy, uint64_t epoch);
  ~Sequencer();

  void AddCandidate(Candidate candidate);      // is runnable now
  void Withdraw(Ticket ticket);                // no longer a candidate
  void OnFinished(Ticket ticket, DurationNs run_ns);
  // Appends what fits; returns the new entries in order.
  std::vector<LogEntry> Place(TimeNs now);

  uint64_t epoch() const;
  uint64_t tail() const;                       // place of the last entry
  bool Placed(Ticket ticket) const;            // in the log and unfinished
  uint64_t done_through() const;               // every entry up to this place has finished
  int placed(uint32_t device) const;           // unfinished entries of the device
  size_t candidates() const;
  // Whether K leaves room for it on `device` (for Explain).
  bool HasRoom(const Candidate& candidate, uint32_t device) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
