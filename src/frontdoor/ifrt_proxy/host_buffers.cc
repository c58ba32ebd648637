#include "frontdoor/ifrt_proxy/host_buffers.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"

namespace landbridge {
namespace {

constexpr uint64_t kChunk = limits::kTransferChunkBytes;
constexpr size_t kMessageBytes = 1u << 20;  // what stock clients send at once

uint64_t RandomId() {
  for (;;) {
    uint64_t words[2] = {0, 0};
    LB_CHECK(::getrandom(words, sizeof(words), 0) == static_cast<ssize_t>(sizeof(words)));
    const uint64_t id = words[0] ^ (words[1] * 0x9E3779B97F4A7C15ull);
    if (id != 0) return id;
  }
}

absl::Status UnknownSession() { return absl::NotFoundError("Unknown session for a host buffer"); }

}  // namespace

// One upload. All members under HostBuffers::mutex_.
class HostBuffers::Upload {
 public:
  struct ChunkEntry {
    std::shared_ptr<char> memory;  // null: freed
    size_t capacity = 0;
    uint64_t served = 0;  // bytes given to consumers, summed over them
  };
  struct PendingRead {
    uint64_t offset = 0, size = 0;
    dataplane::ReadDone done;
  };

  SessionId session;
  uint64_t handle = 0;
  uint64_t key = 0;
  int64_t size = -1;     // -1: not known yet
  size_t max_bytes = 0;  // whole ones only: limit for a size that is not known yet
  int64_t received = 0;
  bool begun = false, claimed = false, whole = false, complete = false;
  bool dropped = false;  // nobody wants the bytes (any more)
  absl::Status error;    // the bytes will never be there
  bool want_bytes = false, served = false;
  size_t consumers = 0;  // workers that pull the whole image, each once
  std::vector<Incarnation> workers;
  bool retain = false;             // a consumer went: who has read what is not known, so nothing is freed early
  std::vector<ChunkEntry> chunks;  // chunk i holds [i * kChunk, ...)
  UploadedFilePtr file;            // instead of chunks
  size_t held = 0;                 // bytes of chunks alive, also those that peers still fetch
  size_t provisional = 0;
  std::vector<PendingRead> reads;
  std::function<void()> resume;  // set while parked

  bool drains() const { return dropped || !error.ok(); }
  uint64_t ChunkBytes(size_t i) const { return std::min<uint64_t>(kChunk, static_cast<uint64_t>(size) - i * kChunk); }
};

struct HostBuffers::Later {
  std::vector<std::function<void()>> calls;
  std::vector<std::shared_ptr<const void>> garbage;  // memory and uploads: their deleters take the lock
  void Run() {
    for (auto& call : calls) call();
    calls.clear();
    garbage.clear();
  }
};

class HostBuffers::UploadSource : public dataplane::Source {
 public:
  UploadSource(std::shared_ptr<HostBuffers> owner, UploadPtr upload, uint64_t bytes)
      : owner_(std::move(owner)), upload_(std::move(upload)), bytes_(bytes) {}
  uint64_t size() const override { return bytes_; }
  void Read(uint64_t offset, uint64_t size, dataplane::ReadDone done) override {
    owner_->SourceRead(upload_, offset, size, std::move(done));
  }

 private:
  const std::shared_ptr<HostBuffers> owner_;
  const UploadPtr upload_;
  const uint64_t bytes_;
};

std::shared_ptr<HostBuffers> HostBuffers::Create(Options options, dataplane::DataPlane* data_plane) {
  return std::shared_ptr<HostBuffers>(new HostBuffers(std::move(options), data_plane));
}

HostBuffers::HostBuffers(Options options, dataplane::DataPlane* data_plane)
    : options_(std::move(options)),
      data_plane_(data_plane),
      pool_({.bytes_max = uint64_t{1} << 46, .idle_bytes_max = options_.store_pool_bytes, .chunk_bytes = kChunk}) {}

HostBuffers::~HostBuffers() = default;

// ---------------------------------------------------------------- sessions

uint64_t HostBuffers::OpenSession(SessionId session, std::string peer) {
  absl::MutexLock lock(&mutex_);
  uint64_t wire_id = RandomId();
  while (by_wire_.contains(wire_id)) wire_id = RandomId();
  auto entry = std::make_unique<Session>();
  entry->id = session;
  entry->wire_id = wire_id;
  entry->peer = std::move(peer);
  by_id_[session] = entry.get();
  by_wire_[wire_id] = std::move(entry);
  return wire_id;
}

void HostBuffers::CloseSession(SessionId session) {
  Later later;
  std::unique_ptr<Session> gone;
  {
    absl::MutexLock lock(&mutex_);
    auto it = by_id_.find(session);
    if (it == by_id_.end()) return;
    auto wire = by_wire_.find(it->second->wire_id);
    gone = std::move(wire->second);
    by_wire_.erase(wire);
    by_id_.erase(it);
    std::vector<UploadPtr> uploads;
    for (auto& [handle, upload] : gone->uploads) uploads.push_back(upload);
    for (uint64_t key : gone->keys) {
      auto found = by_key_.find(key);
      if (found != by_key_.end()) uploads.push_back(found->second);
    }
    for (const UploadPtr& upload : uploads) Forget(upload, later);
    later.garbage.push_back(std::make_shared<std::vector<UploadPtr>>(std::move(uploads)));
  }
  later.Run();
}

HostBuffers::Session* HostBuffers::FindByWire(uint64_t wire_id, absl::string_view peer) const {
  auto it = by_wire_.find(wire_id);
  if (it == by_wire_.end() || it->second->peer != peer) return nullptr;
  return it->second.get();
}

// ---------------------------------------------------------------- the client's side

absl::StatusOr<HostBuffers::UploadPtr> HostBuffers::BeginStore(uint64_t wire_id, absl::string_view peer,
                                                               uint64_t handle, int64_t size) {
  Later later;
  absl::StatusOr<UploadPtr> upload;
  {
    absl::MutexLock lock(&mutex_);
    upload = BeginLocked(wire_id, peer, handle, size, later);
  }
  later.Run();
  return upload;
}

absl::StatusOr<HostBuffers::UploadPtr> HostBuffers::BeginLocked(uint64_t wire_id, absl::string_view peer,
                                                                uint64_t handle, int64_t size, Later& later) {
  Session* session = FindByWire(wire_id, peer);
  if (session == nullptr) return UnknownSession();
  UploadPtr upload;
  auto it = session->uploads.find(handle);
  if (it != session->uploads.end()) {
    if (it->second->begun) {
      return absl::AlreadyExistsError(absl::StrCat("Host buffer ", handle, " is stored already"));
    }
    upload = it->second;
    session->uploads.erase(it);
  } else {
    if (session->uploads.size() >= limits::kHostBuffersPerSessionMax) {
      // Refusing it would cost the client its session: take the bytes and forget them.
      upload = std::make_shared<Upload>();
      upload->begun = true;
      upload->size = size;
      upload->dropped = true;
      return upload;
    }
    upload = std::make_shared<Upload>();
    upload->session = session->id;
    upload->handle = handle;
    session->uploads.emplace(handle, upload);
  }
  upload->begun = true;
  absl::Status bad;
  if (size < 0 || size > limits::kArrayBytesMax) {
    bad = absl::InvalidArgumentError(absl::StrCat("Host buffer ", handle, " announced ", size, " bytes; from 0 to ",
                                                  limits::kArrayBytesMax, " are possible"));
  } else if (upload->claimed && !upload->whole && size != upload->size) {
    bad =
        absl::InvalidArgumentError(absl::StrCat("Host buffer ", handle, " holds ", size,
                                                " bytes, but the array's shape, type and strides need ", upload->size));
  } else if (upload->claimed && upload->whole && static_cast<uint64_t>(size) > upload->max_bytes) {
    bad = absl::ResourceExhaustedError(absl::StrCat("Host buffer ", handle, " holds ", size, " bytes; the limit of a ",
                                                    "string shard is ", upload->max_bytes));
  }
  if (!bad.ok()) {
    if (upload->size < 0) upload->size = 0;
    Fail(upload, bad, later);
    return upload;
  }
  upload->size = size;
  return upload;
}

bool HostBuffers::Room(const Upload& upload) const {
  if (upload.drains() || upload.received >= upload.size) return true;
  if (upload.claimed && static_cast<uint64_t>(upload.size) <= limits::kInlineBytesMax) return true;
  if (upload.whole || upload.retain) return true;
  const size_t held = upload.held + upload.provisional;
  if (!upload.claimed) {
    if (held >= limits::kStoreWithoutDestinationBytesMax) return false;
    auto it = by_id_.find(upload.session);
    return it == by_id_.end() || it->second->unclaimed_bytes < limits::kSessionStorePoolBytesMax;
  }
  if (!upload.reads.empty()) {
    // Somebody waits for these very bytes: never starve it for bytes that nobody asks for yet.
    size_t ahead = limits::kStoreAheadBytesMax;
    for (const auto& read : upload.reads) ahead = std::max(ahead, static_cast<size_t>(read.size) + 2 * kChunk);
    return held < ahead;
  }
  return held < limits::kStoreAheadBytesMax && bytes_held_ + provisional_ < options_.store_pool_bytes;
}

// Bytes that count against the session while nobody has claimed the upload.
void HostBuffers::Charge(Upload& upload, int64_t bytes) {
  if (upload.claimed) return;
  auto it = by_id_.find(upload.session);
  if (it == by_id_.end()) return;
  it->second->unclaimed_bytes = static_cast<size_t>(static_cast<int64_t>(it->second->unclaimed_bytes) + bytes);
}

void HostBuffers::SetProvisional(Upload& upload, size_t bytes) {
  provisional_ = provisional_ - upload.provisional + bytes;
  Charge(upload, static_cast<int64_t>(bytes) - static_cast<int64_t>(upload.provisional));
  upload.provisional = bytes;
}

bool HostBuffers::MayRead(const UploadPtr& upload, std::function<void()> resume) {
  absl::MutexLock lock(&mutex_);
  SetProvisional(*upload, 0);
  if (Room(*upload)) {
    if (!upload->drains()) {
      SetProvisional(*upload, static_cast<size_t>(std::min<int64_t>(kMessageBytes, upload->size - upload->received)));
    }
    return true;
  }
  upload->resume = std::move(resume);
  parked_.insert(upload);
  return false;
}

std::shared_ptr<char> HostBuffers::NewChunk(const UploadPtr& upload, size_t bytes) {
  dataplane::Pool::Lease memory = pool_.TryAcquire(bytes);
  if (!memory) return nullptr;
  bytes_held_ += bytes;
  upload->held += bytes;
  Charge(*upload, static_cast<int64_t>(bytes));
  char* raw = reinterpret_cast<char*>(memory.data());
  auto lease = std::make_shared<dataplane::Pool::Lease>(std::move(memory));  // a deleter must be copyable
  return std::shared_ptr<char>(raw, [lease = std::move(lease), self = weak_from_this(),
                                     weak = std::weak_ptr<Upload>(upload), bytes](char*) mutable {
    lease.reset();
    if (auto buffers = self.lock()) buffers->OnChunkFreed(weak, bytes);
  });
}

void HostBuffers::OnChunkFreed(const std::weak_ptr<Upload>& weak, size_t bytes) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    bytes_held_ -= bytes;
    if (UploadPtr upload = weak.lock()) {
      upload->held -= bytes;
      Charge(*upload, -static_cast<int64_t>(bytes));
      WakeOne(upload, later);
      later.garbage.push_back(std::move(upload));
    }
    WakeParked(later);
  }
  later.Run();
}

void HostBuffers::Append(const UploadPtr& upload, absl::string_view bytes) {
  while (!bytes.empty()) {
    Later later;
    std::shared_ptr<char> memory;
    size_t at = 0, count = 0;
    {
      absl::MutexLock lock(&mutex_);
      SetProvisional(*upload, 0);
      if (upload->drains()) return;
      if (static_cast<uint64_t>(upload->size - upload->received) < bytes.size()) {
        Fail(upload,
             absl::InvalidArgumentError(absl::StrCat("Host buffer ", upload->handle, " sent more than the ",
                                                     upload->size, " bytes it announced")),
             later);
      } else {
        const size_t index = static_cast<size_t>(static_cast<uint64_t>(upload->received) / kChunk);
        at = static_cast<size_t>(static_cast<uint64_t>(upload->received) % kChunk);
        const size_t capacity = static_cast<size_t>(upload->ChunkBytes(index));
        if (index == upload->chunks.size()) {
          Upload::ChunkEntry entry;
          entry.capacity = capacity;
          entry.memory = NewChunk(upload, capacity);
          if (entry.memory == nullptr) {
            Fail(upload,
                 absl::ResourceExhaustedError(
                     absl::StrCat("No host memory in the proxy for host buffer ", upload->handle)),
                 later);
          } else {
            upload->chunks.push_back(std::move(entry));
          }
        }
        if (upload->error.ok()) {
          memory = upload->chunks[index].memory;
          count = std::min(bytes.size(), capacity - at);
        }
      }
    }
    later.Run();
    if (memory == nullptr) return;
    std::memcpy(memory.get() + at, bytes.data(), count);
    bytes.remove_prefix(count);
    {
      absl::MutexLock lock(&mutex_);
      if (!upload->drains()) {
        upload->received += static_cast<int64_t>(count);
        AnswerReads(upload, later);
      }
    }
    memory.reset();
    later.Run();
  }
}

absl::Status HostBuffers::EndStore(const UploadPtr& upload, bool cancelled) {
  Later later;
  absl::Status answer;
  {
    absl::MutexLock lock(&mutex_);
    SetProvisional(*upload, 0);
    if (!upload->drains() && upload->received != upload->size) {
      Fail(
          upload,
          absl::InvalidArgumentError(cancelled ? absl::StrCat("The client gave up sending host buffer ", upload->handle)
                                               : absl::StrCat("Host buffer ", upload->handle, " ended after ",
                                                              upload->received, " of ", upload->size, " bytes")),
          later);
      answer = upload->error;
    } else if (!upload->drains()) {
      upload->complete = true;
      AnswerBytes(upload, later);
    }
  }
  later.Run();
  return answer;
}

absl::Status HostBuffers::StoreFile(uint64_t wire_id, absl::string_view peer, uint64_t handle, int64_t size,
                                    UploadedFilePtr file) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    absl::StatusOr<UploadPtr> upload = BeginLocked(wire_id, peer, handle, size, later);
    if (!upload.ok()) return upload.status();
    if (!(*upload)->drains()) {
      (*upload)->file = std::move(file);
      (*upload)->received = size;
      (*upload)->complete = true;
      AnswerReads(*upload, later);
      AnswerBytes(*upload, later);
    }
    later.garbage.push_back(*std::move(upload));
  }
  later.Run();
  return absl::OkStatus();
}

// ---------------------------------------------------------------- the session's side

absl::StatusOr<HostBuffers::Claimed> HostBuffers::ClaimLocked(SessionId session, uint64_t handle,
                                                              int64_t expected_bytes, size_t max_bytes, Later& later) {
  const bool whole = expected_bytes < 0;
  auto owner = by_id_.find(session);
  if (owner == by_id_.end()) return UnknownSession();
  Session& s = *owner->second;
  UploadPtr upload;
  auto it = s.uploads.find(handle);
  if (it == s.uploads.end()) {
    if (s.uploads.size() >= limits::kHostBuffersPerSessionMax) {
      return absl::ResourceExhaustedError("Too many host buffers of the session are expected and not sent");
    }
    upload = std::make_shared<Upload>();
    upload->session = session;
    upload->handle = handle;
    upload->size = expected_bytes;
    s.uploads.emplace(handle, upload);
  } else {
    upload = it->second;
    if (upload->claimed) {
      return absl::InvalidArgumentError(absl::StrCat("Host buffer ", handle, " is used by another request already"));
    }
    s.uploads.erase(it);
    const int64_t size = upload->size;
    absl::Status bad = upload->error;
    if (bad.ok() && !whole && size != expected_bytes) {
      bad = absl::InvalidArgumentError(absl::StrCat("Host buffer ", handle, " holds ", size,
                                                    " bytes, but the array's shape, type and strides need ",
                                                    expected_bytes));
    }
    if (bad.ok() && whole && static_cast<uint64_t>(size) > max_bytes) {
      bad = absl::ResourceExhaustedError(
          absl::StrCat("Host buffer ", handle, " holds ", size, " bytes; the limit of a string shard is ", max_bytes));
    }
    if (!bad.ok()) {
      Forget(upload, later);
      later.garbage.push_back(std::move(upload));
      return bad;
    }
  }
  // From here on it does not count as unclaimed.
  Charge(*upload, -static_cast<int64_t>(upload->held + upload->provisional));
  upload->claimed = true;
  upload->whole = whole;
  upload->max_bytes = max_bytes;
  upload->key = next_key_++;
  Claimed result;
  result.key = upload->key;
  if (upload->complete && (whole || static_cast<uint64_t>(upload->size) <= limits::kInlineBytesMax)) {
    absl::StatusOr<std::string> bytes = Gather(*upload);
    Forget(upload, later);
    later.garbage.push_back(std::move(upload));
    WakeParked(later);
    if (!bytes.ok()) return bytes.status();
    result.bytes = std::make_shared<const std::string>(*std::move(bytes));
    return result;
  }
  by_key_.emplace(upload->key, upload);
  s.keys.insert(upload->key);
  WakeOne(upload, later);
  WakeParked(later);
  later.garbage.push_back(std::move(upload));
  return result;
}

absl::StatusOr<HostBuffers::Claimed> HostBuffers::Claim(SessionId session, uint64_t handle, int64_t expected_bytes) {
  Later later;
  absl::StatusOr<Claimed> claimed;
  {
    absl::MutexLock lock(&mutex_);
    claimed = ClaimLocked(session, handle, expected_bytes, 0, later);
  }
  later.Run();
  return claimed;
}

absl::StatusOr<HostBuffers::Claimed> HostBuffers::ClaimWhole(SessionId session, uint64_t handle, size_t max_bytes) {
  Later later;
  absl::StatusOr<Claimed> claimed;
  {
    absl::MutexLock lock(&mutex_);
    claimed = ClaimLocked(session, handle, -1, max_bytes, later);
  }
  later.Run();
  return claimed;
}

void HostBuffers::Discard(SessionId session, uint64_t handle) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    auto owner = by_id_.find(session);
    if (owner == by_id_.end()) return;
    Session& s = *owner->second;
    auto it = s.uploads.find(handle);
    UploadPtr upload;
    if (it != s.uploads.end()) {
      if (it->second->claimed) return;  // another request's
      upload = it->second;
      s.uploads.erase(it);
    } else {
      if (s.uploads.size() >= limits::kHostBuffersPerSessionMax) return;
      upload = std::make_shared<Upload>();  // its Store comes later and is drained
      upload->session = session;
      upload->handle = handle;
      upload->size = 0;
      s.uploads.emplace(handle, upload);
    }
    Forget(upload, later);
    Charge(*upload, -static_cast<int64_t>(upload->held + upload->provisional));
    upload->claimed = true;
    later.garbage.push_back(std::move(upload));
  }
  later.Run();
}

void HostBuffers::Serve(uint64_t key, const std::vector<Incarnation>& workers) {
  if (workers.empty()) return ConsumerIsGone(key);
  UploadPtr upload;
  uint64_t bytes = 0;
  {
    absl::MutexLock lock(&mutex_);
    auto it = by_key_.find(key);
    if (it == by_key_.end()) return;
    upload = it->second;
    for (Incarnation worker : workers) {
      if (worker.valid()) upload->workers.push_back(worker);
    }
    if (upload->served) return;
    upload->served = true;
    upload->consumers = workers.size();
    bytes = static_cast<uint64_t>(std::max<int64_t>(upload->size, 0));
  }
  dataplane::PublishOptions options;
  if (workers.size() == 1) options.allowed_peer = workers[0];
  data_plane_->Publish({options_.space, key}, std::make_shared<UploadSource>(shared_from_this(), upload, bytes),
                       options);
}

void HostBuffers::WantBytes(uint64_t key) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    auto it = by_key_.find(key);
    if (it == by_key_.end()) return;
    UploadPtr upload = it->second;
    upload->want_bytes = true;
    AnswerBytes(upload, later);
    later.garbage.push_back(std::move(upload));
  }
  later.Run();
}

void HostBuffers::Drop(uint64_t key) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    auto it = by_key_.find(key);
    if (it == by_key_.end()) return;
    UploadPtr upload = it->second;
    Forget(upload, later);
    later.garbage.push_back(std::move(upload));
  }
  later.Run();
}

// One of those that were to come: chunks are never used up.
void HostBuffers::ConsumerIsGone(uint64_t key) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    auto it = by_key_.find(key);
    if (it == by_key_.end()) return;
    it->second->retain = true;
    WakeOne(it->second, later);
  }
  later.Run();
}

void HostBuffers::OnWorkerLost(Incarnation worker) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [key, upload] : by_key_) {
      auto it = std::find(upload->workers.begin(), upload->workers.end(), worker);
      if (it == upload->workers.end()) continue;
      upload->workers.erase(it);
      upload->retain = true;
      WakeOne(upload, later);
    }
  }
  later.Run();
}

// ---------------------------------------------------------------- inside

// The bytes will never be there; who waits for them hears so.
void HostBuffers::Fail(const UploadPtr& upload, const absl::Status& why, Later& later) {
  if (!upload->error.ok()) return;
  upload->error = why;
  for (auto& chunk : upload->chunks) later.garbage.push_back(std::move(chunk.memory));
  upload->chunks.clear();
  AnswerReads(upload, later);
  AnswerBytes(upload, later);
  WakeOne(upload, later);
}

// Nobody wants the bytes (any more). A Store under way is drained, one that still comes too.
void HostBuffers::Forget(const UploadPtr& upload, Later& later) {
  if (upload->key != 0) {
    auto it = by_key_.find(upload->key);
    if (it != by_key_.end()) {
      later.garbage.push_back(it->second);
      by_key_.erase(it);
    }
    auto owner = by_id_.find(upload->session);
    if (owner != by_id_.end()) owner->second->keys.erase(upload->key);
  }
  if (upload->served) {
    later.calls.push_back([this, key = upload->key] {
      data_plane_->Unpublish({options_.space, key}, absl::FailedPreconditionError("The upload is not needed any more"));
    });
  }
  upload->dropped = true;
  for (auto& chunk : upload->chunks) later.garbage.push_back(std::move(chunk.memory));
  upload->chunks.clear();
  later.garbage.push_back(std::move(upload->file));
  AnswerReads(upload, later);
  WakeOne(upload, later);
}

void HostBuffers::AnswerReads(const UploadPtr& upload, Later& later) {
  if (upload->reads.empty()) return;
  std::vector<Upload::PendingRead> keep;
  for (auto& read : upload->reads) {
    if (upload->drains()) {
      absl::Status why =
          upload->dropped ? absl::FailedPreconditionError("The upload is not needed any more") : upload->error;
      later.calls.push_back([done = std::move(read.done), why] { done(why); });
      continue;
    }
    if (read.offset + read.size > static_cast<uint64_t>(upload->received)) {
      keep.push_back(std::move(read));
      continue;
    }
    if (upload->file != nullptr) {
      AnswerFromFile(upload, read.offset, read.size, std::move(read.done), later);
      continue;
    }
    dataplane::Chunk chunk;
    chunk.size = read.size;
    const size_t first = static_cast<size_t>(read.offset / kChunk);
    const size_t last = read.size == 0 ? first : static_cast<size_t>((read.offset + read.size - 1) / kChunk);
    bool gone = false;
    for (size_t i = first; i <= last && read.size > 0; ++i) {
      gone = gone || i >= upload->chunks.size() || upload->chunks[i].memory == nullptr;
    }
    if (gone) {
      later.calls.push_back([done = std::move(read.done)] {
        done(
            absl::AbortedError("The bytes of this upload were pulled before and are gone; the connection to the "
                               "worker broke in the middle of it"));
      });
      continue;
    }
    if (read.size > 0 && first == last) {
      chunk.data = upload->chunks[first].memory.get() + read.offset % kChunk;
      chunk.owner = upload->chunks[first].memory;
    } else {
      auto copy = std::make_shared<std::string>();
      copy->reserve(static_cast<size_t>(read.size));
      for (size_t i = first; i <= last && read.size > 0; ++i) {
        const uint64_t begin = std::max<uint64_t>(read.offset, i * kChunk) - i * kChunk;
        const uint64_t end = std::min<uint64_t>(read.offset + read.size, (i + 1) * kChunk) - i * kChunk;
        copy->append(upload->chunks[i].memory.get() + begin, static_cast<size_t>(end - begin));
      }
      chunk.data = copy->data();
      chunk.owner = std::move(copy);
    }
    later.calls.push_back([done = std::move(read.done), chunk] { done(chunk); });
    if (upload->retain) continue;
    for (size_t i = first; i <= last && read.size > 0; ++i) {
      auto& entry = upload->chunks[i];
      const uint64_t begin = std::max<uint64_t>(read.offset, i * kChunk);
      const uint64_t end = std::min<uint64_t>(read.offset + read.size, (i + 1) * kChunk);
      entry.served += end - begin;
      if (entry.served >= upload->ChunkBytes(i) * upload->consumers) later.garbage.push_back(std::move(entry.memory));
    }
  }
  upload->reads = std::move(keep);
}

// The part is read without the lock, by the thread that caused it: a data plane's, where bytes move anyway.
void HostBuffers::AnswerFromFile(const UploadPtr& upload, uint64_t offset, uint64_t size, dataplane::ReadDone done,
                                 Later& later) {
  std::shared_ptr<char> memory;
  if (size > 0 && size <= kChunk) memory = NewChunk(upload, static_cast<size_t>(size));
  if (size > 0 && memory == nullptr) {
    later.calls.push_back([done = std::move(done), handle = upload->handle] {
      done(absl::ResourceExhaustedError(absl::StrCat("No host memory in the proxy for host buffer ", handle)));
    });
    return;
  }
  later.calls.push_back(
      [done = std::move(done), upload, file = upload->file, memory = std::move(memory), offset, size, this]() mutable {
        if (absl::Status read = file->Read(offset, memory.get(), static_cast<size_t>(size)); !read.ok()) {
          memory.reset();
          Later after;
          {
            absl::MutexLock lock(&mutex_);
            Fail(upload, read, after);
          }
          after.Run();
          return done(read);
        }
        dataplane::Chunk chunk;
        chunk.size = size;
        chunk.data = memory.get();
        chunk.owner = std::move(memory);
        done(std::move(chunk));
      });
}

void HostBuffers::AnswerBytes(const UploadPtr& upload, Later& later) {
  if (!upload->want_bytes || upload->dropped || (!upload->complete && upload->error.ok())) return;
  upload->want_bytes = false;
  absl::StatusOr<std::string> bytes(std::string{});
  if (upload->error.ok()) {
    bytes = Gather(*upload);
  } else {
    bytes = upload->error;
  }
  later.calls.push_back(
      [this, key = upload->key, bytes = std::move(bytes)]() mutable { options_.on_bytes(key, std::move(bytes)); });
  UploadPtr hold = upload;
  Forget(hold, later);
  later.garbage.push_back(std::move(hold));
}

absl::StatusOr<std::string> HostBuffers::Gather(const Upload& upload) const {
  std::string bytes;
  if (upload.file != nullptr) {
    bytes.resize(static_cast<size_t>(upload.size));
    LB_RETURN_IF_ERROR(upload.file->Read(0, bytes.data(), bytes.size()));
    return bytes;
  }
  bytes.reserve(static_cast<size_t>(upload.size));
  for (size_t i = 0; i < upload.chunks.size(); ++i) {
    bytes.append(upload.chunks[i].memory.get(), static_cast<size_t>(upload.ChunkBytes(i)));
  }
  return bytes;
}

void HostBuffers::WakeOne(const UploadPtr& upload, Later& later) {
  if (!upload->resume || !Room(*upload)) return;
  if (!upload->drains()) {
    SetProvisional(*upload, static_cast<size_t>(std::min<int64_t>(kMessageBytes, upload->size - upload->received)));
  }
  later.calls.push_back(std::move(upload->resume));
  upload->resume = nullptr;
  later.garbage.push_back(upload);
  parked_.erase(upload);
}

void HostBuffers::WakeParked(Later& later) {
  if (parked_.empty()) return;
  const std::vector<UploadPtr> parked(parked_.begin(), parked_.end());
  for (const UploadPtr& upload : parked) WakeOne(upload, later);
  for (const UploadPtr& upload : parked) later.garbage.push_back(upload);
}

void HostBuffers::SourceRead(const UploadPtr& upload, uint64_t offset, uint64_t size, dataplane::ReadDone done) {
  Later later;
  {
    absl::MutexLock lock(&mutex_);
    const uint64_t total = static_cast<uint64_t>(std::max<int64_t>(upload->size, 0));
    if (offset > total || size > total - offset) {
      later.calls.push_back([done = std::move(done), offset, size, total] {
        done(absl::InvalidArgumentError(absl::StrCat("Bytes ", offset, "+", size, " of an upload that holds ", total)));
      });
    } else {
      upload->reads.push_back({offset, size, std::move(done)});
      AnswerReads(upload, later);
      WakeOne(upload, later);
    }
  }
  later.Run();
}

// ---------------------------------------------------------------- results

absl::Status HostBuffers::PutResult(SessionId session, uint64_t handle, Result result) {
  absl::MutexLock lock(&mutex_);
  auto it = by_id_.find(session);
  if (it == by_id_.end()) return UnknownSession();
  if (it->second->results.size() >= limits::kHostBuffersPerSessionMax) {
    return absl::ResourceExhaustedError("Too many results of the session wait to be fetched");
  }
  Session& owner = *it->second;
  const size_t bytes = result.data == nullptr ? 0 : result.data->size();
  if (bytes > kSessionResultBytesMax - owner.result_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("Results of ", owner.result_bytes, " bytes wait to be fetched, ",
                                                     bytes, " more would be above the session's limit of ",
                                                     kSessionResultBytesMax));
  }
  if (!owner.results.emplace(handle, std::move(result)).second) {
    return absl::InvalidArgumentError(absl::StrCat("Host buffer ", handle, " exists already"));
  }
  owner.result_bytes += bytes;
  return absl::OkStatus();
}

absl::StatusOr<HostBuffers::Result> HostBuffers::FindResult(uint64_t wire_id, absl::string_view peer,
                                                            uint64_t handle) const {
  absl::MutexLock lock(&mutex_);
  const Session* session = FindByWire(wire_id, peer);
  if (session == nullptr) return UnknownSession();
  auto it = session->results.find(handle);
  if (it == session->results.end()) return absl::NotFoundError(absl::StrCat("Unknown host buffer ", handle));
  return it->second;
}

absl::StatusOr<HostBuffers::Result> HostBuffers::TakeResult(uint64_t wire_id, absl::string_view peer, uint64_t handle) {
  absl::MutexLock lock(&mutex_);
  Session* session = FindByWire(wire_id, peer);
  if (session == nullptr) return UnknownSession();
  auto it = session->results.find(handle);
  if (it == session->results.end()) return absl::NotFoundError(absl::StrCat("Unknown host buffer ", handle));
  Result result = std::move(it->second);
  session->results.erase(it);
  if (result.data != nullptr) session->result_bytes -= result.data->size();
  return result;
}

HostBuffers::Counts HostBuffers::counts() const {
  absl::MutexLock lock(&mutex_);
  Counts counts;
  for (const auto& [wire_id, session] : by_wire_) {
    for (const auto& [handle, upload] : session->uploads) ++(upload->claimed ? counts.expected : counts.unclaimed);
    counts.results += session->results.size();
  }
  counts.claimed = by_key_.size();
  counts.parked_stores = parked_.size();
  counts.bytes_held = bytes_held_;
  return counts;
}

}  // namespace landbridge
