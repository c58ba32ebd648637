// The gRPC call on which a client serves calls of its functions.
#pragma once

#include "frontdoor/ifrt_proxy/grpc_service.h"

namespace landbridge {

// Both outlive all calls. The call that comes next listens again.
void ListenForHostCalls(GrpcDoor* door, Lane* lane);

}  // namespace landbridge
