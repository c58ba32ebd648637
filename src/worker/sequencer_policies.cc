#include <algorithm>
#include <memory>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "worker/sequencer.h"

namespace landbridge {
namespace {

class ClientOrderPolicy final : public SchedulingPolicy {
 public:
  size_t Pick(const std::vector<const Candidate*>& eligible, TimeNs) override {
    auto best = std::min_element(eligible.begin(), eligible.end(),
                                 [](const Candidate* a, const Candidate* b) { return a->ticket < b->ticket; });
    return static_cast<size_t>(best - eligible.begin());
  }
  void OnFinished(const Candidate&, DurationNs) override {}
};

class PriorityPolicy final : public SchedulingPolicy {
 public:
  size_t Pick(const std::vector<const Candidate*>& eligible, TimeNs) override {
    auto key = [](const Candidate* c) { return std::make_tuple(-int64_t{c->priority}, c->ticket); };
    auto best = std::min_element(eligible.begin(), eligible.end(),
                                 [&](const Candidate* a, const Candidate* b) { return key(a) < key(b); });
    return static_cast<size_t>(best - eligible.begin());
  }
  void OnFinished(const Candidate&, DurationNs) override {}
};

// Start-time fair queueing: a session's clock advances by device time / weight. A launch is charged its estimate
// when it is picked, and corrected when it has finished, so that several picks in a row alternate too.
class SharePolicy final : public SchedulingPolicy {
 public:
  explicit SharePolicy(std::vector<std::pair<SessionId, double>> weights) {
    for (const auto& [session, weight] : weights) weights_[session] = std::max(weight, kWeightMin);
  }

  size_t Pick(const std::vector<const Candidate*>& eligible, TimeNs) override {
    if (eligible.size() == 1) return Charge(eligible, 0);
    auto key = [this](const Candidate* c) {
      return std::make_tuple(Clock(c->session), -int64_t{c->priority}, c->ticket);
    };
    size_t best = 0;
    auto best_key = key(eligible[0]);
    for (size_t i = 1; i < eligible.size(); ++i) {
      auto candidate_key = key(eligible[i]);
      if (candidate_key < best_key) {
        best = i;
        best_key = candidate_key;
      }
    }
    return Charge(eligible, best);
  }

  void OnFinished(const Candidate& launch, DurationNs run_ns) override {
    auto it = clocks_.find(launch.session);
    if (it == clocks_.end()) return;
    it->second.now += Cost(launch, run_ns - launch.estimated_run_ns);
    // Idle for long: as good as new.
    if (--it->second.running == 0 && it->second.now <= floor_ - kCreditMax) clocks_.erase(it);
  }

 private:
  static constexpr double kWeightMin = 1e-6;
  static constexpr double kCreditMax = 100.0 * kMillisecond;
  struct SessionClock {
    double now = 0;
    int running = 0;
  };

  // A new session starts where the others stand. One that had nothing to run for a moment (it waits for a transfer,
  // say) keeps what it is owed, up to a limit: else sessions with gaps would get too little, and without a limit one
  // that comes back from a long pause would lock the others out.
  double Clock(SessionId session) const {
    auto it = clocks_.find(session);
    return it == clocks_.end() ? floor_ : std::max(floor_ - kCreditMax, it->second.now);
  }
  double Cost(const Candidate& launch, DurationNs run_ns) const {
    auto it = weights_.find(launch.session);
    const double weight = it == weights_.end() ? 1.0 : it->second;
    return static_cast<double>(run_ns) * static_cast<double>(launch.devices.size()) / weight;
  }
  size_t Charge(const std::vector<const Candidate*>& eligible, size_t index) {
    const Candidate& launch = *eligible[index];
    const double start = Clock(launch.session);
    floor_ = std::max(floor_, start);
    SessionClock& clock = clocks_[launch.session];
    clock.now = start + Cost(launch, launch.estimated_run_ns);
    ++clock.running;
    return index;
  }

  absl::flat_hash_map<SessionId, double> weights_;
  absl::flat_hash_map<SessionId, SessionClock> clocks_;
  double floor_ = 0;  // the clock of the last pick, before it
};

}  // namespace

std::unique_ptr<SchedulingPolicy> MakeClientOrderPolicy() { return std::make_unique<ClientOrderPolicy>(); }
std::unique_ptr<SchedulingPolicy> MakePriorityPolicy() { return std::make_unique<PriorityPolicy>(); }
std::unique_ptr<SchedulingPolicy> MakeSharePolicy(std::vector<std::pair<SessionId, double>> weights) {
  return std::make_unique<SharePolicy>(std::move(weights));
}

}  // namespace landbridge
