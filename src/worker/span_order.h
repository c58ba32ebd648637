// When a launch that spans workers may have its place in this worker's log.
//
// All workers must start such launches in the same order, or two would wait for each other's parts. The controller
// numbers them; each names the one before it on this worker, and waits until that one has its place or never will. It
// also waits for every earlier launch on its devices: one of them may make what another part, on another worker, needs.
// So whatever the oldest launch waits for is done or on its way, and nothing here needs a message between workers. The
// price is that a late part holds up the launches that span after it; launches of one worker go past.
//
// Pure. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/ids.h"

namespace landbridge {

class SpanOrder {
 public:
  // Of one launch, as the controller numbers those that span workers.
  struct Place {
    uint64_t number = 0;
    uint64_t previous = 0;  // on this worker; 0: none
  };

  // `before`: earlier launches on its devices that have no place in the log yet.
  void Arrive(Ticket ticket, Place place, const std::vector<Ticket>& before);
  // Its turn has come.
  bool Ready(Ticket ticket) const;
  // A launch has its place in the log, or never will have one; `place` if it spans workers. Once for each.
  void OnLeft(Ticket ticket, const Place* place);
  // The controller says that this one will not come.
  void OnVoid(Place place);
  // Those whose turn came since the last call; each once.
  std::vector<Ticket> TakeReady();

  size_t waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    uint64_t previous = 0;
    absl::flat_hash_set<Ticket> before;
  };
  void Check(Ticket ticket);

  uint64_t head_ = 0;  // this one and all before it have left
  absl::flat_hash_map<uint64_t, uint64_t>
      left_after_;  // number by its previous one: left, but something before it has not
  absl::flat_hash_map<uint64_t, Ticket> by_previous_;  // of those that wait
  absl::flat_hash_map<Ticket, Waiting> waiting_;       // arrived and not left
  std::vector<Ticket> ready_;
};

}  // namespace landbridge
