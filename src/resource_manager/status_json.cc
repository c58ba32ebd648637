// The RM's state for people and tools (`landbridge status`).
#include "resource_manager/resource_manager_core.h"

namespace landbridge {

using nlohmann::json;

// Ids are strings: JSON readers round 64-bit numbers.
json ResourceManagerCore::StatusJson(TimeNs now) const {
  auto age_ms = [now](TimeNs since) { return (now - since) / kMillisecond; };
  json workers = json::array();
  for (const auto& [id, worker] : workers_) {
    json leases = json::array();
    for (const auto& [slice, lease] : worker.leases) {
      leases.push_back({{"slice", slice},
                        {"grant", lease.grant.number.ToString()},
                        {"active", lease.active},
                        {"proxy", lease.holder.ToString()},
                        {"renewed_ago_ms", lease.renewed ? json(age_ms(lease.last_renewal)) : json()}});
    }
    std::string state = "ready";
    if (!worker.know_info) {
      state = "registering";
    } else if (!worker.refused.empty()) {
      state = "refused";
    } else if (worker.replaced) {
      state = "replaced";
    } else if (!worker.draining.empty()) {
      state = "draining";
    } else if (!Current(worker, now) || !worker.linked) {
      state = "silent";
    } else if (!worker.placed) {
      state = "spare";
    }
    workers.push_back({{"name", worker.info.name()},
                       {"incarnation", id.ToString()},
                       {"state", state},
                       {"host", worker.info.host()},
                       {"pid", worker.info.pid()},
                       {"version", worker.info.version()},
                       {"platform", worker.info.platform()},
                       {"device_kind", worker.info.device_kind()},
                       {"device_count", worker.info.device_count()},
                       {"plugin",
                        {{"name", worker.info.plugin_name()},
                         {"version", worker.info.plugin_version()},
                         {"sha256", worker.info.plugin_hash()}}},
                       {"control_address", worker.info.control_address()},
                       {"slice", worker.placed ? json(worker.slice) : json()},
                       {"index", worker.placed ? json(worker.index) : json()},
                       {"refused", worker.refused},
                       {"draining", worker.draining},
                       {"heard_ago_ms", age_ms(worker.last_heard)},
                       {"leases", std::move(leases)}});
  }
  json slices = json::array();
  for (size_t s = 0; s < slices_.size(); ++s) {
    const Slice& slice = slices_[s];
    json members = json::array();
    bool whole = true;
    for (Incarnation id : slice.members) {
      const Worker* worker = Find(id);
      const bool there = worker != nullptr && Current(*worker, now);
      whole = whole && there;
      members.push_back(worker == nullptr
                            ? json()
                            : json({{"name", worker->info.name()}, {"incarnation", id.ToString()}, {"ready", there}}));
    }
    json lease;
    if (slice.lease.has_value()) {
      const char* phases[] = {"offering", "telling", "granted"};
      lease = {{"grant", slice.lease->grant.number.ToString()},
               {"proxy", slice.lease->holder.ToString()},
               {"request", slice.lease->request},
               {"virtual_slice", slice.lease->virtual_slice},
               {"phase", phases[static_cast<int>(slice.lease->phase)]},
               {"since_ms", age_ms(slice.lease->since)}};
    }
    slices.push_back(
        {{"slice", s},
         {"type", options_.type.text},
         {"state", slice.lease.has_value() ? (whole ? "leased" : "leased, broken") : (whole ? "free" : "incomplete")},
         {"members", std::move(members)},
         {"lease", std::move(lease)}});
  }
  json proxies = json::array();
  for (const auto& [life, proxy] : proxies_) {
    json requests = json::array();
    for (const auto& [id, request] : proxy.requests) {
      json wanted = json::array();
      for (int v = 0; v < request.report.slices_size(); ++v) {
        int slice = -1;
        const Lease* lease = LeaseOf(life, id, v, &slice);
        wanted.push_back(
            {{"type", request.report.slices(v).type()},
             {"slice", lease != nullptr ? json(slice) : json()},
             {"released", request.report.slices(v).released()},
             {"waits_for", static_cast<size_t>(v) < request.waits_for.size() ? request.waits_for[static_cast<size_t>(v)]
                                                                             : std::string()}});
      }
      requests.push_back({{"request", id},
                          {"stamp", request.stamp.has_value()
                                        ? json(GrantNumber{request.stamp->term(), request.stamp->count()}.ToString())
                                        : json()},
                          {"slices", std::move(wanted)}});
    }
    proxies.push_back({{"proxy", life.ToString()},
                       {"host", proxy.report.host()},
                       {"pid", proxy.report.pid()},
                       {"address", proxy.report.address()},
                       {"version", proxy.report.version()},
                       {"refused", proxy.refused},
                       {"connected", proxy.linked},
                       {"heard_ago_ms", age_ms(proxy.last_heard)},
                       {"requests", std::move(requests)}});
  }
  return {{"role", "resource_manager"},
          {"version", options_.version},
          {"term", GrantNumber{term_, 0}.ToString()},
          {"settled", settled_},
          {"instance_type", options_.type.text},
          {"instance_count", options_.slice_count},
          {"workers_per_slice", options_.type.workers_per_slice},
          {"devices_per_worker", options_.type.devices_per_worker},
          {"workers", std::move(workers)},
          {"slices", std::move(slices)},
          {"proxies", std::move(proxies)}};
}

}  // namespace landbridge
