#include "cluster/worker_agent.h"

#include <utility>

#include "base/log.h"
#include "cluster/frame_types.h"
#include "cluster/pending_calls.h"

namespace landbridge {

class WorkerAgent::Impl : public WorkerLeaseSink {
 public:
  Impl(Loop* loop, Options options, Callbacks callbacks)
      : loop_(loop),
        callbacks_(std::move(callbacks)),
        pending_(loop),
        core_(options.incarnation, WithVersion(options.info), options.times, this),
        link_(loop, options.rm_address, LinkHandlers()),
        times_(options.times) {
    if (options.forming) core_.SetForming();
  }
  ~Impl() override { loop_->Cancel(tick_); }

  void Start() {
    tick_ = loop_->RunEvery(TickPeriod(times_), [this] {
      link_.CheckSilence(WaitForOthersLease(times_), PauseThreshold(times_));
      core_.OnTick(loop_->Now());
      pending_.RunNow();
    });
    link_.Start();
  }

  void SendReport(MemberReport report) override { link_.Send(kFrameMemberReport, report.SerializeAsString()); }
  void Activated(const Grant& grant, ProxyLife holder) override {
    LogInfo("lease ", grant.ToString(), " is active for proxy ", holder.ToString());
    if (callbacks_.on_activated) pending_.Add([this, grant, holder] { callbacks_.on_activated(grant, holder); });
  }
  void Fence(const Grant& grant, const absl::Status& why) override {
    LogWarning("lease ", grant.ToString(), " is fenced: ", why.message());
    pending_.Add([this, grant, why] { callbacks_.on_fence(grant, why); });
  }
  void RestartProcess(const std::string& why) override {
    LogError("this worker must start again: ", why);
    pending_.Add([this, why] { callbacks_.on_restart(why); });
  }
  void Refused(const std::string& why) override { LogError("the resource manager refuses this worker: ", why); }
  void Placed(PhysicalSliceId slice, int index) override {
    LogInfo("this is worker ", index, " of slice ", slice.value());
    if (callbacks_.on_placed) pending_.Add([this, slice, index] { callbacks_.on_placed(slice, index); });
  }

  void FormationKnown(const std::vector<FormationMember>& members) override {
    if (callbacks_.on_formation) pending_.Add([this, members] { callbacks_.on_formation(members); });
  }

  static WorkerInfo WithVersion(WorkerInfo info) {
    if (info.version().empty()) info.set_version(BuildVersion());
    return info;
  }

  RmLink::Handlers LinkHandlers() {
    RmLink::Handlers handlers;
    handlers.on_up = [this] {
      core_.OnRmConnected(loop_->Now());
      pending_.RunNow();
    };
    handlers.on_down = [this] {
      core_.OnRmDisconnected(loop_->Now());
      pending_.RunNow();
    };
    handlers.on_frame = [this](uint32_t type, absl::string_view payload) {
      MemberUpdate update;
      if (type != kFrameMemberUpdate || !update.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) {
        LogWarning("the resource manager sent a frame that makes no sense (type ", type, ")");
        return;
      }
      core_.OnUpdate(update, loop_->Now());
      pending_.RunNow();
    };
    return handlers;
  }

  Loop* const loop_;
  const Callbacks callbacks_;
  PendingCalls pending_;
  WorkerLease core_;
  RmLink link_;
  const LeaseTimes times_;
  Loop::TimerId tick_ = 0;
};

WorkerAgent::WorkerAgent(Loop* loop, Options options, Callbacks callbacks)
    : impl_(std::make_unique<Impl>(loop, std::move(options), std::move(callbacks))) {}
WorkerAgent::~WorkerAgent() = default;

void WorkerAgent::Start() { impl_->Start(); }

ControlWelcome WorkerAgent::OnHello(const ControlHello& hello) {
  ControlWelcome welcome = impl_->core_.OnHello(hello, impl_->loop_->Now());
  impl_->pending_.RunLater();
  return welcome;
}
bool WorkerAgent::OnHolderHeartbeat(const Grant& grant, int64_t echo_ns) {
  const bool holds = impl_->core_.OnHolderHeartbeat(grant, echo_ns, impl_->loop_->Now());
  impl_->pending_.RunLater();
  return holds;
}
bool WorkerAgent::Holds(const Grant& grant) {
  const bool holds = impl_->core_.Holds(grant, impl_->loop_->Now());
  impl_->pending_.RunLater();
  return holds;
}
void WorkerAgent::OldWorkEnded(PhysicalSliceId slice) {
  impl_->core_.OnOldWorkEnded(slice, impl_->loop_->Now());
  impl_->pending_.RunLater();
}
void WorkerAgent::Formed(WorkerInfo info) {
  impl_->core_.OnFormed(std::move(info), impl_->loop_->Now());
  impl_->pending_.RunLater();
}
void WorkerAgent::Drain(const std::string& reason) {
  impl_->core_.OnDrain(reason, impl_->loop_->Now());
  impl_->pending_.RunLater();
}
void WorkerAgent::Leave() { impl_->core_.OnLeaving(impl_->loop_->Now()); }
const WorkerLease& WorkerAgent::lease() const { return impl_->core_; }
bool WorkerAgent::rm_up() const { return impl_->link_.up(); }

}  // namespace landbridge
