#include "cluster/holder_lease.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "cluster/report_limits.h"

namespace landbridge {

HolderLease::HolderLease(ProxyLife self, LeaseTimes times, HolderLeaseSink* sink)
    : self_(self), times_(times), sink_(sink) {}

HolderLease::Slice* HolderLease::Find(VirtualSlice ref) {
  auto it = requests_.find(ref.request);
  if (it == requests_.end() || ref.index < 0 || static_cast<size_t>(ref.index) >= it->second.slices.size()) {
    return nullptr;
  }
  return &it->second.slices[static_cast<size_t>(ref.index)];
}

HolderLease::Member* HolderLease::Find(const MemberRef& ref) {
  Slice* slice = Find(ref.slice);
  if (slice == nullptr || !slice->grant.has_value() || !slice->grant->SameNumber(ref.grant)) return nullptr;
  if (ref.index < 0 || static_cast<size_t>(ref.index) >= slice->members.size()) return nullptr;
  Member& member = slice->members[static_cast<size_t>(ref.index)];
  return member.incarnation == ref.incarnation && !member.lost ? &member : nullptr;
}

MemberRef HolderLease::RefOf(VirtualSlice ref, const Slice& slice, int index) const {
  return MemberRef{ref, index, slice.members[static_cast<size_t>(index)].incarnation, *slice.grant};
}

void HolderLease::Observe(TimeNs now) {
  const TimeNs before = std::exchange(last_event_, now);
  if (before == 0 || now - before <= PauseThreshold(times_)) return;
  // We were away: what the others sent meanwhile is still unread, so their silence counts from now. Our own lease is
  // another matter: where the last heartbeat was sent too long ago, the worker has fenced us on any clock.
  for (auto& [id, request] : requests_) {
    for (size_t s = 0; s < request.slices.size(); ++s) {
      Slice& slice = request.slices[s];
      const VirtualSlice ref{id, static_cast<int>(s)};
      for (size_t i = 0; i < slice.members.size(); ++i) {
        Member& member = slice.members[i];
        if (!member.incarnation.valid() || member.lost) continue;
        if (member.up && now - member.last_sent > WaitForOthersLease(times_) + times_.worst_delay) {
          LoseMember(
              ref, slice, static_cast<int>(i),
              absl::StrCat("this proxy was stopped for ", (now - before) / kMillisecond, " ms, longer than its lease"),
              now);
        } else {
          member.last_heard = now;
        }
      }
    }
  }
}

uint64_t HolderLease::Request(std::vector<std::string> types, TimeNs now) {
  Observe(now);
  RequestState request;
  request.id = next_request_++;
  request.all = types.empty();
  if (request.all && fleet_.has_value()) {
    types.assign(static_cast<size_t>(fleet_->slice_count), fleet_->slice_type);
  }
  for (std::string& type : types) {
    Slice slice;
    slice.type = std::move(type);
    request.slices.push_back(std::move(slice));
  }
  const uint64_t id = request.id;
  requests_.emplace(id, std::move(request));
  dirty_ = true;
  ReportIfDirty(now);
  return id;
}

void HolderLease::DropSlice(VirtualSlice ref, Slice& slice) {
  for (size_t i = 0; i < slice.members.size(); ++i) {
    Member& member = slice.members[i];
    if (member.incarnation.valid() && !member.lost) {
      member.lost = true;
      sink_->DisconnectMember(RefOf(ref, slice, static_cast<int>(i)));
    }
  }
  slice.members.clear();
  slice.grant.reset();
  dirty_ = true;
}

void HolderLease::Release(VirtualSlice ref, TimeNs now) {
  Observe(now);
  Slice* slice = Find(ref);
  if (slice != nullptr && !slice->released) {
    DropSlice(ref, *slice);
    slice->released = true;
  }
  ReportIfDirty(now);
}

void HolderLease::ReleaseRequest(uint64_t request, TimeNs now) {
  Observe(now);
  auto it = requests_.find(request);
  if (it != requests_.end()) {
    for (size_t s = 0; s < it->second.slices.size(); ++s) {
      DropSlice({request, static_cast<int>(s)}, it->second.slices[s]);
    }
    requests_.erase(it);
    dirty_ = true;
  }
  ReportIfDirty(now);
}

void HolderLease::OnLeaving(TimeNs now) {
  Observe(now);
  if (leaving_) return;
  while (!requests_.empty()) {
    auto it = requests_.begin();
    for (size_t s = 0; s < it->second.slices.size(); ++s) {
      DropSlice({it->first, static_cast<int>(s)}, it->second.slices[s]);
    }
    requests_.erase(it);
  }
  leaving_ = true;
  Report(now);
}

void HolderLease::OnRmConnected(TimeNs now) {
  Observe(now);
  dirty_ = true;
  ReportIfDirty(now);
}

void HolderLease::LoseMember(VirtualSlice ref, Slice& slice, int index, const std::string& reason, TimeNs) {
  Member& member = slice.members[static_cast<size_t>(index)];
  if (!member.incarnation.valid() || member.lost) return;
  const MemberRef lost = RefOf(ref, slice, index);
  member.lost = true;
  member.connected = false;
  slice.gone.insert(member.incarnation);
  dirty_ = true;
  sink_->DisconnectMember(lost);
  if (!member.up) return;
  member.up = false;
  sink_->MemberLost(
      lost, absl::DataLossError(absl::StrCat(
                "slice ", ref.index, " (", slice.grant->slice.ToString(), ") lost worker ", member.info.name(), " on ",
                member.info.host(), " (", member.incarnation.ToString(), "): ", reason,
                member.info.log_place().empty() ? "" : "; its log there: ", member.info.log_place())));
}

void HolderLease::LoseSlice(VirtualSlice ref, Slice& slice, const std::string& reason, TimeNs now) {
  if (!slice.grant.has_value()) return;
  for (size_t i = 0; i < slice.members.size(); ++i) LoseMember(ref, slice, static_cast<int>(i), reason, now);
  const Grant grant = *slice.grant;
  slice.members.clear();
  slice.grant.reset();
  dirty_ = true;
  sink_->SliceLost(
      ref, grant,
      absl::DataLossError(absl::StrCat("slice ", ref.index, " (", grant.ToString(), ") was lost: ", reason)));
}

void HolderLease::OnUpdate(const HolderUpdate& update, TimeNs now) {
  Observe(now);
  if (update.life() != self_.value() || leaving_) return;
  if (update.term() < promised_term_) {
    dirty_ = true;  // shows the old RM that it has been succeeded
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
  if (update.refused() != refused_) {
    refused_ = update.refused();
    if (!refused_.empty()) sink_->Refused(refused_);
  }

  // A proxy that is refused never gets a slice: its clients hear why instead of seeing devices.
  const auto fits = [](int64_t count) { return count > 0 && count <= limits::kDevicesMax; };
  const bool sane = refused_.empty() && !update.slice_type().empty() && fits(update.slice_count()) &&
                    fits(update.workers_per_slice()) && fits(update.devices_per_worker()) &&
                    fits(int64_t{update.slice_count()} * update.workers_per_slice() * update.devices_per_worker());
  if (sane) {
    const Fleet fleet{update.slice_type(),
                      update.slice_count(),
                      update.workers_per_slice(),
                      update.devices_per_worker(),
                      update.platform().empty() ? "cpu" : update.platform(),
                      update.device_kind(),
                      {update.memory_kinds().begin(), update.memory_kinds().end()}};
    if (fleet_ != fleet) {
      fleet_ = fleet;
      sink_->FleetKnown(fleet);
    }
    for (auto& [id, request] : requests_) {
      if (!request.all || !request.slices.empty()) continue;
      request.slices.resize(static_cast<size_t>(fleet.slice_count));
      for (Slice& slice : request.slices) slice.type = fleet.slice_type;
      dirty_ = true;
    }
  }

  std::set<Incarnation> listed;
  for (const RequestUpdate& told : update.requests()) {
    auto it = requests_.find(told.id());
    if (it == requests_.end()) continue;
    RequestState& request = it->second;
    if (!request.stamp.has_value() && told.has_stamp()) {
      request.stamp = told.stamp();
      dirty_ = true;
    }
    const size_t count = std::min(request.slices.size(), static_cast<size_t>(told.slices_size()));
    for (size_t s = 0; s < count; ++s) {
      const VirtualSliceUpdate& slice_told = told.slices(static_cast<int>(s));
      for (const MemberUpdateForHolder& member : slice_told.members()) listed.insert(Incarnation(member.incarnation()));
      ApplySlice({told.id(), static_cast<int>(s)}, request.slices[s], slice_told, update, now);
    }
  }
  for (auto it = dead_.begin(); it != dead_.end();) {
    it = update.answers() >= it->second && listed.count(it->first) == 0 ? dead_.erase(it) : std::next(it);
  }
  ReportIfDirty(now);
}

void HolderLease::ApplySlice(VirtualSlice ref, Slice& slice, const VirtualSliceUpdate& update,
                             const HolderUpdate& whole, TimeNs now) {
  if (slice.released) return;
  slice.waits_for = update.waits_for();
  if (!update.has_grant()) {
    // Only an RM that has heard all reports, and ours with this grant, may say that it does not stand.
    if (slice.grant.has_value() && whole.settled() && whole.answers() >= slice.announced_since) {
      LoseSlice(ref, slice, "the resource manager ended its lease", now);
    }
    return;
  }
  Grant grant = Grant::FromProto(update.grant());
  if (!slice.grant.has_value() || !slice.grant->SameNumber(grant)) {
    if (grant.number <= slice.bar) return;  // late; our report shows that we do not hold it
    LoseSlice(ref, slice, "its lease was replaced by a newer one", now);
    slice.bar = grant.number;
    slice.grant = std::move(grant);
    slice.gone.clear();
    slice.announced_since = report_number_ + 1;
    slice.members.assign(static_cast<size_t>(std::min(update.members_size(), limits::kDevicesMax)), Member{});
    dirty_ = true;
    sink_->SliceBound(ref, *slice.grant, static_cast<int>(slice.members.size()));
  }
  const size_t count = std::min(slice.members.size(), static_cast<size_t>(update.members_size()));
  for (size_t i = 0; i < count; ++i) {
    const MemberUpdateForHolder& told = update.members(static_cast<int>(i));
    Member& member = slice.members[i];
    const Incarnation incarnation(told.incarnation());
    // A vacant place: the RM does not hear the worker. We may; our own connection to it decides.
    if (!incarnation.valid() || dead_.count(incarnation) > 0) continue;
    if (member.incarnation == incarnation) {
      if (!member.lost && member.draining != told.draining()) {
        member.draining = told.draining();
        if (!member.draining.empty()) sink_->MemberDraining(RefOf(ref, slice, static_cast<int>(i)), member.draining);
      }
      continue;
    }
    if (slice.gone.count(incarnation) > 0) continue;
    if (!told.has_info()) continue;  // the RM adds it when it sees that we lack it
    LoseMember(ref, slice, static_cast<int>(i), "another worker has taken its place", now);
    member = Member{};
    member.incarnation = incarnation;
    member.info = told.info();
    member.draining = told.draining();
    member.last_heard = now;
    dirty_ = true;
    sink_->ConnectMember(RefOf(ref, slice, static_cast<int>(i)), member.info);
    if (!member.draining.empty()) sink_->MemberDraining(RefOf(ref, slice, static_cast<int>(i)), member.draining);
  }
}

void HolderLease::OnMemberWelcome(const MemberRef& ref, const ControlWelcome& welcome, TimeNs now) {
  Observe(now);
  Member* member = Find(ref);
  if (member == nullptr) return;
  Slice& slice = *Find(ref.slice);
  switch (welcome.refusal()) {
    case ControlWelcome::NONE:
      member->connected = true;
      member->last_heard = now;
      member->heartbeat_due = true;  // with the next tick; the caller may tick at once
      if (!member->up) {
        member->up = true;
        member->last_sent = now;  // the worker's time runs from its activation: nothing is overdue yet
        sink_->MemberUp(ref, member->info);
      }
      break;
    case ControlWelcome::NOT_YET: break;  // the connector tries again
    case ControlWelcome::INCARNATION:
      dead_.emplace(ref.incarnation, report_number_ + 1);
      LoseMember(ref.slice, slice, ref.index, "it was started again", now);
      break;
    case ControlWelcome::FENCED:
      LoseMember(ref.slice, slice, ref.index, absl::StrCat("its lease had ended: ", welcome.text()), now);
      break;
    default:
      sink_->Refused(welcome.text());
      LoseMember(ref.slice, slice, ref.index, welcome.text(), now);
      break;
  }
  ReportIfDirty(now);
}

void HolderLease::OnMemberReady(const MemberRef& ref, TimeNs now) {
  Observe(now);
  Member* member = Find(ref);
  if (member != nullptr && member->up && member->connected && member->heartbeat_due) {
    SendHeartbeat(ref.slice, *Find(ref.slice), ref.index, now);
  }
  ReportIfDirty(now);
}

void HolderLease::SendHeartbeat(VirtualSlice ref, Slice& slice, int index, TimeNs now) {
  Member& member = slice.members[static_cast<size_t>(index)];
  member.heartbeat_due = false;
  member.last_sent = now;
  sink_->SendHeartbeat(RefOf(ref, slice, index), ++member.heartbeat_number, now, member.echo_ns);
}

void HolderLease::OnMemberRefused(const MemberRef& ref, TimeNs now) {
  Observe(now);
  if (Find(ref) != nullptr) {
    dead_.emplace(ref.incarnation, report_number_ + 1);
    LoseMember(ref.slice, *Find(ref.slice), ref.index, "its process has ended (connection refused)", now);
  }
  ReportIfDirty(now);
}

void HolderLease::OnMemberDisconnected(const MemberRef& ref, TimeNs now) {
  Observe(now);
  if (Member* member = Find(ref); member != nullptr) member->connected = false;
  ReportIfDirty(now);
}

void HolderLease::OnMemberHeartbeat(const MemberRef& ref, int64_t sent_ns, TimeNs now) {
  Observe(now);
  if (Member* member = Find(ref); member != nullptr) {
    member->last_heard = now;
    member->echo_ns = std::max(member->echo_ns, sent_ns);
  }
  ReportIfDirty(now);
}

void HolderLease::OnMemberFenced(const MemberRef& ref, TimeNs now) {
  Observe(now);
  if (Find(ref) != nullptr) {
    LoseMember(ref.slice, *Find(ref.slice), ref.index, "its lease had ended there", now);
  }
  ReportIfDirty(now);
}

void HolderLease::OnTick(TimeNs now) {
  Observe(now);
  for (auto& [id, request] : requests_) {
    for (size_t s = 0; s < request.slices.size(); ++s) {
      Slice& slice = request.slices[s];
      const VirtualSlice ref{id, static_cast<int>(s)};
      for (size_t i = 0; i < slice.members.size(); ++i) {
        Member& member = slice.members[i];
        if (!member.up) continue;
        if (now - member.last_heard > times_.lease) {
          LoseMember(ref, slice, static_cast<int>(i),
                     absl::StrCat("nothing was heard of it for ", (now - member.last_heard) / kMillisecond, " ms"),
                     now);
          continue;
        }
        if (member.connected &&
            (member.heartbeat_due || now - member.last_sent >= times_.heartbeat - TickPeriod(times_) / 2)) {
          SendHeartbeat(ref, slice, static_cast<int>(i), now);
        }
      }
    }
  }
  if (now - last_report_ >= times_.heartbeat) dirty_ = true;
  if (dirty_ && !leaving_) Report(now);
}

void HolderLease::ReportIfDirty(TimeNs now) {
  if (!dirty_ || leaving_) return;
  size_t slices = 0;
  for (const auto& [id, request] : requests_) slices += request.slices.size();
  if (slices <= limits::kSlicesToldAtEachEventMax) Report(now);  // else with the next tick
}

void HolderLease::Report(TimeNs now) {
  dirty_ = false;
  last_report_ = now;
  HolderReport report = info_;
  report.set_life(self_.value());
  report.set_number(++report_number_);
  report.set_promised_term(promised_term_);
  report.set_leaving(leaving_);
  for (const auto& [incarnation, since] : dead_) report.add_dead(incarnation.value());
  for (const auto& [id, request] : requests_) {
    SliceRequest* asked = report.add_requests();
    asked->set_id(id);
    if (request.stamp.has_value()) *asked->mutable_stamp() = *request.stamp;
    for (const Slice& slice : request.slices) {
      VirtualSliceReport* wanted = asked->add_slices();
      wanted->set_type(slice.type);
      wanted->set_released(slice.released);
      if (!slice.grant.has_value()) continue;
      *wanted->mutable_grant() = slice.grant->ToProto();
      for (const Member& member : slice.members) {
        wanted->add_members(member.lost ? 0 : member.incarnation.value());
      }
    }
  }
  sink_->SendReport(std::move(report));
}

HolderLease::MemberCounts HolderLease::member_counts() const {
  MemberCounts counts;
  for (const auto& [id, request] : requests_) {
    for (const Slice& slice : request.slices) {
      if (slice.released) continue;
      counts.wanted += std::max(1, static_cast<int>(slice.members.size()));
      for (const Member& member : slice.members) counts.up += member.up ? 1 : 0;
    }
  }
  return counts;
}

std::vector<HolderLease::SliceView> HolderLease::slices() const {
  std::vector<SliceView> views;
  for (const auto& [id, request] : requests_) {
    for (size_t s = 0; s < request.slices.size(); ++s) {
      const Slice& slice = request.slices[s];
      SliceView view;
      view.slice = {id, static_cast<int>(s)};
      view.type = slice.type;
      view.grant = slice.grant;
      view.released = slice.released;
      view.waits_for = slice.waits_for;
      for (size_t i = 0; i < slice.members.size(); ++i) {
        const Member& member = slice.members[i];
        MemberView shown;
        shown.ref = RefOf(view.slice, slice, static_cast<int>(i));
        if (member.lost) shown.ref.incarnation = Incarnation();
        shown.info = member.info;
        shown.up = member.up;
        shown.connected = member.connected;
        shown.last_heard = member.last_heard;
        view.members.push_back(std::move(shown));
      }
      views.push_back(std::move(view));
    }
  }
  return views;
}

}  // namespace landbridge
