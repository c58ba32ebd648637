// Bytes that clients send (uploads) and bytes that wait for clients (results), before and after the request that
// they belong to. Uploads stream: a worker pulls the first bytes while the last ones still arrive, and what all
// consumers have pulled is freed, so a transfer costs a few chunks whatever its size.
//
// An upload and the request that names it arrive in either order:
//
//     Store begins --> [unclaimed: small pool] --Claim--> [claimed] --Serve/Want--> pulled or handed over --> gone
//     Claim        --> [expected]  --Store begins------------^
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/ids.h"
#include "base/limits.h"
#include "controller/controller.h"
#include "dataplane/data_plane.h"
#include "dataplane/pool.h"
#include "frontdoor/ifrt_proxy/shared_directory.h"

namespace landbridge {

// Results of one session that lie in the proxy until the client fetches them. The largest single one, a string shard, fits.
constexpr size_t kSessionResultBytesMax = size_t{1} << 30;
static_assert(kSessionResultBytesMax >= limits::kStringArrayBytesMax);

// Thread-safety: any thread. Callbacks (resume, on_bytes) run on the thread that caused them, without locks held.
// Lives until all chunks and sources are gone (shared_ptr).
class HostBuffers : public std::enable_shared_from_this<HostBuffers> {
 public:
  struct Options {
    uint64_t space = 0;  // of the data-plane keys
    size_t store_pool_bytes = 0;
    // The bytes under `key` that WantBytes asked for, or why they will never be there. From any thread.
    std::function<void(uint64_t key, absl::StatusOr<std::string>)> on_bytes;
  };
  static std::shared_ptr<HostBuffers> Create(Options options, dataplane::DataPlane* data_plane);
  ~HostBuffers();

  // --- Sessions. `wire_id` is what host-buffer calls name; it cannot be guessed. `peer` is the host of the client.
  uint64_t OpenSession(SessionId session, std::string peer);
  // Everything that nobody claimed is dropped; Stores under way are drained; results go.
  void CloseSession(SessionId session);

  // --- Uploads, the client's side (gRPC threads).
  class Upload;
  using UploadPtr = std::shared_ptr<Upload>;
  // NOT_FOUND: no such session for this peer. ALREADY_EXISTS: the handle is taken. Sizes that cannot be are
  // accepted and drained; the array becomes an error.
  absl::StatusOr<UploadPtr> BeginStore(uint64_t wire_id, absl::string_view peer, uint64_t handle, int64_t size);
  // Copies; bytes that nobody wants (any more) are swallowed.
  void Append(const UploadPtr& upload, absl::string_view bytes);
  // Whether the next message may be read. False: resume is called later, once, from any thread.
  bool MayRead(const UploadPtr& upload, std::function<void()> resume);
  // The stream is over. The answer for the Store call; not OK when the size announced was not kept.
  absl::Status EndStore(const UploadPtr& upload, bool cancelled);
  // A file instead of a stream: its parts are read when they are asked for. Same errors as BeginStore.
  absl::Status StoreFile(uint64_t wire_id, absl::string_view peer, uint64_t handle, int64_t size, UploadedFilePtr file);

  // --- Uploads, the session's side (loop thread).
  struct Claimed {
    uint64_t key = 0;
    std::shared_ptr<const std::string> bytes;  // when they are all here and small
  };
  // Takes the upload out of the client's handles. `expected_bytes` is what the request makes of it; another size is
  // INVALID_ARGUMENT. The key is for good and never re-used.
  absl::StatusOr<Claimed> Claim(SessionId session, uint64_t handle, int64_t expected_bytes);
  // The same for bytes that the door itself consumes whatever the size is, up to `max_bytes`.
  absl::StatusOr<Claimed> ClaimWhole(SessionId session, uint64_t handle, size_t max_bytes);
  // Consumed without use (the request failed).
  void Discard(SessionId session, uint64_t handle);

  // --- What the controller wants of claimed uploads (loop thread). Unknown keys are ignored.
  // As ControllerSink::ServeHostBuffer: the first call says how many workers pull it.
  void Serve(uint64_t key, const std::vector<Incarnation>& workers);
  void WantBytes(uint64_t key);
  void Drop(uint64_t key);
  // A consumer will never pull the rest.
  void OnWorkerLost(Incarnation worker);

  // --- Results (answers to CopyToHostBuffer), until the client deletes them.
  struct Result {
    std::shared_ptr<const std::string> data;  // small ones; null: pull it
    Incarnation worker;
    uint64_t space = 0, id = 0;
    int64_t bytes = 0;
    RequestId read;  // to be released with it; invalid: nothing to release
  };
  absl::Status PutResult(SessionId session, uint64_t handle, Result result);
  absl::StatusOr<Result> FindResult(uint64_t wire_id, absl::string_view peer, uint64_t handle) const;
  // NOT_FOUND when absent.
  absl::StatusOr<Result> TakeResult(uint64_t wire_id, absl::string_view peer, uint64_t handle);

  struct Counts {
    size_t unclaimed = 0, expected = 0, claimed = 0, results = 0, parked_stores = 0;
    size_t bytes_held = 0;
  };
  Counts counts() const;
  // Memory of uploads and of results on their way to clients. Who takes how much is decided by the users.
  dataplane::Pool& pool() { return pool_; }

 private:
  class UploadSource;
  struct Session {
    SessionId id;
    uint64_t wire_id = 0;
    std::string peer;
    absl::flat_hash_map<uint64_t, UploadPtr> uploads;  // by the client's handle, until claimed and begun
    absl::flat_hash_map<uint64_t, Result> results;
    size_t result_bytes = 0;             // of results that lie here, in `data`
    absl::flat_hash_set<uint64_t> keys;  // claimed and not dropped
    size_t unclaimed_bytes = 0;          // held by uploads that nobody claimed
  };
  // What is to be done after the lock is released.
  struct Later;

  HostBuffers(Options options, dataplane::DataPlane* data_plane);
  void ConsumerIsGone(uint64_t key);
  Session* FindByWire(uint64_t wire_id, absl::string_view peer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Claimed> ClaimLocked(SessionId session, uint64_t handle, int64_t expected_bytes, size_t max_bytes,
                                      Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<UploadPtr> BeginLocked(uint64_t wire_id, absl::string_view peer, uint64_t handle, int64_t size,
                                        Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Room(const Upload& upload) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SetProvisional(Upload& upload, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Charge(Upload& upload, int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const UploadPtr& upload, const absl::Status& why, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const UploadPtr& upload, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerReads(const UploadPtr& upload, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerBytes(const UploadPtr& upload, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeOne(const UploadPtr& upload, Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WakeParked(Later& later) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::string> Gather(const Upload& upload) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AnswerFromFile(const UploadPtr& upload, uint64_t offset, uint64_t size, dataplane::ReadDone done, Later& later)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SourceRead(const UploadPtr& upload, uint64_t offset, uint64_t size, dataplane::ReadDone done);
  std::shared_ptr<char> NewChunk(const UploadPtr& upload, size_t bytes);
  void OnChunkFreed(const std::weak_ptr<Upload>& upload, size_t bytes);

  const Options options_;
  dataplane::DataPlane* const data_plane_;
  dataplane::Pool pool_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Session>> by_wire_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SessionId, Session*> by_id_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, UploadPtr> by_key_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<UploadPtr> parked_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_key_ ABSL_GUARDED_BY(mutex_) = 1;
  size_t bytes_held_ ABSL_GUARDED_BY(mutex_) = 0;   // of all uploads, chunks that peers still fetch included
  size_t provisional_ ABSL_GUARDED_BY(mutex_) = 0;  // messages that are being read
};

}  // namespace landbridge
