// The sequencer of a slice of one or several workers: alone appends to the slice's order log (scheduler.md).
//
// Members say what is able to run and what that rests on. Local launches whose ground is in the log are candidates of
// the policy (sequencer.h). Spanning ones are reported to the spanner and appended when it commits them, strictly in
// the order of G, whatever the policy and K say. Withdrawals of the coordinator pass through here, and their verdicts
// are entries of the log, so that whoever takes over knows them [9].
//
// A new one begins by asking all members for their tails and appends nothing before it has them all; what arrives
// meanwhile is kept.
//
// Pure: no clock, lock or I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "worker/order_messages.h"
#include "worker/sequencer.h"
#include "worker/verdict_book.h"

namespace landbridge {

class SliceSequencer {
 public:
  struct Grant {
    SliceId slice;
    uint64_t epoch = 1;
    std::vector<uint32_t> members;        // that are alive
    std::vector<LaunchVerdict> verdicts;  // of launches that are not over everywhere: all said so far
    Ticket horizon;                       // launches below it are over everywhere
    uint64_t spanner_epoch = 0;           // 0: there is no spanner yet
  };
  SliceSequencer(Grant grant, Sequencer::Options options, std::unique_ptr<SchedulingPolicy> policy, OrderSink* sink);

  // From members.
  void OnAble(const Able& message, TimeNs now);
  void OnPartOver(const PartOver& message, TimeNs now);
  void OnTail(const Tail& message, TimeNs now);
  void OnFreezeAnswer(const FreezeAnswer& message);
  // From the spanner.
  void OnNewSpanner(const NewSpanner& message, TimeNs now);
  void OnCommit(const Commit& message, TimeNs now);
  // From the controller.
  void OnFreeze(uint64_t round, const std::vector<Ticket>& tickets);
  void OnVerdicts(const std::vector<LaunchVerdict>& verdicts, TimeNs now);
  void OnHorizon(Ticket horizon, TimeNs now);
  void OnMemberLost(uint32_t member, TimeNs now);
  void OnTime(TimeNs now) { Advance(now); }

  bool active() const { return active_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t tail() const { return first_place_ + log_.size() - 1; }
  uint64_t g_tail() const { return g_tail_; }
  const std::deque<OrderEntry>& log() const { return log_; }
  // For tests: what it keeps of launches that are not over everywhere, by kind.
  std::vector<size_t> remembered() const {
    return {log_.size(),         launches_.size(), placed_.size(),    over_.size(), withdrawals_.verdicts().size(),
            withdrawals_.held(), kept_.size(),     waiting_on_.size()};
  }

 private:
  struct Launch {
    LaunchFacts facts;
    std::map<uint32_t, std::vector<After>> able;  // by member
    bool candidate = false;
    bool reported = false;  // to the spanner
  };
  struct Open {  // a question of the coordinator
    uint64_t round = 0;
    std::vector<Ticket> tickets;
    std::set<uint32_t> missing;  // members that have not answered
    std::vector<PartAnswer> parts;
    bool answered = false;
  };

  static bool Sane(const Able& message);
  bool TakeAble(const Able& message);
  bool TakeOver(const PartOver& message);
  void Activate(TimeNs now);
  void AdoptLog();
  Ticket horizon() const { return withdrawals_.horizon(); }
  bool Satisfied(const After& after, uint32_t member) const;
  bool Complete(const Launch& launch) const { return launch.able.size() == launch.facts.members.size(); }
  void Evaluate(Ticket ticket);
  void Wake(Ticket ticket);  // it is placed, reported or withdrawn
  void EvaluateAgain();
  void StopCandidate(Ticket ticket);
  void Push(OrderEntry entry);
  void PushLaunch(Ticket ticket, Launch& launch, uint64_t g);
  void PlaceCommit(const Commit& commit, TimeNs now);
  void PlaceWhatItRestsOn(Ticket root, TimeNs now);
  void ApplyVerdict(const LaunchVerdict& verdict);
  void Advance(TimeNs now);
  void AnswerFreeze();
  void ReportToSpanner();

  const SliceId slice_;
  const uint64_t epoch_;
  OrderSink* const sink_;
  Sequencer policy_;
  bool active_ = false;
  std::set<uint32_t> alive_;
  std::map<uint32_t, Tail> tails_;             // until active
  std::vector<LaunchVerdict> early_verdicts_;  // until active

  uint64_t first_place_ = 1;
  uint64_t g_before_ = 0;  // highest G before that
  std::deque<OrderEntry> log_;
  std::map<uint32_t, uint64_t> sent_through_;  // per member: place

  std::map<Ticket, Launch> launches_;  // not in the log
  // Until the horizon has passed them.
  std::map<Ticket, std::set<uint32_t>> placed_;       // in the log: members where it is not over
  std::map<std::pair<Ticket, uint32_t>, bool> over_;  // good
  VerdictBook withdrawals_;
  // Launches to look at again when something becomes of the ticket.
  absl::btree_map<Ticket, std::vector<Ticket>> waiting_on_;
  std::deque<Ticket> again_;  // of those: now

  uint64_t spanner_epoch_ = 0;
  uint64_t g_tail_ = 0, g_seen_ = 0;
  std::map<uint64_t, Commit> kept_;  // by previous G, which is not here yet
  std::optional<Open> open_;
};

}  // namespace landbridge
