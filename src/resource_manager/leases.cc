// Leases and the queue.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hmac.h"
#include "base/limits.h"
#include "resource_manager/resource_manager_core.h"

namespace landbridge {

ResourceManagerCore::Proxy* ResourceManagerCore::Find(ProxyLife life) {
  auto it = proxies_.find(life);
  return it == proxies_.end() ? nullptr : &it->second;
}
const ResourceManagerCore::Proxy* ResourceManagerCore::Find(ProxyLife life) const {
  auto it = proxies_.find(life);
  return it == proxies_.end() ? nullptr : &it->second;
}

bool ResourceManagerCore::Current(const Proxy& proxy, TimeNs now) const {
  return proxy.promised == term_ && proxy.refused.empty() && now - proxy.last_heard <= silence_;
}

std::string ResourceManagerCore::SecretOf(int slice, GrantNumber number) const {
  return HmacSha256(options_.cluster_secret, absl::StrCat("grant ", slice, " ", number.term, " ", number.count))
      .substr(0, limits::kSecretBytes);
}

bool ResourceManagerCore::Genuine(const Grant& grant) const {
  return grant.valid() && EqualConstantTime(grant.secret, SecretOf(grant.slice.value(), grant.number));
}

std::string ResourceManagerCore::SignatureOf(ProxyLife life, uint64_t request, uint64_t term, uint64_t count) const {
  return HmacSha256(options_.cluster_secret, absl::StrCat("stamp ", life.value(), " ", request, " ", term, " ", count));
}

const ResourceManagerCore::Lease* ResourceManagerCore::LeaseOf(ProxyLife life, uint64_t request, int32_t virtual_slice,
                                                               int* slice) const {
  const auto it = leased_.find({life, request, virtual_slice});
  if (it == leased_.end()) return nullptr;
  const Lease* found = nullptr;
  for (int s : it->second) {
    const Lease& lease = *slices_[static_cast<size_t>(s)].lease;
    if (found != nullptr && lease.grant.number < found->grant.number) continue;
    found = &lease;
    *slice = s;
  }
  return found;
}

void ResourceManagerCore::SetLease(int slice, Lease lease) {
  leased_[{lease.holder, lease.request, lease.virtual_slice}].insert(slice);
  slices_[static_cast<size_t>(slice)].lease = std::move(lease);
}

void ResourceManagerCore::EndLease(int slice) {
  std::optional<Lease>& lease = slices_[static_cast<size_t>(slice)].lease;
  const auto it = leased_.find({lease->holder, lease->request, lease->virtual_slice});
  it->second.erase(slice);
  if (it->second.empty()) leased_.erase(it);
  lease.reset();
}

// A worker or a proxy announces a grant that we do not have on record: from before our start.
void ResourceManagerCore::Adopt(int slice, const Grant& grant, ProxyLife holder, uint64_t request,
                                int32_t virtual_slice, TimeNs now) {
  Slice& state = slices_[static_cast<size_t>(slice)];
  // Most often it is the one on record; only what may change something is worth its secret's check.
  if (grant.slice.value() != slice || grant.number <= state.revoked) return;
  if (state.lease.has_value() && grant.number <= state.lease->grant.number) return;
  if (!Genuine(grant)) return;
  if (state.lease.has_value()) Revoke(slice, "a newer grant of it is held");
  Lease lease;
  lease.grant = grant;
  lease.holder = holder;
  lease.request = request;
  lease.virtual_slice = virtual_slice;
  lease.phase = Lease::Phase::kGranted;
  lease.since = now;
  SetLease(slice, std::move(lease));
  sink_->Log(absl::StrCat("slice ", slice, " is leased to proxy ", holder.ToString(), " (", grant.number.ToString(),
                          ", from before)"));
  MarkSlice(slice);
}

void ResourceManagerCore::Revoke(int slice, const std::string& why) {
  Slice& state = slices_[static_cast<size_t>(slice)];
  if (!state.lease.has_value()) return;
  MarkSlice(slice);
  sink_->Log(absl::StrCat("slice ", slice, ": lease ", state.lease->grant.number.ToString(), " of proxy ",
                          state.lease->holder.ToString(), " has ended: ", why));
  state.revoked = std::max(state.revoked, state.lease->grant.number);
  EndLease(slice);
  ++totals_.revocations;
}

bool ResourceManagerCore::HolderAnnounces(const Proxy& proxy, const Lease& lease) const {
  auto it = proxy.requests.find(lease.request);
  if (it == proxy.requests.end() || lease.virtual_slice < 0 || lease.virtual_slice >= it->second.report.slices_size()) {
    return false;
  }
  const VirtualSliceReport& said = it->second.report.slices(lease.virtual_slice);
  return !said.released() && said.has_grant() && Grant::FromProto(said.grant()).Matches(lease.grant);
}

TimeNs ResourceManagerCore::LastRenewal(int slice) const {
  const Slice& state = slices_[static_cast<size_t>(slice)];
  TimeNs last = state.lease->since;
  for (Incarnation id : state.members) {
    const Worker* worker = Find(id);
    if (worker == nullptr) continue;
    auto held = worker->leases.find(slice);
    if (held != worker->leases.end() && held->second.grant.number == state.lease->grant.number &&
        held->second.renewed) {
      last = std::max(last, held->second.last_renewal);
    }
  }
  return last;
}

// A lease stands only while all members and the holder announce it.
void ResourceManagerCore::Judge(int slice, TimeNs now) {
  Slice& state = slices_[static_cast<size_t>(slice)];
  if (!settled_ || !state.lease.has_value()) return;
  Lease& lease = *state.lease;
  bool all_active = true;
  bool any = false;
  for (Incarnation id : state.members) {
    const Worker* worker = Find(id);
    if (worker == nullptr || !Current(*worker, now)) {
      all_active = false;
      continue;
    }
    any = true;
    auto held = worker->leases.find(slice);
    if (held != worker->leases.end() && held->second.grant.number == lease.grant.number) {
      all_active = all_active && held->second.active;
      continue;
    }
    all_active = false;
    auto ended = worker->ended.find(slice);
    if ((ended != worker->ended.end() && ended->second >= lease.grant.number) ||
        (held != worker->leases.end() && held->second.grant.number > lease.grant.number)) {
      Revoke(slice, absl::StrCat("it has ended at worker ", worker->info.name()));
      return;
    }
    // Otherwise it has not had this grant yet: it gets the offer.
  }
  if (any) {
    lease.memberless_since = 0;
  } else if (lease.memberless_since == 0) {
    lease.memberless_since = now;
  } else if (now - lease.memberless_since > options_.times.remainder) {
    Revoke(slice, "no worker came back to it");
    return;
  }
  switch (lease.phase) {
    case Lease::Phase::kOffering:
      if (all_active) {
        lease.phase = Lease::Phase::kTelling;
        lease.since = now;
        MarkSlice(slice);
      } else if (now - lease.since > options_.times.old_work + silence_) {
        Revoke(slice, "not all workers took the grant");
        return;
      }
      break;
    case Lease::Phase::kTelling:
      if (now - lease.since > 2 * silence_) {
        Revoke(slice, "the proxy does not answer");
        return;
      }
      break;
    case Lease::Phase::kGranted: break;
  }
  JudgeHolder(slice, now);
}

void ResourceManagerCore::JudgeHolder(int slice, TimeNs now) {
  Slice& state = slices_[static_cast<size_t>(slice)];
  Lease& lease = *state.lease;
  const Proxy* proxy = Find(lease.holder);
  if (proxy != nullptr && Current(*proxy, now)) {
    auto request = proxy->requests.find(lease.request);
    const bool wanted = request != proxy->requests.end() && lease.virtual_slice >= 0 &&
                        lease.virtual_slice < request->second.report.slices_size() &&
                        !request->second.report.slices(lease.virtual_slice).released();
    if (!wanted) {
      Revoke(slice, "it was given back");
      return;
    }
    int other = -1;
    if (LeaseOf(lease.holder, lease.request, lease.virtual_slice, &other) != &lease) {
      Revoke(slice, "its virtual slice has a newer lease");
      return;
    }
    const bool announced = HolderAnnounces(*proxy, lease);
    if (announced && lease.phase == Lease::Phase::kTelling) {
      lease.phase = Lease::Phase::kGranted;
      lease.since = now;
      MarkSlice(slice);
    }
    if (!announced && lease.phase == Lease::Phase::kGranted) Revoke(slice, "the proxy does not hold it");
    return;
  }
  // The holder is not heard. While it renews at the workers, its lease stands.
  if (lease.phase == Lease::Phase::kGranted && now - LastRenewal(slice) > silence_) {
    Revoke(slice, "neither the proxy nor a renewal was heard");
  }
}

absl::Status ResourceManagerCore::OnHolderReport(const HolderReport& report, TimeNs now) {
  Observe(now);
  auto bad = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("a proxy's report is malformed: ", why));
  };
  if (report.life() == 0 || report.number() == 0) return bad("no life or number");
  if (!Possible(report.promised_term())) return bad("a term that no resource manager can have reached");
  if (static_cast<size_t>(report.requests_size()) > limits::kSliceRequestsPerProxyMax) return bad("too many requests");
  if (report.version().size() + report.host().size() + report.address().size() > limits::kRmStringBytesMax ||
      static_cast<size_t>(report.dead_size()) > limits::kWorkersMax) {
    return bad("too long");
  }
  for (const SliceRequest& request : report.requests()) {
    if (request.id() == 0) return bad("a request without an id");
    if (static_cast<size_t>(request.slices_size()) > limits::kVirtualSlicesPerRequestMax) return bad("too many slices");
    for (const VirtualSliceReport& slice : request.slices()) {
      if (slice.type().size() > limits::kAddressBytesMax || slice.members_size() > limits::kDevicesMax) {
        return bad("too long a type or too many members");
      }
    }
  }
  const ProxyLife life(report.life());
  Proxy* proxy = Find(life);
  if (report.leaving()) {
    if (proxy == nullptr || report.number() <= proxy->last_report) return absl::OkStatus();
    sink_->Log(absl::StrCat("proxy ", life.ToString(), " has left"));
    for (size_t s = 0; s < slices_.size(); ++s) {
      if (slices_[s].lease.has_value() && slices_[s].lease->holder == life) {
        Revoke(static_cast<int>(s), "its proxy has left");
      }
    }
    proxies_.erase(life);
    EndOfEvent(now);
    return absl::OkStatus();
  }
  if (proxy == nullptr) {
    if (proxies_.size() >= limits::kProxiesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("there are ", proxies_.size(), " proxies already"));
    }
    proxy = &proxies_[life];
    proxy->life = life;
    if (report.version() != options_.version) {
      proxy->refused = absl::StrCat("the proxy has version ", report.version(), ", the resource manager has version ",
                                    options_.version, ": all processes of a cluster must come from one build");
    }
    sink_->Log(
        absl::StrCat("proxy ", life.ToString(), " on ", report.host(),
                     proxy->refused.empty() ? " has registered" : absl::StrCat(" is refused: ", proxy->refused)));
  }
  proxy->linked = true;
  if (report.number() <= proxy->last_report) return absl::OkStatus();
  const bool first = proxy->last_report == 0;
  proxy->last_report = report.number();
  proxy->last_heard = now;
  uint64_t highest = report.promised_term();

  // What matters to others, without what changes in every report.
  HolderReport before = proxy->report;
  HolderReport after = report;
  before.set_number(0);
  after.set_number(0);
  const bool same = !first && before.SerializeAsString() == after.SerializeAsString();
  proxy->report = report;
  if (!same || proxy->promised != report.promised_term()) {
    proxy->dirty = true;
    changed_ = true;
  }
  proxy->promised = report.promised_term();

  std::map<uint64_t, Request> requests;
  for (const SliceRequest& said : report.requests()) {
    if (requests.count(said.id()) > 0) continue;
    Request request;
    auto old = proxy->requests.find(said.id());
    if (old != proxy->requests.end()) request = std::move(old->second);
    if (request.arrival == 0) request.arrival = ++arrivals_;
    if (!request.stamp.has_value() && said.has_stamp()) {
      if (EqualConstantTime(said.stamp().signature(),
                            SignatureOf(life, said.id(), said.stamp().term(), said.stamp().count()))) {
        request.stamp = said.stamp();
        highest = std::max(highest, said.stamp().term());
      } else {
        sink_->Log(
            absl::StrCat("proxy ", life.ToString(), " showed a stamp that this cluster did not make; it queues anew"));
      }
    }
    request.report = said;
    request.waits_for.resize(static_cast<size_t>(said.slices_size()));
    requests[said.id()] = std::move(request);
  }
  proxy->requests = std::move(requests);
  NoteTerm(highest, now);
  if (proxy->promised != term_) proxy->dirty = true;

  if (proxy->refused.empty()) {
    for (const auto& [id, request] : proxy->requests) {
      for (int v = 0; v < request.report.slices_size(); ++v) {
        const VirtualSliceReport& said = request.report.slices(v);
        if (!said.has_grant() || said.released()) continue;
        const Grant grant = Grant::FromProto(said.grant());
        if (grant.slice.value() < 0 || grant.slice.value() >= options_.slice_count) continue;
        Adopt(grant.slice.value(), grant, life, id, v, now);
      }
    }
    for (uint64_t dead : report.dead()) {
      // Where our own link still stands, we know better; it breaks soon if the proxy is right.
      const Worker* worker = Find(Incarnation(dead));
      if (worker != nullptr && !worker->linked) RemoveWorker(worker->id, "its machine refuses connections");
    }
  }
  if (!same || !settled_) {
    for (size_t s = 0; s < slices_.size(); ++s) {
      if (slices_[s].lease.has_value() && slices_[s].lease->holder == life) Judge(static_cast<int>(s), now);
    }
  }
  EndOfEvent(now);
  return absl::OkStatus();
}

void ResourceManagerCore::OnHolderGone(ProxyLife life, TimeNs now) {
  Observe(now);
  if (Proxy* proxy = Find(life)) proxy->linked = false;
  EndOfEvent(now);
}

void ResourceManagerCore::StampRequests() {
  std::vector<std::tuple<uint64_t, Proxy*, uint64_t>> waiting;
  for (auto& [life, proxy] : proxies_) {
    if (!proxy.refused.empty() || proxy.promised != term_) continue;
    for (auto& [id, request] : proxy.requests) {
      if (!request.stamp.has_value()) waiting.emplace_back(request.arrival, &proxy, id);
    }
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const auto& a, const auto& b) { return std::get<0>(a) < std::get<0>(b); });
  for (auto& [arrival, proxy, id] : waiting) {
    StampProto stamp;
    stamp.set_term(term_);
    stamp.set_count(++stamp_count_);
    stamp.set_signature(SignatureOf(proxy->life, id, stamp.term(), stamp.count()));
    proxy->requests[id].stamp = std::move(stamp);
    proxy->dirty = true;
  }
}

int ResourceManagerCore::FindFreeSlice(int only, TimeNs now) const {
  const size_t first = only >= 0 ? static_cast<size_t>(only) : 0;
  const size_t end = only >= 0 ? first + 1 : slices_.size();
  for (size_t s = first; s < end; ++s) {
    const Slice& slice = slices_[s];
    if (slice.lease.has_value()) continue;
    const bool whole = std::all_of(slice.members.begin(), slice.members.end(), [&](Incarnation id) {
      const Worker* worker = Find(id);
      return worker != nullptr && Current(*worker, now) && worker->draining.empty() && worker->linked &&
             !worker->forming;
    });
    if (whole) return static_cast<int>(s);
  }
  return -1;
}

// Strictly first come, first served: the first request that cannot be served whole stops those behind it.
void ResourceManagerCore::ServeQueue(TimeNs now) {
  struct Entry {
    std::pair<uint64_t, uint64_t> stamp;
    Proxy* proxy;
    uint64_t id;
    Request* request;
  };
  std::vector<Entry> queue;
  for (auto& [life, proxy] : proxies_) {
    if (!proxy.refused.empty()) continue;
    for (auto& [id, request] : proxy.requests) {
      if (request.stamp.has_value()) {
        queue.push_back({{request.stamp->term(), request.stamp->count()}, &proxy, id, &request});
      }
    }
  }
  std::sort(queue.begin(), queue.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.stamp, a.id) < std::tie(b.stamp, b.id); });
  int ahead = 0;
  bool blocked = false;
  for (Entry& entry : queue) {
    bool waits = false;
    for (int v = 0; v < entry.request->report.slices_size(); ++v) {
      const VirtualSliceReport& wanted = entry.request->report.slices(v);
      int slice = -1;
      std::string waits_for;
      if (wanted.released() || LeaseOf(entry.proxy->life, entry.id, v, &slice) != nullptr) {
        // Placed, or not wanted.
      } else if (wanted.type() != options_.type.text) {
        waits_for = absl::StrCat("a slice of type ", wanted.type(), "; this cluster has only ", options_.type.text);
      } else {
        // A proxy whose link has just broken keeps its turn for a while, but gets no offer that it could not hear.
        const bool hears = Current(*entry.proxy, now) && entry.proxy->linked;
        // Who asks for every slice gets them in order: virtual slice 0 is slice 0.
        const bool every = entry.request->report.slices_size() == options_.slice_count;
        slice = blocked || !hears ? -1 : FindFreeSlice(every ? v : -1, now);
        if (slice >= 0) {
          Lease lease;
          lease.grant.slice = PhysicalSliceId(slice);
          lease.grant.number = GrantNumber{term_, ++grant_count_};
          lease.grant.secret = SecretOf(slice, lease.grant.number);
          lease.holder = entry.proxy->life;
          lease.request = entry.id;
          lease.virtual_slice = v;
          lease.since = now;
          ++totals_.grants;
          sink_->Log(absl::StrCat("slice ", slice, " is offered to proxy ", lease.holder.ToString(), " (",
                                  lease.grant.number.ToString(), ")"));
          SetLease(slice, std::move(lease));
          MarkSlice(slice);
        } else {
          waits = true;
          waits_for = ahead > 0
                          ? absl::StrCat("a free slice of type ", wanted.type(), "; ", ahead,
                                         ahead == 1 ? " request is ahead of it" : " requests are ahead of it")
                          : absl::StrCat("a free slice of type ", wanted.type(), "; it is the first in the queue");
        }
      }
      std::string& old = entry.request->waits_for[static_cast<size_t>(v)];
      if (old != waits_for) {
        old = std::move(waits_for);
        entry.proxy->dirty = true;
      }
    }
    if (waits) {
      blocked = true;
      ++ahead;
    }
  }
}

}  // namespace landbridge
