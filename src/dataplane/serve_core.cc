#include "dataplane/serve_core.h"

#include <algorithm>

#include "base/limits.h"
#include "base/log.h"

namespace landbridge::dataplane {
namespace {

absl::Status OrDefault(const absl::Status& why, const Key& key) {
  if (!why.ok()) return why;
  return absl::FailedPreconditionError(absl::StrCat(key.ToString(), " is not published any more"));
}

}  // namespace

bool ServeCore::Request::small() const { return size <= limits::kTransferSmallBytesMax; }

// --- Publishing.

void ServeCore::Publish(const Key& key, std::shared_ptr<Source> source, PeerId allowed_peer) {
  if (Tombstone(key) != nullptr) return;  // given up before it was there
  auto [it, fresh] = published_.try_emplace(key);
  if (!fresh) {
    Unpublish(key, absl::InternalError(absl::StrCat(key.ToString(), " was published twice")), {});
    return;
  }
  it->second.source = std::move(source);
  it->second.allowed_peer = allowed_peer;
  auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  std::vector<ServeId> ids(waiting->second.begin(), waiting->second.end());
  waiting_.erase(waiting);
  waiting_count_ -= ids.size();
  std::sort(ids.begin(), ids.end());
  for (ServeId id : ids) {
    Request& request = requests_.at(id);
    request.state = State::kQueued;
    if (absl::Status admitted = Admit(request, it->second); !admitted.ok()) {
      Refuse(request, admitted);
      Drop(id);
    } else {
      Begin(id, request);
    }
  }
  for (ServeId id : ids) {
    auto found = requests_.find(id);
    if (found != requests_.end()) PumpReads(found->second.peer);
  }
}

void ServeCore::Bury(const Key& key, const absl::Status& why) {
  if (tombstones_.contains(key)) return;
  if (tombstone_order_.size() >= limits::kTransferTombstonesMax) {
    tombstones_.erase(tombstone_order_.front());
    tombstone_order_.pop_front();
  }
  tombstones_.emplace(key, why);
  tombstone_order_.push_back(key);
}

const absl::Status* ServeCore::Tombstone(const Key& key) const {
  if (auto it = tombstones_.find(key); it != tombstones_.end()) return &it->second;
  if (auto it = closed_spaces_.find(key.space); it != closed_spaces_.end()) return &it->second;
  return nullptr;
}

void ServeCore::RefuseWaiting(const Key& key, const absl::Status& why) {
  auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  const std::vector<ServeId> ids(waiting->second.begin(), waiting->second.end());
  for (ServeId id : ids) {
    Refuse(requests_.at(id), why);
    Drop(id);
  }
}

void ServeCore::Retire(const Key& key, const absl::Status& why, const std::shared_ptr<Quiescence>& quiescence) {
  RefuseWaiting(key, why);
  auto it = published_.find(key);
  if (it == published_.end()) return;
  const std::vector<ServeId> ids(it->second.requests.begin(), it->second.requests.end());
  for (ServeId id : ids) {
    Request& request = requests_.at(id);
    switch (request.state) {
      case State::kQueued:
      case State::kReady:
      case State::kReading:
        Refuse(request, why);
        AbandonOrDrop(id, request);
        break;
      case State::kWaiting:
      case State::kSending:  // the peer may be reading it: let it
      case State::kAbandoned: break;
    }
  }
  it = published_.find(key);
  for (ServeId id : it->second.requests) {
    if (quiescence != nullptr) {
      watchers_[id].push_back(quiescence);
      ++quiescence->open;
    }
  }
  published_.erase(it);
}

void ServeCore::Unpublish(const Key& key, const absl::Status& why, std::function<void()> quiescent) {
  const absl::Status reason = OrDefault(why, key);
  auto quiescence = std::make_shared<Quiescence>();
  quiescence->run = std::move(quiescent);
  Retire(key, reason, quiescence);
  Bury(key, reason);
  if (!quiescence->run) return;
  if (quiescence->open == 0) {
    actions_.push_back(RunQuiescent{std::move(quiescence->run)});
  } else {
    quiescences_.insert(quiescence);
  }
}

void ServeCore::CloseSpace(uint64_t space, const absl::Status& why, std::function<void()> quiescent) {
  const absl::Status reason =
      why.ok() ? absl::FailedPreconditionError(absl::StrCat("space ", space, " is closed")) : why;
  auto quiescence = std::make_shared<Quiescence>();
  quiescence->run = std::move(quiescent);
  std::vector<Key> keys;
  for (const auto& [key, entry] : published_) {
    if (key.space == space) keys.push_back(key);
  }
  for (const auto& [key, ids] : waiting_) {
    if (key.space == space) keys.push_back(key);
  }
  std::sort(keys.begin(), keys.end());
  for (const Key& key : keys) Retire(key, reason, quiescence);
  if (!closed_spaces_.contains(space)) {
    if (closed_space_order_.size() >= limits::kTransferTombstonesMax) {
      closed_spaces_.erase(closed_space_order_.front());
      closed_space_order_.pop_front();
    }
    closed_spaces_.emplace(space, reason);
    closed_space_order_.push_back(space);
  }
  if (!quiescence->run) return;
  if (quiescence->open == 0) {
    actions_.push_back(RunQuiescent{std::move(quiescence->run)});
  } else {
    quiescences_.insert(quiescence);
  }
}

// --- Requests.

absl::Status ServeCore::Admit(const Request& request, const Published& published) const {
  if (published.allowed_peer.valid() && published.allowed_peer != request.peer) {
    return absl::PermissionDeniedError(
        absl::StrCat("peer ", request.peer.ToString(), " may not pull ", request.key.ToString()));
  }
  if (request.end > published.source->size()) {
    return absl::InvalidArgumentError(absl::StrCat("pull of ", request.key.ToString(), " up to byte ", request.end,
                                                   ", which has ", published.source->size(), " bytes"));
  }
  return absl::OkStatus();
}

void ServeCore::OnRequest(PeerId peer, const Message& message, bool authorized) {
  Request request;
  request.peer = peer;
  request.pull = message.pull;
  request.key = message.key;
  request.offset = message.offset;
  request.size = message.size;
  request.end = message.end;
  if (!authorized) {
    Refuse(request, absl::PermissionDeniedError(
                        absl::StrCat("peer ", peer.ToString(), " may not pull ", message.key.ToString())));
    return;
  }
  if (const absl::Status* why = Tombstone(message.key)) {
    Refuse(request, *why);
    return;
  }
  Peer& at = peers_[peer];
  if (at.requests.size() >= limits::kTransferRequestsPerPeerMax) {
    Refuse(request, absl::ResourceExhaustedError(absl::StrCat("peer ", peer.ToString(), " has ", at.requests.size(),
                                                              " requests open here, the limit")));
    return;
  }
  auto published = published_.find(message.key);
  if (published != published_.end()) {
    if (absl::Status admitted = Admit(request, published->second); !admitted.ok()) {
      Refuse(request, admitted);
      if (at.requests.empty()) peers_.erase(peer);
      return;
    }
  }
  auto& siblings = at.pulls[message.pull];
  // A good receiver has at most kTransferChunksPerPullMax open; some may still be on their way out here.
  if (siblings.size() >= 2 * limits::kTransferChunksPerPullMax) {
    Refuse(request,
           absl::InvalidArgumentError(absl::StrCat("too many requests open for one pull of ", message.key.ToString())));
    return;
  }
  const ServeId id(next_serve_++);
  siblings.push_back(id);
  at.requests.insert(id);
  if (published == published_.end()) {
    request.state = State::kWaiting;
    waiting_[message.key].insert(id);
    ++waiting_count_;
    requests_.emplace(id, std::move(request));
    return;
  }
  request.state = State::kQueued;
  Request& placed = requests_.emplace(id, std::move(request)).first->second;
  Begin(id, placed);
  PumpReads(peer);
}

void ServeCore::Begin(ServeId id, Request& request) {
  Published& published = published_.at(request.key);
  published.requests.insert(id);
  Peer& peer = peers_.at(request.peer);
  (published.source->copies() ? peer.copies : peer.queued).push_back(id);
}

void ServeCore::PumpReads(PeerId peer_id) {
  auto it = peers_.find(peer_id);
  if (it == peers_.end()) return;
  Peer& peer = it->second;
  while (!peer.queued.empty() && peer.reads < limits::kTransferReadsPerPeerMax) {
    const ServeId id = peer.queued.front();
    peer.queued.pop_front();
    auto found = requests_.find(id);
    if (found == requests_.end()) continue;  // dropped meanwhile
    StartReading(id, found->second, peer);
  }
  while (!peer.copies.empty() && peer.reads < limits::kTransferReadsPerPeerMax) {
    const ServeId id = peer.copies.front();
    auto found = requests_.find(id);
    if (found != requests_.end()) {
      Request& request = found->second;
      if (!HasStagingRoom(peer, request.size)) {
        if (!peer.waits_for_staging) staging_turn_.push_back(peer_id);
        peer.waits_for_staging = true;
        return;
      }
      request.staged = true;
      bytes_staged_ += request.size;
      peer.bytes_staged += request.size;
      StartReading(id, request, peer);
    }
    peer.copies.pop_front();
  }
}

void ServeCore::StartReading(ServeId id, Request& request, Peer& peer) {
  request.state = State::kReading;
  ++peer.reads;
  actions_.push_back(StartRead{published_.at(request.key).source, request.offset, request.size, id});
}

bool ServeCore::HasStagingRoom(const Peer& peer, uint64_t size) const {
  return (bytes_staged_ == 0 || bytes_staged_ + size <= limits::kTransferStagedBytesMax) &&
         (peer.bytes_staged == 0 || peer.bytes_staged + size <= limits::kTransferStagedBytesPerPeer);
}

Actions ServeCore::TakeActions() {
  // Here, not where it was freed: what frees it may be in the middle of dropping more.
  if (std::exchange(staging_freed_, false)) {
    for (PeerId peer : std::exchange(staging_turn_, {})) {
      auto it = peers_.find(peer);
      if (it == peers_.end()) continue;
      it->second.waits_for_staging = false;
      PumpReads(peer);  // who still finds no room goes to the end of the line
    }
  }
  return std::exchange(actions_, {});
}

void ServeCore::OnReadDone(ServeId id, absl::StatusOr<Chunk> chunk) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  Request& request = it->second;
  if (request.state == State::kAbandoned) {
    Drop(id);
    return;
  }
  if (request.state != State::kReading) return;  // a source that answers twice
  const PeerId peer_id = request.peer;
  --peers_.at(peer_id).reads;
  if (chunk.ok() && (chunk->size != request.size || (chunk->data == nullptr && request.size > 0))) {
    chunk = absl::InternalError(absl::StrCat("source of ", request.key.ToString(), " gave ", chunk->size,
                                             " bytes for a read of ", request.size));
  }
  if (!chunk.ok()) {
    request.state = State::kReady;  // its read slot is free already
    Refuse(request, chunk.status());
    Drop(id);
  } else {
    request.state = State::kReady;
    request.chunk = *std::move(chunk);
    Peer& peer = peers_.at(peer_id);
    (request.small() ? peer.small : peer.bulk).ready.push_back(id);
    PumpSends(peer_id);
  }
  PumpReads(peer_id);
}

void ServeCore::PumpSends(PeerId peer_id) {
  auto it = peers_.find(peer_id);
  if (it == peers_.end()) return;
  for (Lane* lane : {&it->second.small, &it->second.bulk}) {
    while (!lane->ready.empty() && lane->sends < limits::kTransferSendsPerPeerMax) {
      const ServeId id = lane->ready.front();
      lane->ready.pop_front();
      auto found = requests_.find(id);
      if (found == requests_.end()) continue;
      Request& request = found->second;
      request.state = State::kSending;
      ++lane->sends;
      ++sends_;
      Message m;
      m.type = MessageType::kData;
      m.from = self_;
      m.to = request.peer;
      m.key = request.key;
      m.pull = request.pull;
      m.offset = request.offset;
      m.size = request.size;
      actions_.push_back(SendChunk{request.peer, m, std::move(request.chunk), id, request.small()});
    }
  }
}

void ServeCore::OnSent(ServeId id, const absl::Status&) {
  // A failed send needs no answer: either the receiver rejected it, or the connection is broken and both ends
  // will hear of that.
  auto it = requests_.find(id);
  LB_CHECK(it != requests_.end() && it->second.state == State::kSending);
  const PeerId peer = it->second.peer;
  Drop(id);
  PumpSends(peer);
}

void ServeCore::OnForget(PeerId peer_id, PullId pull) {
  auto it = peers_.find(peer_id);
  if (it == peers_.end()) return;
  auto found = it->second.pulls.find(pull);
  if (found == it->second.pulls.end()) return;
  const auto ids = found->second;
  for (ServeId id : ids) {
    auto request = requests_.find(id);
    if (request != requests_.end()) AbandonOrDrop(id, request->second);
  }
  PumpReads(peer_id);
  PumpSends(peer_id);
}

void ServeCore::OnPeerDown(PeerId peer_id) {
  auto it = peers_.find(peer_id);
  if (it == peers_.end()) return;
  const std::vector<ServeId> ids(it->second.requests.begin(), it->second.requests.end());
  for (ServeId id : ids) {
    auto request = requests_.find(id);
    if (request != requests_.end()) AbandonOrDrop(id, request->second);
  }
}

// --- Endings.

void ServeCore::AbandonOrDrop(ServeId id, Request& request) {
  switch (request.state) {
    case State::kReading:
      --peers_.at(request.peer).reads;
      request.state = State::kAbandoned;  // the source still owes an answer
      break;
    case State::kWaiting:
    case State::kQueued:
    case State::kReady: Drop(id); break;
    case State::kSending:
    case State::kAbandoned: break;
  }
}

void ServeCore::Drop(ServeId id) {
  auto it = requests_.find(id);
  Request& request = it->second;
  if (request.state == State::kWaiting) {
    auto waiting = waiting_.find(request.key);
    if (waiting->second.erase(id) > 0) --waiting_count_;
    if (waiting->second.empty()) waiting_.erase(waiting);
  }
  if (auto published = published_.find(request.key); published != published_.end()) {
    published->second.requests.erase(id);
  }
  auto peer = peers_.find(request.peer);
  if (request.state == State::kSending) {
    --(request.small() ? peer->second.small : peer->second.bulk).sends;
    --sends_;
  }
  if (request.staged) {
    bytes_staged_ -= request.size;
    peer->second.bytes_staged -= request.size;
    staging_freed_ = true;
  }
  peer->second.requests.erase(id);
  if (auto pull = peer->second.pulls.find(request.pull); pull != peer->second.pulls.end()) {
    auto& ids = pull->second;
    ids.erase(std::remove(ids.begin(), ids.end(), id), ids.end());
    if (ids.empty()) peer->second.pulls.erase(pull);
  }
  if (peer->second.requests.empty()) peers_.erase(peer);
  requests_.erase(it);
  auto watched = watchers_.find(id);
  if (watched == watchers_.end()) return;
  for (const auto& quiescence : watched->second) {
    if (--quiescence->open > 0) continue;
    if (quiescence->run) actions_.push_back(RunQuiescent{std::move(quiescence->run)});
    quiescences_.erase(quiescence);
  }
  watchers_.erase(watched);
}

void ServeCore::ReleaseAll() {
  for (const auto& quiescence : quiescences_) {
    if (quiescence->run) actions_.push_back(RunQuiescent{std::move(quiescence->run)});
  }
  quiescences_.clear();
  watchers_.clear();
  published_.clear();
}

void ServeCore::Refuse(const Request& request, const absl::Status& why) {
  Message m;
  m.type = MessageType::kRefuse;
  m.from = self_;
  m.to = request.peer;
  m.key = request.key;
  m.pull = request.pull;
  m.offset = request.offset;
  m.code = static_cast<uint32_t>(why.code());
  actions_.push_back(SendMessage{request.peer, m, RefusalText(why)});
}

}  // namespace landbridge::dataplane
