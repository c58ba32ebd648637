// What the machines that order launches beyond one worker tell each other: members (log_follower.h), the sequencer of
// their slice (slice_sequencer.h), the spanner (spanner.h), and the controller, which coordinates withdrawals.
//
// Between two processes messages arrive in order; they may come late and twice. Each names the epoch of the writer that
// it comes from or is for; places in the log number what a sequencer says, G what the spanner says.
//
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/verdict.h"
#include "worker/sequencer.h"

namespace landbridge {

// Something that must be in the log before a launch is.
struct After {
  Ticket ticket;
  bool data = false;  // it makes an input; else it reads what the launch donates, and may be withdrawn as well
  friend bool operator==(const After&, const After&) = default;
};

// Of one launch, as far as one slice is concerned.
struct LaunchFacts {
  Candidate candidate;            // `devices`: all of the slice that it runs on
  std::vector<uint32_t> members;  // ascending: workers of the slice that have a part of it
  std::vector<SliceId> slices;    // ascending; more than one: the spanner decides
  bool spans() const { return slices.size() > 1; }
};

// --- The order log of a slice.

struct OrderEntry {
  enum class Kind : uint8_t {
    kLaunch,
    kVoid,     // uses up its G
    kVerdict,  // on a launch that may lie before it, or nowhere
  };
  uint64_t place = 0;  // 1, 2, ...; goes on from epoch to epoch
  Kind kind = Kind::kLaunch;
  Ticket ticket;
  uint64_t g = 0;                 // kLaunch: 0 if it does not span slices
  LaunchVerdict verdict;          // kVerdict
  std::vector<uint32_t> devices;  // kLaunch
  std::vector<uint32_t> members;
  std::vector<SliceId> slices;
};

// --- Member -> sequencer.

// All that it waits for on this worker is there, but for places in the log.
struct Able {
  uint64_t epoch = 0;
  uint32_t member = 0;
  LaunchFacts launch;
  std::vector<After> after;
};
// Its part has left: it ran, or never will.
struct PartOver {
  uint64_t epoch = 0;
  uint32_t member = 0;
  Ticket ticket;
  bool good = false;
  DurationNs run_ns = 0;
};
struct FreezeAnswer {
  uint64_t epoch = 0;
  uint32_t member = 0;
  uint64_t round = 0;
  std::vector<PartAnswer> parts;  // of the launches that were asked for and have a part here
};
// Answers NewWriter: the log as far as it is here, and what would have been told to the old writer.
struct Tail {
  uint64_t epoch = 0;
  uint32_t member = 0;
  uint64_t first_place = 1;  // of `entries`; those before are over everywhere
  uint64_t g_before = 0;     // highest G among those
  std::vector<OrderEntry> entries;
  std::vector<PartOver> over;
  std::vector<Able> able;  // not in the log
};

// --- Sequencer -> member.

struct NewWriter {
  uint64_t epoch = 0;
};
struct Append {
  uint64_t epoch = 0;
  Ticket horizon;            // launches below it are over everywhere
  uint64_t first_place = 1;  // entries before it are over everywhere, and forgotten
  uint64_t g_before = 0;     // highest G among those
  std::vector<OrderEntry> entries;
};
struct FreezeParts {
  uint64_t epoch = 0;
  uint64_t round = 0;
  std::vector<Ticket> tickets;
};

// --- Sequencer -> spanner.

struct Ready {
  SliceId slice;
  uint64_t epoch = 0;
  uint64_t spanner_epoch = 0;
  Ticket ticket;
  std::vector<SliceId> slices;  // of the launch; empty: another one says it
  std::vector<After> after;     // spanning launches that are reported and not placed
};
struct WithdrawnAt {
  SliceId slice;
  uint64_t epoch = 0;
  uint64_t spanner_epoch = 0;
  Ticket ticket;
};
// Nothing that comes later names a launch below it.
struct HorizonAt {
  SliceId slice;
  uint64_t epoch = 0;
  uint64_t spanner_epoch = 0;
  Ticket horizon;
};
// The first message of a sequencer to a spanner; Ready reports follow anew.
struct SliceReport {
  struct Placed {
    Ticket ticket;
    uint64_t g = 0;
    std::vector<SliceId> slices;
  };
  SliceId slice;
  uint64_t epoch = 0;
  uint64_t spanner_epoch = 0;
  uint64_t g_tail = 0;  // highest in the log, as a launch or void
  uint64_t g_seen = 0;  // highest of all that ever arrived
  Ticket horizon;
  std::vector<Placed> placed;  // at or above the horizon
  std::vector<Ticket> withdrawn;
};

// --- Controller -> sequencer.

struct NewSpanner {
  uint64_t spanner_epoch = 0;
};

// --- Spanner -> sequencer.

struct Commit {
  uint64_t spanner_epoch = 0;
  uint64_t epoch = 0;  // of the slice's writer
  Ticket ticket;
  uint64_t g = 0;
  uint64_t previous_g = 0;  // the one before it on this slice; 0: none
};

// --- Sequencer -> coordinator. All members of the slice that are alive have answered.

struct Frozen {
  SliceId slice;
  uint64_t epoch = 0;
  uint64_t round = 0;
  std::vector<PartAnswer> parts;
};

using OrderMessage = std::variant<Able, PartOver, FreezeAnswer, Tail, NewWriter, Append, FreezeParts, Ready,
                                  WithdrawnAt, HorizonAt, SliceReport, NewSpanner, Commit, Frozen>;

// Carry messages away. Never call back.
class ToSequencers {
 public:
  virtual ~ToSequencers() = default;
  virtual void ToSequencer(SliceId slice, OrderMessage message) = 0;
};
class ToTheSpanner {
 public:
  virtual ~ToTheSpanner() = default;
  virtual void ToSpanner(OrderMessage message) = 0;
};
class OrderSink : public ToSequencers, public ToTheSpanner {
 public:
  virtual void ToMember(SliceId slice, uint32_t member, OrderMessage message) = 0;
  virtual void ToCoordinator(Frozen message) = 0;
};

}  // namespace landbridge
