// One HostBufferStore call: raw messages copied into the upload as they come, read only while there is room.
#pragma once

#include "frontdoor/ifrt_proxy/grpc_service.h"

namespace landbridge {

// Both outlive all calls. The call that comes next listens again.
void ListenForStores(GrpcDoor* door, Lane* lane);

}  // namespace landbridge
