#include "dataplane/push_core.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace landbridge::dataplane {

Message PushCore::MakeMessage(MessageType type, PeerId peer, const Key& key) const {
  Message m;
  m.type = type;
  m.from = self_;
  m.to = peer;
  m.key = key;
  return m;
}

// --- Listening.

void PushCore::Listen(uint64_t space, absl::Span<const PeerId> peers, PushListener listener) {
  Listening& listening = listening_[space];
  listening.listener = std::make_shared<const PushListener>(std::move(listener));
  for (PeerId peer : peers) {
    if (!listening.peers.emplace(peer, Heard{}).second) continue;
    actions_.push_back(SendMessage{peer, MakeMessage(MessageType::kListen, peer, {space, 0}), {}});
  }
}

void PushCore::Unlisten(uint64_t space) {
  if (auto it = listening_.find(space); it != listening_.end()) {
    for (const auto& [peer, heard] : it->second.peers) {
      if (heard.any) continue;
      actions_.push_back(SendMessage{peer, MakeMessage(MessageType::kUnlisten, peer, {space, 0}), {}});
    }
    listening_.erase(it);
  }
  auto sending = sending_.find(space);
  if (sending == sending_.end()) return;
  std::vector<PeerId> idle;
  for (auto& [peer, outlet] : sending->second) {
    outlet.ended = true;
    if (outlet.waiting.empty()) idle.push_back(peer);
  }
  for (PeerId peer : idle) Forget(space, peer);
}

std::shared_ptr<const PushListener> PushCore::OnPush(PeerId peer, const Message& message, uint64_t length) {
  if (length != message.size || length > kPushBytesMax) return nullptr;
  auto it = listening_.find(message.key.space);
  if (it == listening_.end()) return nullptr;
  auto from = it->second.peers.find(peer);
  if (from == it->second.peers.end()) return nullptr;
  from->second.any = true;
  return it->second.listener;
}

void PushCore::OnRefuse(PeerId peer, const Message& message, const absl::Status& why) {
  auto it = listening_.find(message.key.space);
  if (it == listening_.end() || it->second.peers.erase(peer) == 0) return;
  actions_.push_back(TellListener{it->second.listener, peer, why});
}

// --- Sending.

PushCore::Outlet& PushCore::Make(uint64_t space, PeerId peer) {
  auto [it, fresh] = sending_[space].try_emplace(peer);
  if (fresh) {
    spaces_of_peer_[peer].insert(space);
    ++outlets_;
  }
  return it->second;
}

void PushCore::Drop(Outlet& outlet) {
  waiting_ -= outlet.waiting.size();
  for (Waiting& value : std::exchange(outlet.waiting, {})) {
    if (value.gone) actions_.push_back(RunQuiescent{std::move(value.gone)});
  }
}

void PushCore::Forget(uint64_t space, PeerId peer) {
  auto sending = sending_.find(space);
  if (sending == sending_.end() || sending->second.erase(peer) == 0) return;
  --outlets_;
  if (sending->second.empty()) sending_.erase(sending);
  auto spaces = spaces_of_peer_.find(peer);
  spaces->second.erase(space);
  if (spaces->second.empty()) spaces_of_peer_.erase(spaces);
}

bool PushCore::Push(PeerId peer, const Key& key, const Chunk& value, std::function<void()> gone, Message* message) {
  LB_CHECK(value.size <= kPushBytesMax);
  if (!closed_.contains(key.space)) {
    Outlet& outlet = Make(key.space, peer);
    if (outlet.listens) {
      *message = MakeMessage(MessageType::kPush, peer, key);
      message->size = value.size;
      return true;
    }
    if (!outlet.over) {
      outlet.waiting.push_back({key, value, std::move(gone)});
      ++waiting_;
      return false;
    }
  }
  if (gone) actions_.push_back(RunQuiescent{std::move(gone)});
  return false;
}

void PushCore::OnListen(PeerId peer, const Message& message, const absl::Status& admitted) {
  const uint64_t space = message.key.space;
  if (!admitted.ok()) return Refuse(peer, space, admitted);
  if (auto closed = closed_.find(space); closed != closed_.end()) return Refuse(peer, space, closed->second);
  auto spaces = spaces_of_peer_.find(peer);
  if (spaces != spaces_of_peer_.end() && spaces->second.size() >= kListensPerPeerMax &&
      !spaces->second.contains(space)) {
    return Refuse(peer, space,
                  absl::ResourceExhaustedError(absl::StrCat("peer ", peer.ToString(), " listens for ",
                                                            spaces->second.size(), " spaces here, the limit")));
  }
  Outlet& outlet = Make(space, peer);
  if (outlet.listens || outlet.over) return;
  outlet.listens = true;
  waiting_ -= outlet.waiting.size();
  for (Waiting& value : std::exchange(outlet.waiting, {})) {
    Message m = MakeMessage(MessageType::kPush, peer, value.key);
    m.size = value.value.size;
    actions_.push_back(SendMessage{peer, m, std::string(static_cast<const char*>(value.value.data), value.value.size)});
    if (value.gone) actions_.push_back(RunQuiescent{std::move(value.gone)});
  }
  if (outlet.ended) Forget(space, peer);
}

void PushCore::OnUnlisten(PeerId peer, const Message& message) {
  auto sending = sending_.find(message.key.space);
  if (sending == sending_.end()) return;
  auto it = sending->second.find(peer);
  if (it == sending->second.end()) return;
  Outlet& outlet = it->second;
  // One of ours that has begun still has to hear that this one wants nothing.
  const bool begun = !outlet.waiting.empty() || listening_.contains(message.key.space);
  outlet.listens = false;
  outlet.over = true;
  Drop(outlet);
  if (outlet.ended || !begun) Forget(message.key.space, peer);
}

void PushCore::CloseSpace(uint64_t space, const absl::Status& why) {
  const absl::Status reason =
      why.ok() ? absl::FailedPreconditionError(absl::StrCat("space ", space, " is closed")) : why;
  if (closed_.emplace(space, reason).second) {
    closed_order_.push_back(space);
    if (closed_order_.size() > kPushClosedSpacesMax) {
      closed_.erase(closed_order_.front());
      closed_order_.pop_front();
    }
  }
  if (auto sending = sending_.find(space); sending != sending_.end()) {
    for (auto& [peer, outlet] : sending->second) {
      Drop(outlet);
      if (outlet.listens) Refuse(peer, space, reason);
    }
  }
  Unlisten(space);
}

void PushCore::Refuse(PeerId peer, uint64_t space, const absl::Status& why) {
  Message m = MakeMessage(MessageType::kRefuse, peer, {space, 0});
  m.code = static_cast<uint32_t>(why.code());
  actions_.push_back(SendMessage{peer, m, RefusalText(why)});
}

// --- Endings.

void PushCore::OnPeerDown(PeerId peer, const absl::Status& why) {
  for (auto& [space, listening] : listening_) {
    if (listening.peers.erase(peer) > 0) actions_.push_back(TellListener{listening.listener, peer, why});
  }
  auto spaces = spaces_of_peer_.find(peer);
  if (spaces == spaces_of_peer_.end()) return;
  const std::vector<uint64_t> all(spaces->second.begin(), spaces->second.end());
  for (uint64_t space : all) {
    Drop(sending_.at(space).at(peer));
    Forget(space, peer);
  }
}

}  // namespace landbridge::dataplane
