// A number from a number: one to one over 64 bits, and without any likeness between neighbours.
//
// Thread-safety: pure.
#pragma once

#include <cstdint>

namespace landbridge {

inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15u;

// What SplitMix64 (Steele et al. 2014) gives in state `x`; its next state is x + kSplitMixStep.
constexpr uint64_t SplitMix(uint64_t x) {
  x += kSplitMixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace landbridge
