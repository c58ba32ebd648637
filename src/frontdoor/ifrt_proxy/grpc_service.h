// The gRPC side: calls and streams of clients, and nothing about what they mean.
//
// Thread-safety: gRPC calls the methods from its own threads.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "absl/status/statusor.h"
#include "base/ids.h"
#include "dataplane/data_plane.h"
#include "frontdoor/ifrt_proxy/host_buffers.h"
#include "frontdoor/ifrt_proxy/session_pipe.h"
#include "frontdoor/ifrt_proxy/shared_directory.h"
#include "proto/ifrt_proxy/grpc_ifrt_service.grpc.pb.h"

namespace landbridge {

// What a client says of itself at the start of its session.
struct ClientHello {
  std::string peer;                    // its host
  int protocol_version = 0;
  std::string shared_folder;           // see SharedDirectory
};

struct GrpcServiceHooks {
  // A client wants a session; from any thread. Its requests come through the pipe until SessionClosed.
  std::function<absl::StatusOr<std::shared_ptr<SessionPipe>>(ClientHello hello)> open;
  std::function<void(const std::shared_ptr<SessionPipe>&)> closed;
  std::function<void(RequestId)> release_read;
};

using GrpcServiceBase = xla::ifrt::proxy::GrpcIfrtService::WithRawCallbackMethod_HostBufferStore<
    xla::ifrt::proxy::GrpcIfrtService::WithRawCallbackMethod_HostBufferLookup<
        xla::ifrt::proxy::GrpcIfrtService::WithCallbackMethod_HostBufferReadFromDisk<
            xla::ifrt::proxy::GrpcIfrtService::WithCallbackMethod_HostBufferDelete<
                xla::ifrt::proxy::GrpcIfrtService::WithCallbackMethod_GetVersion<
                    xla::ifrt::proxy::GrpcIfrtService::Service>>>>>;

class GrpcService final : public GrpcServiceBase {
 public:
  GrpcService(GrpcServiceHooks hooks, std::shared_ptr<HostBuffers> buffers, dataplane::DataPlane* data_plane,
              std::shared_ptr<SharedDirectory> shared_directory);

  grpc::ServerUnaryReactor* GetVersion(grpc::CallbackServerContext* context,
                                       const xla::ifrt::proxy::GrpcGetVersionRequest* request,
                                       xla::ifrt::proxy::GrpcGetVersionResponse* response) override;
  grpc::Status IfrtSession(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<xla::ifrt::proxy::IfrtResponse, xla::ifrt::proxy::IfrtRequest>* stream) override;
  grpc::ServerReadReactor<grpc::ByteBuffer>* HostBufferStore(grpc::CallbackServerContext* context,
                                                             grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* HostBufferLookup(grpc::CallbackServerContext* context,
                                                               const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* HostBufferReadFromDisk(
      grpc::CallbackServerContext* context, const xla::ifrt::proxy::GrpcHostBufferReadFromDiskRequest* request,
      xla::ifrt::proxy::GrpcHostBufferReadFromDiskResponse* response) override;
  grpc::ServerUnaryReactor* HostBufferDelete(grpc::CallbackServerContext* context,
                                             const xla::ifrt::proxy::GrpcHostBufferDeleteRequest* request,
                                             xla::ifrt::proxy::GrpcHostBufferDeleteResponse* response) override;

 private:
  const GrpcServiceHooks hooks_;
  const std::shared_ptr<HostBuffers> buffers_;
  dataplane::DataPlane* const data_plane_;
  const std::shared_ptr<SharedDirectory> shared_directory_;
};

// The host of a gRPC peer name: "ipv4:10.0.0.1:5000" -> "ipv4:10.0.0.1".
std::string PeerHost(const std::string& peer);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace landbridge
