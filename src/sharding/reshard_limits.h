// Limits of reshard plans that are kept, and of bytes on their way. Every one is hit by a test. (How large one plan may
// be: kReshardPiecesMax in base/limits.h.)
#pragma once

#include <cstddef>
#include <cstdint>

namespace landbridge::limits {

constexpr size_t kReshardPlansMax = 1024;            // kept by the controller, and by each worker of a stream ...
constexpr size_t kReshardPlanPiecesMax = 2'000'000;  // ... with so many pieces, one plan at least

// Pieces whose place in the new shard is not one run come in chunks that are copied to their places.
constexpr int64_t kReshardStagedBytesMax = int64_t{64} << 20;  // such chunks on their way, in a worker
constexpr int64_t kReshardStagedChunkBytes = int64_t{4} << 20;
constexpr int64_t kReshardStagedFirstBytes = int64_t{64} << 10;  // the first: tells that the source is there

}  // namespace landbridge::limits
