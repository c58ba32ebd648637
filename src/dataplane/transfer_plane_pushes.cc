// What is sent before anybody asks: PushCore's shell.
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "dataplane/transfer_plane.h"

namespace landbridge::dataplane {

// --- Any thread.

void TransferPlane::Listen(uint64_t space, std::vector<PeerId> peers, PushListener listener) {
  Actions actions;
  {
    absl::MutexLock lock(&pushes_mutex_);
    pushes_.Listen(space, peers, std::move(listener));
    actions = pushes_.TakeActions();
  }
  ExecuteSoon(std::move(actions));
}

void TransferPlane::Unlisten(uint64_t space) {
  Actions actions;
  {
    absl::MutexLock lock(&pushes_mutex_);
    pushes_.Unlisten(space);
    actions = pushes_.TakeActions();
  }
  if (actions.empty()) return;
  // Behind the kListen, which may have gone this way, too.
  mailbox_->Post([this, actions = std::move(actions)]() mutable {
    std::move(actions.begin(), actions.end(), std::back_inserter(push_actions_));
  });
}

bool TransferPlane::Push(PeerId peer, Key key, Chunk value, std::function<void()> gone) {
  Message message;
  Actions actions;
  bool now = false;
  {
    absl::MutexLock lock(&pushes_mutex_);
    now = pushes_.Push(peer, key, value, std::move(gone), &message);
    actions = pushes_.TakeActions();
  }
  if (!now) {
    ExecuteSoon(std::move(actions));
    return false;
  }
  const absl::Span<const std::byte> bytes(static_cast<const std::byte*>(value.data), value.size);
  if (transport_->SendNow(peer, message, bytes)) {
    CountSent(peer, value.size);
  } else {
    mailbox_->Post([this, message, value = std::move(value)] {
      Execute(SendMessage{message.to, message, std::string(static_cast<const char*>(value.data), value.size)});
    });
  }
  return true;
}

void TransferPlane::ExecuteSoon(Actions actions) {
  for (Action& action : actions) {
    if (auto* send = std::get_if<SendMessage>(&action)) {
      const absl::Span<const std::byte> text(reinterpret_cast<const std::byte*>(send->text.data()), send->text.size());
      if (transport_->SendNow(send->peer, send->message, text)) continue;
    }
    mailbox_->Post([this, action = std::move(action)]() mutable { push_actions_.push_back(std::move(action)); });
  }
}

void TransferPlane::CountSent(PeerId peer, uint64_t bytes) {
  Count(bytes_sent_, bytes);
  absl::MutexLock lock(&peers_mutex_);
  if (auto it = records_.find(peer); it != records_.end()) Count(it->second.counters->sent, bytes);
}

// --- Progress thread.

void TransferPlane::HandleListen(const Message& message) {
  if (shutting_down_) return;
  absl::Status admitted;
  if (options_.authorizer && !options_.authorizer(message.from, message.key)) {
    admitted = absl::PermissionDeniedError(
        absl::StrCat("peer ", message.from.ToString(), " may not listen for space ", message.key.space));
  }
  TellPushes([&](PushCore& pushes) { pushes.OnListen(message.from, message, admitted); });
}

void TransferPlane::HandleHeld(const Message& message) {
  switch (message.type) {
    case MessageType::kListen: return HandleListen(message);
    case MessageType::kUnlisten: return TellPushes([&](PushCore& pushes) { pushes.OnUnlisten(message.from, message); });
    default: return HandleRequest(message);
  }
}

void TransferPlane::TellPushes(absl::FunctionRef<void(PushCore&)> event) {
  absl::MutexLock lock(&pushes_mutex_);
  event(pushes_);
  Actions actions = pushes_.TakeActions();
  std::move(actions.begin(), actions.end(), std::back_inserter(push_actions_));
}

void TransferPlane::OnPush(const Message& message, absl::Span<const std::byte> payload) {
  std::shared_ptr<const PushListener> listener;
  {
    absl::MutexLock lock(&pushes_mutex_);
    listener = pushes_.OnPush(message.from, message, payload.size());
  }
  if (listener == nullptr) return Count(dropped_);
  Count(bytes_received_, payload.size());
  Count(peers_.at(message.from).counters->received, payload.size());
  listener->value(message.from, message.key, payload);
}

// Of a peer that is not known, or not any more.
void TransferPlane::RefuseListen(PeerId peer) {
  absl::Status why = absl::FailedPreconditionError(absl::StrCat("peer ", peer.ToString(), " is not known here"));
  {
    absl::MutexLock lock(&peers_mutex_);
    auto it = records_.find(peer);
    if (it != records_.end() && it->second.closed) why = it->second.why;
  }
  TellPushes([&](PushCore& pushes) { pushes.OnPeerDown(peer, why); });
}

void TransferPlane::Execute(const TellListener& action) { action.listener->ended(action.peer, action.why); }

}  // namespace landbridge::dataplane
