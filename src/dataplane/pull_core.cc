#include "dataplane/pull_core.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"
#include "base/log.h"

namespace landbridge::dataplane {

Message PullCore::MakeMessage(MessageType type, PullId id, const Pull& pull) const {
  Message m;
  m.type = type;
  m.from = self_;
  m.to = pull.peer;
  m.key = pull.key;
  m.pull = id;
  m.end = pull.end;
  return m;
}

PullCore::Pull* PullCore::FindPull(PeerId peer, PullId id) {
  auto it = pulls_.find(id);
  if (it == pulls_.end() || it->second.peer != peer) return nullptr;
  return &it->second;
}

void PullCore::Start(PullId id, PeerId peer, const Key& key, uint64_t offset, void* dst, uint64_t size,
                     std::function<void(absl::Status)> done) {
  Peer& at = peers_[peer];
  if (size > limits::kTransferBytesMax || offset > limits::kTransferBytesMax - size) {
    actions_.push_back(FinishPull{std::move(done), absl::InvalidArgumentError(absl::StrCat(
                                                       "pull of ", key.ToString(), ": ", size, " bytes from ", offset,
                                                       " on is beyond the limit of ", limits::kTransferBytesMax))});
    return;
  }
  if (at.pulls.size() >= limits::kTransferPullsPerPeerMax) {
    actions_.push_back(FinishPull{
        std::move(done), absl::ResourceExhaustedError(absl::StrCat("pull of ", key.ToString(), ": ", at.pulls.size(),
                                                                   " pulls from peer ", peer.ToString(),
                                                                   " are open, the limit; wait for some to end"))});
    return;
  }
  Pull pull;
  pull.peer = peer;
  pull.key = key;
  pull.begin = pull.next = offset;
  pull.end = offset + size;
  pull.dst = static_cast<char*>(dst);
  pull.small = size <= limits::kTransferSmallBytesMax;
  pull.done = std::move(done);
  at.pulls.insert(id);
  Pull& placed = pulls_[id] = std::move(pull);
  // The first chunk only: whether and when the key exists is the source's knowledge. An empty pull asks too.
  const uint64_t first = std::min<uint64_t>(size, limits::kTransferChunkBytes);
  placed.chunks.push_back({offset, first, ChunkState::kRequested, {}, {}});
  placed.next = offset + first;
  Message m = MakeMessage(MessageType::kRequest, id, placed);
  m.offset = offset;
  m.size = first;
  actions_.push_back(SendMessage{peer, m, {}});
}

void PullCore::RequestMore(PullId id, Pull& pull) {
  while (pull.next < pull.end && pull.chunks.size() < limits::kTransferChunksPerPullMax) {
    const uint64_t size = std::min<uint64_t>(pull.end - pull.next, limits::kTransferChunkBytes);
    pull.chunks.push_back({pull.next, size, ChunkState::kRequested, {}, {}});
    Message m = MakeMessage(MessageType::kRequest, id, pull);
    m.offset = pull.next;
    m.size = size;
    pull.next += size;
    actions_.push_back(SendMessage{pull.peer, m, {}});
  }
}

PullCore::OpenChunk* PullCore::FindRequested(Pull& pull, const Message& message, uint64_t length) {
  for (OpenChunk& chunk : pull.chunks) {
    if (chunk.offset == message.offset && chunk.state == ChunkState::kRequested) {
      return chunk.size == message.size && chunk.size == length ? &chunk : nullptr;
    }
  }
  return nullptr;
}

bool PullCore::OnInlineData(PeerId peer, const Message& message, uint64_t length, void** dst) {
  Pull* pull = FindPull(peer, message.pull);
  if (pull == nullptr || !pull->failure.ok()) return false;
  OpenChunk* chunk = FindRequested(*pull, message, length);
  if (chunk == nullptr) return false;
  *dst = pull->dst + (chunk->offset - pull->begin);
  return true;
}

void PullCore::OnInlineLanded(PeerId peer, const Message& message) {
  Pull* pull = FindPull(peer, message.pull);
  LB_CHECK(pull != nullptr);
  OpenChunk* chunk = FindRequested(*pull, message, message.size);
  LB_CHECK(chunk != nullptr);
  pull->landed += chunk->size;
  pull->chunks.erase(pull->chunks.begin() + (chunk - pull->chunks.data()));
  RequestMore(message.pull, *pull);
  FinishIfComplete(message.pull, *pull);
}

void PullCore::OnOffer(PeerId peer, const Message& message, uint64_t length, OfferId offer) {
  Pull* pull = FindPull(peer, message.pull);
  OpenChunk* chunk = pull == nullptr || !pull->failure.ok() ? nullptr : FindRequested(*pull, message, length);
  if (chunk == nullptr) {
    actions_.push_back(RejectOffer{offer});
    return;
  }
  chunk->state = ChunkState::kOffered;
  chunk->offer = offer;
  if (pull->small) {
    Receiving(message.pull, *pull, *chunk);
    return;
  }
  Queue(message.pull, *pull);
  RequestMore(message.pull, *pull);
  Schedule();
}

void PullCore::Queue(PullId id, Pull& pull) {
  Peer& peer = peers_[pull.peer];
  if (!pull.queued) {
    pull.queued = true;
    peer.turn.push_back(id);
  }
  if (!peer.queued) {
    peer.queued = true;
    peers_turn_.push_back(pull.peer);
  }
}

void PullCore::Schedule() {
  // Peers whose window is full leave the turn; a landed chunk of theirs brings them back.
  const auto has_room = [](uint64_t fetching, uint64_t size, uint64_t window) {
    return fetching == 0 || fetching + size <= window;
  };
  while (!peers_turn_.empty()) {
    const PeerId peer_id = peers_turn_.front();
    Peer& peer = peers_[peer_id];
    if (peer.turn.empty()) {
      peers_turn_.pop_front();
      peer.queued = false;
      continue;
    }
    const PullId id = peer.turn.front();
    auto it = pulls_.find(id);
    OpenChunk* chunk = nullptr;
    if (it != pulls_.end() && it->second.failure.ok()) {
      for (OpenChunk& c : it->second.chunks) {
        if (c.state == ChunkState::kOffered && (chunk == nullptr || c.offset < chunk->offset)) chunk = &c;
      }
    }
    if (chunk == nullptr) {  // cancelled meanwhile, or nothing offered any more
      peer.turn.pop_front();
      if (it != pulls_.end()) it->second.queued = false;
      continue;
    }
    if (!has_room(bytes_fetching_, chunk->size, limits::kTransferWindowBytesTotal)) return;
    peers_turn_.pop_front();
    if (!has_room(peer.bytes_fetching, chunk->size, limits::kTransferWindowBytesPerPeer)) {
      peer.queued = false;
      continue;
    }
    peers_turn_.push_back(peer_id);
    peer.turn.pop_front();
    peer.turn.push_back(id);
    Receiving(id, it->second, *chunk);
  }
}

void PullCore::Receiving(PullId id, Pull& pull, OpenChunk& chunk) {
  const ReceiveId receive(next_receive_++);
  chunk.state = ChunkState::kReceiving;
  chunk.receive = receive;
  receives_[receive] = Receive{id, chunk.offset, chunk.size, pull.small, pull.peer};
  if (!pull.small) {
    bytes_fetching_ += chunk.size;
    peers_[pull.peer].bytes_fetching += chunk.size;
  }
  actions_.push_back(StartReceive{pull.peer, chunk.offer, receive, pull.dst + (chunk.offset - pull.begin), chunk.size});
}

void PullCore::OnLanded(ReceiveId receive, const absl::Status& status) {
  auto it = receives_.find(receive);
  LB_CHECK(it != receives_.end());
  const Receive r = it->second;
  receives_.erase(it);
  if (!r.small) {
    bytes_fetching_ -= r.size;
    Peer& peer = peers_[r.peer];
    peer.bytes_fetching -= r.size;
    if (!peer.queued && !peer.turn.empty()) {
      peer.queued = true;
      peers_turn_.push_back(r.peer);
    }
  }
  auto found = pulls_.find(r.pull);
  LB_CHECK(found != pulls_.end());  // a pull outlives its receives: that is the quarantine
  Pull& pull = found->second;
  auto chunk = std::find_if(pull.chunks.begin(), pull.chunks.end(), [&](const OpenChunk& c) {
    return c.offset == r.offset && c.state == ChunkState::kReceiving;
  });
  LB_CHECK(chunk != pull.chunks.end());
  pull.chunks.erase(chunk);
  if (status.ok()) {
    pull.landed += r.size;
    if (pull.failure.ok()) RequestMore(r.pull, pull);
  } else if (pull.failure.ok()) {
    Fail(r.pull, pull, status, /*tell_source=*/true);
    Schedule();
    return;
  }
  FinishIfComplete(r.pull, pull);
  Schedule();
}

void PullCore::FinishIfComplete(PullId id, Pull& pull) {
  if (!pull.failure.ok()) {
    if (!pull.chunks.empty()) return;
    --quarantined_;
    Finish(id, pull.failure);
  } else if (pull.chunks.empty() && pull.next == pull.end) {
    Finish(id, absl::OkStatus());
  }
}

void PullCore::Finish(PullId id, absl::Status status) {
  auto it = pulls_.find(id);
  const PeerId peer_id = it->second.peer;
  actions_.push_back(FinishPull{std::move(it->second.done), std::move(status)});
  pulls_.erase(it);
  auto peer = peers_.find(peer_id);
  peer->second.pulls.erase(id);
  // The turn queues drop ids of ended pulls when they come to them; an idle peer leaves nothing behind.
  if (peer->second.pulls.empty() && !peer->second.queued) peers_.erase(peer);
}

void PullCore::Fail(PullId id, Pull& pull, const absl::Status& why, bool tell_source) {
  if (!pull.failure.ok()) return;
  pull.failure = why.ok() ? absl::CancelledError("cancelled without a reason") : why;
  ++quarantined_;
  bool asked = false;
  for (const OpenChunk& chunk : pull.chunks) {
    if (chunk.state == ChunkState::kRequested) asked = true;
    if (chunk.state == ChunkState::kOffered) actions_.push_back(RejectOffer{chunk.offer});
    if (chunk.state == ChunkState::kReceiving) actions_.push_back(AbandonReceive{pull.peer, chunk.receive});
  }
  pull.chunks.erase(std::remove_if(pull.chunks.begin(), pull.chunks.end(),
                                   [](const OpenChunk& c) { return c.state != ChunkState::kReceiving; }),
                    pull.chunks.end());
  if (asked && tell_source) {
    actions_.push_back(SendMessage{pull.peer, MakeMessage(MessageType::kForget, id, pull), {}});
  }
  FinishIfComplete(id, pull);
}

void PullCore::Cancel(PullId id, const absl::Status& why) {
  auto it = pulls_.find(id);
  if (it == pulls_.end()) return;
  Fail(id, it->second, why, /*tell_source=*/true);
  Schedule();
}

void PullCore::OnRefuse(PeerId peer, const Message& message, const absl::Status& why) {
  Pull* pull = FindPull(peer, message.pull);
  if (pull == nullptr) return;
  Fail(message.pull, *pull, why, /*tell_source=*/true);
  Schedule();
}

void PullCore::OnPeerDown(PeerId peer, const absl::Status& why) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  const std::vector<PullId> ids(it->second.pulls.begin(), it->second.pulls.end());
  for (PullId id : ids) {
    if (auto found = pulls_.find(id); found != pulls_.end()) Fail(id, found->second, why, /*tell_source=*/false);
  }
  Schedule();
}

}  // namespace landbridge::dataplane
