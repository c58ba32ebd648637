#include "frontdoor/ifrt_proxy/grpc_service.h"

#include <thread>
#include <utility>

#include "base/log.h"
#include "frontdoor/ifrt_proxy/lookup_stream.h"
#include "frontdoor/ifrt_proxy/shared_directory.h"
#include "frontdoor/ifrt_proxy/store_stream.h"
#include "frontdoor/ifrt_proxy/version.h"

namespace landbridge {

namespace proxy = xla::ifrt::proxy;

namespace {

constexpr char kSessionKey[] = "ifrt-proxy-grpc-ifrt-session-metadata-bin";

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace

std::string PeerHost(const std::string& peer) {
  if (peer.rfind("ipv4:", 0) != 0 && peer.rfind("ipv6:", 0) != 0) return peer.substr(0, peer.find(':'));
  return peer.substr(0, peer.rfind(':'));
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

GrpcService::GrpcService(GrpcServiceHooks hooks, std::shared_ptr<HostBuffers> buffers,
                         dataplane::DataPlane* data_plane, std::shared_ptr<SharedDirectory> shared_directory)
    : hooks_(std::move(hooks)), buffers_(std::move(buffers)), data_plane_(data_plane),
      shared_directory_(std::move(shared_directory)) {}

grpc::ServerUnaryReactor* GrpcService::GetVersion(grpc::CallbackServerContext* context,
                                                  const proxy::GrpcGetVersionRequest* request,
                                                  proxy::GrpcGetVersionResponse* response) {
  absl::StatusOr<proxy::IfrtProxyVersion> version = NegotiateVersion(*request);
  if (version.ok()) *response->mutable_version() = *version;
  return Answer(context, version.status());
}

grpc::Status GrpcService::IfrtSession(grpc::ServerContext* context,
                                      grpc::ServerReaderWriter<proxy::IfrtResponse, proxy::IfrtRequest>* stream) {
  auto header = context->client_metadata().find(kSessionKey);
  proxy::GrpcIfrtSessionMetadata metadata;
  if (header == context->client_metadata().end() ||
      !metadata.ParseFromArray(header->second.data(), static_cast<int>(header->second.size()))) {
    return ToGrpc(absl::InvalidArgumentError("IfrtSession without its metadata header"));
  }
  if (absl::Status status = CheckVersion(metadata.version()); !status.ok()) return ToGrpc(status);
  ClientHello hello{PeerHost(context->peer()), metadata.version().protocol_version(), ""};
  const auto& data = metadata.initialization_data().attributes();
  if (auto folder = data.find(kSharedFolderKey); folder != data.end()) {
    hello.shared_folder = folder->second.string_value();
    if (absl::Status status = SharedDirectory::CheckFolder(hello.shared_folder); !status.ok()) return ToGrpc(status);
  }
  absl::StatusOr<std::shared_ptr<SessionPipe>> opened = hooks_.open(std::move(hello));
  if (!opened.ok()) return ToGrpc(opened.status());
  const std::shared_ptr<SessionPipe> pipe = *std::move(opened);

  std::thread writer([&pipe, stream] {
    for (;;) {
      const auto batch = pipe->TakeResponses();
      if (batch.empty()) return;
      for (size_t i = 0; i < batch.size(); ++i) {
        grpc::WriteOptions options;
        if (i + 1 < batch.size()) options.set_buffer_hint();  // one packet for all
        if (!stream->Write(*batch[i], options)) {
          pipe->Close();
          return;
        }
      }
    }
  });
  while (pipe->WaitForRoom([context] { return context->IsCancelled(); })) {
    auto request = std::make_unique<proxy::IfrtRequest>();
    if (!stream->Read(request.get())) break;
    pipe->PushRequest(std::move(request));
  }
  pipe->Close();
  hooks_.closed(pipe);
  if (context->IsCancelled()) {
    writer.join();
    return grpc::Status::CANCELLED;
  }
  context->TryCancel();  // a writer that waits for a client who does not read would wait for ever
  writer.join();
  return grpc::Status::OK;
}

grpc::ServerReadReactor<grpc::ByteBuffer>* GrpcService::HostBufferStore(grpc::CallbackServerContext* context,
                                                                        grpc::ByteBuffer* response) {
  return NewStoreStream(context, response, buffers_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GrpcService::HostBufferLookup(grpc::CallbackServerContext* context,
                                                                          const grpc::ByteBuffer* request) {
  return NewLookupStream(context, request, buffers_, data_plane_);
}

grpc::ServerUnaryReactor* GrpcService::HostBufferReadFromDisk(grpc::CallbackServerContext* context,
                                                              const proxy::GrpcHostBufferReadFromDiskRequest* request,
                                                              proxy::GrpcHostBufferReadFromDiskResponse*) {
  const auto& metadata = request->metadata();
  const std::string peer = PeerHost(context->peer());
  absl::StatusOr<std::shared_ptr<const char>> bytes =
      shared_directory_->Map(metadata.session_id(), peer, metadata.handle(), metadata.buffer_size());
  if (!bytes.ok()) return Answer(context, bytes.status());
  return Answer(context, buffers_->StoreMapped(metadata.session_id(), peer, metadata.handle(), metadata.buffer_size(),
                                               *std::move(bytes)));
}

grpc::ServerUnaryReactor* GrpcService::HostBufferDelete(grpc::CallbackServerContext* context,
                                                        const proxy::GrpcHostBufferDeleteRequest* request,
                                                        proxy::GrpcHostBufferDeleteResponse*) {
  absl::StatusOr<HostBuffers::Result> result =
      buffers_->TakeResult(request->session_id(), PeerHost(context->peer()), request->handle());
  if (result.ok() && result->read.valid()) hooks_.release_read(result->read);
  return Answer(context, result.status());
}

}  // namespace landbridge
