#include "worker/slice_sequencer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/limits.h"

namespace landbridge {
namespace {

bool SaneDevices(const std::vector<uint32_t>& devices) {
  return !devices.empty() && std::all_of(devices.begin(), devices.end(), [](uint32_t device) {
    return device < static_cast<uint32_t>(limits::kDevicesMax);
  });
}

}  // namespace

SliceSequencer::SliceSequencer(Grant grant, Sequencer::Options options, std::unique_ptr<SchedulingPolicy> policy,
                               OrderSink* sink)
    : slice_(grant.slice),
      epoch_(grant.epoch),
      sink_(sink),
      policy_(options, std::move(policy), grant.epoch),
      alive_(grant.members.begin(), grant.members.end()),
      early_verdicts_(std::move(grant.verdicts)),
      spanner_epoch_(grant.spanner_epoch) {
  withdrawals_.TrimTo(grant.horizon);
  for (uint32_t member : alive_) sink_->ToMember(slice_, member, NewWriter{epoch_});
}

// ---------------------------------------------------------------- a new writer

void SliceSequencer::OnTail(const Tail& message, TimeNs now) {
  if (message.epoch != epoch_ || active_ || !alive_.contains(message.member)) return;
  tails_.emplace(message.member, message);
  if (tails_.size() == alive_.size()) Activate(now);
}

// Survivors' tails never disagree, so the longest holds every entry that any of them may have started.
void SliceSequencer::AdoptLog() {
  const Tail* longest = nullptr;
  for (const auto& [member, tail] : tails_) {
    const uint64_t end = tail.first_place + tail.entries.size();
    if (longest == nullptr || end > longest->first_place + longest->entries.size()) longest = &tail;
    sent_through_[member] = end - 1;
  }
  if (longest == nullptr) return;
  first_place_ = longest->first_place;
  log_.assign(longest->entries.begin(), longest->entries.end());
  g_before_ = longest->g_before;
  g_tail_ = g_before_;
}

void SliceSequencer::Activate(TimeNs now) {
  AdoptLog();
  for (const OrderEntry& entry : log_) {
    g_tail_ = std::max(g_tail_, entry.g);
    if (entry.kind == OrderEntry::Kind::kVerdict) {
      withdrawals_.Take(entry.verdict);
      if (withdrawals_.Final(entry.ticket)) launches_.erase(entry.ticket);
    }
    if (entry.kind != OrderEntry::Kind::kLaunch || entry.ticket < horizon()) continue;
    std::set<uint32_t>& unfinished = placed_[entry.ticket];
    for (uint32_t member : entry.members) {
      if (alive_.contains(member) && !over_.contains({entry.ticket, member})) unfinished.insert(member);
    }
    launches_.erase(entry.ticket);  // a member whose tail is shorter called it able
    if (!SaneDevices(entry.devices)) continue;
    Candidate launch;
    launch.ticket = entry.ticket;
    launch.devices = entry.devices;
    policy_.PlaceNow(std::move(launch), now);
    if (unfinished.empty()) policy_.OnFinished(entry.ticket, 0);
  }
  g_seen_ = std::max(g_seen_, g_tail_);
  for (const auto& [member, tail] : tails_) {
    for (const PartOver& over : tail.over) TakeOver(over);
    for (const Able& able : tail.able) TakeAble(able);
  }
  tails_.clear();
  // Before anything is appended: what the coordinator has decided meanwhile.
  for (const LaunchVerdict& verdict : std::exchange(early_verdicts_, {})) ApplyVerdict(verdict);
  active_ = true;
  ReportToSpanner();  // before any Ready
  std::vector<Ticket> tickets;
  for (const auto& [ticket, launch] : launches_) tickets.push_back(ticket);
  again_.insert(again_.end(), tickets.begin(), tickets.end());
  AnswerFreeze();
  Advance(now);
}

// ---------------------------------------------------------------- what members say

// Of a peer: devices that there can be, and nothing that rests on what is younger.
bool SliceSequencer::Sane(const Able& message) {
  const Candidate& launch = message.launch.candidate;
  auto older = [&](const After& after) { return after.ticket < launch.ticket; };
  return SaneDevices(launch.devices) && std::all_of(message.after.begin(), message.after.end(), older);
}

bool SliceSequencer::TakeAble(const Able& message) {
  const Ticket ticket = message.launch.candidate.ticket;
  if (!Sane(message)) return false;
  if (ticket < horizon() || placed_.contains(ticket) || over_.contains({ticket, message.member}) ||
      withdrawals_.Final(ticket)) {
    return false;
  }
  Launch& launch = launches_[ticket];
  if (launch.able.empty()) launch.facts = message.launch;
  return launch.able.emplace(message.member, message.after).second;
}

void SliceSequencer::OnAble(const Able& message, TimeNs now) {
  if (message.epoch != epoch_ || !alive_.contains(message.member) || !TakeAble(message)) return;
  if (!active_) return;
  Evaluate(message.launch.candidate.ticket);
  Advance(now);
}

bool SliceSequencer::TakeOver(const PartOver& message) {
  const Ticket ticket = message.ticket;
  // The controller may have heard of it first.
  const bool past = ticket < horizon();
  if (!past && !over_.emplace(std::pair(ticket, message.member), message.good).second) return false;
  if (auto placed = placed_.find(ticket); placed != placed_.end()) {
    if (placed->second.erase(message.member) > 0 && placed->second.empty()) {
      policy_.OnFinished(ticket, message.run_ns);
      if (past) placed_.erase(placed);
    }
  } else if (auto launch = launches_.find(ticket);
             launch != launches_.end() && launch->second.facts.members.size() == 1) {
    StopCandidate(ticket);
    launches_.erase(ticket);
  }
  return true;
}

void SliceSequencer::OnPartOver(const PartOver& message, TimeNs now) {
  if (message.epoch != epoch_ || !alive_.contains(message.member) || !TakeOver(message)) return;
  if (!active_) return;
  Wake(message.ticket);
  Advance(now);
}

void SliceSequencer::OnMemberLost(uint32_t member, TimeNs now) {
  if (alive_.erase(member) == 0) return;
  tails_.erase(member);
  sent_through_.erase(member);
  for (auto it = placed_.begin(); it != placed_.end();) {
    if (it->second.erase(member) > 0 && it->second.empty()) policy_.OnFinished(it->first, 0);
    it = it->second.empty() && it->first < horizon() ? placed_.erase(it) : std::next(it);
  }
  if (open_.has_value() && open_->missing.erase(member) > 0) AnswerFreeze();
  if (!active_ && !alive_.empty() && tails_.size() == alive_.size()) Activate(now);
  Advance(now);
}

// ---------------------------------------------------------------- runnable

bool SliceSequencer::Satisfied(const After& after, uint32_t member) const {
  if (after.ticket < horizon() || placed_.contains(after.ticket)) return true;
  if (!after.data && withdrawals_.Final(after.ticket)) return true;  // withdrawn: it will read nothing
  auto over = over_.find({after.ticket, member});
  return over != over_.end() && (over->second || !after.data);
}

void SliceSequencer::Evaluate(Ticket ticket) {
  if (!active_) return;
  auto it = launches_.find(ticket);
  if (it == launches_.end()) return;
  Launch& launch = it->second;
  if (launch.candidate || launch.reported || withdrawals_.Held(ticket) || !Complete(launch)) return;
  std::vector<After> conditions;
  for (const auto& [member, afters] : launch.able) {
    for (const After& after : afters) {
      if (Satisfied(after, member)) continue;
      auto other = launches_.find(after.ticket);
      if (launch.facts.spans() && other != launches_.end() && other->second.reported) {
        if (std::find(conditions.begin(), conditions.end(), after) == conditions.end()) conditions.push_back(after);
        continue;
      }
      waiting_on_[after.ticket].push_back(ticket);
      return;
    }
  }
  if (!launch.facts.spans()) {
    launch.candidate = true;
    policy_.AddCandidate(launch.facts.candidate);
    return;
  }
  if (spanner_epoch_ == 0) return;
  launch.reported = true;
  Ready ready;
  ready.slice = slice_;
  ready.epoch = epoch_;
  ready.spanner_epoch = spanner_epoch_;
  ready.ticket = ticket;
  ready.slices = launch.facts.slices;
  ready.after = std::move(conditions);
  sink_->ToSpanner(std::move(ready));
  Wake(ticket);
}

// Not at once: chains are long, stacks are not.
void SliceSequencer::Wake(Ticket ticket) {
  auto it = waiting_on_.find(ticket);
  if (it == waiting_on_.end()) return;
  again_.insert(again_.end(), it->second.begin(), it->second.end());
  waiting_on_.erase(it);
}

void SliceSequencer::EvaluateAgain() {
  while (!again_.empty()) {
    const Ticket ticket = again_.front();
    again_.pop_front();
    Evaluate(ticket);
  }
}

void SliceSequencer::StopCandidate(Ticket ticket) {
  auto it = launches_.find(ticket);
  if (it == launches_.end() || !it->second.candidate) return;
  policy_.Withdraw(ticket);
  it->second.candidate = false;
}

// ---------------------------------------------------------------- the log

void SliceSequencer::Push(OrderEntry entry) {
  entry.place = tail() + 1;
  g_tail_ = std::max(g_tail_, entry.g);
  log_.push_back(std::move(entry));
}

void SliceSequencer::PushLaunch(Ticket ticket, Launch& launch, uint64_t g) {
  OrderEntry entry;
  entry.ticket = ticket;
  entry.g = g;
  entry.devices = launch.facts.candidate.devices;
  entry.members = launch.facts.members;
  entry.slices = launch.facts.slices;
  std::set<uint32_t>& unfinished = placed_[ticket];
  for (uint32_t member : entry.members) {
    if (alive_.contains(member) && !over_.contains({ticket, member})) unfinished.insert(member);
  }
  if (unfinished.empty()) policy_.OnFinished(ticket, 0);
  Push(std::move(entry));
  launches_.erase(ticket);
}

void SliceSequencer::Advance(TimeNs now) {
  if (!active_) return;
  for (;;) {
    EvaluateAgain();
    const std::vector<LogEntry> placed = policy_.Place(now);
    if (placed.empty()) break;
    for (const LogEntry& entry : placed) PushLaunch(entry.ticket, launches_.at(entry.ticket), 0);
    for (const LogEntry& entry : placed) Wake(entry.ticket);
  }
  for (uint32_t member : alive_) {
    uint64_t& through = sent_through_[member];
    if (through >= tail()) continue;
    Append append;
    append.epoch = epoch_;
    append.horizon = horizon();
    append.first_place = first_place_;
    append.g_before = g_before_;
    const uint64_t first = std::max(through + 1, first_place_);
    append.entries.assign(log_.begin() + static_cast<ptrdiff_t>(first - first_place_), log_.end());
    through = tail();
    sink_->ToMember(slice_, member, std::move(append));
  }
}

void SliceSequencer::OnHorizon(Ticket horizon, TimeNs now) {
  if (horizon <= this->horizon()) return;
  withdrawals_.TrimTo(horizon);
  if (!active_) return;
  while (!log_.empty() && log_.front().ticket < horizon) {
    g_before_ = std::max(g_before_, log_.front().g);
    log_.pop_front();
    ++first_place_;
  }
  for (auto it = placed_.begin(); it != placed_.end() && it->first < horizon;) {
    it = it->second.empty() ? placed_.erase(it) : std::next(it);
  }
  over_.erase(over_.begin(), over_.lower_bound({horizon, 0}));
  while (!launches_.empty() && launches_.begin()->first < horizon) {  // parts of it left without a place
    StopCandidate(launches_.begin()->first);
    launches_.erase(launches_.begin());
  }
  std::vector<Ticket> settled;
  for (const auto& [ticket, waiting] : waiting_on_) {
    if (ticket < horizon) settled.push_back(ticket);
  }
  for (Ticket ticket : settled) Wake(ticket);
  if (spanner_epoch_ > 0) sink_->ToSpanner(HorizonAt{slice_, epoch_, spanner_epoch_, horizon});
  Advance(now);
}

// ---------------------------------------------------------------- spanning launches

void SliceSequencer::ReportToSpanner() {
  if (spanner_epoch_ == 0) return;
  SliceReport report;
  report.slice = slice_;
  report.epoch = epoch_;
  report.spanner_epoch = spanner_epoch_;
  report.g_tail = g_tail_;
  report.g_seen = g_seen_;
  report.horizon = horizon();
  for (const OrderEntry& entry : log_) {
    if (entry.kind != OrderEntry::Kind::kLaunch || entry.g == 0 || entry.ticket < horizon()) continue;
    report.placed.push_back({entry.ticket, entry.g, entry.slices});
  }
  for (const auto& [ticket, verdict] : withdrawals_.verdicts()) {
    if (IsFinal(verdict.verdict)) report.withdrawn.push_back(ticket);
  }
  sink_->ToSpanner(std::move(report));
}

void SliceSequencer::OnNewSpanner(const NewSpanner& message, TimeNs now) {
  if (message.spanner_epoch <= spanner_epoch_) return;
  spanner_epoch_ = message.spanner_epoch;
  kept_.clear();  // placed nowhere: the new spanner goes on above g_seen_, or repeats them [9]
  if (!active_) return;
  ReportToSpanner();
  std::vector<Ticket> spanning;
  for (auto& [ticket, launch] : launches_) {
    launch.reported = false;
    if (launch.facts.spans()) spanning.push_back(ticket);
  }
  for (Ticket ticket : spanning) Evaluate(ticket);
  Advance(now);
}

void SliceSequencer::OnCommit(const Commit& message, TimeNs now) {
  if (message.spanner_epoch != spanner_epoch_ || message.epoch != epoch_ || !active_) return;
  g_seen_ = std::max(g_seen_, message.g);
  if (message.g <= g_tail_) return;
  kept_.emplace(message.previous_g, message);
  for (auto next = kept_.find(g_tail_); next != kept_.end(); next = kept_.find(g_tail_)) {
    const Commit commit = next->second;
    kept_.erase(next);
    PlaceCommit(commit, now);
  }
  Advance(now);
}

void SliceSequencer::PlaceCommit(const Commit& commit, TimeNs now) {
  auto it = launches_.find(commit.ticket);
  if (it == launches_.end() || withdrawals_.Final(commit.ticket)) {
    OrderEntry entry;
    entry.kind = OrderEntry::Kind::kVoid;
    entry.ticket = commit.ticket;
    entry.g = commit.g;
    Push(std::move(entry));
    return;
  }
  // A frozen one is placed like any other; its members hold it [3].
  PlaceWhatItRestsOn(commit.ticket, now);
  policy_.PlaceNow(it->second.facts.candidate, now);
  PushLaunch(commit.ticket, it->second, commit.g);
  Wake(commit.ticket);
}

// A writer that was lost had placed them before it reported the launch; no survivor heard of it.
void SliceSequencer::PlaceWhatItRestsOn(Ticket root, TimeNs now) {
  std::set<Ticket> needed;
  std::vector<Ticket> look_at{root};
  while (!look_at.empty()) {
    const Launch& launch = launches_.at(look_at.back());
    look_at.pop_back();
    for (const auto& [member, afters] : launch.able) {
      for (const After& after : afters) {
        if (Satisfied(after, member) || needed.contains(after.ticket)) continue;
        auto it = launches_.find(after.ticket);
        // Incomplete: a part of it was lost, so it will be withdrawn. Spanning: it has no G below this one, as above.
        if (it == launches_.end() || it->second.facts.spans() || !Complete(it->second)) continue;
        needed.insert(after.ticket);
        look_at.push_back(after.ticket);
      }
    }
  }
  for (Ticket ticket : needed) {  // what rests on something is younger
    Launch& launch = launches_.at(ticket);
    policy_.PlaceNow(launch.facts.candidate, now);
    PushLaunch(ticket, launch, 0);
    Wake(ticket);
  }
}

// ---------------------------------------------------------------- withdrawing

void SliceSequencer::OnFreeze(uint64_t round, const std::vector<Ticket>& tickets) {
  if (open_.has_value() && round <= open_->round) return;
  open_ = Open();  // clang 14 finds no default constructor for emplace here
  open_->round = round;
  open_->missing = alive_;
  FreezeParts message;
  message.epoch = epoch_;
  message.round = round;
  for (Ticket ticket : tickets) {
    if (ticket < horizon()) continue;
    open_->tickets.push_back(ticket);
    if (!withdrawals_.Reopen(ticket, round)) continue;
    withdrawals_.Hold(ticket);
    StopCandidate(ticket);
    message.tickets.push_back(ticket);
  }
  for (uint32_t member : alive_) sink_->ToMember(slice_, member, message);
  AnswerFreeze();
}

void SliceSequencer::OnFreezeAnswer(const FreezeAnswer& message) {
  if (message.epoch != epoch_ || !open_.has_value() || message.round != open_->round) return;
  if (open_->missing.erase(message.member) == 0) return;
  open_->parts.insert(open_->parts.end(), message.parts.begin(), message.parts.end());
  AnswerFreeze();
}

void SliceSequencer::AnswerFreeze() {
  if (!active_ || !open_.has_value() || open_->answered || !open_->missing.empty()) return;
  open_->answered = true;
  Frozen frozen;
  frozen.slice = slice_;
  frozen.epoch = epoch_;
  frozen.round = open_->round;
  frozen.parts = std::move(open_->parts);
  sink_->ToCoordinator(std::move(frozen));
}

void SliceSequencer::OnVerdicts(const std::vector<LaunchVerdict>& verdicts, TimeNs now) {
  if (!active_) {
    early_verdicts_.insert(early_verdicts_.end(), verdicts.begin(), verdicts.end());
    return;
  }
  for (const LaunchVerdict& verdict : verdicts) ApplyVerdict(verdict);
  Advance(now);
}

void SliceSequencer::ApplyVerdict(const LaunchVerdict& verdict) {
  const Ticket ticket = verdict.ticket;
  if (!withdrawals_.Take(verdict)) return;
  OrderEntry entry;
  entry.kind = OrderEntry::Kind::kVerdict;
  entry.ticket = ticket;
  entry.verdict = verdict;
  Push(std::move(entry));
  auto it = launches_.find(ticket);
  if (IsFinal(verdict.verdict)) {
    if (it != launches_.end()) {
      StopCandidate(ticket);
      policy_.OnDropped(it->second.facts.candidate);
      launches_.erase(it);
    }
    if (spanner_epoch_ > 0) sink_->ToSpanner(WithdrawnAt{slice_, epoch_, spanner_epoch_, ticket});
  } else {
    Evaluate(ticket);
  }
  Wake(ticket);
}

}  // namespace landbridge
