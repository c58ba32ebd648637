#include "cluster/holder_agent.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/log.h"
#include "cluster/connect_limits.h"
#include "cluster/frame_types.h"
#include "cluster/pending_calls.h"
#include "env/process.h"
#include "unistd.h"

namespace landbridge {
namespace {

// A member under one grant; what the agent keeps a connection for.
using MemberKey = std::tuple<VirtualSlice, int, Incarnation, GrantNumber>;
MemberKey KeyOf(const MemberRef& ref) { return {ref.slice, ref.index, ref.incarnation, ref.grant.number}; }

}  // namespace

class HolderAgent::Impl : public HolderLeaseSink {
 public:
  Impl(Loop* loop, Options options, Callbacks callbacks)
      : loop_(loop),
        life_(options.life),
        callbacks_(std::move(callbacks)),
        pending_(loop),
        core_(options.life, options.times, this),
        link_(loop, options.rm_address, LinkHandlers()),
        times_(options.times),
        data_address_(options.data_address) {
    HolderReport info;
    info.set_version(BuildVersion());
    info.set_host(HostName());
    info.set_pid(getpid());
    info.set_address(options.client_address);
    core_.SetInfo(info);
  }
  ~Impl() override {
    loop_->Cancel(tick_);
    for (auto& [key, link] : links_) loop_->Cancel(link.retry);
  }

  void Start() {
    tick_ = loop_->RunEvery(TickPeriod(times_), [this] {
      link_.CheckSilence(WaitForOthersLease(times_), PauseThreshold(times_));
      core_.OnTick(loop_->Now());
      pending_.RunNow();
    });
    link_.Start();
  }

  bool SendControl(const MemberRef& member, std::string payload) {
    auto it = links_.find(KeyOf(member));
    return it != links_.end() && it->second.welcomed && it->second.connection->Send(kFrameControl, std::move(payload));
  }

  // --- HolderLeaseSink
  void SendReport(HolderReport report) override { link_.Send(kFrameHolderReport, report.SerializeAsString()); }
  void FleetKnown(const Fleet& fleet) override {
    LogInfo("the cluster has ", fleet.slice_count, " slices of ", fleet.slice_type);
    pending_.Add([this, fleet] { callbacks_.on_fleet(fleet); });
  }
  void Refused(const std::string& why) override { LogError("refused: ", why); }
  void SliceBound(VirtualSlice slice, const Grant& grant, int workers) override {
    LogInfo("virtual slice ", slice.index, " has lease ", grant.ToString());
    if (callbacks_.on_slice_bound) pending_.Add([=, this] { callbacks_.on_slice_bound(slice, grant, workers); });
  }
  void SliceLost(VirtualSlice slice, const Grant& grant, const absl::Status& why) override {
    LogWarning(why.message());
    if (callbacks_.on_slice_lost) pending_.Add([=, this] { callbacks_.on_slice_lost(slice, grant, why); });
  }
  void ConnectMember(const MemberRef& member, const WorkerInfo& info) override {
    Link link;
    link.ref = member;
    link.address = info.control_address();
    link.name = info.name();
    links_[KeyOf(member)] = std::move(link);
    pending_.Add([this, key = KeyOf(member)] { Connect(key); });
  }
  void DisconnectMember(const MemberRef& member) override {
    auto it = links_.find(KeyOf(member));
    if (it == links_.end()) return;
    loop_->Cancel(it->second.retry);
    if (it->second.welcomed) pending_.Add([this, member] { callbacks_.on_stream_broken(member); });
    links_.erase(it);
  }
  void MemberUp(const MemberRef& member, const WorkerInfo& info) override {
    LogInfo("worker ", info.name(), " (", member.incarnation.ToString(), ") serves virtual slice ", member.slice.index);
    pending_.Add([this, member, info] { callbacks_.on_member_up(member, info); });
  }
  void MemberLost(const MemberRef& member, const absl::Status& why) override {
    LogWarning(why.message());
    pending_.Add([this, member, why] { callbacks_.on_member_lost(member, why); });
  }
  void MemberDraining(const MemberRef& member, const std::string& reason) override {
    if (callbacks_.on_member_draining) {
      pending_.Add([this, member, reason] { callbacks_.on_member_draining(member, reason); });
    }
  }
  void SendHeartbeat(const MemberRef& member, uint64_t number, int64_t sent_ns, int64_t echo_ns) override {
    pending_.Add([=, this] {
      auto it = links_.find(KeyOf(member));
      if (it != links_.end() && it->second.welcomed) callbacks_.send_heartbeat(member, number, sent_ns, echo_ns);
    });
  }

  // --- Control connections
  struct Link {
    MemberRef ref;
    std::string address, name;
    std::unique_ptr<Connection> connection;
    bool welcomed = false;
    TimeNs welcomed_at = 0;
    DurationNs backoff = limits::kReconnectBackoffMin;
    Loop::TimerId retry = 0;
  };

  void Connect(const MemberKey& key) {
    auto it = links_.find(key);
    if (it == links_.end()) return;
    Link& link = it->second;
    link.retry = 0;
    Connection::Handlers handlers;
    handlers.on_connected = [this, key] {
      Link* self = FindLink(key);
      if (self == nullptr) return;
      ControlHello hello;
      hello.set_version(BuildVersion());
      hello.set_life(life_.value());
      hello.set_incarnation(self->ref.incarnation.value());
      *hello.mutable_grant() = self->ref.grant.ToProto();
      hello.set_received(callbacks_.applied_reports(self->ref));
      hello.set_data_address(data_address_);
      self->connection->Send(kFrameControlHello, hello.SerializeAsString());
    };
    handlers.on_frame = [this, key](uint32_t type, absl::string_view payload) { OnFrame(key, type, payload); };
    handlers.on_close = [this, key](const absl::Status& status) { OnBroken(key, status); };
    link.connection = Connection::Connect(loop_, link.address, std::move(handlers));
  }

  Link* FindLink(const MemberKey& key) {
    auto it = links_.find(key);
    return it == links_.end() ? nullptr : &it->second;
  }

  void OnFrame(const MemberKey& key, uint32_t type, absl::string_view payload) {
    Link* link = FindLink(key);
    if (link == nullptr) return;
    const MemberRef ref = link->ref;
    if (link->welcomed && type == kFrameControl) {
      absl::Status status = callbacks_.on_control(ref, payload);
      if (!status.ok()) OnBroken(key, status);
      pending_.RunNow();
      return;
    }
    ControlWelcome welcome;
    if (link->welcomed || type != kFrameControlWelcome ||
        !welcome.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
      OnBroken(key, absl::InvalidArgumentError("the worker sent a frame that makes no sense here"));
      return;
    }
    if (welcome.refusal() == ControlWelcome::NONE && welcome.incarnation() != ref.incarnation.value()) {
      welcome.set_refusal(ControlWelcome::INCARNATION);
    }
    core_.OnMemberWelcome(ref, welcome, loop_->Now());
    link = FindLink(key);  // the core may have dropped it
    if (link != nullptr && welcome.refusal() == ControlWelcome::NONE) {
      link->welcomed = true;
      link->welcomed_at = loop_->Now();
      link->backoff = limits::kReconnectBackoffMin;
      pending_.Add([this, key, ref, received = welcome.received()] {
        if (Link* self = FindLink(key); self != nullptr && self->welcomed) callbacks_.on_stream_resumed(ref, received);
      });
      core_.OnMemberReady(ref, loop_->Now());  // the first heartbeat at once: the lease may be short of time
    } else if (link != nullptr) {
      OnBroken(key, absl::UnavailableError(welcome.text()));
    }
    pending_.RunNow();
  }

  void OnBroken(const MemberKey& key, const absl::Status& status) {
    Link* link = FindLink(key);
    if (link == nullptr) return;
    const MemberRef ref = link->ref;
    link->connection.reset();
    DurationNs pause = link->backoff;
    if (link->welcomed) {
      link->welcomed = false;
      // At once, and soon again: if the process has died, the machine says so, and everybody hears of it. (Not for one that
      // closes every stream as soon as it is up.)
      if (loop_->Now() - link->welcomed_at >= limits::kReconnectBackoffMin) {
        pause = 0;
        link->backoff = limits::kReconnectAfterBreak / 2;
      }
      LogWarning("the control stream to worker ", link->name, " broke: ", status.message());
      pending_.Add([this, ref] { callbacks_.on_stream_broken(ref); });
    }
    loop_->Cancel(link->retry);
    link->retry = loop_->RunAfter(pause, [this, key] { Connect(key); });
    link->backoff = std::min(2 * link->backoff, limits::kReconnectBackoffMax);
    if (IsConnectionRefused(status)) {
      core_.OnMemberRefused(ref, loop_->Now());
    } else {
      core_.OnMemberDisconnected(ref, loop_->Now());
    }
    pending_.RunNow();
  }

  RmLink::Handlers LinkHandlers() {
    RmLink::Handlers handlers;
    handlers.on_up = [this] {
      core_.OnRmConnected(loop_->Now());
      pending_.RunNow();
    };
    handlers.on_down = [] {};
    handlers.on_frame = [this](uint32_t type, absl::string_view payload) {
      HolderUpdate update;
      if (type != kFrameHolderUpdate || !update.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
        LogWarning("the resource manager sent a frame that makes no sense (type ", type, ")");
        return;
      }
      core_.OnUpdate(update, loop_->Now());
      pending_.RunNow();
    };
    return handlers;
  }

  Loop* const loop_;
  const ProxyLife life_;
  const Callbacks callbacks_;
  PendingCalls pending_;
  HolderLease core_;
  RmLink link_;
  const LeaseTimes times_;
  const std::string data_address_;
  Loop::TimerId tick_ = 0;
  std::map<MemberKey, Link> links_;
};

HolderAgent::HolderAgent(Loop* loop, Options options, Callbacks callbacks)
    : impl_(std::make_unique<Impl>(loop, std::move(options), std::move(callbacks))) {}
HolderAgent::~HolderAgent() = default;

void HolderAgent::Start() { impl_->Start(); }

uint64_t HolderAgent::Request(std::vector<std::string> types) {
  const uint64_t id = impl_->core_.Request(std::move(types), impl_->loop_->Now());
  impl_->pending_.RunLater();
  return id;
}
void HolderAgent::Release(VirtualSlice slice) {
  impl_->core_.Release(slice, impl_->loop_->Now());
  impl_->pending_.RunLater();
}
void HolderAgent::Leave() {
  impl_->core_.OnLeaving(impl_->loop_->Now());
  impl_->pending_.RunLater();
}
bool HolderAgent::SendControl(const MemberRef& member, std::string payload) {
  return impl_->SendControl(member, std::move(payload));
}
void HolderAgent::OnHeartbeat(const MemberRef& member, int64_t sent_ns) {
  impl_->core_.OnMemberHeartbeat(member, sent_ns, impl_->loop_->Now());
  impl_->pending_.RunLater();
}
const HolderLease& HolderAgent::lease() const { return impl_->core_; }
bool HolderAgent::rm_up() const { return impl_->link_.up(); }
std::string HolderAgent::waits_for() const {
  if (!impl_->core_.refused().empty()) return absl::StrCat("the resource manager refuses it: ", impl_->core_.refused());
  return impl_->link_.waits_for();
}

}  // namespace landbridge
