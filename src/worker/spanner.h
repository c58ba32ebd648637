// Numbers the launches that span slices: G = 1, 2, ... One per proxy (scheduler.md).
//
// A launch gets its G when every slice of it has reported it ready, and everything that it is conditional on has a G,
// or was withdrawn where that is enough. So nothing unready has a G, and a late launch blocks nobody. Sequencers append
// in the order of G; each Commit names the one before it on that slice.
//
// A new one numbers nothing before every slice has told it what it has seen. The controller tells the sequencers of it.
//
// Pure: no clock, lock or I/O. Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "worker/order_messages.h"

namespace landbridge {

class Spanner {
 public:
  // `slices`: all that are alive.
  Spanner(uint64_t epoch, const std::vector<SliceId>& slices, ToSequencers* sink);

  // One that was not there before; it reports like the others. Known ones are left alone.
  void AddSlice(SliceId slice) { slices_.try_emplace(slice); }

  void OnSliceReport(const SliceReport& message);
  void OnReady(const Ready& message);
  void OnWithdrawn(const WithdrawnAt& message);
  void OnHorizon(const HorizonAt& message);
  void OnSliceLost(SliceId slice);

  bool active() const { return active_; }
  uint64_t epoch() const { return epoch_; }
  uint64_t last_g() const { return last_g_; }
  size_t remembered() const { return launches_.size() + committed_.size() + withdrawn_.size() + waiting_on_.size(); }

 private:
  struct Slice {
    uint64_t epoch = 0;
    bool reported = false;
    uint64_t g_tail = 0;     // as reported
    uint64_t last_sent = 0;  // G of the last Commit, or g_tail
    Ticket horizon;
    std::vector<SliceReport::Placed> placed;  // until active
    uint64_t g_seen = 0;
  };
  struct Launch {
    std::vector<SliceId> slices;
    std::map<SliceId, std::vector<After>> ready;
    uint64_t g = 0;
  };

  void Activate();
  void Remember(const SliceReport::Placed& placed);
  void RepeatCommits(SliceId slice);
  void SendCommit(SliceId slice, Ticket ticket, uint64_t g);
  bool Satisfied(const After& after) const;
  void TryAssign(Ticket ticket);
  void Wake(Ticket ticket);
  void TryAgain();
  void Forget();

  const uint64_t epoch_;
  ToSequencers* const sink_;
  bool active_ = false;
  uint64_t last_g_ = 0;
  Ticket horizon_;  // highest that any slice has told: it is the controller's, and holds everywhere
  std::map<SliceId, Slice> slices_;
  // Until the horizon has passed them.
  std::map<Ticket, Launch> launches_;
  absl::btree_map<uint64_t, Ticket> committed_;  // by G
  absl::btree_set<Ticket> withdrawn_;
  absl::btree_map<Ticket, std::vector<Ticket>> waiting_on_;
  std::deque<Ticket> again_;  // of those: now
};

}  // namespace landbridge
