#include "frontdoor/ifrt_proxy/grpc_service.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "frontdoor/ifrt_proxy/host_call_stream.h"
#include "frontdoor/ifrt_proxy/lookup_call.h"
#include "frontdoor/ifrt_proxy/session_call.h"
#include "frontdoor/ifrt_proxy/shared_directory.h"
#include "frontdoor/ifrt_proxy/store_call.h"
#include "frontdoor/ifrt_proxy/version.h"

namespace landbridge {

namespace proxy = xla::ifrt::proxy;

namespace {

// What a stream may send ahead of being read. gRPC's own estimate grows to tens of megabytes on a fast path, and a
// Store that waits for its worker would fill them.
constexpr int kStreamWindowBytes = 1 << 20;

// A question with one answer. Traits: Request, Response, Listen (waits for the next one), Answer.
template <typename Traits>
class UnaryCall final : public Call {
 public:
  using Response = typename Traits::Response;
  static void Listen(GrpcDoor* door, Lane* lane) {
    auto* call = new UnaryCall(door, lane);
    void* tag = call->BeginTag();
    Traits::Listen(door->service, &call->context_, &call->request_, &call->writer_, lane->queue(), tag);
  }

 private:
  UnaryCall(GrpcDoor* door, Lane* lane) : door_(door), lane_(lane), writer_(&context_) {}
  ~UnaryCall() override {
    if (begun_) door_->calls.Remove();
  }

  void OnEvent(Event event, bool) override {
    if (event != Event::kBegun) return;
    begun_ = true;
    door_->calls.Add();
    Listen(door_, lane_);
    Response response;
    const absl::Status status = Traits::Answer(*door_, PeerHost(context_.peer()), request_, &response);
    if (status.ok()) {
      writer_.Finish(response, grpc::Status::OK, NewTag(Event::kFinished));
    } else {
      writer_.FinishWithError(ToGrpc(status), NewTag(Event::kFinished));
    }
  }

  GrpcDoor* const door_;
  Lane* const lane_;
  grpc::ServerAsyncResponseWriter<Response> writer_;
  typename Traits::Request request_;
  bool begun_ = false;
};

struct GetVersion {
  using Request = proxy::GrpcGetVersionRequest;
  using Response = proxy::GrpcGetVersionResponse;
  template <typename... Args>
  static void Listen(IfrtService& service, grpc::ServerContext* context, Request* request,
                     grpc::ServerAsyncResponseWriter<Response>* writer, grpc::ServerCompletionQueue* queue, void* tag) {
    service.RequestGetVersion(context, request, writer, queue, queue, tag);
  }
  static absl::Status Answer(GrpcDoor&, const std::string&, const Request& request, Response* response) {
    absl::StatusOr<proxy::IfrtProxyVersion> version = NegotiateVersion(request);
    if (version.ok()) *response->mutable_version() = *version;
    return version.status();
  }
};

struct ReadFromDisk {
  using Request = proxy::GrpcHostBufferReadFromDiskRequest;
  using Response = proxy::GrpcHostBufferReadFromDiskResponse;
  static void Listen(IfrtService& service, grpc::ServerContext* context, Request* request,
                     grpc::ServerAsyncResponseWriter<Response>* writer, grpc::ServerCompletionQueue* queue, void* tag) {
    service.RequestHostBufferReadFromDisk(context, request, writer, queue, queue, tag);
  }
  static absl::Status Answer(GrpcDoor& door, const std::string& peer, const Request& request, Response*) {
    const auto& metadata = request.metadata();
    absl::StatusOr<UploadedFilePtr> file =
        door.shared_directory->OpenUpload(metadata.session_id(), peer, metadata.handle(), metadata.buffer_size());
    if (!file.ok()) return file.status();
    return door.buffers->StoreFile(metadata.session_id(), peer, metadata.handle(), metadata.buffer_size(),
                                   *std::move(file));
  }
};

struct Delete {
  using Request = proxy::GrpcHostBufferDeleteRequest;
  using Response = proxy::GrpcHostBufferDeleteResponse;
  static void Listen(IfrtService& service, grpc::ServerContext* context, Request* request,
                     grpc::ServerAsyncResponseWriter<Response>* writer, grpc::ServerCompletionQueue* queue, void* tag) {
    service.RequestHostBufferDelete(context, request, writer, queue, queue, tag);
  }
  static absl::Status Answer(GrpcDoor& door, const std::string& peer, const Request& request, Response*) {
    absl::StatusOr<HostBuffers::Result> result = door.buffers->TakeResult(request.session_id(), peer, request.handle());
    if (result.ok() && result->read.valid()) door.hooks.release_read(result->read);
    return result.status();
  }
};

}  // namespace

std::string PeerHost(const std::string& peer) {
  if (peer.rfind("ipv4:", 0) != 0 && peer.rfind("ipv6:", 0) != 0) return peer.substr(0, peer.find(':'));
  return peer.substr(0, peer.rfind(':'));
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& listen_address, GrpcServiceHooks hooks,
                                                              std::shared_ptr<HostBuffers> buffers,
                                                              dataplane::DataPlane* data_plane,
                                                              std::shared_ptr<SharedDirectory> shared_directory,
                                                              int message_bytes_max) {
  std::unique_ptr<GrpcServer> made(new GrpcServer());
  GrpcDoor& door = made->door_;
  door.hooks = std::move(hooks);
  door.buffers = std::move(buffers);
  door.data_plane = data_plane;
  door.shared_directory = std::move(shared_directory);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(listen_address, grpc::InsecureServerCredentials(), &made->port_);
  builder.SetMaxReceiveMessageSize(message_bytes_max);
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a busy port is an error
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kStreamWindowBytes);
  // Notice a dead client host; never end an idle session, and never mind a client's own pings.
  const int keepalive_ms = static_cast<int>(limits::kClientKeepAlive / kMillisecond);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, keepalive_ms);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.RegisterService(&door.service);
  builder.RegisterService(&door.host_calls);
  // With one queue its thread is the one that polls: no hand-over to another. More pay where there are many cores.
  const int lanes = std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 8, 1, limits::kDoorThreadsMax);
  for (int i = 0; i < lanes; ++i) made->lanes_.push_back(std::make_unique<Lane>(builder.AddCompletionQueue()));
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr || made->port_ == 0) {
    made->server_.reset();
    return absl::FailedPreconditionError(
        absl::StrCat("cannot listen on ", listen_address,
                     ": the port is in use by another process, or the address is not one of this machine; choose "
                     "another one (port 0: any free)"));
  }
  for (const auto& lane : made->lanes_) {
    UnaryCall<GetVersion>::Listen(&door, lane.get());
    UnaryCall<ReadFromDisk>::Listen(&door, lane.get());
    UnaryCall<Delete>::Listen(&door, lane.get());
    ListenForSessions(&door, lane.get());
    ListenForStores(&door, lane.get());
    ListenForLookups(&door, lane.get());
    ListenForHostCalls(&door, lane.get());
    lane->Start();
  }
  return made;
}

void GrpcServer::Stop() {
  if (server_ != nullptr) {
    server_->Shutdown(std::chrono::system_clock::now());
    door_.calls.WaitForNone();  // none may ask a queue for anything when it has shut down
  }
  for (const auto& lane : lanes_) lane->Stop();
  server_.reset();
  lanes_.clear();
}

}  // namespace landbridge
