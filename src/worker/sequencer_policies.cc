#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "base/limits.h"
#include "worker/activation_counts.h"
#include "worker/sequencer.h"

namespace landbridge {
namespace {

// Index of the smallest key.
template <typename Key>
size_t Least(const std::vector<const Candidate*>& candidates, Key key) {
  size_t best = 0;
  auto best_key = key(*candidates[0]);
  for (size_t i = 1; i < candidates.size(); ++i) {
    auto other = key(*candidates[i]);
    if (other < best_key) {
      best = i;
      best_key = other;
    }
  }
  return best;
}

class ClientOrderPolicy final : public SchedulingPolicy {
 public:
  size_t Pick(const std::vector<const Candidate*>& candidates, TimeNs) const override {
    return Least(candidates, [](const Candidate& c) { return c.ticket; });
  }
};

class PriorityPolicy final : public SchedulingPolicy {
 public:
  explicit PriorityPolicy(DurationNs patience) : patience_(patience) {}

  size_t Pick(const std::vector<const Candidate*>& candidates, TimeNs now) const override {
    return Least(candidates, [&](const Candidate& c) {
      const bool overdue = patience_ > 0 && now - WaitsSince(c) >= patience_;
      return std::make_tuple(overdue ? 0 : 1, -int64_t{c.priority}, c.ticket);
    });
  }
  void OnPlaced(const Candidate& launch, TimeNs now) override {
    if (patience_ > 0) last_turn_[KeyOf(launch)] = now;
  }
  void OnSessionEnded(SessionId session) override {
    std::erase_if(last_turn_, [&](const auto& entry) { return std::get<SessionId>(entry.first) == session; });
  }

 private:
  using Key = std::tuple<SessionId, int, std::vector<uint32_t>>;
  static Key KeyOf(const Candidate& c) { return {c.session, c.priority, c.devices}; }
  TimeNs WaitsSince(const Candidate& c) const {
    auto it = last_turn_.find(KeyOf(c));
    return it == last_turn_.end() ? c.ready_since : std::max(c.ready_since, it->second);
  }

  const DurationNs patience_;
  std::map<Key, TimeNs> last_turn_;
};

// Start-time fair queueing: a session's clock advances by device time / weight. A launch is charged its estimate
// when it is placed, and corrected when it has finished, so that several places in a row alternate too.
class SharePolicy final : public SchedulingPolicy {
 public:
  size_t Pick(const std::vector<const Candidate*>& candidates, TimeNs) const override {
    return Least(candidates, [this](const Candidate& c) {
      return std::make_tuple(Clock(c.session), -int64_t{c.priority}, c.ticket);
    });
  }

  void OnPlaced(const Candidate& launch, TimeNs) override {
    const double start = Clock(launch.session);
    floor_ = std::max(floor_, start);
    SessionClock& clock = clocks_[launch.session];
    clock.now = start + Cost(launch, launch.estimated_run_ns);
    ++clock.running;
  }

  void OnFinished(const Candidate& launch, DurationNs run_ns) override {
    auto it = clocks_.find(launch.session);
    if (it == clocks_.end()) return;
    it->second.now += Cost(launch, run_ns - launch.estimated_run_ns);
    --it->second.running;
    EraseIfIdle(it);
  }

  void OnSessionEnded(SessionId session) override {
    auto it = clocks_.find(session);
    if (it == clocks_.end()) return;
    it->second.ended = true;
    EraseIfIdle(it);
  }

 private:
  static constexpr double kCreditMax = static_cast<double>(limits::kShareCreditMax);
  struct SessionClock {
    double now = 0;
    int running = 0;
    bool ended = false;
  };
  using Clocks = absl::flat_hash_map<SessionId, SessionClock>;

  // Idle for long: as good as new.
  void EraseIfIdle(Clocks::iterator it) {
    const SessionClock& clock = it->second;
    if (clock.running <= 0 && (clock.ended || clock.now <= floor_ - kCreditMax)) clocks_.erase(it);
  }

  // A new session starts where the others stand. One that had nothing to run for a moment (it waits for a transfer,
  // say) keeps what it is owed, up to a limit: else sessions with gaps would get too little, and without a limit one
  // that comes back from a long pause would lock the others out.
  double Clock(SessionId session) const {
    auto it = clocks_.find(session);
    return it == clocks_.end() ? floor_ : std::max(floor_ - kCreditMax, it->second.now);
  }
  static double Cost(const Candidate& launch, DurationNs run_ns) {
    const double weight = std::clamp(launch.weight, limits::kSessionWeightMin, limits::kSessionWeightMax);
    return static_cast<double>(run_ns) * static_cast<double>(launch.devices.size()) / weight;
  }

  Clocks clocks_;
  double floor_ = 0;  // the clock of the last launch placed, before it
};

class BackwardFirstPolicy final : public SchedulingPolicy {
 public:
  BackwardFirstPolicy(int budget, DurationNs stall) : budget_(std::max(budget, 1)), stall_(stall) {}

  bool Holds(const Candidate& launch, TimeNs now) override {
    return launch.phase == Phase::kForward &&
           std::any_of(launch.devices.begin(), launch.devices.end(),
                       [&](uint32_t device) { return Spent(launch.session, device) && !Stalled(device, launch, now); });
  }
  bool OverBudget(const Candidate& launch) const override {
    return launch.phase == Phase::kForward &&
           std::any_of(launch.devices.begin(), launch.devices.end(),
                       [&](uint32_t device) { return Spent(launch.session, device); });
  }

  size_t Pick(const std::vector<const Candidate*>& candidates, TimeNs) const override {
    return Least(candidates,
                 [](const Candidate& c) { return std::make_pair(c.phase == Phase::kBackward ? 0 : 1, c.ticket); });
  }

  void OnPlaced(const Candidate& launch, TimeNs) override {
    for (uint32_t device : launch.devices) {
      Device& at = devices_[device];
      ++at.running;
      at.idle_since.reset();
      // Past the budget: the ones before it will never be used up, or much later.
      if (launch.phase == Phase::kForward && Spent(launch.session, device)) counts_.Reset(launch.session, device);
    }
    counts_.Count(launch);
  }
  void OnFinished(const Candidate& launch, DurationNs) override {
    for (uint32_t device : launch.devices) {
      auto it = devices_.find(device);  // none if it was placed under another policy
      if (it != devices_.end() && it->second.running > 0) --it->second.running;
    }
  }
  void OnDropped(const Candidate& launch) override { counts_.Count(launch); }
  void OnSessionEnded(SessionId session) override { counts_.Forget(session); }

 private:
  struct Device {
    int running = 0;
    std::optional<TimeNs> idle_since;  // as far as somebody asked
  };

  bool Spent(SessionId session, uint32_t device) const { return counts_.alive(session, device) >= budget_; }
  bool Stalled(uint32_t device, const Candidate& launch, TimeNs now) {
    Device& at = devices_[device];
    if (at.running > 0) return false;
    if (!at.idle_since.has_value()) at.idle_since = now;
    return now - std::max(*at.idle_since, launch.ready_since) >= stall_;
  }

  const int budget_;
  const DurationNs stall_;
  ActivationCounts counts_;
  std::map<uint32_t, Device> devices_;
};

}  // namespace

std::unique_ptr<SchedulingPolicy> MakeClientOrderPolicy() { return std::make_unique<ClientOrderPolicy>(); }
std::unique_ptr<SchedulingPolicy> MakePriorityPolicy(DurationNs patience) {
  return std::make_unique<PriorityPolicy>(patience);
}
std::unique_ptr<SchedulingPolicy> MakeSharePolicy() { return std::make_unique<SharePolicy>(); }
std::unique_ptr<SchedulingPolicy> MakeBackwardFirstPolicy(int budget, DurationNs stall) {
  return std::make_unique<BackwardFirstPolicy>(budget, stall);
}

}  // namespace landbridge
