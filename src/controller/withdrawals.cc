#include "controller/withdrawals.h"

#include <algorithm>
#include <utility>

namespace landbridge::ctl {

void Withdrawals::Withdraw(absl::Span<const Ticket> roots, TimeNs now) {
  next_roots_.insert(roots.begin(), roots.end());
  if (!round_open_) StartNext(now);
}

void Withdrawals::OnLost(absl::Span<const Ticket> roots, TimeNs now) {
  next_roots_.insert(roots.begin(), roots.end());
  StartNext(now);
}

void Withdrawals::StartNext(TimeNs now) {
  if (round_open_) {  // it is asked anew, with more
    next_roots_.insert(roots_.begin(), roots_.end());
    for (const WithdrawnLaunch& launch : set_) asked_.insert(launch.ticket);
  }
  round_open_ = false;
  while (!next_roots_.empty()) {
    roots_ = std::exchange(next_roots_, {});
    set_ = sink_->Closure(roots_, asked_);
    // What can start nowhere any more is settled.
    std::erase_if(set_, [this](const WithdrawnLaunch& launch) {
      auto decided = decided_.find(launch.ticket);
      return decided != decided_.end() && IsFinal(decided->second.verdict.verdict);
    });
    if (set_.empty()) continue;
    Ask(now);
    return;
  }
}

void Withdrawals::Ask(TimeNs now) {
  ++round_;
  round_open_ = true;
  asked_at_ = now;
  answers_.clear();
  missing_.clear();
  for (const WithdrawnLaunch& launch : set_) {
    for (const Place& part : launch.parts) {
      std::vector<Ticket>& tickets = missing_[part.slice];
      if (tickets.empty() || tickets.back() != launch.ticket) tickets.push_back(launch.ticket);
    }
  }
  for (const auto& [slice, tickets] : missing_) sink_->SendFreeze(slice, round_, tickets);
  if (missing_.empty()) Decide(now);
}

void Withdrawals::OnSequencer(SliceId slice, uint64_t epoch, TimeNs now) {
  uint64_t& known = epochs_[slice];
  if (epoch <= known) return;
  known = epoch;
  if (!round_open_) return;
  // Also if the old one had answered: what it said may rest on entries that no survivor knows.
  std::vector<Ticket> tickets;
  for (const WithdrawnLaunch& launch : set_) {
    const bool here = std::any_of(launch.parts.begin(), launch.parts.end(),
                                  [slice](const Place& part) { return part.slice == slice; });
    if (here) tickets.push_back(launch.ticket);
  }
  if (tickets.empty()) return;
  std::erase_if(answers_, [slice](const auto& answer) { return answer.first.second.slice == slice; });
  missing_[slice] = tickets;
  asked_at_ = now;
  sink_->SendFreeze(slice, round_, std::move(tickets));
}

void Withdrawals::OnSliceLost(SliceId slice, TimeNs now) {
  epochs_.erase(slice);
  if (round_open_ && missing_.erase(slice) > 0 && missing_.empty()) Decide(now);
}

void Withdrawals::OnFrozen(SliceId slice, uint64_t epoch, uint64_t round, absl::Span<const PartAnswer> parts,
                           TimeNs now) {
  if (!round_open_ || round != round_ || epoch < epochs_[slice]) return;
  if (missing_.erase(slice) == 0) return;
  for (const PartAnswer& part : parts) answers_[{part.ticket, Place{slice, part.member}}] = part;
  if (missing_.empty()) Decide(now);
}

const PartAnswer* Withdrawals::AnswerOf(Ticket ticket, const Place& part) const {
  auto it = answers_.find({ticket, part});
  return it == answers_.end() ? nullptr : &it->second;
}

Withdrawals::Decision Withdrawals::DecideOne(const WithdrawnLaunch& launch,
                                             const std::map<Ticket, Decision>& before) const {
  Decision decision;
  decision.verdict.ticket = launch.ticket;
  decision.verdict.round = round_;
  for (const Place& part : launch.parts) decision.slices.push_back(part.slice);
  std::sort(decision.slices.begin(), decision.slices.end());
  decision.slices.erase(std::unique(decision.slices.begin(), decision.slices.end()), decision.slices.end());
  if (auto earlier = decided_.find(launch.ticket); earlier != decided_.end()) decision.spoilt = earlier->second.spoilt;

  bool doomed = launch.root || decision.spoilt;
  bool starved = false;  // it started where an input never comes: it cannot end by itself
  size_t started = 0, finished = 0;
  for (const Place& part : launch.parts) {
    const PartAnswer* answer = AnswerOf(launch.ticket, part);
    if (answer == nullptr) continue;
    doomed = doomed || answer->bad_input;
    started += answer->state == PartState::kStarted ? 1 : 0;
    finished += answer->state == PartState::kFinished ? 1 : 0;
    if (answer->state == PartState::kFinished) decision.good.push_back(part);
  }
  for (const WithdrawnLaunch::Input& input : launch.inputs) {
    auto producer = before.find(input.producer);
    if (producer == before.end()) continue;
    const Decision& made = producer->second;
    if (made.verdict.verdict == Verdict::kRelease) continue;
    if (std::find(made.good.begin(), made.good.end(), input.made_at) != made.good.end()) continue;
    doomed = true;
    const PartAnswer* user = AnswerOf(launch.ticket, input.used_at);
    const bool waits = user != nullptr && user->state == PartState::kStarted;
    starved = starved || (waits && made.verdict.verdict == Verdict::kAbort);
  }

  Verdict& verdict = decision.verdict.verdict;
  const size_t alive = launch.parts.size();
  if (decision.spoilt) {
    decision.good.clear();
    // Some parts may have ended on stand-ins: it must not go on as if nothing had been.
    verdict = (launch.lost_part || starved) && finished < alive ? Verdict::kAbort : Verdict::kFinish;
  } else if (!doomed) {
    verdict = Verdict::kRelease;
  } else if (started == 0 && finished == 0) {
    verdict = Verdict::kDrop;
  } else if ((finished > 0 && !launch.lost_part) || finished == alive) {
    verdict = Verdict::kRelease;  // done, not withdrawn [4]
  } else if (!launch.lost_part && launch.stand_ins && !starved) {
    verdict = Verdict::kFinish;
  } else {
    verdict = Verdict::kAbort;
  }
  if (verdict == Verdict::kFinish) {
    decision.spoilt = true;
    decision.good.clear();
  }
  return decision;
}

// No verdict leaves before every dependent has answered: stand-ins would reach those that had not [5].
void Withdrawals::Decide(TimeNs now) {
  std::map<Ticket, Decision> made;
  for (const WithdrawnLaunch& launch : set_) made[launch.ticket] = DecideOne(launch, made);
  round_open_ = false;
  std::map<SliceId, std::vector<LaunchVerdict>> by_slice;
  for (auto& [ticket, decision] : made) {
    for (SliceId slice : decision.slices) by_slice[slice].push_back(decision.verdict);
    sink_->Decided(ticket, decision.verdict.verdict, decision.good);
    decided_[ticket] = std::move(decision);
  }
  for (auto& [slice, verdicts] : by_slice) sink_->SendVerdicts(slice, std::move(verdicts));
  set_.clear();
  roots_.clear();
  asked_.clear();
  answers_.clear();
  StartNext(now);
}

std::vector<LaunchVerdict> Withdrawals::VerdictsFor(SliceId slice) const {
  std::vector<LaunchVerdict> verdicts;
  for (const auto& [ticket, decision] : decided_) {
    if (std::find(decision.slices.begin(), decision.slices.end(), slice) == decision.slices.end()) continue;
    verdicts.push_back(decision.verdict);
  }
  return verdicts;
}

void Withdrawals::OnHorizon(Ticket horizon) { decided_.erase(decided_.begin(), decided_.lower_bound(horizon)); }

void Withdrawals::OnTime(TimeNs now) {
  if (!round_open_ || now - asked_at_ < freeze_limit_) return;
  asked_at_ = now;
  std::vector<SliceId> silent;
  for (const auto& [slice, tickets] : missing_) silent.push_back(slice);
  for (SliceId slice : silent) sink_->Unanswered(slice);
}

}  // namespace landbridge::ctl
