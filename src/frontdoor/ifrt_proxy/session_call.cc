#include "frontdoor/ifrt_proxy/session_call.h"

#include <memory>
#include <utility>

#include "frontdoor/ifrt_proxy/hints.h"
#include "frontdoor/ifrt_proxy/version.h"

namespace landbridge {
namespace {

namespace proxy = xla::ifrt::proxy;

constexpr char kReadsModulesKey[] = "landbridge_reads_modules";  // of a client's initialization data
constexpr char kSerializesKey[] = "landbridge_serializes";
constexpr char kHostCallsTokenKey[] = "landbridge_host_calls";
constexpr size_t kHostCallsTokenBytesMin = 16, kHostCallsTokenBytesMax = 256;
constexpr char kSessionKey[] = "ifrt-proxy-grpc-ifrt-session-metadata-bin";

class SessionCall final : public Call, private SessionPipe::Stream {
 public:
  SessionCall(GrpcDoor* door, Lane* lane) : door_(door), lane_(lane), stream_(&context_) {
    void* tag = BeginTag();
    door->service.RequestIfrtSession(&context_, &stream_, lane->queue(), lane->queue(), tag);
  }

 private:
  ~SessionCall() override {
    if (begun_) door_->calls.Remove();
  }

  void OnEvent(Event event, bool ok) override {
    switch (event) {
      case Event::kBegun: return Begin();
      case Event::kRead:
        if (pipe_->OnRead(ok ? std::move(request_) : nullptr)) lane_->AddQuiet(pipe_);
        return;
      case Event::kWritten: return pipe_->OnWritten(ok);
      case Event::kEnded:
        if (pipe_ != nullptr) pipe_->OnEnded();
        return;
      case Event::kFinished: return;
    }
  }

  void Begin() {
    begun_ = true;
    door_->calls.Add();
    ListenForSessions(door_, lane_);
    absl::StatusOr<std::shared_ptr<SessionPipe>> pipe = Open();
    if (!pipe.ok()) {
      stream_.Finish(ToGrpc(pipe.status()), NewTag(Event::kFinished));
      return;
    }
    pipe_ = *std::move(pipe);
    pipe_->Start(this);
  }

  absl::StatusOr<std::shared_ptr<SessionPipe>> Open() {
    auto header = context_.client_metadata().find(kSessionKey);
    proxy::GrpcIfrtSessionMetadata metadata;
    if (header == context_.client_metadata().end() ||
        !metadata.ParseFromArray(header->second.data(), static_cast<int>(header->second.size()))) {
      return absl::InvalidArgumentError("IfrtSession without its metadata header");
    }
    if (absl::Status status = CheckVersion(metadata.version()); !status.ok()) return status;
    absl::StatusOr<SessionHints> hints = ParseSessionHints(metadata.initialization_data());
    if (!hints.ok()) return hints.status();
    ClientHello hello{PeerHost(context_.peer()), metadata.version().protocol_version(), "", *hints};
    const auto& data = metadata.initialization_data().attributes();
    if (auto folder = data.find(kSharedFolderKey); folder != data.end()) {
      hello.shared_folder = folder->second.string_value();
      if (absl::Status status = SharedDirectory::CheckFolder(hello.shared_folder); !status.ok()) return status;
    }
    hello.reads_modules = data.contains(kReadsModulesKey);
    hello.serializes = data.contains(kSerializesKey);
    if (auto token = data.find(kHostCallsTokenKey); token != data.end()) {
      hello.host_calls_token = token->second.string_value();
      if (hello.host_calls_token.size() < kHostCallsTokenBytesMin ||
          hello.host_calls_token.size() > kHostCallsTokenBytesMax) {
        return absl::InvalidArgumentError("landbridge_host_calls in a client's initialization data is no token");
      }
    }
    return door_->hooks.open(std::move(hello));
  }

  // SessionPipe::Stream.
  void StartRead() override {
    request_ = pipe_->NewRequest();
    stream_.Read(request_->mutable_message(), NewTag(Event::kRead));
  }
  void StartWrite(const SessionPipe::Response& response, bool more_follows) override {
    grpc::WriteOptions options;
    if (more_follows) options.set_buffer_hint();  // one packet for all
    stream_.Write(response, options, NewTag(Event::kWritten));
  }
  void Cancel() override { context_.TryCancel(); }
  void Finish() override {
    door_->hooks.closed(pipe_);
    stream_.Finish(grpc::Status(grpc::StatusCode::CANCELLED, "The session has ended"), NewTag(Event::kFinished));
  }

  GrpcDoor* const door_;
  Lane* const lane_;
  grpc::ServerAsyncReaderWriter<proxy::IfrtResponse, proxy::IfrtRequest> stream_;
  std::shared_ptr<SessionPipe> pipe_;
  SessionPipe::RequestPtr request_;  // being read
  bool begun_ = false;
};

}  // namespace

void ListenForSessions(GrpcDoor* door, Lane* lane) { new SessionCall(door, lane); }

}  // namespace landbridge
