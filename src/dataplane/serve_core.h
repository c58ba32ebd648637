// The sending half of the data plane: published sources, peers' requests, who still reads what.
//
//   request --> waiting (key not published) --> queued --> reading (Source) --> ready --> sending --> gone
//
// Each request stands alone (key, range), so the source keeps no state per pull. Small requests have queues of
// their own. Reads of sources that make copies wait for a share of bounded staging memory, which a chunk holds until its
// peer has it. A key is quiescent when none of its requests is reading or sending.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "dataplane/actions.h"

namespace landbridge::dataplane {

// Thread-safety: none; a pure state machine. Events in, actions out (TakeActions), no clock.
class ServeCore {
 public:
  explicit ServeCore(PeerId self) : self_(self) {}

  // --- Commands.
  void Publish(const Key& key, std::shared_ptr<Source> source, PeerId allowed_peer);
  void Unpublish(const Key& key, const absl::Status& why, std::function<void()> quiescent);
  void CloseSpace(uint64_t space, const absl::Status& why, std::function<void()> quiescent);

  // --- From peers. `authorized` is the authorizer's answer for (peer, message.key).
  void OnRequest(PeerId peer, const Message& message, bool authorized);
  void OnForget(PeerId peer, PullId pull);

  // --- From sources and the transport.
  void OnReadDone(ServeId serve, absl::StatusOr<Chunk> chunk);
  void OnSent(ServeId serve, const absl::Status& status);

  // Drops the peer's requests; chunks on their way end by OnSent.
  void OnPeerDown(PeerId peer);

  // Shutdown: runs every outstanding quiescent, whatever sources still read.
  void ReleaseAll();

  Actions TakeActions();
  bool HasActions() const { return !actions_.empty() || (staging_freed_ && !staging_turn_.empty()); }

  uint64_t requests() const { return requests_.size(); }
  uint64_t waiting() const { return waiting_count_; }
  uint64_t sends() const { return sends_; }
  uint64_t bytes_staged() const { return bytes_staged_; }
  uint64_t keys() const { return published_.size(); }
  size_t tombstones() const { return tombstones_.size(); }

 private:
  enum class State : uint8_t { kWaiting, kQueued, kReading, kReady, kSending, kAbandoned };
  struct Request {
    PeerId peer;
    PullId pull;
    Key key;
    uint64_t offset = 0;
    uint64_t size = 0;
    uint64_t end = 0;
    State state = State::kWaiting;
    Chunk chunk;
    bool staged = false;  // counted in bytes_staged_
    bool small() const;
  };
  struct Published {
    std::shared_ptr<Source> source;
    PeerId allowed_peer;
    absl::flat_hash_set<ServeId> requests;  // beyond kWaiting
  };
  // One caller of Unpublish or CloseSpace; gone when the last of its requests is.
  struct Quiescence {
    std::function<void()> run;
    size_t open = 0;
  };
  struct Lane {
    std::deque<ServeId> ready;  // read, waiting for a send slot; ids of dropped requests are skipped
    size_t sends = 0;
  };
  struct Peer {
    absl::flat_hash_set<ServeId> requests;
    absl::flat_hash_map<PullId, absl::InlinedVector<ServeId, 4>> pulls;
    std::deque<ServeId> queued;  // waiting for a read slot
    std::deque<ServeId> copies;  // the same, of sources that copy: waiting for staging memory, too
    uint64_t bytes_staged = 0;
    bool waits_for_staging = false;  // in staging_turn_
    size_t reads = 0;
    Lane small;
    Lane bulk;
  };

  void Begin(ServeId id, Request& request);  // its key is published and it is allowed
  void PumpReads(PeerId peer);
  void StartReading(ServeId id, Request& request, Peer& peer);
  bool HasStagingRoom(const Peer& peer, uint64_t size) const;
  void PumpSends(PeerId peer);
  void Refuse(const Request& request, const absl::Status& why);
  void Drop(ServeId id);  // forgets a request in whatever state
  void AbandonOrDrop(ServeId id, Request& request);
  absl::Status Admit(const Request& request, const Published& published) const;
  const absl::Status* Tombstone(const Key& key) const;
  void Retire(const Key& key, const absl::Status& why, const std::shared_ptr<Quiescence>& quiescence);
  void RefuseWaiting(const Key& key, const absl::Status& why);
  void Bury(const Key& key, const absl::Status& why);

  const PeerId self_;
  absl::flat_hash_map<Key, Published> published_;
  absl::flat_hash_map<Key, absl::flat_hash_set<ServeId>> waiting_;
  absl::flat_hash_map<ServeId, Request> requests_;
  absl::flat_hash_map<ServeId, absl::InlinedVector<std::shared_ptr<Quiescence>, 1>> watchers_;
  absl::flat_hash_set<std::shared_ptr<Quiescence>> quiescences_;
  absl::flat_hash_map<PeerId, Peer> peers_;
  absl::flat_hash_map<Key, absl::Status> tombstones_;
  std::deque<Key> tombstone_order_;
  absl::flat_hash_map<uint64_t, absl::Status> closed_spaces_;
  std::deque<uint64_t> closed_space_order_;
  uint64_t waiting_count_ = 0;
  uint64_t sends_ = 0;
  uint64_t bytes_staged_ = 0;
  std::deque<PeerId> staging_turn_;
  bool staging_freed_ = false;  // since staging_turn_ was looked at
  uint64_t next_serve_ = 1;
  Actions actions_;
};

}  // namespace landbridge::dataplane
