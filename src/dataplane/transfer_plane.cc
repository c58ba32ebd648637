#include "dataplane/transfer_plane.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "base/status.h"
#include "env/clock.h"

namespace landbridge::dataplane {
namespace {

class SpanSource final : public Source {
 public:
  SpanSource(absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner)
      : bytes_(bytes), owner_(std::move(owner)) {}
  uint64_t size() const override { return bytes_.size(); }
  void Read(uint64_t offset, uint64_t size, ReadDone done) override {
    done(Chunk{bytes_.data() + offset, size, owner_});
  }

 private:
  const absl::Span<const std::byte> bytes_;
  const std::shared_ptr<const void> owner_;
};

absl::Status ShutDownError() { return absl::FailedPreconditionError("this process's data plane is shut down"); }

}  // namespace

std::shared_ptr<Source> MakeSpanSource(absl::Span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  return std::make_shared<SpanSource>(bytes, std::move(owner));
}

bool TransferPlane::Mailbox::Post(Command command) {
  absl::MutexLock lock(&mutex);
  if (transport == nullptr) return false;
  commands.push_back(std::move(command));
  // Sequentially consistent, as is the transport's "asleep" flag: either it sees the command or we see it asleep.
  if (!pending.exchange(true)) transport->Wake();
  return true;
}

absl::StatusOr<std::unique_ptr<DataPlane>> TransferPlane::Make(DataPlaneOptions options,
                                                               std::unique_ptr<Transport> transport) {
  if (!options.self.valid()) return absl::InvalidArgumentError("a data plane needs its process's incarnation");
  std::unique_ptr<TransferPlane> plane(new TransferPlane(std::move(options), std::move(transport)));
  {
    absl::MutexLock lock(&plane->mailbox_->mutex);
    plane->mailbox_->transport = plane->transport_.get();
  }
  if (absl::Status started = plane->transport_->Start(plane.get()); !started.ok()) {
    absl::MutexLock lock(&plane->mailbox_->mutex);
    plane->mailbox_->transport = nullptr;
    absl::MutexLock shut(&plane->shutdown_mutex_);
    plane->shut_down_ = true;
    return started;
  }
  return plane;
}

TransferPlane::TransferPlane(DataPlaneOptions options, std::unique_ptr<Transport> transport)
    : options_(std::move(options)),
      transport_(std::move(transport)),
      pulls_(options_.self),
      serves_(options_.self),
      pushes_(options_.self) {}

TransferPlane::~TransferPlane() { Shutdown(); }

// --- Any thread.

absl::Status TransferPlane::AddPeer(PeerId peer, absl::string_view address) {
  LB_RETURN_IF_ERROR(transport_->CheckAddress(address));
  if (!peer.valid()) return absl::InvalidArgumentError("a data-plane peer needs an id");
  std::shared_ptr<Counters> counters;
  {
    absl::MutexLock lock(&peers_mutex_);
    auto it = records_.find(peer);
    if (it != records_.end() && it->second.closed) {
      return absl::FailedPreconditionError(
          absl::StrCat("peer ", peer.ToString(), " was given up; a restarted process has a new incarnation"));
    }
    if (it == records_.end()) {
      if (open_peers_ >= limits::kTransferPeersMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the data plane has ", open_peers_, " peers, the limit; close those that are gone"));
      }
      ++open_peers_;
      it = records_.emplace(peer, PeerRecord{false, absl::OkStatus(), std::make_shared<Counters>()}).first;
    }
    counters = it->second.counters;
  }
  const bool posted = mailbox_->Post([this, peer, transport = std::string(address), counters] {
    auto [it, fresh] = peers_.try_emplace(peer);
    if (!fresh) return;
    it->second.address = transport;
    it->second.counters = counters;
    auto held = held_.find(peer);
    if (held == held_.end()) return;
    const std::deque<Message> messages = std::move(held->second);
    held_.erase(held);
    held_count_ -= messages.size();
    for (const Message& m : messages) HandleHeld(m);
  });
  return posted ? absl::OkStatus() : ShutDownError();
}

void TransferPlane::ClosePeer(PeerId peer, absl::Status why) {
  if (why.ok()) why = absl::CancelledError(absl::StrCat("peer ", peer.ToString(), " was closed"));
  {
    absl::MutexLock lock(&peers_mutex_);
    auto [it, fresh] = records_.try_emplace(peer, PeerRecord{false, absl::OkStatus(), std::make_shared<Counters>()});
    if (it->second.closed) return;
    it->second.closed = true;
    it->second.why = why;
    if (!fresh) --open_peers_;
    closed_order_.push_back(peer);
    if (closed_order_.size() > limits::kTransferClosedPeersMax) {
      records_.erase(closed_order_.front());
      closed_order_.pop_front();
    }
  }
  mailbox_->Post([this, peer, why = std::move(why)] {
    if (auto held = held_.find(peer); held != held_.end()) {
      held_count_ -= held->second.size();
      held_.erase(held);
    }
    GiveUp(peer, why);
    peers_.erase(peer);
    transport_->Close(peer);  // it may have connected without having been introduced
  });
}

void TransferPlane::Publish(Key key, std::shared_ptr<Source> source, PublishOptions options) {
  mailbox_->Post([this, key, source = std::move(source), allowed = options.allowed_peer] {
    serves_.Publish(key, source, allowed);
  });
}

void TransferPlane::Unpublish(Key key, absl::Status why, std::function<void()> quiescent) {
  const bool posted =
      mailbox_->Post([this, key, why = std::move(why), quiescent] { serves_.Unpublish(key, why, quiescent); });
  if (!posted && quiescent) quiescent();
}

void TransferPlane::CloseSpace(uint64_t space, absl::Status why, std::function<void()> quiescent) {
  const bool posted = mailbox_->Post([this, space, why = std::move(why), quiescent] {
    TellPushes([&](PushCore& pushes) { pushes.CloseSpace(space, why); });
    serves_.CloseSpace(space, why, quiescent);
  });
  if (!posted && quiescent) quiescent();
}

PullId TransferPlane::Pull(PeerId peer, Key key, uint64_t offset, void* dst, uint64_t size,
                           std::function<void(absl::Status)> done) {
  const PullId id(next_pull_.fetch_add(1));
  auto shared = std::make_shared<std::function<void(absl::Status)>>(std::move(done));
  const bool posted = mailbox_->Post([this, id, peer, key, offset, dst, size, shared] {
    if (shutting_down_) {
      (*shared)(ShutDownError());
      return;
    }
    if (!peers_.contains(peer)) {
      absl::Status why = absl::FailedPreconditionError(
          absl::StrCat("pull of ", key.ToString(), " from peer ", peer.ToString(), ", which is not known here"));
      {
        absl::MutexLock lock(&peers_mutex_);
        auto it = records_.find(peer);
        if (it != records_.end() && it->second.closed) why = it->second.why;
      }
      (*shared)(why);
      return;
    }
    pulls_.Start(id, peer, key, offset, dst, size,
                 [this, peer, shared](absl::Status status) { Finish(peer, std::move(*shared), status); });
  });
  if (!posted) (*shared)(ShutDownError());
  return id;
}

void TransferPlane::Cancel(PullId pull, absl::Status why) {
  mailbox_->Post([this, pull, why = std::move(why)] { pulls_.Cancel(pull, why); });
}

DataPlaneStats TransferPlane::Stats() const {
  DataPlaneStats stats;
  {
    absl::MutexLock lock(&pushes_mutex_);
    stats.spaces_listening = pushes_.spaces();
    stats.pushes_waiting = pushes_.waiting();
    stats.push_outlets = pushes_.outlets();
  }
  {
    absl::MutexLock lock(&peers_mutex_);
    stats.peers.reserve(records_.size());
    for (const auto& [peer, record] : records_) {
      stats.peers.push_back({peer, record.counters->sent.load(), record.counters->received.load()});
    }
  }
  std::sort(stats.peers.begin(), stats.peers.end(),
            [](const PeerBytes& a, const PeerBytes& b) { return a.peer < b.peer; });
  stats.bytes_sent = bytes_sent_;
  stats.bytes_received = bytes_received_;
  stats.pulls_open = gauge_pulls_;
  stats.pulls_quarantined = gauge_quarantined_;
  stats.reads_waiting = gauge_waiting_;
  stats.sends_in_flight = gauge_sends_;
  stats.keys_published = gauge_keys_;
  stats.messages_dropped = dropped_;
  return stats;
}

void TransferPlane::Shutdown() {
  absl::MutexLock lock(&shutdown_mutex_);
  if (shut_down_) return;
  shut_down_ = true;
  mailbox_->Post([this] {
    shutting_down_ = true;
    std::vector<PeerId> ids;
    for (const auto& [peer, entry] : peers_) ids.push_back(peer);
    for (PeerId peer : ids) GiveUp(peer, ShutDownError());
  });
  drained_.WaitForNotification();
  {
    absl::MutexLock mailbox(&mailbox_->mutex);
    mailbox_->transport = nullptr;
  }
  transport_->Stop();
  // What was posted between the last drain and the closing of the mailbox: pulls still get their answer.
  std::vector<Command> late;
  {
    absl::MutexLock mailbox(&mailbox_->mutex);
    late.swap(mailbox_->commands);
  }
  for (Command& command : late) command();
  DrainActions();
  serves_.ReleaseAll();
  DrainActions();
}

// --- Progress thread.

bool TransferPlane::HasPending() { return mailbox_->pending.load(); }

bool TransferPlane::RunPending() {
  bool any = DrainActions();
  any |= EndLimbo();
  std::vector<Command> commands;
  while (mailbox_->pending.load()) {
    commands.clear();
    {
      absl::MutexLock lock(&mailbox_->mutex);
      commands.swap(mailbox_->commands);
      mailbox_->pending.store(false);
    }
    for (Command& command : commands) {
      command();
      DrainActions();
    }
    any = true;
  }
  PublishGauges();
  if (shutting_down_) FinishShutdownIfDrained();
  return any;
}

void TransferPlane::PublishGauges() {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  gauge_pulls_.store(pulls_.pulls_open() + limbo_.size(), kRelaxed);
  gauge_quarantined_.store(pulls_.pulls_quarantined(), kRelaxed);
  gauge_waiting_.store(serves_.waiting(), kRelaxed);
  gauge_sends_.store(serves_.sends(), kRelaxed);
  gauge_keys_.store(serves_.keys(), kRelaxed);
}

void TransferPlane::FinishShutdownIfDrained() {
  if (shutdown_finished_ || pulls_.pulls_open() > 0 || serves_.sends() > 0) return;
  shutdown_finished_ = true;
  serves_.ReleaseAll();
  DrainActions();
  PublishGauges();
  drained_.Notify();
}

bool TransferPlane::DrainActions() {
  bool any = false;
  while (pulls_.HasActions() || serves_.HasActions() || !push_actions_.empty()) {
    any = true;
    Actions actions = pulls_.HasActions()    ? pulls_.TakeActions()
                      : serves_.HasActions() ? serves_.TakeActions()
                                             : std::exchange(push_actions_, {});
    for (Action& action : actions) {
      std::visit([this](auto& a) { Execute(std::move(a)); }, action);
    }
  }
  return any;
}

TransferPlane::Verdict TransferPlane::Judge(const Message& message) const {
  if (message.to != options_.self) return Verdict::kDrop;
  if (peers_.contains(message.from)) return Verdict::kAccept;
  {
    absl::MutexLock lock(&peers_mutex_);
    auto it = records_.find(message.from);
    if (it != records_.end() && it->second.closed) return Verdict::kDrop;
  }
  const bool asks = message.type == MessageType::kRequest || message.type == MessageType::kListen ||
                    message.type == MessageType::kUnlisten;
  if (!asks || shutting_down_ || held_count_ >= limits::kTransferUnknownPeerRequestsMax) {
    return Verdict::kDrop;
  }
  return Verdict::kHold;
}

bool TransferPlane::Admits(PeerId peer) {
  if (shutting_down_) return false;
  absl::MutexLock lock(&peers_mutex_);
  auto it = records_.find(peer);
  return it == records_.end() || !it->second.closed;
}

void TransferPlane::HandleRequest(const Message& message) {
  if (shutting_down_) return;
  const bool authorized = !options_.authorizer || options_.authorizer(message.from, message.key);
  serves_.OnRequest(message.from, message, authorized);
}

void TransferPlane::OnMessage(const Message& message, absl::Span<const std::byte> payload) {
  switch (Judge(message)) {
    case Verdict::kDrop: Count(dropped_); return;
    case Verdict::kHold:
      held_[message.from].push_back(message);
      ++held_count_;
      return;
    case Verdict::kAccept: break;
  }
  switch (message.type) {
    case MessageType::kRequest: HandleRequest(message); break;
    case MessageType::kData: {
      void* dst = nullptr;
      if (!pulls_.OnInlineData(message.from, message, payload.size(), &dst)) {
        Count(dropped_);
        break;
      }
      if (!payload.empty()) std::memcpy(dst, payload.data(), payload.size());
      Count(bytes_received_, payload.size());
      Count(peers_.at(message.from).counters->received, payload.size());
      pulls_.OnInlineLanded(message.from, message);
      break;
    }
    case MessageType::kRefuse: {
      const absl::Status why = RefusalStatus(message.code, payload);
      if (message.pull.valid()) {
        pulls_.OnRefuse(message.from, message, why);
      } else {
        TellPushes([&](PushCore& pushes) { pushes.OnRefuse(message.from, message, why); });
      }
      break;
    }
    case MessageType::kListen:
    case MessageType::kUnlisten: HandleHeld(message); break;
    case MessageType::kPush: OnPush(message, payload); break;
    case MessageType::kForget: serves_.OnForget(message.from, message.pull); break;
  }
}

bool TransferPlane::OnOffer(const Message& message, uint64_t length, OfferId offer) {
  if (message.type != MessageType::kData || Judge(message) != Verdict::kAccept) {
    Count(dropped_);
    return false;
  }
  pulls_.OnOffer(message.from, message, length, offer);
  return true;
}

void TransferPlane::OnLanded(ReceiveId receive, PeerId peer, uint64_t bytes, const absl::Status& status) {
  if (status.ok()) {
    Count(bytes_received_, bytes);
    if (auto it = peers_.find(peer); it != peers_.end()) Count(it->second.counters->received, bytes);
  }
  pulls_.OnLanded(receive, AddContext(status, absl::StrCat("data from peer ", peer.ToString())));
}

void TransferPlane::OnSent(ServeId serve, PeerId peer, uint64_t bytes, const absl::Status& status) {
  if (status.ok()) {
    Count(bytes_sent_, bytes);
    if (auto it = peers_.find(peer); it != peers_.end()) Count(it->second.counters->sent, bytes);
  }
  serves_.OnSent(serve, status);
}

void TransferPlane::OnBroken(PeerId peer, const absl::Status& status) {
  if (auto held = held_.find(peer); held != held_.end()) {
    held_count_ -= held->second.size();
    held_.erase(held);
  }
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  const absl::Status why = absl::UnavailableError(
      absl::StrCat("data-plane connection to peer ", peer.ToString(), " broke: ", status.message()));
  LogInfo(std::string(why.message()));
  DrainActions();
  PeerDown(peer, why);
  DrainActions();
  transport_->Close(peer);
  it = peers_.find(peer);
  if (it == peers_.end()) return;
  it->second.connected = false;
  if (options_.peer_failed) options_.peer_failed(peer, why);
}

void TransferPlane::Finish(PeerId peer, std::function<void(absl::Status)> done, const absl::Status& status) {
  const bool broke = absl::IsUnavailable(status) && options_.broken_grace > 0 && !shutting_down_;
  if (!broke || !peers_.contains(peer)) return done(status);
  limbo_.push_back({MonotonicClock().Now() + options_.broken_grace, peer, std::move(done), status});
}

bool TransferPlane::EndLimbo() {
  if (limbo_.empty()) return false;
  const TimeNs now = MonotonicClock().Now();
  bool any = false;
  while (!limbo_.empty() && limbo_.front().until <= now) {
    Limbo ended = std::move(limbo_.front());
    limbo_.pop_front();
    ended.done(ended.status);
    any = true;
  }
  return any;
}

void TransferPlane::GiveUp(PeerId peer, const absl::Status& why) {
  std::deque<Limbo> others;
  for (Limbo& limbo : std::exchange(limbo_, {})) {
    if (limbo.peer == peer) {
      limbo.done(why);
    } else {
      others.push_back(std::move(limbo));
    }
  }
  limbo_ = std::move(others);
  auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  PeerDown(peer, why);
  DrainActions();
  it = peers_.find(peer);
  if (it == peers_.end()) return;
  transport_->Close(peer);
  it->second.connected = false;
}

void TransferPlane::PeerDown(PeerId peer, const absl::Status& why) {
  pulls_.OnPeerDown(peer, why);
  serves_.OnPeerDown(peer);
  TellPushes([&](PushCore& pushes) { pushes.OnPeerDown(peer, why); });
}

bool TransferPlane::Connected(PeerId peer) {
  auto it = peers_.find(peer);
  if (it == peers_.end()) return false;
  if (it->second.connected) return true;
  const absl::Status status = transport_->Connect(peer, it->second.address);
  if (status.ok()) {
    it->second.connected = true;
    return true;
  }
  LogWarning("data plane: cannot connect to peer ", peer.ToString(), ": ", std::string(status.message()));
  PeerDown(peer, absl::UnavailableError(
                     absl::StrCat("no data-plane connection to peer ", peer.ToString(), ": ", status.message())));
  return false;
}

void TransferPlane::Execute(SendMessage action) {
  // A peer in the middle of being closed is not called again just to tell it to forget something.
  if (shutting_down_ && !(peers_.contains(action.peer) && peers_.at(action.peer).connected)) return;
  if (!Connected(action.peer)) {
    if (action.message.type == MessageType::kListen && !peers_.contains(action.peer)) RefuseListen(action.peer);
    return;
  }
  if (action.message.type == MessageType::kPush) CountSent(action.peer, action.text.size());
  transport_->Send(action.peer, action.message, std::move(action.text));
}

void TransferPlane::Execute(SendChunk action) {
  if (!Connected(action.peer)) {
    serves_.OnSent(action.serve, absl::UnavailableError("no connection"));
    return;
  }
  transport_->SendData(std::move(action));
}

void TransferPlane::Execute(const StartReceive& action) { transport_->Receive(action); }

void TransferPlane::Execute(const RejectOffer& action) { transport_->Reject(action.offer); }

void TransferPlane::Execute(const AbandonReceive& action) { transport_->Abandon(action.peer, action.receive); }

void TransferPlane::Execute(StartRead action) {
  action.source->Read(
      action.offset, action.size, [mailbox = mailbox_, this, serve = action.serve](absl::StatusOr<Chunk> chunk) {
        // `this` is alive whenever the command runs.
        mailbox->Post(
            [this, serve, chunk = std::move(chunk)]() mutable { serves_.OnReadDone(serve, std::move(chunk)); });
      });
}

void TransferPlane::Execute(FinishPull action) {
  if (action.done) action.done(std::move(action.status));
}

void TransferPlane::Execute(RunQuiescent action) {
  if (action.quiescent) action.quiescent();
}

}  // namespace landbridge::dataplane
