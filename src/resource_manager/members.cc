// Membership: registration, places in slices, silence.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/status.h"
#include "resource_manager/resource_manager_core.h"

namespace landbridge {

ResourceManagerCore::Worker* ResourceManagerCore::Find(Incarnation id) {
  auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}
const ResourceManagerCore::Worker* ResourceManagerCore::Find(Incarnation id) const {
  auto it = workers_.find(id);
  return it == workers_.end() ? nullptr : &it->second;
}

bool ResourceManagerCore::Current(const Worker& worker, TimeNs now) const {
  return worker.promised == term_ && worker.know_info && worker.refused.empty() && !worker.replaced &&
         now - worker.last_heard <= silence_;
}

void ResourceManagerCore::MarkSlice(int slice) {
  changed_ = true;
  const Slice& state = slices_[static_cast<size_t>(slice)];
  for (Incarnation id : state.members) {
    if (Worker* worker = Find(id)) MarkDirty(*worker);
  }
  if (state.lease.has_value()) {
    if (Proxy* proxy = Find(state.lease->holder)) proxy->dirty = true;
  }
}

absl::Status ResourceManagerCore::CheckMemberReport(const MemberReport& report) const {
  auto bad = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("a worker's report is malformed: ", why));
  };
  if (report.incarnation() == 0 || report.number() == 0) return bad("no incarnation or number");
  if (!Possible(report.promised_term())) return bad("a term that no resource manager can have reached");
  if (static_cast<size_t>(report.leases_size()) > limits::kLeasesPerWorkerMax ||
      static_cast<size_t>(report.ended_size()) > limits::kLeasesPerWorkerMax) {
    return bad("too many leases");
  }
  if (report.draining().size() > limits::kRmStringBytesMax) return bad("too long a text");
  if (report.has_info()) {
    const WorkerInfo& info = report.info();
    if (info.ByteSizeLong() > limits::kRmStringBytesMax) return bad("the description is too long");
    if (info.name().empty() || info.control_address().empty()) return bad("no name or control address");
  }
  for (const MemberLease& lease : report.leases()) {
    if (lease.grant().term() == 0 || lease.holder() == 0) return bad("a lease without a term or holder");
  }
  return absl::OkStatus();
}

std::string ResourceManagerCore::WhyRefused(const WorkerInfo& info) const {
  if (info.version() != options_.version) {
    return absl::StrCat("worker ", info.name(), " has version ", info.version(), ", the resource manager has version ",
                        options_.version, ": all processes of a cluster must come from one build");
  }
  if (info.device_count() != options_.type.devices_per_worker) {
    return absl::StrCat("worker ", info.name(), " has ", info.device_count(),
                        " devices, but --instance_type=", options_.type.ToString(), " wants ",
                        options_.type.devices_per_worker, " in each worker: change one of the two");
  }
  if (info.platform() != options_.type.platform) {
    return absl::StrCat("worker ", info.name(), " has platform \"", info.platform(),
                        "\", but --instance_type=", options_.type.text, " wants \"", options_.type.platform, "\"");
  }
  return "";
}

void ResourceManagerCore::RemoveWorker(Incarnation id, const std::string& why) {
  auto it = workers_.find(id);
  if (it == workers_.end()) return;
  const Worker& worker = it->second;
  ++totals_.workers_lost;
  sink_->Log(absl::StrCat("worker ", worker.info.name(), " (", id.ToString(), ")",
                          worker.placed ? absl::StrCat(" leaves place ", worker.index, " of slice ", worker.slice) : "",
                          ": ", why));
  if (worker.placed) {
    slices_[static_cast<size_t>(worker.slice)].members[static_cast<size_t>(worker.index)] = Incarnation();
    MarkSlice(worker.slice);
  }
  workers_.erase(it);
  changed_ = true;
}

// A replaced life never returns.
void ResourceManagerCore::Retire(Incarnation id) {
  if (!retired_.insert(id).second) return;
  retired_order_.push_back(id);
  if (retired_order_.size() > limits::kWorkersMax) {
    retired_.erase(retired_order_.front());
    retired_order_.pop_front();
  }
}

bool ResourceManagerCore::HolderNames(int slice, int index, Incarnation id) const {
  const std::optional<Lease>& lease = slices_[static_cast<size_t>(slice)].lease;
  if (!lease.has_value()) return false;
  const Proxy* proxy = Find(lease->holder);
  if (proxy == nullptr || !HolderAnnounces(*proxy, *lease)) return false;
  const VirtualSliceReport& said = proxy->requests.at(lease->request).report.slices(lease->virtual_slice);
  return index < said.members_size() && said.members(index) == id.value();
}

void ResourceManagerCore::Replace(Worker& worker, Incarnation by, int slice, int index) {
  worker.placed = false;
  MarkDirty(worker);
  if (worker.replaced) return;
  worker.replaced = true;
  sink_->Log(absl::StrCat("worker ", worker.info.name(), " (", worker.id.ToString(), ") is refused: ", by.ToString(),
                          " has its place ", index, " of slice ", slice));
}

// A worker says that it has this place; true in every case but one: somebody else has got it meanwhile.
//
// Both may say so to an RM that has just started: one that was stopped, and the one that took its place. Their slice's
// holder knows whom it uses, and is heard in the start window; without a word of it the first one keeps the place.
void ResourceManagerCore::ClaimPlace(Worker& worker, int slice, int index) {
  if (slice < 0 || slice >= options_.slice_count || index < 0 || index >= options_.type.workers_per_slice) {
    MarkDirty(worker);  // a smaller cluster than before; it is placed anew
    return;
  }
  Incarnation& place = slices_[static_cast<size_t>(slice)].members[static_cast<size_t>(index)];
  if (place.valid() && place != worker.id) {
    if (!settled_) {
      worker.contested = {slice, index};
      return;
    }
    Worker* other = Find(place);
    if (other == nullptr || !HolderNames(slice, index, worker.id)) return Replace(worker, place, slice, index);
    Replace(*other, worker.id, slice, index);
  }
  place = worker.id;
  worker.placed = true;
  worker.slice = slice;
  worker.index = index;
  MarkSlice(slice);
}

void ResourceManagerCore::JudgeClaims() {
  for (auto& [id, worker] : workers_) {
    const auto claim = std::exchange(worker.contested, std::nullopt);
    if (claim.has_value() && !worker.placed && !worker.replaced) ClaimPlace(worker, claim->first, claim->second);
  }
}

// A worker that makes its client with others knows its devices when that is done.
void ResourceManagerCore::TakeNewFacts(Worker& worker, const MemberReport& report) {
  if (worker.forming != report.forming()) {
    worker.forming = report.forming();
    changed_ = true;
    if (worker.placed) MarkSlice(worker.slice);
  }
  if (!report.has_info() || worker.info.device_kind() == report.info().device_kind()) return;
  worker.info.set_device_kind(report.info().device_kind());
  *worker.info.mutable_memory_kinds() = report.info().memory_kinds();
  for (auto& [life, proxy] : proxies_) proxy.dirty = true;  // DescribeDevices
}

absl::Status ResourceManagerCore::OnMemberReport(const MemberReport& report, TimeNs now) {
  Observe(now);
  LB_RETURN_IF_ERROR(CheckMemberReport(report));
  const Incarnation id(report.incarnation());
  Worker* worker = Find(id);
  if (report.leaving()) {
    if (worker != nullptr && report.number() > worker->last_report) RemoveWorker(id, "it has left");
    EndOfEvent(now);
    return absl::OkStatus();
  }
  if (worker == nullptr) {
    if (workers_.size() >= limits::kWorkersMax) {
      return absl::ResourceExhaustedError(absl::StrCat("there are ", workers_.size(), " workers already"));
    }
    worker = &workers_[id];
    worker->id = id;
    worker->replaced = retired_.count(id) > 0;
  }
  if (!worker->linked || worker->last_report == 0) {
    worker->linked = true;
    worker->dirty = false;
    MarkDirty(*worker);  // new, or back: it is told everything
  }
  if (report.number() <= worker->last_report) return absl::OkStatus();
  worker->last_report = report.number();
  worker->last_heard = now;
  if (worker->promised != report.promised_term()) {
    worker->promised = report.promised_term();
    MarkDirty(*worker);
    changed_ = true;
  }
  NoteTerm(report.promised_term(), now);
  if (worker->promised != term_) MarkDirty(*worker);

  if (report.has_info() && !worker->know_info) {
    worker->know_info = true;
    worker->info = report.info();
    worker->refused = WhyRefused(worker->info);
    MarkDirty(*worker);
    changed_ = true;
    for (auto& [life, proxy] : proxies_) proxy.dirty |= options_.type.platform != "cpu";  // DescribeDevices
    sink_->Log(
        absl::StrCat("worker ", worker->info.name(), " (", id.ToString(), ") on ", worker->info.host(), ", ",
                     worker->info.device_count(), " ", worker->info.platform(), " devices",
                     worker->refused.empty() ? " has registered" : absl::StrCat(" is refused: ", worker->refused)));
    // A new life of a worker has killed the old one before it opened its devices: the place is its own at once.
    std::vector<Incarnation> old_lives;
    for (const auto& [other_id, other] : workers_) {
      if (other_id != id && other.know_info && other.info.name() == worker->info.name() && !other.replaced &&
          !worker->replaced) {
        old_lives.push_back(other_id);
      }
    }
    for (Incarnation old_id : old_lives) {
      const Worker old = *Find(old_id);
      RemoveWorker(old_id, absl::StrCat("started again as ", id.ToString()));
      Retire(old_id);
      if (old.placed && !worker->placed && !report.placed() && worker->refused.empty()) {
        ClaimPlace(*worker, old.slice, old.index);
      }
    }
  } else if (!worker->know_info) {
    MarkDirty(*worker);  // asks for it
  }
  TakeNewFacts(*worker, report);
  if (report.placed() && !worker->placed && !worker->replaced && worker->refused.empty() && worker->know_info) {
    ClaimPlace(*worker, report.slice(), report.index());
  }
  if (worker->placed && (!report.placed() || report.slice() != worker->slice || report.index() != worker->index)) {
    MarkDirty(*worker);
  }
  if (worker->draining != report.draining()) {
    worker->draining = report.draining();
    sink_->Log(absl::StrCat("worker ", worker->info.name(), " drains: ", worker->draining));
    if (worker->placed) MarkSlice(worker->slice);
  }

  std::map<int, ReportedLease> leases;
  for (const MemberLease& said : report.leases()) {
    ReportedLease lease;
    lease.grant = Grant::FromProto(said.grant());
    lease.holder = ProxyLife(said.holder());
    lease.request = said.request();
    lease.virtual_slice = said.virtual_slice();
    lease.active = said.state() == MemberLease::ACTIVE;
    lease.renewed = said.renewed();
    lease.last_renewal = now - std::max<int64_t>(0, said.renewed_ago_ns());
    leases[said.grant().slice()] = std::move(lease);
  }
  std::map<int, GrantNumber> ended;
  for (const RevokedUpTo& said : report.ended()) ended[said.slice()] = GrantNumber{said.term(), said.count()};
  const bool same = ended == worker->ended && std::equal(leases.begin(), leases.end(), worker->leases.begin(),
                                                         worker->leases.end(), [](const auto& a, const auto& b) {
                                                           return a.first == b.first &&
                                                                  a.second.grant.number == b.second.grant.number &&
                                                                  a.second.active == b.second.active;
                                                         });
  worker->leases = std::move(leases);
  worker->ended = std::move(ended);
  if (!same) {
    MarkDirty(*worker);
    if (worker->placed) MarkSlice(worker->slice);
  }
  if (worker->placed) {
    auto held = worker->leases.find(worker->slice);
    if (held != worker->leases.end()) {
      const ReportedLease& lease = held->second;
      Adopt(worker->slice, lease.grant, lease.holder, lease.request, lease.virtual_slice, now);
    }
    Judge(worker->slice, now);
  }
  EndOfEvent(now);
  return absl::OkStatus();
}

void ResourceManagerCore::OnMemberGone(Incarnation incarnation, TimeNs now) {
  Observe(now);
  if (Worker* worker = Find(incarnation)) {
    worker->linked = false;
    for (const auto& [life, proxy] : proxies_) {
      for (uint64_t dead : proxy.report.dead()) {
        if (dead == incarnation.value()) {
          RemoveWorker(incarnation, "its machine refuses connections");
          EndOfEvent(now);
          return;
        }
      }
    }
  }
  EndOfEvent(now);
}

// Fills vacant places; first those of leased slices, whose holders wait for a member.
void ResourceManagerCore::PlaceWorkers(TimeNs now) {
  std::vector<Worker*> spares;
  for (auto& [id, worker] : workers_) {
    if (!worker.placed && Current(worker, now) && worker.draining.empty() && worker.linked) spares.push_back(&worker);
  }
  if (spares.empty()) return;
  // By name, so that worker 0 of a fresh cluster gets place 0 of slice 0.
  std::sort(spares.begin(), spares.end(), [](const Worker* a, const Worker* b) {
    return a->info.name().size() != b->info.name().size() ? a->info.name().size() < b->info.name().size()
                                                          : a->info.name() < b->info.name();
  });
  FillPlaces(/*wished=*/true, spares);
  FillPlaces(/*wished=*/false, spares);
}

// Places of leased slices come first. `wished`: only workers that asked for that very slice.
void ResourceManagerCore::FillPlaces(bool wished, std::vector<Worker*>& spares) {
  for (const bool leased : {true, false}) {
    for (size_t s = 0; s < slices_.size(); ++s) {
      Slice& slice = slices_[s];
      if (slice.lease.has_value() != leased) continue;
      for (size_t i = 0; i < slice.members.size(); ++i) {
        if (slice.members[i].valid()) continue;
        auto fits = [&](const Worker* spare) {
          if (wished && spare->info.slice_hint() != static_cast<int>(s) + 1) return false;
          return std::all_of(slice.members.begin(), slice.members.end(), [&](Incarnation id) {
            const Worker* other = Find(id);
            if (other == nullptr) return true;
            const std::string &kind = spare->info.device_kind(), &of_other = other->info.device_kind();
            return other->info.plugin_hash() == spare->info.plugin_hash() &&
                   (kind.empty() || of_other.empty() || kind == of_other);  // none: it knows when it has formed
          });
        };
        auto it = std::find_if(spares.begin(), spares.end(), fits);
        if (it == spares.end()) continue;
        Worker* worker = *it;
        spares.erase(it);
        sink_->Log(absl::StrCat("worker ", worker->info.name(), " (", worker->id.ToString(), ") gets place ", i,
                                " of slice ", s));
        ClaimPlace(*worker, static_cast<int>(s), static_cast<int>(i));
      }
    }
  }
}

}  // namespace landbridge
