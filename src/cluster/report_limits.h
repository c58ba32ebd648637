// How often whole states of large clusters are looked at and told.
#pragma once

#include <cstddef>

#include "base/time.h"

namespace landbridge::limits {

// Reports and updates between proxy and resource manager name every slice. While there are no more than so many, each
// event is told at once; above, events share one: pauses of this length per slice keep their cost below a few per cent.
constexpr size_t kSlicesToldAtEachEventMax = 64;
constexpr DurationNs kPausePerSliceTold = 10 * kMicrosecond;

}  // namespace landbridge::limits

namespace landbridge {

// Whether so many slices may be looked at, or told of, now; they last were at `last`.
inline bool MayTellSlices(size_t slices, TimeNs last, TimeNs now) {
  return slices <= limits::kSlicesToldAtEachEventMax || now - last >= static_cast<DurationNs>(slices) * limits::kPausePerSliceTold;
}

}  // namespace landbridge
