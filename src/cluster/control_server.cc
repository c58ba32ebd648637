#include "cluster/control_server.h"

#include <map>
#include <optional>
#include <utility>

#include "base/limits.h"
#include "base/log.h"
#include "cluster/frame_types.h"

namespace landbridge {

class ControlServer::Impl {
 public:
  Impl(Loop* loop, const AdminTable* admin, Callbacks callbacks)
      : loop_(loop), admin_(admin), callbacks_(std::move(callbacks)) {}

  struct Peer {
    std::unique_ptr<Connection> connection;
    std::optional<ControlStreamId> stream;
    Loop::TimerId limit = 0;  // nobody holds a connection without saying what for
  };

  absl::Status Listen(absl::string_view address) {
    auto listener = Listener::Listen(loop_, address, [this](std::unique_ptr<Connection> connection) {
      if (peers_.size() >= limits::kControlConnectionsMax) {
        LogWarning("too many control connections: ", connection->peer(), " is turned away");
        return;
      }
      const uint64_t id = ++next_peer_;
      Peer& peer = peers_[id];
      peer.connection = std::move(connection);
      peer.limit = loop_->RunAfter(limits::kHandshakeTimeout, [this, id] {
        Peer* silent = Find(id);
        if (silent != nullptr && !silent->stream.has_value()) Drop(id);
      });
      Connection::Handlers handlers;
      handlers.on_frame = [this, id](uint32_t type, absl::string_view payload) { OnFrame(id, type, payload); };
      handlers.on_close = [this, id](const absl::Status& status) { OnClosed(id, status); };
      peer.connection->Start(std::move(handlers));
    });
    if (!listener.ok()) return listener.status();
    listener_ = std::move(*listener);
    return absl::OkStatus();
  }

  ~Impl() {
    for (auto& [id, peer] : peers_) loop_->Cancel(peer.limit);
  }

  Peer* Find(uint64_t id) {
    auto it = peers_.find(id);
    return it == peers_.end() ? nullptr : &it->second;
  }

  void Drop(uint64_t id) {
    auto it = peers_.find(id);
    if (it == peers_.end()) return;
    loop_->Cancel(it->second.limit);
    peers_.erase(it);
  }

  void OnClosed(uint64_t id, const absl::Status& status) {
    Peer* peer = Find(id);
    if (peer == nullptr) return;
    std::optional<ControlStreamId> stream = std::move(peer->stream);
    if (!stream.has_value() && !absl::IsUnavailable(status)) {
      LogWarning("closed ", peer->connection->peer(), ": ", status.message());
    }
    if (stream.has_value())
      LogWarning("the control stream of ", stream->grant.ToString(), " broke: ", status.message());
    Drop(id);
    if (stream.has_value()) callbacks_.on_stream_broken(*stream);
  }

  void OnFrame(uint64_t id, uint32_t type, absl::string_view payload) {
    Peer* peer = Find(id);
    if (peer == nullptr) return;
    if (type == kFrameAdminRequest && admin_ != nullptr && !peer->stream.has_value()) {
      admin_->OnRequest(payload, [this, id, alive = std::weak_ptr<int>(alive_)](std::string answer) {
        if (alive.expired()) return;
        if (Peer* asker = Find(id)) asker->connection->Send(kFrameAdminAnswer, std::move(answer));
      });
      return;
    }
    if (peer->stream.has_value() && type == kFrameControl) {
      const ControlStreamId stream = *peer->stream;
      // The lease may have ended a moment ago: nothing of its holder is obeyed any more.
      const absl::Status status = agent_ != nullptr && agent_->Holds(stream.grant)
                                      ? callbacks_.on_control(stream, payload)
                                      : absl::FailedPreconditionError("the lease has ended");
      if (!status.ok()) OnClosed(id, status);
      return;
    }
    ControlHello hello;
    if (peer->stream.has_value() || type != kFrameControlHello ||
        !hello.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
      OnClosed(id, absl::InvalidArgumentError("a frame that makes no sense here"));
      return;
    }
    ControlWelcome welcome;
    if (agent_ == nullptr) {
      welcome.set_refusal(ControlWelcome::NOT_YET);
      welcome.set_text("the worker is starting");
    } else {
      welcome = agent_->OnHello(hello);
    }
    if (welcome.refusal() != ControlWelcome::NONE) {
      LogInfo("a control stream is refused: ", welcome.text());
      peer->connection->Send(kFrameControlWelcome, welcome.SerializeAsString());
      peer->connection->CloseWhenSent();
      return;  // the hand-shake limit ends the record
    }
    ControlStreamId stream{ProxyLife(hello.life()), Grant::FromProto(hello.grant()), hello.data_address(),
                           hello.space()};
    // The holder knows of no older connection any more.
    CloseStream(stream.grant);
    peer->stream = stream;
    welcome.set_received(callbacks_.on_stream_resumed(stream, hello.received()));
    peer = Find(id);
    if (peer != nullptr) peer->connection->Send(kFrameControlWelcome, welcome.SerializeAsString());
  }

  bool Send(const ControlStreamId& stream, std::string payload) {
    for (auto& [id, peer] : peers_) {
      if (peer.stream.has_value() && peer.stream->holder == stream.holder &&
          peer.stream->grant.SameNumber(stream.grant)) {
        return peer.connection->Send(kFrameControl, std::move(payload));
      }
    }
    return false;
  }

  void CloseStream(const Grant& grant) {
    for (auto it = peers_.begin(); it != peers_.end();) {
      if (it->second.stream.has_value() && it->second.stream->grant.SameNumber(grant)) {
        loop_->Cancel(it->second.limit);
        it = peers_.erase(it);
      } else {
        ++it;
      }
    }
  }

  Loop* const loop_;
  const AdminTable* const admin_;
  const Callbacks callbacks_;
  WorkerAgent* agent_ = nullptr;
  std::unique_ptr<Listener> listener_;
  uint64_t next_peer_ = 0;
  std::map<uint64_t, Peer> peers_;
  std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ControlServer::~ControlServer() = default;

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Listen(Loop* loop, absl::string_view address,
                                                                     const AdminTable* admin, Callbacks callbacks) {
  auto impl = std::make_unique<Impl>(loop, admin, std::move(callbacks));
  if (absl::Status status = impl->Listen(address); !status.ok()) return status;
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

void ControlServer::SetAgent(WorkerAgent* agent) { impl_->agent_ = agent; }
int ControlServer::port() const { return impl_->listener_->port(); }
std::string ControlServer::address() const { return impl_->listener_->address(); }
bool ControlServer::Send(const ControlStreamId& stream, std::string payload) {
  return impl_->Send(stream, std::move(payload));
}
void ControlServer::CloseStream(const Grant& grant) { impl_->CloseStream(grant); }

}  // namespace landbridge
