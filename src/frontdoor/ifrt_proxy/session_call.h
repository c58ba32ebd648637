// One IfrtSession call: a client's session for as long as its stream stands.
#pragma once

#include "frontdoor/ifrt_proxy/grpc_service.h"

namespace landbridge {

// Both outlive all calls. The call that comes next listens again.
void ListenForSessions(GrpcDoor* door, Lane* lane);

}  // namespace landbridge
