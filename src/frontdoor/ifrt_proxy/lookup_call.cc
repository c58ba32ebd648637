#include "frontdoor/ifrt_proxy/lookup_call.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/limits.h"

namespace landbridge {
namespace {

namespace proxy = xla::ifrt::proxy;

// `bytes data = 1` around bytes that somebody else owns.
grpc::ByteBuffer Wrap(const char* data, size_t size, std::shared_ptr<const void> owner) {
  uint8_t header[11];
  size_t used = 0;
  if (size > 0) {
    header[used++] = 0x0a;
    uint64_t left = size;
    do {
      header[used] = static_cast<uint8_t>(left & 0x7f);
      left >>= 7;
      if (left != 0) header[used] |= 0x80;
      ++used;
    } while (left != 0);
  }
  std::vector<grpc::Slice> slices;
  slices.emplace_back(header, used);
  if (size > 0) {
    auto* hold = new std::shared_ptr<const void>(std::move(owner));
    slices.emplace_back(
        const_cast<char*>(data), size, [](void* p) { delete static_cast<std::shared_ptr<const void>*>(p); }, hold);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

class LookupCall;

// The transfer, which outlives the call while pulls are open.
//
// Thread-safety: any thread. What the state says to do is done after the lock is released: gRPC may run
// destructors of slices inside StartWrite.
class Transfer : public std::enable_shared_from_this<Transfer> {
 public:
  Transfer(HostBuffers::Result source, std::shared_ptr<HostBuffers> buffers, dataplane::DataPlane* data_plane,
           LookupCall* stream)
      : source_(std::move(source)), buffers_(std::move(buffers)), data_plane_(data_plane), stream_(stream) {}

  void Pump();
  void OnWriteDone(bool ok);
  void OnCancel();

 private:
  struct Part {
    uint64_t offset = 0;
    size_t size = 0;
    std::shared_ptr<char> memory;
    bool ready = false;
    dataplane::PullId pull;
  };
  void OnPulled(uint64_t offset, const absl::Status& status);
  void CancelPulls();
  // The next chunk to be pulled, if there is one and room for it.
  Part NextPull() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartPull(const Part& pull);
  void OnChunkFreed();

  const HostBuffers::Result source_;
  const std::shared_ptr<HostBuffers> buffers_;
  dataplane::DataPlane* const data_plane_;
  LookupCall* const stream_;  // valid until Finish was called

  absl::Mutex mutex_;
  std::deque<Part> parts_ ABSL_GUARDED_BY(mutex_);  // being pulled or ready, in order
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;      // bytes
  size_t alive_ ABSL_GUARDED_BY(mutex_) = 0;        // chunks; a written one lives until the socket has taken it
  uint64_t written_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

// Thread-safety: events on the lane's thread; Write and Finish on any, as the transfer says.
class LookupCall final : public Call {
 public:
  LookupCall(GrpcDoor* door, Lane* lane) : door_(door), lane_(lane), writer_(&context_) {
    void* tag = BeginTag();
    door->service.RequestHostBufferLookup(&context_, &request_, &writer_, lane->queue(), lane->queue(), tag);
  }

  void Write(const grpc::ByteBuffer& message) { writer_.Write(message, NewTag(Event::kWritten)); }
  void Finish(const absl::Status& status) { writer_.Finish(ToGrpc(status), NewTag(Event::kFinished)); }

 private:
  ~LookupCall() override {
    if (begun_) door_->calls.Remove();
  }

  void OnEvent(Event event, bool ok) override {
    switch (event) {
      case Event::kBegun: return Begin();
      case Event::kWritten: return transfer_->OnWriteDone(ok);
      case Event::kEnded:
        if (transfer_ != nullptr && context_.IsCancelled()) transfer_->OnCancel();
        return;
      case Event::kRead:
      case Event::kFinished: return;
    }
  }

  void Begin() {
    begun_ = true;
    door_->calls.Add();
    ListenForLookups(door_, lane_);
    proxy::GrpcHostBufferLookupRequest message;
    if (!grpc::SerializationTraits<proxy::GrpcHostBufferLookupRequest>::Deserialize(&request_, &message).ok()) {
      return Finish(absl::InvalidArgumentError("HostBufferLookup got a message that it cannot decode"));
    }
    absl::StatusOr<HostBuffers::Result> result =
        door_->buffers->FindResult(message.session_id(), PeerHost(context_.peer()), message.handle());
    if (!result.ok()) return Finish(result.status());
    if (result->data != nullptr || result->bytes == 0) {
      const char* data = result->data != nullptr ? result->data->data() : nullptr;
      const size_t size = result->data != nullptr ? result->data->size() : 0;
      writer_.WriteAndFinish(Wrap(data, size, result->data), grpc::WriteOptions(), grpc::Status::OK,
                             NewTag(Event::kFinished));
      return;
    }
    transfer_ = std::make_shared<Transfer>(*std::move(result), door_->buffers, door_->data_plane, this);
    transfer_->Pump();
  }

  GrpcDoor* const door_;
  Lane* const lane_;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer_;
  grpc::ByteBuffer request_;
  std::shared_ptr<Transfer> transfer_;
  bool begun_ = false;
};

void Transfer::Pump() {
  const std::shared_ptr<Transfer> self = shared_from_this();  // Finish may end the stream, and its hold on us
  const uint64_t total = static_cast<uint64_t>(source_.bytes);
  for (;;) {
    Part pull, write;
    bool finish = false;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      if (finished_) return;
      if (!error_.ok()) {
        if (writing_) return;  // its end comes back here
        finish = finished_ = true;
        status = error_;
      } else if (!writing_ && !parts_.empty() && parts_.front().ready) {
        write = std::move(parts_.front());
        parts_.pop_front();
        writing_ = true;
      } else if (!writing_ && written_ == total) {
        finish = finished_ = true;
      } else if (pull = NextPull(); pull.memory == nullptr && error_.ok()) {
        return;
      }
    }
    if (finish) {
      if (!status.ok()) CancelPulls();
      return stream_->Finish(status);
    }
    if (write.memory != nullptr) {
      const char* data = write.memory.get();
      stream_->Write(Wrap(data, write.size, std::move(write.memory)));
      continue;
    }
    if (pull.memory != nullptr) StartPull(pull);
  }
}

Transfer::Part Transfer::NextPull() {
  const uint64_t total = static_cast<uint64_t>(source_.bytes);
  Part pull;
  if (asked_ == total || alive_ >= limits::kLookupChunksInFlightMax) return pull;
  pull.offset = asked_;
  pull.size = static_cast<size_t>(std::min<uint64_t>(limits::kTransferChunkBytes, total - asked_));
  dataplane::Pool::Lease lease = buffers_->pool().TryAcquire(pull.size);
  if (!lease) {
    error_ = absl::ResourceExhaustedError("No memory in the proxy to read an array");
    return pull;
  }
  char* raw = reinterpret_cast<char*>(lease.data());
  auto hold = std::make_shared<dataplane::Pool::Lease>(std::move(lease));  // a deleter must be copyable
  pull.memory = std::shared_ptr<char>(raw, [hold = std::move(hold), weak = weak_from_this()](char*) mutable {
    hold.reset();
    if (auto self = weak.lock()) self->OnChunkFreed();
  });
  ++alive_;
  asked_ += pull.size;
  parts_.push_back(pull);
  return pull;
}

void Transfer::StartPull(const Part& pull) {
  const dataplane::PullId id = data_plane_->Pull(
      source_.worker, {source_.space, source_.id}, pull.offset, pull.memory.get(), pull.size,
      [self = shared_from_this(), memory = pull.memory, offset = pull.offset](absl::Status done) mutable {
        memory.reset();
        self->OnPulled(offset, done);
      });
  absl::MutexLock lock(&mutex_);
  for (Part& part : parts_) {
    if (part.offset == pull.offset) part.pull = id;
  }
}

// Inside gRPC, which has sent the chunk: only asks for the next one. When that is here, Pump writes it.
void Transfer::OnChunkFreed() {
  Part pull;
  {
    absl::MutexLock lock(&mutex_);
    --alive_;
    if (finished_ || !error_.ok()) return;
    pull = NextPull();
    if (pull.memory == nullptr && error_.ok()) return;
  }
  if (pull.memory != nullptr) return StartPull(pull);
  Pump();  // there is no memory, and perhaps nobody else to say so
}

void Transfer::OnPulled(uint64_t offset, const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    for (Part& part : parts_) {
      if (part.offset != offset) continue;
      part.ready = status.ok();
      part.pull = dataplane::PullId();
    }
    if (!status.ok() && error_.ok()) error_ = status;
  }
  Pump();
}

void Transfer::OnWriteDone(bool ok) {
  {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && error_.ok()) error_ = absl::CancelledError("The client went away");
    written_ = asked_;
    for (const Part& part : parts_) written_ -= part.size;
  }
  Pump();
}

void Transfer::OnCancel() {
  {
    absl::MutexLock lock(&mutex_);
    if (error_.ok()) error_ = absl::CancelledError("The client went away");
  }
  Pump();
}

void Transfer::CancelPulls() {
  std::deque<Part> parts;  // their memory goes without the lock: it comes back to OnChunkFreed
  {
    absl::MutexLock lock(&mutex_);
    parts.swap(parts_);
  }
  for (const Part& part : parts) {
    if (part.pull.valid()) data_plane_->Cancel(part.pull, absl::CancelledError("The read was given up"));
  }
}

}  // namespace

void ListenForLookups(GrpcDoor* door, Lane* lane) { new LookupCall(door, lane); }

}  // namespace landbridge
