#include "frontdoor/ifrt_proxy/host_call_stream.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontdoor/ifrt_proxy/host_call_pipe.h"

namespace landbridge {
namespace {

constexpr char kHostCallsKey[] = "landbridge-host-calls-bin";

// Thread-safety: events on the lane's thread; the pipe's calls from any, one of each kind at a time.
class HostCallStream final : public Call, private HostCallPipe::Stream {
 public:
  HostCallStream(GrpcDoor* door, Lane* lane) : door_(door), lane_(lane), stream_(&context_) {
    void* tag = BeginTag();
    door->host_calls.RequestServe(&context_, &stream_, lane->queue(), lane->queue(), tag);
  }

 private:
  ~HostCallStream() override {
    if (begun_) door_->calls.Remove();
  }

  void OnEvent(Event event, bool ok) override {
    switch (event) {
      case Event::kBegun: return Begin();
      case Event::kRead: return pipe_->OnRead(ok ? TakeFrame() : nullptr);
      case Event::kWritten: return pipe_->OnWritten(ok);
      case Event::kEnded:
        if (pipe_ != nullptr) pipe_->Close();
        return;
      case Event::kFinished: return;
    }
  }

  void Begin() {
    begun_ = true;
    door_->calls.Add();
    ListenForHostCalls(door_, lane_);
    auto header = context_.client_metadata().find(kHostCallsKey);
    absl::StatusOr<std::shared_ptr<HostCallPipe>> pipe =
        header == context_.client_metadata().end()
            ? absl::InvalidArgumentError("HostCalls.Serve without its metadata header")
            : door_->hooks.serve_host_calls(PeerHost(context_.peer()),
                                            std::string(header->second.data(), header->second.size()));
    if (!pipe.ok()) return stream_.Finish(ToGrpc(pipe.status()), NewTag(Event::kFinished));
    pipe_ = *std::move(pipe);
    pipe_->Send(ReadyFrame());
    pipe_->Start(this);
  }

  HostCallPipe::Frame TakeFrame() {
    std::vector<grpc::Slice> slices;
    if (!message_.Dump(&slices).ok()) return nullptr;
    auto frame = std::make_shared<std::string>();
    frame->reserve(message_.Length());
    for (const grpc::Slice& slice : slices) {
      frame->append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    }
    message_.Clear();
    return frame;
  }

  // HostCallPipe::Stream.
  void StartRead() override { stream_.Read(&message_, NewTag(Event::kRead)); }
  void StartWrite(const HostCallFrameOut& frame) override {
    using Body = std::shared_ptr<const std::string>;
    std::vector<grpc::Slice> slices = {grpc::Slice(frame.head)};
    if (frame.body != nullptr && !frame.body->empty()) {
      slices.emplace_back(
          const_cast<char*>(frame.body->data()), frame.body->size(),
          [](void* body) { delete static_cast<Body*>(body); }, new Body(frame.body));
    }
    stream_.Write(grpc::ByteBuffer(slices.data(), slices.size()), NewTag(Event::kWritten));
  }
  void Cancel() override { context_.TryCancel(); }
  void Finish() override {
    stream_.Finish(grpc::Status(grpc::StatusCode::CANCELLED, "The session has ended"), NewTag(Event::kFinished));
  }

  GrpcDoor* const door_;
  Lane* const lane_;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> stream_;
  std::shared_ptr<HostCallPipe> pipe_;
  grpc::ByteBuffer message_;
  bool begun_ = false;
};

}  // namespace

void ListenForHostCalls(GrpcDoor* door, Lane* lane) { new HostCallStream(door, lane); }

}  // namespace landbridge
