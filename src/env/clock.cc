#include "env/clock.h"

#include <sys/random.h>
#include <time.h>

#include <cerrno>
#include <cstring>

#include "absl/numeric/int128.h"
#include "base/log.h"
#include "base/split_mix.h"

namespace landbridge {
namespace {

class MonotonicClockImpl : public Clock {
 public:
  TimeNs Now() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return TimeNs{now.tv_sec} * kSecond + now.tv_nsec;
  }
};

class SystemRandomImpl : public Random {
 public:
  uint64_t Next() override {
    uint64_t value = 0;
    size_t have = 0;
    while (have < sizeof(value)) {
      ssize_t got = getrandom(reinterpret_cast<char*>(&value) + have, sizeof(value) - have, 0);
      if (got < 0) {
        LB_CHECK(errno == EINTR);
        continue;
      }
      have += static_cast<size_t>(got);
    }
    return value;
  }
};

}  // namespace

Clock& MonotonicClock() {
  static auto* clock = new MonotonicClockImpl;
  return *clock;
}

uint64_t Random::NextBelow(uint64_t bound) {
  // The high half of a 128-bit product; its bias is below bound / 2^64.
  return absl::Uint128High64(absl::uint128(Next()) * absl::uint128(bound));
}

uint64_t Random::NextNonZero() {
  uint64_t value = Next();
  while (value == 0) value = Next();
  return value;
}

double Random::NextUnit() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

std::string Random::NextBytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t at = 0; at < size; at += 8) {
    uint64_t word = Next();
    std::memcpy(bytes.data() + at, &word, std::min<size_t>(8, size - at));
  }
  return bytes;
}

Random& SystemRandom() {
  static auto* random = new SystemRandomImpl;
  return *random;
}

uint64_t SeededRandom::Next() {
  const uint64_t next = SplitMix(state_);
  state_ += kSplitMixStep;
  return next;
}

}  // namespace landbridge
