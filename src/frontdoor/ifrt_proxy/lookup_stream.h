// One HostBufferLookup call. Large results are pulled from the worker chunk by chunk while earlier chunks are on
// their way to the client: a few chunks of memory whatever the size.
#pragma once

#include <memory>

#include <grpcpp/grpcpp.h>

#include "dataplane/data_plane.h"
#include "frontdoor/ifrt_proxy/host_buffers.h"

namespace landbridge {

// Deletes itself at the end of the call.
grpc::ServerWriteReactor<grpc::ByteBuffer>* NewLookupStream(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            std::shared_ptr<HostBuffers> buffers,
                                                            dataplane::DataPlane* data_plane);

}  // namespace landbridge
