#include "frontdoor/ifrt_proxy/store_stream.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "frontdoor/ifrt_proxy/grpc_service.h"

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

// Thread-safety: gRPC's callbacks and the buffers' resume come one at a time, except OnCancel.
class StoreStream final : public grpc::ServerReadReactor<grpc::ByteBuffer> {
 public:
  StoreStream(grpc::CallbackServerContext* context, std::shared_ptr<HostBuffers> buffers)
      : context_(context), buffers_(std::move(buffers)) {
    Start();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(ToGrpc(buffers_->EndStore(upload_, context_->IsCancelled())));
    std::vector<grpc::Slice> slices;
    std::vector<absl::string_view> parts;
    std::string copy;
    if (!message_.Dump(&slices).ok() || !DataOf(slices, &parts, &copy)) {
      buffers_->EndStore(upload_, /*cancelled=*/true).IgnoreError();  // the array hears of it
      return Finish(ToGrpc(absl::InvalidArgumentError("HostBufferStore got a message that it cannot decode")));
    }
    for (absl::string_view part : parts) buffers_->Append(upload_, part);
    message_.Clear();
    ReadOn();
  }

  void OnCancel() override {
    // A stream that waits for room is not being read and would not notice.
    if (upload_ != nullptr) buffers_->EndStore(upload_, /*cancelled=*/true).IgnoreError();
  }

  void OnDone() override { delete this; }

 private:
  void Start() {
    auto header = context_->client_metadata().find(kStoreKey);
    proxy::GrpcHostBufferStoreMetadata metadata;
    if (header == context_->client_metadata().end() ||
        !metadata.ParseFromArray(header->second.data(), static_cast<int>(header->second.size()))) {
      return Finish(ToGrpc(absl::InvalidArgumentError("HostBufferStore without its metadata header")));
    }
    absl::StatusOr<HostBuffers::UploadPtr> upload = buffers_->BeginStore(
        metadata.session_id(), PeerHost(context_->peer()), metadata.handle(), metadata.buffer_size());
    if (!upload.ok()) return Finish(ToGrpc(upload.status()));
    upload_ = *std::move(upload);
    ReadOn();
  }

  void ReadOn() {
    if (buffers_->MayRead(upload_, [this] { StartRead(&message_); })) StartRead(&message_);
  }

  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<HostBuffers> buffers_;
  HostBuffers::UploadPtr upload_;
  grpc::ByteBuffer message_;
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* NewStoreStream(grpc::CallbackServerContext* context,
                                                          grpc::ByteBuffer* response,
                                                          std::shared_ptr<HostBuffers> buffers) {
  // The answer is an empty message: one empty slice.
  grpc::Slice nothing;
  *response = grpc::ByteBuffer(&nothing, 1);
  return new StoreStream(context, std::move(buffers));
}

}  // namespace landbridge
