#include "frontdoor/ifrt_proxy/store_call.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace landbridge {
namespace {

namespace proxy = xla::ifrt::proxy;

constexpr char kStoreKey[] = "ifrt-proxy-grpc-host-buffer-store-metadata-bin";

// The parts of the one `bytes data = 1` in the message, without a copy when it is encoded the usual way. False: not
// a message of that type.
bool DataOf(const std::vector<grpc::Slice>& slices, std::vector<absl::string_view>* parts, std::string* copy) {
  size_t total = 0;
  for (const grpc::Slice& slice : slices) total += slice.size();
  if (total == 0) return true;
  const grpc::Slice& first = slices[0];
  if (first.size() >= 2 && first.begin()[0] == 0x0a) {
    uint64_t length = 0;
    size_t at = 1;
    bool complete = false;
    for (int shift = 0; at < first.size() && shift < 63; shift += 7) {
      const uint8_t byte = first.begin()[at++];
      length |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) {
        complete = true;
        break;
      }
    }
    if (complete && length == total - at) {
      for (size_t i = 0; i < slices.size(); ++i) {
        const size_t skip = i == 0 ? at : 0;
        if (slices[i].size() == skip) continue;
        parts->push_back({reinterpret_cast<const char*>(slices[i].begin()) + skip, slices[i].size() - skip});
      }
      return true;
    }
  }
  std::string flat;
  flat.reserve(total);
  for (const grpc::Slice& slice : slices) flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  proxy::GrpcHostBufferStoreRequest message;
  if (!message.ParseFromString(flat)) return false;
  *copy = std::move(*message.mutable_data());
  parts->push_back(*copy);
  return true;
}

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
    if (!message_.Dump(&slices).ok() || !DataOf(slices, &parts, &copy)) {
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
