// Bytes that tests can recognise. For tests only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace landbridge::dataplane {

// The same for the same seed; different all over for another.
inline std::vector<std::byte> TestPattern(uint64_t size, uint64_t seed) {
  std::vector<std::byte> bytes(size);
  uint64_t x = seed * 0x9e3779b97f4a7c15u + 1;
  uint64_t i = 0;
  for (; i + 8 <= size; i += 8) {
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    std::memcpy(bytes.data() + i, &x, 8);
  }
  for (; i < size; ++i) bytes[i] = static_cast<std::byte>(seed + i);
  return bytes;
}

// Index of the first byte that is not `value`, or `size`.
inline uint64_t FirstOther(const std::byte* bytes, uint64_t size, std::byte value) {
  if (size == 0 || bytes[0] != value) return 0;
  // Every byte equals its neighbour: one pass at memcmp's speed.
  if (std::memcmp(bytes, bytes + 1, size - 1) == 0) return size;
  uint64_t i = 0;
  while (bytes[i] == value) ++i;
  return i;
}

}  // namespace landbridge::dataplane
