// The receiving half of the data plane: pulls, their chunks, the window, the quarantine.
//
// Each pull asks for its first chunk; the source answers when it has it, so a pull that waits costs one message
// and no window. Then up to limits::kTransferChunksPerPullMax chunks are asked for. A chunk that the source
// holds ready (an *offer*) is fetched when the window has room: one chunk per pull in turn, one peer after the
// other. Small pulls take no part of the window, so bulk never holds them up.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "dataplane/actions.h"

namespace landbridge::dataplane {

// Thread-safety: none; a pure state machine. Events in, actions out (TakeActions), no clock.
class PullCore {
 public:
  explicit PullCore(PeerId self) : self_(self) {}

  // --- Commands.
  void Start(PullId pull, PeerId peer, const Key& key, uint64_t offset, void* dst, uint64_t size,
             std::function<void(absl::Status)> done);
  void Cancel(PullId pull, const absl::Status& why);

  // --- From peers.
  // A chunk inside a message: where to copy its `length` bytes *now* (then call nothing more), or null: drop.
  // `length` must be what was asked for.
  bool OnInlineData(PeerId peer, const Message& message, uint64_t length, void** dst);
  // Call after the copy.
  void OnInlineLanded(PeerId peer, const Message& message);
  void OnOffer(PeerId peer, const Message& message, uint64_t length, OfferId offer);
  void OnRefuse(PeerId peer, const Message& message, const absl::Status& why);
  void OnLanded(ReceiveId receive, const absl::Status& status);

  // The connection is broken or being closed. Offers of the peer are rejected by an action; receives end by
  // OnLanded. Pulls end with `why`.
  void OnPeerDown(PeerId peer, const absl::Status& why);

  Actions TakeActions() { return std::exchange(actions_, {}); }
  bool HasActions() const { return !actions_.empty(); }

  uint64_t pulls_open() const { return pulls_.size(); }
  uint64_t pulls_quarantined() const { return quarantined_; }
  uint64_t bytes_fetching() const { return bytes_fetching_; }

 private:
  enum class ChunkState : uint8_t { kRequested, kOffered, kReceiving };
  struct OpenChunk {
    uint64_t offset = 0;  // within the key
    uint64_t size = 0;
    ChunkState state = ChunkState::kRequested;
    OfferId offer;
    ReceiveId receive;
  };
  struct Pull {
    PeerId peer;
    Key key;
    uint64_t begin = 0;  // within the key
    uint64_t end = 0;
    char* dst = nullptr;
    uint64_t next = 0;  // first byte not asked for yet
    uint64_t landed = 0;
    bool small = false;
    bool queued = false;  // in its peer's turn queue
    absl::InlinedVector<OpenChunk, 4> chunks;
    absl::Status failure;  // not OK: quarantined until the receiving chunks have landed
    std::function<void(absl::Status)> done;
  };
  struct Peer {
    absl::flat_hash_set<PullId> pulls;
    std::deque<PullId> turn;  // bulk pulls with an offer, in turn
    uint64_t bytes_fetching = 0;
    bool queued = false;  // in peers_turn_
  };
  struct Receive {
    PullId pull;
    uint64_t offset = 0;
    uint64_t size = 0;
    bool small = false;
    PeerId peer;
  };

  void RequestMore(PullId id, Pull& pull);
  void Fail(PullId id, Pull& pull, const absl::Status& why, bool tell_source);
  void FinishIfComplete(PullId id, Pull& pull);
  void Finish(PullId id, absl::Status status);
  void Queue(PullId id, Pull& pull);
  void Schedule();
  void Receiving(PullId id, Pull& pull, OpenChunk& chunk);
  OpenChunk* FindRequested(Pull& pull, const Message& message, uint64_t length);
  Pull* FindPull(PeerId peer, PullId id);
  Message MakeMessage(MessageType type, PullId id, const Pull& pull) const;

  const PeerId self_;
  absl::flat_hash_map<PullId, Pull> pulls_;
  absl::flat_hash_map<PeerId, Peer> peers_;
  absl::flat_hash_map<ReceiveId, Receive> receives_;
  std::deque<PeerId> peers_turn_;
  uint64_t bytes_fetching_ = 0;
  uint64_t quarantined_ = 0;
  uint64_t next_receive_ = 1;
  Actions actions_;
};

}  // namespace landbridge::dataplane
