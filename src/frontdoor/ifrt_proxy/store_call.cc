#include "frontdoor/ifrt_proxy/store_call.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "frontdoor/ifrt_proxy/store_message.h"

namespace landbridge {
namespace {

namespace proxy = xla::ifrt::proxy;

constexpr char kStoreKey[] = "ifrt-proxy-grpc-host-buffer-store-metadata-bin";

// Thread-safety: the lane's thread, except that the buffers' resume comes on any.
class StoreCall final : public Call {
 public:
  StoreCall(GrpcDoor* door, Lane* lane) : door_(door), lane_(lane), reader_(&context_) {
    void* tag = BeginTag();
    door->service.RequestHostBufferStore(&context_, &reader_, lane->queue(), lane->queue(), tag);
  }

 private:
  ~StoreCall() override {
    if (begun_) door_->calls.Remove();
  }

  void OnEvent(Event event, bool ok) override {
    switch (event) {
      case Event::kBegun: return Begin();
      case Event::kRead: return OnRead(ok);
      case Event::kEnded:
        // A stream that waits for room is not being read and would not notice.
        if (upload_ != nullptr && context_.IsCancelled()) {
          door_->buffers->EndStore(upload_, /*cancelled=*/true).IgnoreError();
        }
        return;
      case Event::kWritten:
      case Event::kFinished: return;
    }
  }

  void Begin() {
    begun_ = true;
    door_->calls.Add();
    ListenForStores(door_, lane_);
    auto header = context_.client_metadata().find(kStoreKey);
    proxy::GrpcHostBufferStoreMetadata metadata;
    if (header == context_.client_metadata().end() ||
        !metadata.ParseFromArray(header->second.data(), static_cast<int>(header->second.size()))) {
      return Finish(absl::InvalidArgumentError("HostBufferStore without its metadata header"));
    }
    absl::StatusOr<HostBuffers::UploadPtr> upload = door_->buffers->BeginStore(
        metadata.session_id(), PeerHost(context_.peer()), metadata.handle(), metadata.buffer_size());
    if (!upload.ok()) return Finish(upload.status());
    upload_ = *std::move(upload);
    ReadOn();
  }

  void OnRead(bool ok) {
    if (!ok) return Finish(door_->buffers->EndStore(upload_, context_.IsCancelled()));
    std::vector<grpc::Slice> slices;
    std::vector<absl::string_view> parts;
    std::string copy;
    if (!message_.Dump(&slices).ok() || !StoreMessageData(slices, &parts, &copy)) {
      door_->buffers->EndStore(upload_, /*cancelled=*/true).IgnoreError();  // the array hears of it
      return Finish(absl::InvalidArgumentError("HostBufferStore got a message that it cannot decode"));
    }
    for (absl::string_view part : parts) door_->buffers->Append(upload_, part);
    message_.Clear();
    ReadOn();
  }

  void ReadOn() {
    auto read = [this] { reader_.Read(&message_, NewTag(Event::kRead)); };
    if (door_->buffers->MayRead(upload_, read)) read();
  }

  void Finish(const absl::Status& status) {
    if (!status.ok()) return reader_.FinishWithError(ToGrpc(status), NewTag(Event::kFinished));
    // The answer is an empty message: one empty slice.
    grpc::Slice nothing;
    reader_.Finish(grpc::ByteBuffer(&nothing, 1), grpc::Status::OK, NewTag(Event::kFinished));
  }

  GrpcDoor* const door_;
  Lane* const lane_;
  grpc::ServerAsyncReader<grpc::ByteBuffer, grpc::ByteBuffer> reader_;
  HostBuffers::UploadPtr upload_;
  grpc::ByteBuffer message_;
  bool begun_ = false;
};

}  // namespace

void ListenForStores(GrpcDoor* door, Lane* lane) { new StoreCall(door, lane); }

}  // namespace landbridge
