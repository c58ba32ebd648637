// Between the client's messages and our types. Everything that comes from the wire is checked here.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "controller/controller.h"
#include "proto/ifrt_proxy/ifrt.pb.h"
#include "proto/ifrt_proxy/types.pb.h"
#include "proto/xla/status.pb.h"
#include "sharding/sharding.h"

namespace landbridge::wire {

// Of the payloads only the user context travels: the client would show others raw. A code that does not exist becomes
// UNKNOWN.
tensorflow::StatusProto ToProto(const absl::Status& status);
absl::Status FromProto(const tensorflow::StatusProto& proto);

// All INVALID_ARGUMENT on failure.
absl::StatusOr<DType> ParseDType(const xla::ifrt::DTypeProto& proto);
absl::StatusOr<Dims> ParseDims(const xla::ifrt::ShapeProto& proto);
absl::StatusOr<std::vector<DeviceId>> ParseDevices(const xla::ifrt::DeviceListProto& proto);
absl::StatusOr<Sharding::Ptr> ParseSharding(const xla::ifrt::ShardingProto& proto);
absl::StatusOr<CopySemantics> ParseSemantics(xla::ifrt::proto::ArrayCopySemantics semantics);
// The sharding must be able to divide the shape.
absl::StatusOr<ArraySpec> ParseSpec(const xla::ifrt::ArraySpecProto& proto);
absl::StatusOr<ArraySpec> MakeSpec(const xla::ifrt::DTypeProto& dtype, const xla::ifrt::ShapeProto& shape,
                                   const xla::ifrt::ShardingProto& sharding);

void SetDType(DType dtype, xla::ifrt::DTypeProto* proto);
void SetDims(absl::Span<const int64_t> dims, xla::ifrt::ShapeProto* proto);
// HloSharding; shardings without a form of that kind as ConcreteEven or Concrete.
void SetSharding(const Sharding& sharding, xla::ifrt::ShardingProto* proto);

// Row-major layout text, e.g. "{1,0}" or "{1,0:E(4)}".
std::string DefaultLayoutText(DType dtype, size_t rank);

// Attribute maps have version number 0: clients refuse others.
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, absl::string_view value);
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, const char* value);
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, bool value);
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, int64_t value);
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, absl::Span<const int64_t> values);
void SetAttribute(xla::ifrt::AttributeMapProto* map, const std::string& key, float value);

}  // namespace landbridge::wire
