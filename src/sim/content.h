// What simulated buffers hold: real little arrays, so that every box that moves can be checked against an oracle.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "sharding/shape.h"

namespace landbridge::sim {

struct Content {
  Dims dims;
  std::vector<uint64_t> elements;  // row-major
  friend bool operator==(const Content&, const Content&) = default;
};

// The elements of `box`, packed.
inline Content Cut(const Content& whole, const IndexBox& box) {
  Content out;
  out.dims = box.dims();
  const int64_t count = box.Elements();
  out.elements.reserve(static_cast<size_t>(count));
  const size_t rank = whole.dims.size();
  Dims at = box.start;
  for (int64_t n = 0; n < count; ++n) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset = offset * whole.dims[d] + at[d];
    out.elements.push_back(whole.elements[static_cast<size_t>(offset)]);
    for (size_t d = rank; d-- > 0;) {
      if (++at[d] < box.limit[d]) break;
      at[d] = box.start[d];
    }
  }
  return out;
}

// The other way round.
inline void Paste(const Content& part, const IndexBox& box, Content* whole) {
  const size_t rank = whole->dims.size();
  Dims at = box.start;
  for (uint64_t element : part.elements) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset = offset * whole->dims[d] + at[d];
    whole->elements[static_cast<size_t>(offset)] = element;
    for (size_t d = rank; d-- > 0;) {
      if (++at[d] < box.limit[d]) break;
      at[d] = box.start[d];
    }
  }
}

inline Content Empty(absl::Span<const int64_t> dims) {
  Content out;
  out.dims.assign(dims.begin(), dims.end());
  uint64_t count = 1;
  for (int64_t d : dims) count *= static_cast<uint64_t>(d);
  out.elements.assign(count, 0);
  return out;
}

// The programs of the simulation: elementwise, one output, `constant` tells them apart.
inline uint64_t Combine(uint64_t constant, absl::Span<const uint64_t> arguments) {
  uint64_t out = constant * 0x9e3779b97f4a7c15u;
  for (uint64_t argument : arguments) out = (out ^ argument) * 0xbf58476d1ce4e5b9u + 0x1234567;
  return out;
}

}  // namespace landbridge::sim
