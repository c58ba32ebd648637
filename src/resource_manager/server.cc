#include "resource_manager/server.h"

#include <csignal>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/status.h"
#include "cluster/admin.h"
#include "cluster/frame_types.h"
#include "env/clock.h"
#include "env/connection.h"

namespace landbridge {

class ResourceManagerServer::Impl : public ResourceManagerSink {
 public:
  Impl(Loop* loop, const ResourceManagerServerOptions& options)
      : loop_(loop), core_(CoreOptions(options), this, loop->Now()), tick_period_(TickPeriod(options.times)) {
    admin_.Add("status", [this](const nlohmann::json&) -> absl::StatusOr<nlohmann::json> {
      return core_.StatusJson(loop_->Now());
    });
    admin_.Add("metrics", [this](const nlohmann::json&) -> absl::StatusOr<nlohmann::json> {
      SetMetrics();
      return nlohmann::json(MetricsRegistry::Global().PrometheusText());
    });
  }
  ~Impl() override {
    loop_->Cancel(tick_);
    for (auto& [id, peer] : peers_) loop_->Cancel(peer.limit);
  }

  absl::Status Listen(const std::string& address) {
    auto listener = Listener::Listen(
        loop_, address, [this](std::unique_ptr<Connection> connection) { OnAccept(std::move(connection)); });
    if (!listener.ok()) return listener.status();
    listener_ = std::move(*listener);
    tick_ = loop_->RunEvery(tick_period_, [this] { core_.OnTick(loop_->Now()); });
    return absl::OkStatus();
  }

  // --- ResourceManagerSink
  void SendToMember(Incarnation incarnation, MemberUpdate update) override {
    auto it = member_peers_.find(incarnation);
    if (it != member_peers_.end()) {
      peers_[it->second].connection->Send(kFrameMemberUpdate, update.SerializeAsString());
    }
  }
  void SendToHolder(ProxyLife life, HolderUpdate update) override {
    auto it = holder_peers_.find(life);
    if (it != holder_peers_.end()) {
      peers_[it->second].connection->Send(kFrameHolderUpdate, update.SerializeAsString());
    }
  }
  void Log(const std::string& line) override { LogInfo(line); }

 private:
  struct Peer {
    std::unique_ptr<Connection> connection;
    Incarnation member;  // one of the two, once it has reported
    ProxyLife holder;
    Loop::TimerId limit = 0;
  };

  static ResourceManagerOptions CoreOptions(const ResourceManagerServerOptions& options) {
    ResourceManagerOptions core;
    core.type = options.type;
    core.slice_count = options.slice_count;
    core.times = options.times;
    core.cluster_secret = options.cluster_secret.empty() ? "no secret" : options.cluster_secret;
    core.version = BuildVersion();
    core.life = SystemRandom().NextNonZero();
    return core;
  }

  void OnAccept(std::unique_ptr<Connection> connection) {
    if (peers_.size() >= limits::kRmConnectionsMax) {
      LogWarning("too many connections: ", connection->peer(), " is turned away");
      return;
    }
    const uint64_t id = ++next_peer_;
    Peer& peer = peers_[id];
    peer.connection = std::move(connection);
    peer.limit = loop_->RunAfter(limits::kHandshakeTimeout, [this, id] {
      auto it = peers_.find(id);
      if (it == peers_.end()) return;
      it->second.limit = 0;
      if (!it->second.member.valid() && !it->second.holder.valid()) peers_.erase(it);
    });
    Connection::Handlers handlers;
    handlers.on_frame = [this, id](uint32_t type, absl::string_view payload) { OnFrame(id, type, payload); };
    handlers.on_close = [this, id](const absl::Status& status) { Drop(id, status); };
    peer.connection->Start(std::move(handlers));
  }

  void Drop(uint64_t id, const absl::Status& status) {
    auto it = peers_.find(id);
    if (it == peers_.end()) return;
    const Incarnation member = it->second.member;
    const ProxyLife holder = it->second.holder;
    if (!absl::IsUnavailable(status)) LogWarning("closed ", it->second.connection->peer(), ": ", status.message());
    loop_->Cancel(it->second.limit);
    peers_.erase(it);
    // Only if no newer connection of the same process has taken over.
    if (auto at = member_peers_.find(member); at != member_peers_.end() && at->second == id) {
      member_peers_.erase(at);
      core_.OnMemberGone(member, loop_->Now());
    }
    if (auto at = holder_peers_.find(holder); at != holder_peers_.end() && at->second == id) {
      holder_peers_.erase(at);
      core_.OnHolderGone(holder, loop_->Now());
    }
  }

  void OnFrame(uint64_t id, uint32_t type, absl::string_view payload) {
    auto it = peers_.find(id);
    if (it == peers_.end()) return;
    Peer& peer = it->second;
    absl::Status status;
    const int size = static_cast<int>(payload.size());
    if (type == kFrameAdminRequest) {
      admin_.OnRequest(payload, [this, id](std::string answer) {  // answers at once
        auto asker = peers_.find(id);
        if (asker != peers_.end()) asker->second.connection->Send(kFrameAdminAnswer, std::move(answer));
      });
      return;
    }
    if (type == kFrameMemberReport && !peer.holder.valid()) {
      MemberReport report;
      const Incarnation who(report.ParseFromArray(payload.data(), size) ? report.incarnation() : 0);
      if (!who.valid() || (peer.member.valid() && peer.member != who)) {
        status = absl::InvalidArgumentError("a worker's report that makes no sense");
      } else {
        peer.member = who;
        Claim(member_peers_, who, id);
        status = core_.OnMemberReport(report, loop_->Now());
      }
    } else if (type == kFrameHolderReport && !peer.member.valid()) {
      HolderReport report;
      const ProxyLife who(report.ParseFromArray(payload.data(), size) ? report.life() : 0);
      if (!who.valid() || (peer.holder.valid() && peer.holder != who)) {
        status = absl::InvalidArgumentError("a proxy's report that makes no sense");
      } else {
        peer.holder = who;
        Claim(holder_peers_, who, id);
        status = core_.OnHolderReport(report, loop_->Now());
      }
    } else {
      status = absl::InvalidArgumentError(absl::StrCat("a frame of type ", type, " makes no sense here"));
    }
    if (!status.ok()) Drop(id, status);
  }

  // A process that connects again has given up its older connection.
  template <typename Id>
  void Claim(std::map<Id, uint64_t>& owners, Id who, uint64_t id) {
    auto [at, added] = owners.try_emplace(who, id);
    if (added || at->second == id) return;
    auto old = peers_.find(at->second);
    at->second = id;
    if (old != peers_.end()) {
      loop_->Cancel(old->second.limit);
      peers_.erase(old);
    }
  }

  void SetMetrics() {
    const ResourceManagerCore::Counts counts = core_.counts(loop_->Now());
    MetricsRegistry& registry = MetricsRegistry::Global();
    registry.GetGauge("landbridge_rm_workers", "Registered workers.").Set(counts.workers);
    registry.GetGauge("landbridge_rm_proxies", "Registered proxies.").Set(counts.proxies);
    registry.GetGauge("landbridge_rm_slices", "Slices by state.", {{"state", "free"}}).Set(counts.slices_free);
    registry.GetGauge("landbridge_rm_slices", "Slices by state.", {{"state", "leased"}}).Set(counts.slices_leased);
    registry.GetGauge("landbridge_rm_slices", "Slices by state.", {{"state", "broken"}}).Set(counts.slices_broken);
    registry.GetGauge("landbridge_rm_requests_waiting", "Requests in the queue.").Set(counts.requests_waiting);
    registry.GetGauge("landbridge_rm_grants", "Grants made in this life.").Set(counts.grants);
    registry.GetGauge("landbridge_rm_revocations", "Leases ended in this life.").Set(counts.revocations);
    registry.GetGauge("landbridge_rm_workers_lost", "Workers lost in this life.").Set(counts.workers_lost);
  }

 public:
  Loop* const loop_;
  AdminTable admin_;
  std::map<uint64_t, Peer> peers_;
  std::map<Incarnation, uint64_t> member_peers_;
  std::map<ProxyLife, uint64_t> holder_peers_;
  uint64_t next_peer_ = 0;
  ResourceManagerCore core_;
  const DurationNs tick_period_;
  std::unique_ptr<Listener> listener_;
  Loop::TimerId tick_ = 0;
};

ResourceManagerServer::ResourceManagerServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ResourceManagerServer::~ResourceManagerServer() = default;

absl::StatusOr<std::unique_ptr<ResourceManagerServer>> ResourceManagerServer::Start(
    Loop* loop, ResourceManagerServerOptions options) {
  LB_RETURN_IF_ERROR(options.times.Validate());
  if (options.slice_count <= 0 || int64_t{options.slice_count} * options.type.devices() > limits::kDevicesMax) {
    return absl::InvalidArgumentError(absl::StrCat("--instance_count=", options.slice_count,
                                                   " must be positive, and all slices together may have at most ",
                                                   limits::kDevicesMax, " devices"));
  }
  if (options.cluster_secret.empty()) {
    LogInfo("no cluster secret: whoever can reach this port can forge leases (see SECURITY.md)");
  }
  auto impl = std::make_unique<Impl>(loop, options);
  LB_RETURN_IF_ERROR(impl->Listen(options.listen_address));
  LogInfo("resource manager on ", impl->listener_->address(), ": ", options.slice_count, " slices of ",
          options.type.ToString());
  return std::unique_ptr<ResourceManagerServer>(new ResourceManagerServer(std::move(impl)));
}

int ResourceManagerServer::port() const { return impl_->listener_->port(); }
std::string ResourceManagerServer::address() const { return impl_->listener_->address(); }
const ResourceManagerCore& ResourceManagerServer::core() const { return impl_->core_; }

int RunResourceManager(const ResourceManagerServerOptions& options, const std::function<void(int port)>& on_ready) {
  Loop loop;
  for (int signal_number : {SIGTERM, SIGINT}) {
    absl::Status status = loop.OnSignal(signal_number, [&loop] {
      LogInfo("asked to stop");
      loop.Stop();
    });
    if (!status.ok()) LogWarning(status.message());
  }
  auto server = ResourceManagerServer::Start(&loop, options);
  if (!server.ok()) {
    LogError(server.status().message());
    return 1;
  }
  if (on_ready) on_ready((*server)->port());
  loop.Run();
  return 0;
}

}  // namespace landbridge
