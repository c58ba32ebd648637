// One run of the whole control plane under one seed: a proxy (Controller and HolderLease), a resource manager, workers,
// clients that act at random, and faults; all production state machines, message by message, in virtual time.
//
// Checked: what scheduler.md (I1, I3-I9) and leases.md promise as far as one-worker slices go; every request is
// answered exactly once; every value read equals the oracle's, or is an error that a fault of that run explains;
// nothing is left when the sessions have ended; everything ends when faults stop.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cluster/holder_lease.h"
#include "cluster/worker_stream.h"
#include "controller/controller.h"
#include "resource_manager/resource_manager_core.h"
#include "sim/sim_worker.h"
#include "sim/world.h"

namespace landbridge::sim {

// What a seed stands for: sizes, fault rates.
Knobs KnobsOfSeed(uint64_t seed);

struct Outcome {
  std::vector<std::string> violations;  // empty: all rules kept
  uint64_t events = 0;
  uint64_t reads_ok = 0, reads_failed = 0, launches = 0, copies = 0, losses = 0, pulls = 0;
  uint64_t spans = 0, mails = 0;  // launches over several workers whose parts met; messages between workers
  DurationNs virtual_time = 0;
};

// Deterministic: same seed, same outcome.
Outcome RunSeed(uint64_t seed);
// `trace` (may be null) gets a line for each message and fault.
Outcome RunSeed(uint64_t seed, const Knobs& knobs, std::function<void(const std::string&)> trace = nullptr);

}  // namespace landbridge::sim
