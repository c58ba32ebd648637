// How often whole states of large clusters are looked at and told.
#pragma once

#include <cstddef>

namespace landbridge::limits {

// Reports and updates between proxy and resource manager name every slice. While there are no more than so many, each
// event is told at once. Above, the next tick tells all: else one event per slice, each told with all slices, would take
// longer than a lease when a cluster comes up.
constexpr size_t kSlicesToldAtEachEventMax = 64;

}  // namespace landbridge::limits
