// One HostBufferLookup call. Large results are pulled from the worker chunk by chunk while earlier chunks are on
// their way to the client: a few chunks of memory whatever the size.
#pragma once

#include "frontdoor/ifrt_proxy/grpc_service.h"

namespace landbridge {

// Both outlive all calls. The call that comes next listens again.
void ListenForLookups(GrpcDoor* door, Lane* lane);

}  // namespace landbridge
