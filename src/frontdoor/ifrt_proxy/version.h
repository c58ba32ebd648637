// Protocol versions: which we speak and which one a client gets.
//
// Thread-safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/ifrt_proxy/grpc_ifrt_service.pb.h"

namespace landbridge {

inline constexpr int kProtocolVersionMin = 15, kProtocolVersionMax = 25;
inline constexpr int kSerdesVersionMin = 0, kSerdesVersionMax = 5;

// min(ours, the client's) of both numbers; INVALID_ARGUMENT with all ranges when they do not meet. (A lower serdes
// version than necessary would make the client refuse every program.)
absl::StatusOr<xla::ifrt::proxy::IfrtProxyVersion> NegotiateVersion(
    const xla::ifrt::proxy::GrpcGetVersionRequest& request);

// What a session says that it was given.
absl::Status CheckVersion(const xla::ifrt::proxy::IfrtProxyVersion& version);

}  // namespace landbridge
