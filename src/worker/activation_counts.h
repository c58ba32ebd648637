// Forward launches of pipelines without their backward one, per device and session: what activations a device holds.
// One forward and one backward launch per micro-batch and device. What is dropped counts like what is placed, since its
// counterpart is dropped too.
//
// Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "worker/sequencer.h"

namespace landbridge {

class ActivationCounts {
 public:
  void Count(const Candidate& launch) {
    if (launch.phase == Phase::kNone) return;
    for (uint32_t device : launch.devices) {
      int& alive = alive_[{launch.session, device}];
      alive = std::max(0, alive + (launch.phase == Phase::kForward ? 1 : -1));
      int& peak = peak_[device];
      peak = std::max(peak, alive);
    }
  }
  int alive(SessionId session, uint32_t device) const {
    auto it = alive_.find({session, device});
    return it == alive_.end() ? 0 : it->second;
  }
  int peak(uint32_t device) const {
    auto it = peak_.find(device);
    return it == peak_.end() ? 0 : it->second;
  }
  void Reset(SessionId session, uint32_t device) { alive_.erase({session, device}); }
  void Forget(SessionId session) {
    std::erase_if(alive_, [session](const auto& entry) { return entry.first.first == session; });
  }

 private:
  std::map<std::pair<SessionId, uint32_t>, int> alive_;
  std::map<uint32_t, int> peak_;
};

}  // namespace landbridge
