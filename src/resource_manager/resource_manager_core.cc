#include "resource_manager/resource_manager_core.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "cluster/report_limits.h"

namespace landbridge {

ResourceManagerCore::ResourceManagerCore(ResourceManagerOptions options, ResourceManagerSink* sink, TimeNs now)
    : options_(std::move(options)), sink_(sink), silence_(WaitForOthersLease(options_.times)) {
  slices_.resize(static_cast<size_t>(options_.slice_count));
  for (Slice& slice : slices_) slice.members.resize(static_cast<size_t>(options_.type.workers_per_slice));
  last_event_ = now;
  NewTerm(0, "start", now);
}

ResourceManagerCore::~ResourceManagerCore() = default;

// One generation for each start or pause: more than this is nobody's term, and the next one might not fit.
bool ResourceManagerCore::Possible(uint64_t term) { return term >> kTermLifeBits <= kGenerationsMax; }

// The next generation above `above`, marked with this life.
void ResourceManagerCore::NewTerm(uint64_t above, const std::string& why, TimeNs now) {
  const uint64_t generation = (std::max(above, term_) >> kTermLifeBits) + 1;
  const bool first = term_ == 0;
  term_ = generation << kTermLifeBits | (options_.life & ((uint64_t{1} << kTermLifeBits) - 1));
  grant_count_ = stamp_count_ = update_number_ = 0;
  settled_ = false;
  window_end_ = now + StartWindow(options_.times);
  if (!first) sink_->Log(absl::StrCat("term ", generation, " (", why, "): hears reports for one start window"));
  for (auto& [id, worker] : workers_) MarkDirty(worker);
  for (auto& [life, proxy] : proxies_) proxy.dirty = true;
  for (size_t s = 0; s < slices_.size(); ++s) {
    std::optional<Lease>& lease = slices_[s].lease;
    if (!lease.has_value()) continue;
    // What a restarted RM would find: an unfinished offer is not a lease; whether a holder that was being told has
    // heard is seen from its next report.
    if (lease->phase == Lease::Phase::kOffering) {
      Revoke(static_cast<int>(s), "the offer was interrupted");
    } else {
      lease->phase = Lease::Phase::kGranted;
      lease->since = now;
    }
  }
}

void ResourceManagerCore::NoteTerm(uint64_t reported, TimeNs now) {
  // Another life of our generation is above or below us by chance: we go above it in every case.
  if (reported != term_ && reported >> kTermLifeBits >= term_ >> kTermLifeBits) {
    NewTerm(reported, "another resource manager was there before", now);
  }
}

void ResourceManagerCore::Observe(TimeNs now) {
  const TimeNs before = std::exchange(last_event_, now);
  if (now - before > PauseThreshold(options_.times)) {
    for (auto& [id, worker] : workers_) worker.last_heard = now;
    for (auto& [life, proxy] : proxies_) proxy.last_heard = now;
    NewTerm(term_, absl::StrCat("this process was away for ", (now - before) / kMillisecond, " ms"), now);
  }
}

void ResourceManagerCore::Settle(TimeNs now) {
  settled_ = true;
  changed_ = true;
  sink_->Log(absl::StrCat("start window over: ", workers_.size(), " workers, ", proxies_.size(), " proxies"));
  JudgeClaims();
  for (auto& [id, worker] : workers_) MarkDirty(worker);
  for (auto& [life, proxy] : proxies_) proxy.dirty = true;
  for (size_t s = 0; s < slices_.size(); ++s) {
    if (slices_[s].lease.has_value()) slices_[s].lease->since = now;
  }
}

void ResourceManagerCore::OnTick(TimeNs now) {
  Observe(now);
  if (!settled_ && now >= window_end_) Settle(now);
  std::vector<Incarnation> silent;
  for (const auto& [id, worker] : workers_) {
    if (now - worker.last_heard > silence_) silent.push_back(id);
  }
  for (Incarnation id : silent) RemoveWorker(id, "nothing was heard of it");
  for (auto it = proxies_.begin(); it != proxies_.end();) {
    const auto held = leased_.lower_bound({it->first, 0, INT32_MIN});
    const bool leased = held != leased_.end() && std::get<0>(held->first) == it->first;
    if (!leased && now - it->second.last_heard > silence_) {
      sink_->Log(absl::StrCat("proxy ", it->first.ToString(), " is gone"));
      it = proxies_.erase(it);
    } else {
      ++it;
    }
  }
  for (size_t s = 0; s < slices_.size(); ++s) Judge(static_cast<int>(s), now);
  changed_ = true;
  EndOfEvent(now, /*tick=*/true);
}

bool ResourceManagerCore::LeavesAllToTicks() const { return slices_.size() > limits::kSlicesToldAtEachEventMax; }

void ResourceManagerCore::EndOfEvent(TimeNs now, bool tick) {
  if (changed_ && settled_ && (tick || !LeavesAllToTicks())) {
    changed_ = false;
    StampRequests();
    PlaceWorkers(now);
    ServeQueue(now);
  }
  Flush(now, tick);
}

void ResourceManagerCore::MarkDirty(Worker& worker) {
  if (!worker.dirty && worker.linked) dirty_workers_.push_back(worker.id);
  worker.dirty = true;
}

void ResourceManagerCore::Flush(TimeNs now, bool periodic) {
  auto send = [&](Worker& worker) {
    worker.dirty = false;
    worker.last_sent = now;
    MemberUpdate update = MakeMemberUpdate(worker);
    update.set_number(++update_number_);
    sink_->SendToMember(worker.id, std::move(update));
  };
  std::vector<Incarnation> dirty;
  dirty.swap(dirty_workers_);
  for (Incarnation id : dirty) {
    Worker* worker = Find(id);
    if (worker != nullptr && worker->dirty && worker->linked) send(*worker);
  }
  if (periodic) {
    for (auto& [id, worker] : workers_) {
      if (worker.linked && now - worker.last_sent >= options_.times.heartbeat) send(worker);
    }
  }
  for (auto& [life, proxy] : proxies_) {
    if (!proxy.linked) continue;
    const bool due = periodic && now - proxy.last_sent >= options_.times.heartbeat;
    if (!due && !(proxy.dirty && (periodic || !LeavesAllToTicks()))) continue;
    proxy.dirty = false;
    proxy.last_sent = now;
    HolderUpdate update = MakeHolderUpdate(proxy);
    update.set_number(++update_number_);
    sink_->SendToHolder(life, std::move(update));
  }
}

MemberUpdate ResourceManagerCore::MakeMemberUpdate(const Worker& worker) const {
  MemberUpdate update;
  update.set_term(term_);
  update.set_incarnation(worker.id.value());
  update.set_know_info(worker.know_info);
  update.set_refused(worker.refused);
  update.set_replaced(worker.replaced);
  update.set_placed(worker.placed || worker.contested.has_value());
  if (worker.placed) {
    update.set_slice(worker.slice);
    update.set_index(worker.index);
  } else if (worker.contested.has_value()) {  // the claim stands until it is judged, also before the next RM
    update.set_slice(worker.contested->first);
    update.set_index(worker.contested->second);
  }
  for (const auto& [slice, held] : worker.leases) {
    GrantNumber ended;
    if (slice >= 0 && static_cast<size_t>(slice) < slices_.size()) {
      const Slice& state = slices_[static_cast<size_t>(slice)];
      ended = state.revoked;
      // One who holds an older grant than the slice's present one is behind.
      if (state.lease.has_value() && held.grant.number < state.lease->grant.number) {
        ended = std::max(ended, held.grant.number);
      }
    } else {
      ended = held.grant.number;  // no such slice (any more)
    }
    if (held.grant.number <= ended) {
      RevokedUpTo* revoked = update.add_revoked();
      revoked->set_slice(slice);
      revoked->set_term(ended.term);
      revoked->set_count(ended.count);
    }
  }
  if (worker.placed) TellFormation(slices_[static_cast<size_t>(worker.slice)], update);
  if (worker.placed && worker.refused.empty() && !worker.replaced && worker.draining.empty() && !worker.forming &&
      settled_) {
    const std::optional<Lease>& lease = slices_[static_cast<size_t>(worker.slice)].lease;
    auto held = worker.leases.find(worker.slice);
    const bool has =
        lease.has_value() && held != worker.leases.end() && held->second.grant.number == lease->grant.number;
    if (lease.has_value() && !has) {
      MemberOffer* offer = update.add_offers();
      *offer->mutable_grant() = lease->grant.ToProto();
      offer->set_holder(lease->holder.value());
      offer->set_request(lease->request);
      offer->set_virtual_slice(lease->virtual_slice);
    }
  }
  return update;
}

HolderUpdate ResourceManagerCore::MakeHolderUpdate(const Proxy& proxy) const {
  HolderUpdate update;
  update.set_term(term_);
  update.set_life(proxy.life.value());
  update.set_answers(proxy.last_report);
  update.set_settled(settled_);
  update.set_refused(proxy.refused);
  update.set_version(options_.version);
  update.set_slice_type(options_.type.text);
  update.set_slice_count(options_.slice_count);
  update.set_workers_per_slice(options_.type.workers_per_slice);
  update.set_devices_per_worker(options_.type.devices_per_worker);
  update.set_platform(options_.type.platform);
  DescribeDevices(update);
  for (const auto& [id, request] : proxy.requests) {
    RequestUpdate* told = update.add_requests();
    told->set_id(id);
    if (request.stamp.has_value()) *told->mutable_stamp() = *request.stamp;
    for (int v = 0; v < request.report.slices_size(); ++v) {
      VirtualSliceUpdate* out = told->add_slices();
      int s = -1;
      const Lease* lease = LeaseOf(proxy.life, id, v, &s);
      if (lease == nullptr || lease->phase == Lease::Phase::kOffering) {
        if (lease != nullptr) {
          out->set_waits_for(absl::StrCat("the workers of ", lease->grant.slice.ToString(), " to take the grant"));
        } else if (static_cast<size_t>(v) < request.waits_for.size()) {
          out->set_waits_for(request.waits_for[static_cast<size_t>(v)]);
        }
        continue;
      }
      *out->mutable_grant() = lease->grant.ToProto();
      const Slice& slice = slices_[static_cast<size_t>(s)];
      const VirtualSliceReport& known = request.report.slices(v);
      for (size_t i = 0; i < slice.members.size(); ++i) {
        MemberUpdateForHolder* member = out->add_members();
        const Worker* worker = Find(slice.members[i]);
        if (worker == nullptr) continue;
        auto held = worker->leases.find(s);
        // A member that has not acknowledged this grant (a new one, taking a lost one's place) is not there yet.
        if (held == worker->leases.end() || !held->second.active || held->second.grant.number != lease->grant.number) {
          continue;
        }
        member->set_incarnation(worker->id.value());
        member->set_draining(worker->draining);
        const bool knows =
            static_cast<int>(i) < known.members_size() && known.members(static_cast<int>(i)) == worker->id.value();
        if (!knows) *member->mutable_info() = worker->info;
      }
    }
  }
  return update;
}

// Who makes a client together with whom. Workers of CPUs have no use for it.
void ResourceManagerCore::TellFormation(const Slice& slice, MemberUpdate& update) const {
  if (options_.type.platform == "cpu" || slice.members.size() < 2) return;
  for (Incarnation id : slice.members) {
    const Worker* member = Find(id);
    if (member == nullptr || !member->know_info || !member->refused.empty()) return update.clear_formation();
    FormationMember* told = update.add_formation();
    told->set_incarnation(id.value());
    told->set_address(member->info.control_address());
  }
}

// What only the workers know. A CPU is a CPU.
void ResourceManagerCore::DescribeDevices(HolderUpdate& update) const {
  if (options_.type.platform == "cpu") return;
  for (const auto& [id, worker] : workers_) {
    if (!worker.know_info || !worker.refused.empty() || worker.info.device_kind().empty()) continue;
    update.set_device_kind(worker.info.device_kind());
    *update.mutable_memory_kinds() = worker.info.memory_kinds();
    return;
  }
}

std::optional<Grant> ResourceManagerCore::lease(int slice) const {
  const std::optional<Lease>& lease = slices_[static_cast<size_t>(slice)].lease;
  if (!lease.has_value()) return std::nullopt;
  return lease->grant;
}

ResourceManagerCore::Counts ResourceManagerCore::counts(TimeNs now) const {
  Counts counts = totals_;
  counts.workers = static_cast<int>(workers_.size());
  counts.proxies = static_cast<int>(proxies_.size());
  for (const Slice& slice : slices_) {
    const bool whole = std::all_of(slice.members.begin(), slice.members.end(), [&](Incarnation id) {
      const Worker* worker = Find(id);
      return worker != nullptr && Current(*worker, now);
    });
    if (!whole) ++counts.slices_broken;
    if (slice.lease.has_value()) {
      ++counts.slices_leased;
    } else if (whole) {
      ++counts.slices_free;
    }
  }
  for (const auto& [life, proxy] : proxies_) {
    for (const auto& [id, request] : proxy.requests) {
      bool waits = false;
      for (int v = 0; v < request.report.slices_size(); ++v) {
        int slice = -1;
        waits = waits || (!request.report.slices(v).released() && LeaseOf(life, id, v, &slice) == nullptr);
      }
      if (waits) ++counts.requests_waiting;
    }
  }
  return counts;
}

}  // namespace landbridge
