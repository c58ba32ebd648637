#include "dataplane/in_process_data_plane.h"

#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/limits.h"
#include "base/log.h"
#include "dataplane/transfer_plane.h"

namespace landbridge::dataplane {
namespace {

constexpr absl::string_view kInProcessAddress = "in-process";

class InProcessTransport;

// A chunk on its way. Ends once: fetched, rejected, or the connection closed at either end.
struct InProcessSend {
  PeerId from;
  PeerId to;
  Message message;
  Chunk chunk;
  ServeId serve;
  bool ended = false;
};

}  // namespace

// Thread-safety: Post, Add, Remove, SetPaused from any thread; Find and the transports on the fabric's thread.
class InProcessFabric::Impl {
 public:
  Impl() : thread_([this] { Run(); }) {}
  ~Impl() {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    thread_.join();
  }

  void Post(PeerId owner, std::function<void(InProcessTransport&)> run) {
    absl::MutexLock lock(&mutex_);
    events_.push_back({owner, std::move(run)});
    ++version_;
  }
  void Add(PeerId id, InProcessTransport* transport) {
    absl::MutexLock lock(&mutex_);
    LB_CHECK(transports_.emplace(id, transport).second);
  }
  void Remove(PeerId id) {
    absl::MutexLock lock(&mutex_);
    transports_.erase(id);
    paused_.erase(id);
    std::erase_if(events_, [id](const Event& e) { return e.owner == id; });
    ++version_;
  }
  bool Has(PeerId id) {
    absl::MutexLock lock(&mutex_);
    return transports_.contains(id);
  }
  void SetPaused(PeerId id, bool paused) {
    absl::MutexLock lock(&mutex_);
    if (paused) {
      paused_.insert(id);
    } else {
      paused_.erase(id);
    }
    ++version_;
  }

 private:
  struct Event {
    PeerId owner;
    std::function<void(InProcessTransport&)> run;
  };

  void Run();

  absl::Mutex mutex_;
  std::deque<Event> events_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<PeerId, InProcessTransport*> transports_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<PeerId> paused_ ABSL_GUARDED_BY(mutex_);
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 0;  // changes when there may be work
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

namespace {

// Thread-safety: see Transport; the progress thread is the fabric's.
class InProcessTransport final : public Transport {
 public:
  InProcessTransport(std::shared_ptr<InProcessFabric::Impl> fabric, PeerId self, const Token& token)
      : fabric_(std::move(fabric)), self_(self), token_(token) {}
  ~InProcessTransport() override { Stop(); }

  std::string address() const override { return std::string(kInProcessAddress); }
  absl::Status CheckAddress(absl::string_view address) const override {
    if (address == kInProcessAddress) return absl::OkStatus();
    return absl::InvalidArgumentError("not the address of a data plane in this process");
  }

  absl::Status Start(TransportEvents* events) override {
    events_ = events;
    fabric_->Add(self_, this);
    started_ = true;
    return absl::OkStatus();
  }

  void Stop() override {
    if (!started_) return;
    started_ = false;
    absl::Notification left;
    fabric_->Post(self_, [&left](InProcessTransport& me) {
      me.CloseAll();
      me.fabric_->Remove(me.self_);
      left.Notify();
    });
    left.WaitForNotification();
  }

  void Wake() override {
    fabric_->Post(self_, [](InProcessTransport&) {});
  }

  absl::Status Connect(PeerId peer, const std::string&) override {
    if (!fabric_->Has(peer)) return absl::UnavailableError("no such peer in this process");
    if (!connected_.insert(peer).second) return absl::OkStatus();
    fabric_->Post(peer, [from = self_, token = token_](InProcessTransport& them) {
      if (them.token_ == token && them.events_->Admits(from)) {
        them.attached_.insert(from);
      } else {
        them.Refuse(from);
      }
    });
    return absl::OkStatus();
  }

  void Close(PeerId peer) override {
    const bool connected = connected_.erase(peer) > 0, attached = attached_.erase(peer) > 0;
    if (!connected && !attached && !fetching_.contains(peer)) return;
    if (auto it = sends_.find(peer); it != sends_.end()) {
      for (const auto& send : std::exchange(it->second, {})) EndSend(send, /*ok=*/false);
      sends_.erase(peer);
    }
    fetching_.erase(peer);  // their events find that out and land nothing
    fabric_->Post(peer, [from = self_](InProcessTransport& them) {
      const bool was_attached = them.attached_.erase(from) > 0;
      if (was_attached || them.connected_.contains(from)) {
        them.events_->OnBroken(from, absl::UnavailableError("closed by the peer"));
      }
    });
  }

  void Send(PeerId peer, const Message& message, std::string text) override {
    fabric_->Post(peer, [message, text = std::move(text)](InProcessTransport& them) {
      if (!them.attached_.contains(message.from)) return;
      them.events_->OnMessage(message, {reinterpret_cast<const std::byte*>(text.data()), text.size()});
    });
    if (!fabric_->Has(peer)) Lost(peer);
  }

  bool SendNow(PeerId, const Message&, absl::Span<const std::byte>) override { return false; }

  void SendData(SendChunk action) override {
    auto send = std::make_shared<InProcessSend>();
    send->from = self_;
    send->to = action.peer;
    send->message = action.message;
    send->chunk = std::move(action.chunk);
    send->serve = action.serve;
    sends_[send->to].insert(send);
    fabric_->Post(send->to, [send](InProcessTransport& them) { them.Arrive(send); });
    if (!fabric_->Has(send->to)) Lost(send->to);
  }

  void Receive(const StartReceive& receive) override {
    auto it = offers_.find(receive.offer);
    LB_CHECK(it != offers_.end());
    const std::shared_ptr<InProcessSend> send = std::move(it->second);
    offers_.erase(it);
    fetching_[receive.peer].insert(receive.receive);
    fabric_->Post(self_, [send, receive](InProcessTransport& me) { me.Fetch(send, receive); });
  }

  void Reject(OfferId offer) override {
    auto it = offers_.find(offer);
    LB_CHECK(it != offers_.end());
    PostEnd(it->second, /*ok=*/true);
    offers_.erase(it);
  }

  // The receive lands soon: nobody is ever stuck in the middle of one here.
  void Abandon(PeerId, ReceiveId) override {}

  TransportEvents* events() { return events_; }

 private:
  void Arrive(const std::shared_ptr<InProcessSend>& send) {
    if (send->ended || !attached_.contains(send->from)) return;
    if (send->chunk.size <= limits::kTransferInlineBytesMax) {
      events_->OnMessage(send->message, {static_cast<const std::byte*>(send->chunk.data), send->chunk.size});
      PostEnd(send, /*ok=*/true);
      return;
    }
    const OfferId offer(next_offer_++);
    offers_.emplace(offer, send);
    if (!events_->OnOffer(send->message, send->chunk.size, offer)) Reject(offer);
  }

  void Fetch(const std::shared_ptr<InProcessSend>& send, const StartReceive& receive) {
    auto it = fetching_.find(receive.peer);
    const bool open = it != fetching_.end() && it->second.erase(receive.receive) > 0;
    const bool ok = open && !send->ended;
    if (ok) std::memcpy(receive.dst, send->chunk.data, receive.size);
    events_->OnLanded(receive.receive, receive.peer, receive.size,
                      ok ? absl::OkStatus() : absl::UnavailableError("connection closed"));
    PostEnd(send, ok);
  }

  void PostEnd(const std::shared_ptr<InProcessSend>& send, bool ok) {
    fabric_->Post(send->from, [send, ok](InProcessTransport& sender) {
      if (auto it = sender.sends_.find(send->to); it != sender.sends_.end()) it->second.erase(send);
      sender.EndSend(send, ok);
    });
  }

  void EndSend(const std::shared_ptr<InProcessSend>& send, bool ok) {
    if (send->ended) return;
    send->ended = true;
    const uint64_t bytes = send->chunk.size;
    send->chunk = {};
    events_->OnSent(send->serve, send->to, bytes, ok ? absl::OkStatus() : absl::UnavailableError("connection closed"));
  }

  void Refuse(PeerId peer) {
    fabric_->Post(peer, [from = self_](InProcessTransport& them) {
      if (them.connected_.contains(from)) {
        them.events_->OnBroken(from, absl::UnavailableError("refused by the peer"));
      }
    });
  }

  // The peer's process part has gone: what a socket would tell.
  void Lost(PeerId peer) {
    fabric_->Post(self_, [peer](InProcessTransport& me) {
      if (me.connected_.contains(peer)) me.events_->OnBroken(peer, absl::UnavailableError("the peer is gone"));
    });
  }

  void CloseAll() {
    std::vector<PeerId> peers(connected_.begin(), connected_.end());
    peers.insert(peers.end(), attached_.begin(), attached_.end());
    for (PeerId peer : peers) Close(peer);
  }

  const std::shared_ptr<InProcessFabric::Impl> fabric_;
  const PeerId self_;
  const Token token_;
  TransportEvents* events_ = nullptr;
  bool started_ = false;

  // Fabric's thread.
  absl::flat_hash_set<PeerId> connected_;  // by us
  absl::flat_hash_set<PeerId> attached_;   // by them
  absl::flat_hash_map<PeerId, absl::flat_hash_set<std::shared_ptr<InProcessSend>>> sends_;
  absl::flat_hash_map<PeerId, absl::flat_hash_set<ReceiveId>> fetching_;
  absl::flat_hash_map<OfferId, std::shared_ptr<InProcessSend>> offers_;
  uint64_t next_offer_ = 1;
};

}  // namespace

void InProcessFabric::Impl::Run() {
  uint64_t seen = ~uint64_t{0};
  mutex_.Lock();
  while (!stop_) {
    auto it = events_.begin();
    while (it != events_.end() && paused_.contains(it->owner)) ++it;
    if (it == events_.end()) {
      seen = version_;
      mutex_.Await(absl::Condition(
          +[](std::pair<Impl*, uint64_t>* arg)
               ABSL_NO_THREAD_SAFETY_ANALYSIS { return arg->first->stop_ || arg->first->version_ != arg->second; },
          std::make_unique<std::pair<Impl*, uint64_t>>(this, seen).get()));
      continue;
    }
    Event event = std::move(*it);
    events_.erase(it);
    auto found = transports_.find(event.owner);
    if (found == transports_.end()) continue;  // left meanwhile
    InProcessTransport* transport = found->second;
    const PeerId owner = event.owner;
    mutex_.Unlock();
    event.run(*transport);
    event = {};
    mutex_.Lock();
    if (!transports_.contains(owner)) continue;
    mutex_.Unlock();
    transport->events()->RunPending();
    mutex_.Lock();
  }
  mutex_.Unlock();
}

InProcessFabric::InProcessFabric() : impl_(std::make_shared<Impl>()) {}
InProcessFabric::~InProcessFabric() = default;

std::unique_ptr<DataPlane> InProcessFabric::MakeDataPlane(DataPlaneOptions options) {
  options.broken_grace = 0;  // the fabric has no timers
  auto transport = std::make_unique<InProcessTransport>(impl_, options.self, options.token);
  auto plane = TransferPlane::Make(std::move(options), std::move(transport));
  LB_CHECK(plane.ok());
  return *std::move(plane);
}

void InProcessFabric::SetPaused(PeerId peer, bool paused) { impl_->SetPaused(peer, paused); }

}  // namespace landbridge::dataplane
