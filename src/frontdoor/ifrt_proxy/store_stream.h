// One HostBufferStore call: raw messages copied into the upload as they come, read only while there is room.
#pragma once

#include <memory>

#include <grpcpp/grpcpp.h>

#include "frontdoor/ifrt_proxy/host_buffers.h"

namespace landbridge {

// Deletes itself at the end of the call.
grpc::ServerReadReactor<grpc::ByteBuffer>* NewStoreStream(grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response,
                                                          std::shared_ptr<HostBuffers> buffers);

}  // namespace landbridge
