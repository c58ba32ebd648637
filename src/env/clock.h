// The world's time and chance behind two small interfaces, so that simulated ones exist.
#pragma once

#include <cstdint>
#include <string>

#include "base/time.h"

namespace landbridge {

// Thread-safety: Now may be called from any thread.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimeNs Now() = 0;  // monotonic; comparable only within one clock
};

Clock& MonotonicClock();

// Set by hand, for tests and the simulator. One thread.
class ManualClock : public Clock {
 public:
  explicit ManualClock(TimeNs now = 0) : now_(now) {}
  TimeNs Now() override { return now_; }
  void Advance(DurationNs by) { now_ += by; }

 private:
  TimeNs now_;
};

// Thread-safety: see each implementation.
class Random {
 public:
  virtual ~Random() = default;
  virtual uint64_t Next() = 0;  // uniform over all 64-bit numbers

  uint64_t NextBelow(uint64_t bound);  // uniform in [0, bound); bound > 0
  uint64_t NextNonZero();              // ids: 0 means "none"
  double NextUnit();                   // uniform in [0, 1)
  std::string NextBytes(size_t size);
};

// The kernel's random numbers; for incarnations and secrets. Any thread.
Random& SystemRandom();

// Reproducible (SplitMix64). One thread.
class SeededRandom : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override;

 private:
  uint64_t state_;
};

}  // namespace landbridge
