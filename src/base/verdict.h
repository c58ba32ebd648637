// What becomes of a launch that is withdrawn (scheduler.md, "Withdrawing"): said by the controller, obeyed by workers.
//
// Thread-safety: plain values.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace landbridge {

// How far a launch is on one worker. From its answer on, the worker starts nothing of it, and passes on nothing that it
// makes, until the verdict.
enum class PartState : uint8_t { kNotStarted, kStarted, kFinished };

struct PartAnswer {
  Ticket ticket;
  uint32_t member = 0;  // place of the worker in its slice
  PartState state = PartState::kNotStarted;
  bool bad_input = false;  // not started, and an input there is an error
};

enum class Verdict : uint8_t {
  kDrop,     // it starts nowhere
  kRelease,  // it goes on, or has ended: not withdrawn
  kFinish,   // it started: it ends everywhere, on stand-ins where an input is bad; all that it makes is poisoned
  kAbort,    // it started and cannot end: its collectives fail; what had finished before stays
};

inline bool IsFinal(Verdict verdict) { return verdict == Verdict::kDrop || verdict == Verdict::kAbort; }

struct LaunchVerdict {
  Ticket ticket;
  Verdict verdict = Verdict::kRelease;
  uint64_t round = 0;  // of questions that it answers; a later round may change a verdict
};

}  // namespace landbridge
