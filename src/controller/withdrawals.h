// Coordinates the withdrawal of launches that have, or may have, a place in an order log already: asks the slices how
// far they are, decides, and repeats itself to whoever takes over a slice (scheduler.md, "Withdrawing"). One withdrawal
// at a time; what must be withdrawn meanwhile waits, or joins it if workers were lost.
//
// Pure: no clock, lock or I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/types/span.h"
#include "base/ids.h"
#include "base/time.h"
#include "base/verdict.h"

namespace landbridge::ctl {

// A launch that a withdrawal concerns: a root, or one that takes something, however indirectly, from a root.
struct WithdrawnLaunch {
  struct Place {
    SliceId slice;
    uint32_t member = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct Input {  // from another launch of the set
    Ticket producer;
    Place made_at, used_at;
  };
  Ticket ticket;
  bool root = false;
  bool stand_ins = true;     // may end on stand-ins: no side effects, no loops whose collectives depend on data
  std::vector<Place> parts;  // on workers that are there
  bool lost_part = false;    // a worker was lost with a part that had not ended
  std::vector<Input> inputs;
};

class WithdrawalSink {
 public:
  virtual ~WithdrawalSink() = default;
  // Roots and those of `asked` (they are held, and have had no verdict), and all their dependents issued so far;
  // without those that are over. Ascending tickets.
  virtual std::vector<WithdrawnLaunch> Closure(const std::set<Ticket>& roots, const std::set<Ticket>& asked) = 0;
  virtual void SendFreeze(SliceId slice, uint64_t round, std::vector<Ticket> tickets) = 0;
  virtual void SendVerdicts(SliceId slice, std::vector<LaunchVerdict> verdicts) = 0;
  // Everything it makes is an error from now on, but what had finished at `good` before.
  virtual void Decided(Ticket ticket, Verdict verdict, const std::vector<WithdrawnLaunch::Place>& good) = 0;
  // No answer within the limit: the slice's workers that do not answer are to be treated as lost.
  virtual void Unanswered(SliceId slice) = 0;
};

class Withdrawals {
 public:
  Withdrawals(DurationNs freeze_limit, WithdrawalSink* sink) : freeze_limit_(freeze_limit), sink_(sink) {}

  void Withdraw(absl::Span<const Ticket> roots, TimeNs now);
  // Workers were lost: what had a part there. An open question is asked anew, and comprises them.
  void OnLost(absl::Span<const Ticket> roots, TimeNs now);
  // The slice has another sequencer: it hears the verdicts by VerdictsFor; an open question is repeated.
  void OnSequencer(SliceId slice, uint64_t epoch, TimeNs now);
  void OnSliceLost(SliceId slice, TimeNs now);
  void OnFrozen(SliceId slice, uint64_t epoch, uint64_t round, absl::Span<const PartAnswer> parts, TimeNs now);
  void OnHorizon(Ticket horizon);
  void OnTime(TimeNs now);

  // All verdicts so far on launches that are not over.
  std::vector<LaunchVerdict> VerdictsFor(SliceId slice) const;
  bool open() const { return round_open_; }
  uint64_t round() const { return round_; }

 private:
  struct Decision {
    LaunchVerdict verdict;
    std::vector<SliceId> slices;
    bool spoilt = false;  // was to finish on stand-ins once
    std::vector<WithdrawnLaunch::Place> good;
  };
  using Place = WithdrawnLaunch::Place;

  void StartNext(TimeNs now);
  void Ask(TimeNs now);
  void Decide(TimeNs now);
  Decision DecideOne(const WithdrawnLaunch& launch, const std::map<Ticket, Decision>& before) const;
  const PartAnswer* AnswerOf(Ticket ticket, const Place& part) const;

  const DurationNs freeze_limit_;
  WithdrawalSink* const sink_;
  uint64_t round_ = 0;
  bool round_open_ = false;
  TimeNs asked_at_ = 0;
  std::set<Ticket> roots_;       // of the open question
  std::set<Ticket> next_roots_;  // of the next one
  std::set<Ticket> asked_;       // of questions that were given up for the open one
  std::vector<WithdrawnLaunch> set_;
  std::map<SliceId, std::vector<Ticket>> missing_;  // slices that have not answered, and what they were asked
  std::map<std::pair<Ticket, Place>, PartAnswer> answers_;
  std::map<SliceId, uint64_t> epochs_;
  std::map<Ticket, Decision> decided_;
};

}  // namespace landbridge::ctl
