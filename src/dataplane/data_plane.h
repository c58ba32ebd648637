// Bytes between processes: whoever needs them pulls them straight into its own memory.
//
// A process *publishes* a source under a key that is never re-used; a peer *pulls* a span of it. Control
// messages elsewhere say who pulls what; this room moves it, in chunks, fairly, and never writes into memory
// whose pull has been reported done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "dataplane/push_limits.h"

namespace landbridge::dataplane {

// A process is named by the random number of its life, so a restarted one is another peer.
using PeerId = Incarnation;

LANDBRIDGE_DEFINE_ID(PullId, "pull", uint64_t);

// Names published bytes. `space` is the life that made it (a proxy's incarnation, a grant's count), `id` a
// transfer, read, upload or executable within it.
struct Key {
  uint64_t space = 0;
  uint64_t id = 0;

  std::string ToString() const { return absl::StrCat("key ", space, "/", id); }
  friend bool operator==(const Key&, const Key&) = default;
  friend auto operator<=>(const Key&, const Key&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Key& key) {
    return H::combine(std::move(h), key.space, key.id);
  }
};

// Bytes that stay valid and unchanged for as long as `owner` is held.
struct Chunk {
  const void* data = nullptr;
  uint64_t size = 0;
  std::shared_ptr<const void> owner;
};

using ReadDone = std::function<void(absl::StatusOr<Chunk>)>;

// What a key stands for. Implemented by who has the bytes, or will have them.
//
// Thread-safety: Read is called on the data plane's progress thread, many reads may be open at once and in
// any order of offsets; it must not block.
class Source {
 public:
  virtual ~Source() = default;
  // Total bytes. Constant. Pulls beyond it are refused.
  virtual uint64_t size() const = 0;
  // Calls done exactly once, now or later, from any thread, with exactly `size` bytes from `offset` on. Bytes
  // that are not there yet (a client's upload that still streams in) just answer later.
  virtual void Read(uint64_t offset, uint64_t size, ReadDone done) = 0;
  // Whether Read makes a copy of the bytes (packs them, say), which lives until the peer has them. Constant. Such copies
  // are bounded together (limits::kTransferStagedBytesMax); reads beyond wait. So an answer must not wait for a pull of ours
  // (to put together what others have, say): sources of several processes that do would hold all the room there is and wait
  // for each other. Those say false, and bound their copies themselves.
  virtual bool copies() const { return false; }
};

// A source over memory that is there already.
std::shared_ptr<Source> MakeSpanSource(absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner);

// 128 bits that all processes of a cluster share and nobody else has; never sent. Peers with another one are refused.
struct Token {
  uint64_t high = 0;
  uint64_t low = 0;
  friend bool operator==(const Token&, const Token&) = default;
};

// The token of the cluster whose processes share this secret; {0, 0} for none: then every process without one is let in.
Token TokenFromSecret(absl::string_view cluster_secret);

// Who may pull a key. Runs on the progress thread; must be quick and must not call the data plane.
using Authorizer = std::function<bool(PeerId peer, const Key& key)>;

// Who is told of what peers push under a space. On the progress thread, one call at a time; quick.
struct PushListener {
  // The bytes are valid during the call.
  std::function<void(PeerId, const Key&, absl::Span<const std::byte>)> value;
  // Nothing comes from this peer any more: it closed the space, or is closed (with what either was closed with), or the
  // connection broke (UNAVAILABLE). At most once a peer.
  std::function<void(PeerId, const absl::Status&)> ended;
};

struct PublishOptions {
  // Valid: only this peer may pull. None: every peer that the authorizer lets through.
  PeerId allowed_peer;
};

// Payload bytes only. Monotonic for the life of the data plane; kept for closed peers too (the last
// limits::kTransferClosedPeersMax of them).
struct PeerBytes {
  PeerId peer;
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

struct DataPlaneStats {
  std::vector<PeerBytes> peers;  // in order of peer id
  uint64_t bytes_sent = 0;       // over all peers, forgotten ones included
  uint64_t bytes_received = 0;
  uint64_t pulls_open = 0;         // done not called yet, quarantined ones included
  uint64_t pulls_quarantined = 0;  // failed or cancelled, a chunk may be landing at this moment
  uint64_t reads_waiting = 0;      // peers' requests for keys that are not published yet
  uint64_t sends_in_flight = 0;    // chunks that a peer is fetching
  uint64_t keys_published = 0;
  uint64_t spaces_listening = 0;  // Listen without Unlisten
  uint64_t pushes_waiting = 0;    // values for peers that do not listen yet
  uint64_t push_outlets = 0;      // peers' spaces that are known here for pushes
  uint64_t messages_dropped = 0;  // stale, malformed, unknown peer or token
};

// Thread-safety: all methods may be called from any thread, also from the callbacks. They do not block and
// never call back from inside. Callbacks (done, quiescent, Source::Read, authorizer, peer_failed) run on the
// progress thread, one at a time: keep them short, hand real work to another thread.
//
// Order: calls of one thread take effect in their order, so Publish then Unpublish is what it says.
class DataPlane {
 public:
  virtual ~DataPlane() = default;

  virtual PeerId self() const = 0;
  // What peers need to reach this process: hand it over by any means. No secret in it.
  virtual std::string address() const = 0;

  // Makes a peer known. Needed on both ends: a request from a process that is not known yet is held back
  // (bounded) until it is. INVALID_ARGUMENT for an address that is not one of ours; FAILED_PRECONDITION for a peer
  // that was closed: a life does not come back. Adding twice is fine.
  virtual absl::Status AddPeer(PeerId peer, absl::string_view address) = 0;

  // Gives the peer up for good. Every pull from it ends with `why` (once nothing can land any more: the
  // endpoint is force-closed, which bounds that), its requests are dropped, and whatever it still sends is.
  virtual void ClosePeer(PeerId peer, absl::Status why) = 0;

  // Keys are never re-used; publishing one twice is our own mistake and fails its pulls with INTERNAL.
  virtual void Publish(Key key, std::shared_ptr<Source> source, PublishOptions options = {}) = 0;
  void PublishSpan(Key key, absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner,
                   PublishOptions options = {}) {
    Publish(key, MakeSpanSource(bytes, std::move(owner)), options);
  }

  // From now on requests for `key` are answered with `why` (not OK), also when it was never published: this is
  // how a source says that it will never have the bytes. Remembered for the last
  // limits::kTransferTombstonesMax keys. `quiescent` (may be empty) runs when no peer reads a chunk of it any
  // more: each fetch in flight has completed, or its endpoint is closed.
  virtual void Unpublish(Key key, absl::Status why, std::function<void()> quiescent = {}) = 0;

  // Unpublishes every key of a space and answers all its later requests with `why`: one entry for a fenced
  // grant or a dead proxy, instead of one per key. Ends what is pushed under it, too: see below.
  virtual void CloseSpace(uint64_t space, absl::Status why, std::function<void()> quiescent = {}) = 0;

  // Fetches [offset, offset + size) of the peer's key into dst. done is called exactly once, and after it no
  // byte lands in dst any more; until then dst must stay valid (let done own it). Waits at the source while
  // the key is not published. From a peer that was closed: what it was closed with. UNAVAILABLE: the connection broke (the peer may live: pull again, which connects anew, or
  // ClosePeer when the control plane knows better); everything else is the source's own answer.
  virtual PullId Pull(PeerId peer, Key key, uint64_t offset, void* dst, uint64_t size,
                      std::function<void(absl::Status)> done) = 0;

  // The pull's done is called with `why`, soon (after a chunk that is being copied at this moment), also when the
  // peer is stuck. Does nothing for a pull that is done.
  virtual void Cancel(PullId pull, absl::Status why) = 0;

  // Small values can also be sent before anybody asks: one message instead of a pull's two, from the caller's own thread
  // if the connection is up and has room. Whoever takes part in such a space listens, once, before it pushes.
  //
  // From now until Unlisten or CloseSpace: what these peers push under the space, in any order, each value once.
  virtual void Listen(uint64_t space, std::vector<PeerId> peers, PushListener listener) = 0;
  // Nothing more is told, except by a call under way. What waits for others still goes to them.
  virtual void Unlisten(uint64_t space) = 0;
  // Sends at most kPushBytesMax bytes under `key` as soon as the peer listens. True: they are on their way. False: `gone`
  // (may be empty) will be called: they went, or will not, since the space or the peer was closed or does not want them.
  // The peer has to know how much may come at most: nothing else bounds it.
  virtual bool Push(PeerId peer, Key key, Chunk value, std::function<void()> gone) = 0;

  virtual DataPlaneStats Stats() const = 0;

  // Ends every pull with FAILED_PRECONDITION, runs every outstanding quiescent, closes all connections, and waits until the
  // progress thread has let go of it. Blocks; not from a callback. Afterwards all methods are harmless; a Pull is answered
  // with FAILED_PRECONDITION, and a quiescent run, at once and from inside (the exceptions to "never call back").
  virtual void Shutdown() = 0;
};

struct DataPlaneOptions {
  PeerId self;  // valid, random
  Token token;
  Authorizer authorizer;  // empty: every known peer may pull every key
  // A connection broke by itself (peer killed, network). Its pulls end as below.
  std::function<void(PeerId, absl::Status)> peer_failed;
  // Pulls whose connection broke end with UNAVAILABLE: at once, or so much later, or before that with what ClosePeer says.
  // Who died is the control plane's to know, and its word comes at about the same time: a grace is for those who would
  // otherwise have to make an error of UNAVAILABLE (a proxy's reads), not for those who try again (a worker's pulls).
  DurationNs broken_grace = 0;
};

// What a process has one of: its address, its thread, its sockets. Carries a data plane for each of its peer ids, say one
// per grant, which have nothing else in common. Planes keep their host alive.
//
// Thread-safety: any thread, but not from a plane's callbacks.
class DataPlaneHost {
 public:
  virtual ~DataPlaneHost() = default;
  virtual std::string address() const = 0;
  // ALREADY_EXISTS: it carries options.self.
  virtual absl::StatusOr<std::unique_ptr<DataPlane>> Open(DataPlaneOptions options) = 0;
};

}  // namespace landbridge::dataplane
