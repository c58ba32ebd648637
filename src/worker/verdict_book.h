// What has been decided about launches that are being withdrawn, and which are held until it is: the same for a sequencer and
// for the members of its slice.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "base/ids.h"
#include "base/verdict.h"

namespace landbridge {

class VerdictBook {
 public:
  // Launches below it are over everywhere.
  void TrimTo(Ticket horizon) {
    horizon_ = horizon;
    verdicts_.erase(verdicts_.begin(), verdicts_.lower_bound(horizon));
    held_.erase(held_.begin(), held_.lower_bound(horizon));
  }
  Ticket horizon() const { return horizon_; }

  // A question of `round` is to be asked about it, and a verdict of an earlier round holds no more. False: it is over, or
  // was decided for good, or in that round.
  bool Reopen(Ticket ticket, uint64_t round) {
    if (ticket < horizon_) return false;
    auto known = verdicts_.find(ticket);
    if (known == verdicts_.end()) return true;
    if (IsFinal(known->second.verdict) || known->second.round >= round) return false;
    verdicts_.erase(known);
    return true;
  }
  void Hold(Ticket ticket) { held_.insert(ticket); }
  void LetGo(Ticket ticket) { held_.erase(ticket); }
  bool Held(Ticket ticket) const { return held_.contains(ticket); }

  // False: it is over, or no news.
  bool Take(const LaunchVerdict& verdict) {
    if (verdict.ticket < horizon_) return false;
    auto known = verdicts_.find(verdict.ticket);
    if (known != verdicts_.end() && known->second.round >= verdict.round) return false;
    verdicts_[verdict.ticket] = verdict;
    held_.erase(verdict.ticket);
    return true;
  }
  const LaunchVerdict* Find(Ticket ticket) const {
    auto known = verdicts_.find(ticket);
    return known == verdicts_.end() ? nullptr : &known->second;
  }
  // It starts nowhere any more.
  bool Final(Ticket ticket) const {
    const LaunchVerdict* known = Find(ticket);
    return known != nullptr && IsFinal(known->verdict);
  }
  const absl::btree_map<Ticket, LaunchVerdict>& verdicts() const { return verdicts_; }
  size_t held() const { return held_.size(); }

 private:
  Ticket horizon_;
  absl::btree_map<Ticket, LaunchVerdict> verdicts_;
  absl::btree_set<Ticket> held_;
};

}  // namespace landbridge
