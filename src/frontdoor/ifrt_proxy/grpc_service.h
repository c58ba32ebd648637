// The gRPC side: the server, and a class per kind of call; nothing about what they mean.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "controller/controller.h"
#include "dataplane/data_plane.h"
#include "frontdoor/ifrt_proxy/call.h"
#include "frontdoor/ifrt_proxy/host_buffers.h"
#include "frontdoor/ifrt_proxy/host_call_pipe.h"
#include "frontdoor/ifrt_proxy/session_pipe.h"
#include "frontdoor/ifrt_proxy/shared_directory.h"
#include "proto/ifrt_proxy/grpc_ifrt_service.grpc.pb.h"
#include "proto/landbridge/host_calls.grpc.pb.h"

namespace landbridge {

// What a client says of itself at the start of its session.
struct ClientHello {
  std::string peer;  // its host
  int protocol_version = 0;
  std::string shared_folder = {};  // see SharedDirectory
  SessionHints hints = {};
  bool reads_modules = false;         // takes OptimisedForm::kModule for the text of a program
  bool serializes = false;            // asks for programs to keep
  std::string host_calls_token = {};  // under which it will serve calls of its functions; empty: it will not
};

struct GrpcServiceHooks {
  // A client wants a session; from any thread. Its requests come through the pipe until `closed`.
  std::function<absl::StatusOr<std::shared_ptr<SessionPipe>>(ClientHello hello)> open;
  std::function<void(const std::shared_ptr<SessionPipe>&)> closed;
  std::function<void(RequestId)> release_read;
  // A client that serves calls of its functions; `token` is what its session announced. UNAUTHENTICATED when none did.
  std::function<absl::StatusOr<std::shared_ptr<HostCallPipe>>(const std::string& peer, const std::string& token)>
      serve_host_calls;
};

using IfrtService = xla::ifrt::proxy::GrpcIfrtService::WithRawMethod_HostBufferStore<
    xla::ifrt::proxy::GrpcIfrtService::WithRawMethod_HostBufferLookup<
        xla::ifrt::proxy::GrpcIfrtService::WithAsyncMethod_HostBufferReadFromDisk<
            xla::ifrt::proxy::GrpcIfrtService::WithAsyncMethod_HostBufferDelete<
                xla::ifrt::proxy::GrpcIfrtService::WithAsyncMethod_GetVersion<
                    xla::ifrt::proxy::GrpcIfrtService::WithAsyncMethod_IfrtSession<
                        xla::ifrt::proxy::GrpcIfrtService::Service>>>>>>;

using HostCallService = HostCalls::WithRawMethod_Serve<HostCalls::Service>;

// What calls need.
struct GrpcDoor {
  GrpcServiceHooks hooks;
  std::shared_ptr<HostBuffers> buffers;
  dataplane::DataPlane* data_plane = nullptr;
  std::shared_ptr<SharedDirectory> shared_directory;
  IfrtService service;
  HostCallService host_calls;
  CallCount calls;
};

// Thread-safety: Start and Stop from one owner.
class GrpcServer {
 public:
  // Listens on "host:port" (port 0: any free one). A message above `message_bytes_max` ends its call. FAILED_PRECONDITION when the port is taken.
  static absl::StatusOr<std::unique_ptr<GrpcServer>> Start(const std::string& listen_address, GrpcServiceHooks hooks,
                                                           std::shared_ptr<HostBuffers> buffers,
                                                           dataplane::DataPlane* data_plane,
                                                           std::shared_ptr<SharedDirectory> shared_directory,
                                                           int message_bytes_max);
  ~GrpcServer() { Stop(); }
  int port() const { return port_; }
  // Cancels all calls and joins the threads.
  void Stop();

 private:
  GrpcServer() = default;

  GrpcDoor door_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

// The host of a gRPC peer name: "ipv4:10.0.0.1:5000" -> "ipv4:10.0.0.1".
std::string PeerHost(const std::string& peer);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace landbridge
