// What messages say, as the simulation's own types.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"
#include "sharding/shape.h"
#include "sim/content.h"
#include "worker/launch_args.h"

namespace landbridge::sim {

inline Dims ToDims(const google::protobuf::RepeatedField<int64_t>& field) { return Dims(field.begin(), field.end()); }

inline IndexBox ToBox(const Box& box, absl::Span<const int64_t> dims) {
  if (box.start_size() == 0 && box.limit_size() == 0) return IndexBox::Whole(dims);
  return {ToDims(box.start()), ToDims(box.limit())};
}

inline BufferRef ToRef(const BufferRefProto& ref) { return {ArrayId(ref.array()), ref.shard()}; }

// The argument of the launch's device `d`.
inline BufferRef ArgumentOf(const Launch& launch, const LaunchArg& arg, int d) {
  return arg.shards_size() > 0 ? ToRef(arg.shards(d)) : BufferRef{ArrayId(arg.array()), ShardOf(launch, d)};
}
inline BufferRef OutputOf(const Launch& launch, uint64_t output, int d) {
  return {ArrayId(output), ShardOf(launch, d)};
}

inline std::string Pack(const Content& content) {
  return std::string(reinterpret_cast<const char*>(content.elements.data()), content.elements.size() * 8);
}

}  // namespace landbridge::sim
