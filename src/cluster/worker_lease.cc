#include "cluster/worker_lease.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"

namespace landbridge {

WorkerLease::WorkerLease(Incarnation self, WorkerInfo info, LeaseTimes times, WorkerLeaseSink* sink)
    : self_(self), info_(std::move(info)), times_(times), sink_(sink) {}

void WorkerLease::Observe(TimeNs now) {
  if (last_event_ != 0 && now - last_event_ > PauseThreshold(times_)) resumed_at_ = now;
  last_event_ = now;
  for (auto& [slice, state] : slices_) {
    if (state.held.has_value() && state.held->active && now >= state.held->deadline) {
      FenceSlice(state,
                 absl::DataLossError(absl::StrCat(
                     "the lease of ", slice.ToString(), " ended: ",
                     state.held->renewed ? absl::StrCat("no heartbeat of its proxy (", state.held->holder.ToString(),
                                                        ") for ", times_.lease / kMillisecond, " ms")
                                         : absl::StrCat("its proxy (", state.held->holder.ToString(), ") never came"))),
                 now);
    }
    if (state.old_work > 0 && now - state.old_work_since > times_.old_work && !restart_asked_) {
      restart_asked_ = true;
      sink_->RestartProcess(absl::StrCat("work of an ended lease of ", slice.ToString(), " still runs after ",
                                         times_.old_work / kMillisecond, " ms"));
    }
  }
}

void WorkerLease::FenceSlice(SliceState& state, const absl::Status& why, TimeNs now) {
  const Grant grant = state.held->grant;
  const bool was_active = state.held->active;
  state.held.reset();
  dirty_ = true;
  if (!was_active) return;  // nobody was let in under it
  if (state.old_work++ == 0) state.old_work_since = now;
  sink_->Fence(grant, why);
}

void WorkerLease::TryActivate(SliceState& state, TimeNs now) {
  if (!state.held.has_value() || state.held->active || state.old_work > 0) return;
  state.held->active = true;
  state.held->deadline = now + FirstRenewalLimit(times_);
  dirty_ = true;
  sink_->Activated(state.held->grant, state.held->holder);
}

void WorkerLease::OnRmConnected(TimeNs now) {
  Observe(now);
  rm_connected_ = true;
  rm_knows_info_ = false;
  dirty_ = true;
  ReportIfDirty(now);
}

void WorkerLease::OnRmDisconnected(TimeNs now) {
  Observe(now);
  rm_connected_ = false;
}

void WorkerLease::OnUpdate(const MemberUpdate& update, TimeNs now) {
  Observe(now);
  if (update.incarnation() != self_.value()) return;
  if (update.term() < promised_term_) {
    dirty_ = true;  // the report shows the old RM that it has been succeeded
    ReportIfDirty(now);
    return;
  }
  if (update.term() > promised_term_) {
    promised_term_ = update.term();
    rm_number_ = 0;
    dirty_ = true;
  }
  if (update.number() <= rm_number_) return;
  rm_number_ = update.number();

  if (rm_knows_info_ != update.know_info()) {
    rm_knows_info_ = update.know_info();
    dirty_ = true;
  }
  if (update.refused() != refused_) {
    refused_ = update.refused();
    if (!refused_.empty()) sink_->Refused(refused_);
  }
  if (update.replaced() && !restart_asked_) {
    restart_asked_ = true;
    sink_->RestartProcess("another worker has taken this one's place in its slice");
  }
  for (const RevokedUpTo& revoked : update.revoked()) {
    auto it = slices_.find(PhysicalSliceId(revoked.slice()));
    if (it == slices_.end()) continue;
    SliceState& state = it->second;
    const GrantNumber number{revoked.term(), revoked.count()};
    state.bar = std::max(state.bar, number);
    if (state.held.has_value() && state.held->grant.number <= number) {
      FenceSlice(state,
                 absl::DataLossError(absl::StrCat("the resource manager ended the lease of ", it->first.ToString())),
                 now);
    }
  }
  if (update.placed() && (!placed_ || slice_.value() != update.slice() || index_ != update.index())) {
    placed_ = true;
    slice_ = PhysicalSliceId(update.slice());
    index_ = update.index();
    dirty_ = true;
    sink_->Placed(slice_, index_);
  } else if (!update.placed() && placed_ && update.know_info()) {
    // One that does not know us (any more) has not looked yet at where we say we are: the claim stands.
    placed_ = false;
    dirty_ = true;
  }
  TakeFormation(update);
  for (const MemberOffer& offer : update.offers()) {
    if (!draining_.empty() || leaving_ || restart_asked_) break;  // takes no new grant
    Grant grant = Grant::FromProto(offer.grant());
    if (!grant.valid()) continue;
    if (slices_.count(grant.slice) == 0 && slices_.size() >= limits::kLeasesPerWorkerMax) continue;
    SliceState& state = slices_[grant.slice];
    if (grant.number <= state.bar) continue;  // repeated, or older than one that was held: `ended` says so
    if (state.held.has_value()) {
      FenceSlice(state,
                 absl::DataLossError(absl::StrCat("the lease of ", grant.slice.ToString(), " went to another holder")),
                 now);
    }
    state.bar = grant.number;
    Held held;
    held.grant = std::move(grant);
    held.holder = ProxyLife(offer.holder());
    held.request = offer.request();
    held.virtual_slice = offer.virtual_slice();
    state.held = std::move(held);
    dirty_ = true;
    TryActivate(state, now);
  }
  ReportIfDirty(now);
}

ControlWelcome WorkerLease::OnHello(const ControlHello& hello, TimeNs now) {
  Observe(now);
  ReportIfDirty(now);
  ControlWelcome welcome;
  welcome.set_version(info_.version());
  welcome.set_incarnation(self_.value());
  auto refuse = [&](ControlWelcome::Refusal refusal, std::string text) {
    welcome.set_refusal(refusal);
    welcome.set_text(std::move(text));
    return welcome;
  };
  if (hello.version() != info_.version()) {
    return refuse(ControlWelcome::VERSION, absl::StrCat("the proxy has version ", hello.version().substr(0, 64),
                                                        ", worker ", info_.name(), " has version ", info_.version(),
                                                        ": all processes of a cluster must come from one build"));
  }
  if (hello.incarnation() != self_.value()) {
    return refuse(ControlWelcome::INCARNATION,
                  absl::StrCat("worker ", info_.name(), " was started again: this is ", self_.ToString(), ", not ",
                               Incarnation(hello.incarnation()).ToString()));
  }
  const Grant grant = Grant::FromProto(hello.grant());
  auto it = slices_.find(grant.slice);
  const GrantNumber bar = it == slices_.end() ? GrantNumber{} : it->second.bar;
  if (it != slices_.end() && it->second.held.has_value()) {
    Held& held = *it->second.held;
    if (held.active && held.holder.value() == hello.life() && held.grant.Matches(grant)) {
      // The long wait was for the holder to come. From now on its silence ends the lease as any other's does: after it the
      // holder takes this worker for lost and may have put another one in its place.
      held.deadline = std::min(held.deadline, now + times_.lease);
      return welcome;
    }
    if (!held.active && held.grant.SameNumber(grant)) {
      return refuse(ControlWelcome::NOT_YET, "work of the slice's earlier lease has not ended yet");
    }
  }
  if (grant.number > bar) return refuse(ControlWelcome::NOT_YET, "this worker has not got that grant yet");
  return refuse(ControlWelcome::FENCED,
                absl::StrCat("the lease ", grant.ToString(), " has ended at worker ", info_.name()));
}

bool WorkerLease::OnHolderHeartbeat(const Grant& grant, int64_t echo_ns, TimeNs now) {
  Observe(now);
  ReportIfDirty(now);
  auto it = slices_.find(grant.slice);
  if (it == slices_.end() || !it->second.held.has_value()) return false;
  Held& held = *it->second.held;
  if (!held.active || !held.grant.Matches(grant)) return false;
  // After a pause, what was waiting in the sockets may be as old as the pause: it must not extend our own lease. Only
  // a heartbeat whose sender had heard us after the pause surely is younger.
  if (resumed_at_ != 0 && echo_ns < resumed_at_) return true;
  if (!held.renewed) dirty_ = true;
  held.renewed = true;
  held.last_renewal = now;
  held.deadline = now + times_.lease;
  ReportIfDirty(now);
  return true;
}

void WorkerLease::OnOldWorkEnded(PhysicalSliceId slice, TimeNs now) {
  Observe(now);
  auto it = slices_.find(slice);
  if (it != slices_.end() && it->second.old_work > 0) {
    --it->second.old_work;
    TryActivate(it->second, now);
  }
  ReportIfDirty(now);
}

void WorkerLease::OnDrain(const std::string& reason, TimeNs now) {
  Observe(now);
  if (draining_.empty()) {
    draining_ = reason.empty() ? "drain" : reason;
    dirty_ = true;
  }
  ReportIfDirty(now);
}

void WorkerLease::OnLeaving(TimeNs now) {
  Observe(now);
  if (leaving_) return;
  leaving_ = true;
  Report(now);
}

void WorkerLease::OnTick(TimeNs now) {
  Observe(now);
  if (now - last_report_ >= times_.heartbeat) dirty_ = true;
  ReportIfDirty(now);
}

bool WorkerLease::Holds(const Grant& grant, TimeNs now) {
  Observe(now);
  ReportIfDirty(now);
  auto it = slices_.find(grant.slice);
  return it != slices_.end() && it->second.held.has_value() && it->second.held->active &&
         it->second.held->grant.Matches(grant);
}

void WorkerLease::ReportIfDirty(TimeNs now) {
  if (dirty_ && !leaving_) Report(now);
}

// What is not whole says nothing: a resource manager that has just started does not know all members yet.
void WorkerLease::TakeFormation(const MemberUpdate& update) {
  if (update.formation_size() == 0) return;
  const auto same = [](const FormationMember& a, const FormationMember& b) {
    return a.incarnation() == b.incarnation();
  };
  if (std::equal(formation_.begin(), formation_.end(), update.formation().begin(), update.formation().end(), same))
    return;
  formation_.assign(update.formation().begin(), update.formation().end());
  sink_->FormationKnown(formation_);
}

void WorkerLease::OnFormed(WorkerInfo info, TimeNs now) {
  Observe(now);
  info.set_version(info_.version());
  info_ = std::move(info);
  forming_ = false;
  rm_knows_info_ = false;  // it is told again
  dirty_ = true;
  ReportIfDirty(now);
}

void WorkerLease::Report(TimeNs now) {
  if (!rm_connected_) return;
  dirty_ = false;
  last_report_ = now;
  MemberReport report;
  report.set_incarnation(self_.value());
  report.set_number(++report_number_);
  report.set_promised_term(promised_term_);
  if (!rm_knows_info_) *report.mutable_info() = info_;
  report.set_placed(placed_);
  report.set_slice(slice_.value());
  report.set_index(index_);
  report.set_draining(draining_);
  report.set_leaving(leaving_);
  report.set_forming(forming_);
  for (const auto& [slice, state] : slices_) {
    if (!state.held.has_value()) {
      RevokedUpTo* ended = report.add_ended();
      ended->set_slice(slice.value());
      ended->set_term(state.bar.term);
      ended->set_count(state.bar.count);
      continue;
    }
    const Held& held = *state.held;
    MemberLease* lease = report.add_leases();
    *lease->mutable_grant() = held.grant.ToProto();
    lease->set_holder(held.holder.value());
    lease->set_request(held.request);
    lease->set_virtual_slice(held.virtual_slice);
    lease->set_state(held.active ? MemberLease::ACTIVE : MemberLease::CLOSING);
    lease->set_renewed(held.renewed);
    lease->set_renewed_ago_ns(held.renewed ? now - held.last_renewal : 0);
  }
  sink_->SendReport(std::move(report));
}

std::vector<WorkerLease::LeaseView> WorkerLease::leases() const {
  std::vector<LeaseView> views;
  for (const auto& [slice, state] : slices_) {
    if (!state.held.has_value()) continue;
    const Held& held = *state.held;
    views.push_back({held.grant, held.holder, held.active, held.renewed, held.active ? held.deadline : 0});
  }
  return views;
}

bool WorkerLease::old_work_pending(PhysicalSliceId slice) const {
  auto it = slices_.find(slice);
  return it != slices_.end() && it->second.old_work > 0;
}

}  // namespace landbridge
