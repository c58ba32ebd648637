// Little-endian integers in wire formats.
#pragma once

#include <cstddef>
#include <cstdint>

namespace landbridge::dataplane {

inline void PutInteger(std::byte*& at, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) *at++ = static_cast<std::byte>((value >> (8 * i)) & 0xff);
}

inline uint64_t GetInteger(const std::byte*& at, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(*at++) << (8 * i);
  return value;
}

}  // namespace landbridge::dataplane
