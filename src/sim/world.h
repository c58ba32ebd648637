// Virtual time and chance of one simulation: a queue of events in one thread, one seed.
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/time.h"
#include "env/clock.h"

namespace landbridge::sim {

// Thread-safety: one thread.
class World {
 public:
  explicit World(uint64_t seed) : random_(seed * 2 + 1) {}

  TimeNs now() const { return now_; }
  SeededRandom& random() { return random_; }
  bool Chance(double probability) { return random_.NextUnit() < probability; }
  DurationNs Between(DurationNs low, DurationNs high) {
    return low + static_cast<DurationNs>(random_.NextBelow(static_cast<uint64_t>(high - low + 1)));
  }

  void After(DurationNs delay, std::function<void()> what) {
    queue_.push({now_ + delay, ++sequence_, std::move(what)});
  }

  // Runs until the time, or until something broke. False when nothing is left.
  bool RunUntil(TimeNs until) {
    while (!queue_.empty() && queue_.top().at <= until && violations_.empty()) {
      // priority_queue gives const access only; the closure is moved out before pop.
      Event event = std::move(const_cast<Event&>(queue_.top()));
      queue_.pop();
      now_ = event.at;
      ++events_;
      event.what();
    }
    if (violations_.empty() && now_ < until) now_ = until;
    return !queue_.empty();
  }

  // `line()` is made only when somebody listens.
  void TraceTo(std::function<void(const std::string&)> trace) { trace_ = std::move(trace); }
  template <typename Line>
  void Trace(Line line) {
    if (trace_) trace_(absl::StrCat("at ", now_ / kMicrosecond, " us: ", line()));
  }

  // A broken rule. The first one ends the run.
  void Violation(std::string text) { violations_.push_back(absl::StrCat("at ", now_ / kMicrosecond, " us: ", text)); }
  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t events() const { return events_; }

 private:
  struct Event {
    TimeNs at;
    uint64_t sequence;
    std::function<void()> what;
    bool operator<(const Event& other) const {  // earliest on top; ties in the order of creation
      return at != other.at ? at > other.at : sequence > other.sequence;
    }
  };
  TimeNs now_ = kSecond;
  uint64_t sequence_ = 0;
  uint64_t events_ = 0;
  SeededRandom random_;
  std::priority_queue<Event> queue_;
  std::vector<std::string> violations_;
  std::function<void(const std::string&)> trace_;
};

}  // namespace landbridge::sim
