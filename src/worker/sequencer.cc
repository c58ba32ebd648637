#include "worker/sequencer.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "base/ascending_map.h"
#include "worker/activation_counts.h"

namespace landbridge {
namespace {

// Candidates that only differ in their ticket and run time: on the same devices, of the same session and wishes. Of these the
// oldest is always the best choice, so that a decision looks at one candidate per lane, however many wait.
struct LaneKey {
  std::vector<uint32_t> devices;  // ascending
  SessionId session;
  int priority = 0;
  double weight = 1;
  Phase phase = Phase::kNone;
  friend auto operator<=>(const LaneKey&, const LaneKey&) = default;
};

}  // namespace

class Sequencer::Impl {
 public:
  Impl(Options options, std::unique_ptr<SchedulingPolicy> policy, uint64_t epoch)
      : options_(options), policy_(std::move(policy)), epoch_(epoch) {}

  void SetPolicy(std::unique_ptr<SchedulingPolicy> policy) { policy_ = std::move(policy); }

  void AddCandidate(Candidate candidate) {
    const Ticket ticket = candidate.ticket;
    if (placed_.Contains(ticket) || lane_of_.Contains(ticket)) return;
    for (uint32_t device : candidate.devices) Load(device);
    const Lanes::iterator lane = LaneOf(candidate);
    lane->second.emplace(ticket, std::move(candidate));
    *lane_of_.TryEmplace(ticket).first = lane;
  }

  void Withdraw(Ticket ticket) {
    const Lanes::iterator* lane = lane_of_.Find(ticket);
    if (lane == nullptr) return;
    Take(*lane, ticket);
    first_choice_since_.erase(ticket);
  }

  void OnDropped(const Candidate& launch) {
    activations_.Count(launch);
    policy_->OnDropped(launch);
  }
  void OnSessionEnded(SessionId session) {
    activations_.Forget(session);
    policy_->OnSessionEnded(session);
  }
  int activations_peak(uint32_t device) const { return activations_.peak(device); }
  bool OverBudget(const Candidate& launch) const { return policy_->OverBudget(launch); }

  void OnFinished(Ticket ticket, DurationNs run_ns) {
    const PlacedLaunch* placed = placed_.Find(ticket);
    if (placed == nullptr) return;
    const Candidate& launch = placed->launch;
    for (uint32_t device : launch.devices) {
      DeviceLoad& load = Load(device);
      --load.placed;
      if (launch.estimated_run_ns > 0) {
        load.estimated -= launch.estimated_run_ns;
      } else {
        --load.unknown;
      }
    }
    policy_->OnFinished(launch, run_ns);
    unfinished_[placed->place - first_unfinished_] = false;
    while (!unfinished_.empty() && !unfinished_.front()) {
      unfinished_.pop_front();
      ++first_unfinished_;
    }
    placed_.Erase(ticket);
  }

  std::vector<LogEntry> Place(TimeNs now) {
    std::vector<LogEntry> entries;
    while (!lane_of_.empty()) {
      auto lane = PickLane(now);
      if (lane == lanes_.end()) break;
      entries.push_back(Append(Take(lane, lane->second.begin()->first), now));
    }
    return entries;
  }

  LogEntry PlaceNow(Candidate launch, TimeNs now) {
    Withdraw(launch.ticket);
    for (uint32_t device : launch.devices) Load(device);
    return Append(std::move(launch), now);
  }

  uint64_t epoch() const { return epoch_; }
  uint64_t tail() const { return tail_; }
  uint64_t done_through() const { return first_unfinished_ - 1; }
  bool Placed(Ticket ticket) const { return placed_.Contains(ticket); }
  int placed(uint32_t device) const { return device < loads_.size() ? loads_[device].placed : 0; }
  size_t candidates() const { return lane_of_.size(); }

  // K: launches worth `placed_run_time`, at least one; a fixed number as long as a run time is unknown.
  bool HasRoom(const Candidate& candidate, uint32_t device) const {
    if (device >= loads_.size()) return true;
    const DeviceLoad& load = loads_[device];
    if (load.placed == 0) return true;
    if (load.placed >= options_.placed_launches_max) return false;
    if (load.unknown > 0 || candidate.estimated_run_ns <= 0) return load.placed < options_.placed_while_unknown;
    // Between the end of one launch and the start of another that has to be handed over then lie some hundred microseconds.
    return load.estimated < (load.placed == 1 ? std::max(options_.placed_run_time, options_.placed_pair_run_time)
                                              : options_.placed_run_time);
  }

 private:
  using Lane = absl::btree_map<Ticket, Candidate>;
  using Lanes = std::map<LaneKey, Lane>;  // iterators stay valid; ordered, so that decisions repeat

  struct DeviceLoad {
    int placed = 0;
    int unknown = 0;  // of these, without an estimate
    DurationNs estimated = 0;
  };
  struct PlacedLaunch {
    Candidate launch;
    uint64_t place = 0;
  };

  DeviceLoad& Load(uint32_t device) {
    if (device >= loads_.size()) loads_.resize(device + 1);
    return loads_[device];
  }

  // Mostly the lane of the candidate before.
  Lanes::iterator LaneOf(const Candidate& launch) {
    if (latest_lane_ != lanes_.end()) {
      const LaneKey& key = latest_lane_->first;
      if (key.session == launch.session && key.priority == launch.priority && key.weight == launch.weight &&
          key.phase == launch.phase && key.devices == launch.devices) {
        return latest_lane_;
      }
    }
    LaneKey key{launch.devices, launch.session, launch.priority, launch.weight, launch.phase};
    std::sort(key.devices.begin(), key.devices.end());
    latest_lane_ = lanes_.try_emplace(std::move(key)).first;
    return latest_lane_;
  }

  Candidate Take(Lanes::iterator lane, Ticket ticket) {
    auto it = lane->second.find(ticket);
    Candidate launch = std::move(it->second);
    lane->second.erase(it);
    lane_of_.Erase(ticket);
    // Mostly the same lane is used again at once.
    if (lane->second.empty() && lanes_.size() > kIdleLanesMax) {
      if (latest_lane_ == lane) latest_lane_ = lanes_.end();
      lanes_.erase(lane);
    }
    return launch;
  }

  bool HasRoom(const Candidate& candidate) const {
    for (uint32_t device : candidate.devices) {
      if (!HasRoom(candidate, device)) return false;
    }
    return true;
  }

  LogEntry Append(Candidate launch, TimeNs now) {
    for (uint32_t device : launch.devices) {
      DeviceLoad& load = Load(device);
      ++load.placed;
      if (launch.estimated_run_ns > 0) {
        load.estimated += launch.estimated_run_ns;
      } else {
        ++load.unknown;
      }
    }
    activations_.Count(launch);
    policy_->OnPlaced(launch, now);
    first_choice_since_.erase(launch.ticket);
    LogEntry entry;
    entry.place = ++tail_;
    entry.ticket = launch.ticket;
    entry.devices = launch.devices;
    unfinished_.push_back(true);
    *placed_.TryEmplace(entry.ticket).first = PlacedLaunch{std::move(launch), entry.place};
    return entry;
  }

  static const Candidate& Head(Lanes::iterator lane) { return lane->second.begin()->second; }

  Lanes::iterator PickLane(TimeNs now) {
    std::vector<Lanes::iterator>& lanes = scratch_lanes_;
    lanes.clear();
    blocked_gangs_.clear();
    for (auto lane = lanes_.begin(); lane != lanes_.end(); ++lane) {
      if (lane->second.empty() || policy_->Holds(Head(lane), now)) continue;
      if (HasRoom(Head(lane))) {
        lanes.push_back(lane);
      } else if (Head(lane).devices.size() > 1) {
        blocked_gangs_.push_back(lane);
      }
    }
    for (auto gang : blocked_gangs_) KeepFree(gang, now, &lanes);
    if (lanes.empty()) return lanes_.end();
    return lanes[Choose(lanes, now)];
  }

  size_t Choose(const std::vector<Lanes::iterator>& lanes, TimeNs now) {
    scratch_eligible_.clear();
    for (auto lane : lanes) scratch_eligible_.push_back(&Head(lane));
    return scratch_eligible_.size() == 1 ? 0 : policy_->Pick(scratch_eligible_, now);
  }

  // Those in `lanes` that would take devices from a gang without room go past it, unless it would have been chosen before
  // them for too long already.
  void KeepFree(Lanes::iterator gang, TimeNs now, std::vector<Lanes::iterator>* lanes) {
    if (options_.age_limit <= 0) return;
    auto overlaps = [&](Lanes::iterator lane) {
      return std::any_of(Head(lane).devices.begin(), Head(lane).devices.end(), [&](uint32_t device) {
        return std::binary_search(gang->first.devices.begin(), gang->first.devices.end(), device);
      });
    };
    std::vector<Lanes::iterator> rivals{gang};
    for (auto lane : *lanes) {
      if (overlaps(lane)) rivals.push_back(lane);
    }
    if (rivals.size() == 1) return;
    const Ticket ticket = Head(gang).ticket;
    if (Choose(rivals, now) != 0) {
      first_choice_since_.erase(ticket);
      return;
    }
    const TimeNs since = first_choice_since_.try_emplace(ticket, now).first->second;
    if (now - since >= options_.age_limit) std::erase_if(*lanes, overlaps);
  }

  static constexpr size_t kIdleLanesMax = 64;

  const Options options_;
  std::unique_ptr<SchedulingPolicy> policy_;
  const uint64_t epoch_;
  std::vector<Lanes::iterator> scratch_lanes_;  // kept for their memory
  std::vector<const Candidate*> scratch_eligible_;
  std::vector<Lanes::iterator> blocked_gangs_;
  absl::flat_hash_map<Ticket, TimeNs> first_choice_since_;  // of gangs without room
  Lanes lanes_;
  Lanes::iterator latest_lane_ = lanes_.end();  // that a candidate was added to
  AscendingMap<Ticket, Lanes::iterator> lane_of_;
  AscendingMap<Ticket, PlacedLaunch> placed_;
  std::vector<DeviceLoad> loads_;
  ActivationCounts activations_;
  uint64_t tail_ = 0;
  // The part of the log that is still needed: whether the entry at first_unfinished_ + i is unfinished.
  std::deque<bool> unfinished_;
  uint64_t first_unfinished_ = 1;
};

Sequencer::Sequencer(Options options, std::unique_ptr<SchedulingPolicy> policy, uint64_t epoch)
    : impl_(std::make_unique<Impl>(options, std::move(policy), epoch)) {}
Sequencer::~Sequencer() = default;
void Sequencer::SetPolicy(std::unique_ptr<SchedulingPolicy> policy) { impl_->SetPolicy(std::move(policy)); }
void Sequencer::OnDropped(const Candidate& launch) { impl_->OnDropped(launch); }
void Sequencer::OnSessionEnded(SessionId session) { impl_->OnSessionEnded(session); }
bool Sequencer::OverBudget(const Candidate& candidate) const { return impl_->OverBudget(candidate); }
int Sequencer::activations_peak(uint32_t device) const { return impl_->activations_peak(device); }
void Sequencer::AddCandidate(Candidate candidate) { impl_->AddCandidate(std::move(candidate)); }
void Sequencer::Withdraw(Ticket ticket) { impl_->Withdraw(ticket); }
void Sequencer::OnFinished(Ticket ticket, DurationNs run_ns) { impl_->OnFinished(ticket, run_ns); }
std::vector<LogEntry> Sequencer::Place(TimeNs now) { return impl_->Place(now); }
LogEntry Sequencer::PlaceNow(Candidate launch, TimeNs now) { return impl_->PlaceNow(std::move(launch), now); }
uint64_t Sequencer::epoch() const { return impl_->epoch(); }
uint64_t Sequencer::tail() const { return impl_->tail(); }
bool Sequencer::Placed(Ticket ticket) const { return impl_->Placed(ticket); }
uint64_t Sequencer::done_through() const { return impl_->done_through(); }
int Sequencer::placed(uint32_t device) const { return impl_->placed(device); }
size_t Sequencer::candidates() const { return impl_->candidates(); }
bool Sequencer::HasRoom(const Candidate& candidate, uint32_t device) const { return impl_->HasRoom(candidate, device); }

}  // namespace landbridge
