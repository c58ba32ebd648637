#include "cli/wait_graph.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/json_fields.h"

namespace landbridge::cli {
namespace {

using nlohmann::json;

constexpr size_t kTreesMax = 16;  // shown by Why
constexpr size_t kChainMax = 8;   // links of a chain, levels of a tree
constexpr int64_t kSilentAfterMs = 1000;

std::string Bytes(int64_t bytes) {
  if (bytes < int64_t{10} << 10) return absl::StrCat(bytes, " bytes");
  if (bytes < int64_t{10} << 20) return absl::StrCat(bytes >> 10, " KiB");
  if (bytes < int64_t{10} << 30) return absl::StrCat(bytes >> 20, " MiB");
  return absl::StrCat(bytes >> 30, " GiB");
}

std::string Age(int64_t ms) {
  return ms < 0 ? "" : ms < 10'000 ? absl::StrCat(" for ", ms, " ms") : absl::StrCat(" for ", ms / 1000, " s");
}

// The other half of a copy, which is listed itself.
bool IsSend(const WaitNode& node) { return absl::StartsWith(node.kind, "send"); }

// "slice0/1" of "slice0" and worker 1.
std::string PlaceOf(const json& slot) {
  return absl::StrCat("slice", FieldText(slot, "slice"), "/", FieldText(slot, "worker"));
}

}  // namespace

WaitGraph::WaitGraph(const json& explain) {
  for (const json& slice : Member(explain, "slices")) {
    const std::string why = FieldText(slice, "waits_for");
    if (!why.empty()) slice_waits_for_[absl::StrCat("slice", FieldText(slice, "index"))] = why;
  }
  const json& workers = Member(explain, "workers");
  AddController(Member(explain, "controller"));
  if (workers.is_object()) {
    for (const auto& [where, worker] : workers.items()) AddWorker(where, worker);
    for (const json& slot : Member(Member(explain, "controller"), "slots")) {
      const std::string where = PlaceOf(slot);
      if (workers.contains(where) && workers[where].is_null()) AddSilentWorker(where, slot);
    }
  }
  // Workers do not say whose transfer it is; the controller does.
  for (const json& slot : Member(Member(explain, "controller"), "slots")) {
    for (const json& sent : Member(slot, "sent")) {
      const auto at = by_ticket_.find({PlaceOf(slot), FieldText(sent, "ticket")});
      if (at == by_ticket_.end()) continue;
      for (size_t node : at->second) {
        if (nodes_[node].session.empty()) nodes_[node].session = FieldText(sent, "session");
      }
    }
  }
  Link();
}

void WaitGraph::Add(const std::string& where, const std::string& kind, std::string state, const json& item) {
  WaitNode node;
  node.where = where;
  node.kind = kind;
  node.state = std::move(state);
  node.ticket = FieldText(item, "ticket");
  node.session = FieldText(item, "session");
  node.name = FieldText(item, "name");
  node.ref = FieldText(item, "ref");
  node.call_site = FieldText(item, "call_site");
  node.age_ms = FieldNumber(item, "age_ms", -1);
  std::vector<std::string> devices;
  for (const json& device : Member(item, "devices")) devices.push_back(device.dump());
  node.devices = absl::StrJoin(devices, ",");
  if (!node.ticket.empty()) by_ticket_[{where, node.ticket}].push_back(nodes_.size());
  const std::string transfer = FieldText(item, "transfer");
  if (!transfer.empty()) by_transfer_[{where, transfer}] = nodes_.size();
  nodes_.push_back(std::move(node));
  raw_reasons_.push_back(Member(item, "waits_for"));
}

void WaitGraph::AddController(const json& controller) {
  for (const json& slot : Member(controller, "slots")) {
    place_of_[FieldText(slot, "incarnation")] = PlaceOf(slot);
    for (const json& item : Member(slot, "waiting")) {
      const std::string what = FieldText(item, "what");
      if (what != "delete") Add(PlaceOf(slot), what, "parked", item);  // nobody waits for those
    }
  }
}

void WaitGraph::AddWorker(const std::string& where, const json& worker) {
  place_of_[FieldText(worker, "worker")] = where;
  for (const json& item : Member(worker, "launches")) {
    const std::string state = FieldText(item, "state");
    Add(where, "launch", state == "handed over" ? "running" : state == "done" ? "running" : state, item);
  }
  for (const json& item : Member(worker, "makes")) {
    Add(where, "copy", Member(item, "started") == json(true) ? "receiving" : "waiting", item);
  }
  for (const json& item : Member(worker, "uploads")) Add(where, "upload", "receiving", item);
  for (const json& item : Member(worker, "publishes")) {
    const bool waits = FieldText(item, "state") == "waiting";
    Add(where, "send", waits ? "waiting" : "running", item);
  }
  for (const json& item : Member(worker, "reads")) {
    Add(where, "read", Member(item, "started") == json(true) ? "running" : "waiting", item);
  }
}

// All there is of a worker that has not answered: what it was sent.
void WaitGraph::AddSilentWorker(const std::string& where, const json& slot) {
  for (const json& item : Member(slot, "sent")) {
    Add(where, "operation", "sent", item);
    raw_reasons_.back() = json::array({{{"what", "silence"}, {"name", FieldText(slot, "name")}}});
    if (nodes_.back().age_ms >= kSilentAfterMs) nodes_.back().state = "waiting";
  }
}

void WaitGraph::Link() {
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const json& raw = raw_reasons_[i];
    if (raw.is_string()) {  // the controller's own words
      WaitNode::Reason reason{raw.get<std::string>(), {}};
      const std::string slice = nodes_[i].where.substr(0, nodes_[i].where.find('/'));
      const auto unplaced = slice_waits_for_.find(slice);
      if (unplaced != slice_waits_for_.end()) {
        absl::StrAppend(&reason.text, "; ", slice, " is not placed: it waits for ", unplaced->second);
      }
      nodes_[i].reasons.push_back(std::move(reason));
      continue;
    }
    for (const json& reason : raw) nodes_[i].reasons.push_back(Explain(i, reason));
  }
}

std::vector<size_t> WaitGraph::MakersOf(const std::string& where, const std::string& ticket,
                                        const std::string& ref) const {
  const auto at = by_ticket_.find({where, ticket});
  if (at == by_ticket_.end()) return {};
  std::vector<size_t> makers;
  for (size_t node : at->second) {
    if (nodes_[node].kind != "copy" || nodes_[node].ref == ref) makers.push_back(node);
  }
  return makers;
}

WaitNode::Reason WaitGraph::Explain(size_t node, const json& reason) const {
  const std::string& where = nodes_[node].where;
  const std::string what = FieldText(reason, "what");
  if (what == "input") {
    const std::string ref = FieldText(reason, "ref"), maker = FieldText(reason, "made_by");
    WaitNode::Reason out{absl::StrCat("input ", ref, " on ", where, " ", FieldText(reason, "on")),
                         MakersOf(where, maker, ref)};
    if (out.on.empty() && !maker.empty()) absl::StrAppend(&out.text, ", made by ", maker);
    return out;
  }
  if (what == "bytes of a peer") {
    const auto place = place_of_.find(FieldText(reason, "peer"));
    WaitNode::Reason out{absl::StrCat("bytes of ", place == place_of_.end() ? "a worker that is gone" : place->second),
                         {}};
    if (place == place_of_.end()) return out;
    const auto source = by_transfer_.find({place->second, FieldText(reason, "transfer")});
    if (source != by_transfer_.end()) out.on.push_back(source->second);
    return out;
  }
  if (what == "memory") {
    const std::string behind = FieldText(reason, "behind");
    WaitNode::Reason out{
        absl::StrCat("memory on ", where, " ", FieldText(reason, "on"), ": ", Bytes(FieldNumber(reason, "bytes", 0)),
                     " wanted, ", Bytes(FieldNumber(reason, "bytes_in_use", 0)), " of ",
                     Bytes(FieldNumber(reason, "bytes_limit", 0)), " in use"),
        {}};
    if (!behind.empty()) {
      absl::StrAppend(&out.text, ", behind ", behind);
      out.on = MakersOf(where, behind, "");
    }
    return out;
  }
  if (what == "readers") {
    return {absl::StrCat("earlier readers of ", FieldText(reason, "ref"),
                         ", which it takes over: ", FieldNumber(reason, "launches", 0), " launches, ",
                         FieldNumber(reason, "transfers", 0), " transfers"),
            {}};
  }
  if (what == "room") {
    return {absl::StrCat("credit of device ", FieldText(reason, "device"), " of ", where, ": ",
                         FieldNumber(reason, "placed", 0), " launches are placed there"),
            {}};
  }
  if (what == "turn") return {absl::StrCat("its turn in the order of ", where), {}};
  if (what == "load")
    return {absl::StrCat("its program (", FieldText(reason, "executable"), ") to be loaded at ", where), {}};
  if (what == "bytes") return {"bytes of the client", {}};
  if (what == "completion") return {"its end: it runs", {}};
  if (what == "silence")
    return {absl::StrCat("an answer of worker ", FieldText(reason, "name"), ", which is silent"), {}};
  if (what == "more") return {absl::StrCat(FieldNumber(reason, "count", 0), " more"), {}};
  return {what, {}};
}

std::string WaitGraph::Title(size_t index) const {
  const WaitNode& node = nodes_[index];
  std::string text = node.ticket.empty() ? node.kind : absl::StrCat(node.ticket, " ", node.kind);
  if (!node.name.empty()) absl::StrAppend(&text, " ", node.name);
  if (node.name.empty() && !node.ref.empty()) absl::StrAppend(&text, node.kind == "copy" ? " to " : " of ", node.ref);
  if (!node.session.empty()) absl::StrAppend(&text, " of ", node.session);
  absl::StrAppend(&text, " on ", node.where);
  if (!node.devices.empty()) absl::StrAppend(&text, " devices ", node.devices);
  absl::StrAppend(&text, ", ", node.state, Age(node.age_ms));
  if (!node.call_site.empty()) absl::StrAppend(&text, ", called at ", node.call_site);
  return text;
}

std::string WaitGraph::Chain(size_t index) const {
  std::vector<std::string> links;
  for (size_t at = index; links.size() < kChainMax;) {
    const WaitNode& node = nodes_[at];
    if (node.reasons.empty()) break;
    const WaitNode::Reason& reason = node.reasons[0];
    if (at == index || !reason.on.empty() || node.waits()) links.push_back(reason.text);
    if (reason.on.empty()) break;
    at = reason.on[0];
    links.push_back(Title(at));
  }
  return absl::StrJoin(links, " <- ");
}

json WaitGraph::Rows() const {
  json rows = json::array();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const WaitNode& node = nodes_[i];
    if (!node.waits() || IsSend(node)) continue;
    json row = {{"where", node.where},
                {"what", node.name.empty() ? node.kind : absl::StrCat(node.kind, " ", node.name)},
                {"state", node.state},
                {"waits_for", Chain(i)}};
    if (!node.ticket.empty()) row["ticket"] = node.ticket;
    if (!node.session.empty()) row["session"] = node.session;
    if (node.age_ms >= 0) row["age_ms"] = node.age_ms;
    rows.push_back(std::move(row));
  }
  return rows;
}

void WaitGraph::Tree(size_t index, size_t depth, std::set<size_t>* shown, std::string* text) const {
  const std::string indent(4 * depth, ' ');
  const WaitNode& node = nodes_[index];
  if (!shown->insert(index).second) {
    absl::StrAppend(text, indent, node.ticket.empty() ? node.kind : node.ticket, " (see above)\n");
    return;
  }
  absl::StrAppend(text, indent, Title(index), "\n");
  if (depth >= kChainMax) return;
  for (const WaitNode::Reason& reason : node.reasons) {
    if (!node.waits() && reason.on.empty()) continue;  // it runs: the title says so
    absl::StrAppend(text, indent, "  waits for ", reason.text, "\n");
    for (size_t on : reason.on) Tree(on, depth + 1, shown, text);
  }
}

std::string WaitGraph::Why(const std::string& filter) const {
  uint64_t number = 0;
  const std::string ticket = absl::SimpleAtoi(filter, &number) ? absl::StrCat("t", filter) : filter;
  std::vector<size_t> roots;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const WaitNode& node = nodes_[i];
    if (!filter.empty() && node.ticket == ticket) {
      roots.push_back(i);
    } else if (node.waits() && !IsSend(node) && (filter.empty() || node.session == filter)) {
      roots.push_back(i);
    }
  }
  // The oldest say most: what came later mostly waits behind them.
  std::stable_sort(roots.begin(), roots.end(),
                   [this](size_t a, size_t b) { return nodes_[a].age_ms > nodes_[b].age_ms; });
  std::string text;
  std::set<size_t> shown;
  for (size_t i = 0; i < roots.size() && i < kTreesMax; ++i) Tree(roots[i], 0, &shown, &text);
  if (roots.size() > kTreesMax) absl::StrAppend(&text, "and ", roots.size() - kTreesMax, " more\n");
  return text;
}

}  // namespace landbridge::cli
