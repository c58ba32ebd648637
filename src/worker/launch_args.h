// Launch messages as they travel, made whole again: see controller/launch_args.h.
//
// Pure. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge {

// What the next launch of an executable may refer to: its previous one with a long argument list in this stream.
struct LaunchBase {
  std::vector<LaunchArg> args;
  std::vector<uint32_t> donated;
};

// Replaces differences from `base` by the arguments and outputs themselves, and brings `base` up to date.
// INVALID_ARGUMENT if they make no sense: then the launch names no arguments, and `base` is empty, since the two ends no
// longer agree.
absl::Status ExpandLaunch(LaunchBase* base, Launch* launch);

// The shard of arguments and outputs that belongs to device number `d` of the launch: of a part of one that spans workers
// those that are here, else all.
inline uint32_t ShardOf(const Launch& launch, int d) {
  return launch.has_span() ? launch.span().shards(d) : static_cast<uint32_t>(d);
}

// Of all its parts, ascending.
inline std::vector<SliceId> LogsOf(const LaunchSpan& span) {
  std::vector<SliceId> logs;
  for (const SpanWorker& worker : span.workers()) logs.emplace_back(static_cast<int32_t>(worker.log()));
  std::sort(logs.begin(), logs.end());
  return logs;
}

}  // namespace landbridge
