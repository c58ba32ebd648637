#include "cli/status_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/admin_query.h"
#include "cli/json_fields.h"
#include "cli/process.h"
#include "cli/wait_graph.h"

namespace landbridge::cli {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kQueryTimeout{3000};

// Any JSON value in one line, strings without quotes.
std::string Text(const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// A table of the objects' members, in the order of the first object.
std::string Table(const json& rows, const std::string& indent) {
  if (!rows.is_array() || rows.empty()) return absl::StrCat(indent, "none\n");
  std::vector<std::string> columns;
  for (const json& row : rows) {
    if (!row.is_object()) return absl::StrCat(indent, rows.dump(), "\n");
    for (const auto& [key, unused] : row.items()) {
      if (std::find(columns.begin(), columns.end(), key) == columns.end()) columns.push_back(key);
    }
  }
  std::vector<size_t> widths;
  for (const std::string& column : columns) {
    size_t width = column.size();
    for (const json& row : rows) {
      if (row.contains(column)) width = std::max(width, Text(row[column]).size());
    }
    widths.push_back(width);
  }
  std::string text;
  auto line = [&](auto&& cell) {
    std::string out = indent;
    for (size_t i = 0; i < columns.size(); ++i)
      absl::StrAppendFormat(&out, "%-*s  ", static_cast<int>(widths[i]), cell(columns[i]));
    out.erase(out.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, out, "\n");
  };
  line([](const std::string& column) { return column; });
  for (const json& row : rows) {
    line([&row](const std::string& column) { return row.contains(column) ? Text(row[column]) : std::string(); });
  }
  return text;
}

// The proxy's nested answers as flat tables.
void Flatten(const json& proxy, const json& explain, json& report) {
  json slices = json::array(), devices = json::array(), parked = json::array();
  for (const json& slice : Member(proxy, "slices")) {
    const json& index = Member(slice, "index");
    std::vector<std::string> names;
    for (const json& worker : Member(slice, "workers")) {
      const bool up = Member(worker, "up").is_boolean() && worker["up"].get<bool>();
      names.push_back(absl::StrCat(Text(Member(worker, "name")), up ? "" : " (down)"));
      for (const json& device : Member(worker, "devices")) {
        json row = {{"slice", index}, {"worker", Member(worker, "name")}};
        row.update(device);
        devices.push_back(row);
      }
      const json& ops = Member(worker, "ops_parked");
      if ((ops.is_number() && ops.get<int64_t>() > 0) || ops == json(true)) {
        parked.push_back(
            {{"what", "messages for " + Text(Member(worker, "name"))}, {"waits_for", "the worker to read"}});
      }
    }
    json row = {{"slice", index},
                {"type", Member(slice, "type")},
                {"placed", Member(slice, "placed")},
                {"workers", absl::StrJoin(names, ", ")}};
    if (slice.contains("waits_for")) {
      row["waits_for"] = slice["waits_for"];
      parked.push_back({{"what", absl::StrCat("slice ", Text(index))}, {"waits_for", slice["waits_for"]}});
    }
    slices.push_back(row);
  }
  const json& controller = Member(proxy, "controller");
  for (json& row : WaitGraph(explain).Rows()) parked.push_back(std::move(row));
  json sessions = Member(Member(proxy, "front_door"), "sessions");
  if (!sessions.is_array()) sessions = Member(controller, "sessions");
  report["slices"] = slices;
  report["devices"] = devices;
  report["parked"] = parked;
  report["sessions"] = sessions.is_array() ? sessions : json::array();
}

absl::StatusOr<json> Ask(const ClusterState& state, absl::string_view name, const std::string& what) {
  for (const ProcessState& p : state.processes) {
    if (p.name == name) return QueryServer(p.admin_address, kQueryTimeout, what);
  }
  return absl::UnavailableError("there is none");
}

}  // namespace

WorkersUp CountWorkers(const json& answer) {
  WorkersUp seen;
  const json &expected = Member(answer, "expected"), &up = Member(answer, "up");
  if (expected.is_number_integer()) seen.expected = expected.get<int>();
  if (up.is_number_integer()) seen.up = up.get<int>();
  return seen;
}

json BuildStatus(const ClusterState& state, const std::string& state_dir, bool supervisor_alive,
                 const std::vector<bool>& process_alive, const absl::StatusOr<json>& resource_manager,
                 const absl::StatusOr<json>& proxy, const absl::StatusOr<json>& explain) {
  json report = {{"state", state_dir},
                 {"running", supervisor_alive},
                 {"address", BackendTarget(state)},
                 {"supervisor_pid", state.supervisor_pid},
                 {"resource_manager_address", state.resource_manager_address},
                 {"plugin", state.plugin}};
  json processes = json::array();
  for (size_t i = 0; i < state.processes.size(); ++i) {
    const ProcessState& p = state.processes[i];
    json entry = {{"name", p.name}, {"pid", p.pid},         {"alive", process_alive[i] && p.ended.empty()},
                  {"log", p.log},   {"address", p.address}, {"starts", p.starts}};
    if (!p.ended.empty()) entry["ended"] = p.ended;
    processes.push_back(entry);
  }
  report["processes"] = processes;
  if (resource_manager.ok()) {
    report["resource_manager"] = *resource_manager;
  } else {
    report["resource_manager_error"] = std::string(resource_manager.status().message());
  }
  if (proxy.ok())
    report["proxy"] = *proxy;
  else
    report["proxy_error"] = std::string(proxy.status().message());
  // Without an explanation: what the proxy alone knows.
  if (proxy.ok()) Flatten(*proxy, explain.ok() ? *explain : *proxy, report);
  return report;
}

json CollectStatus(const ClusterState& state, const std::string& state_dir) {
  const bool supervised = IsAlive(state.supervisor_pid, state.supervisor_start_time);
  std::vector<bool> alive;
  for (const ProcessState& p : state.processes) alive.push_back(IsAlive(p.pid, p.start_time));
  absl::StatusOr<json> resource_manager = absl::UnavailableError("the cluster has ended");
  absl::StatusOr<json> proxy = resource_manager, explain = resource_manager;
  if (supervised) {
    resource_manager = Ask(state, "resource-manager", "status");
    proxy = Ask(state, "proxy", "status");
    if (proxy.ok()) explain = CollectExplain(state);
  }
  return BuildStatus(state, state_dir, supervised, alive, resource_manager, proxy, explain);
}

absl::StatusOr<json> CollectExplain(const ClusterState& state) { return Ask(state, "proxy", "explain"); }
absl::StatusOr<json> CollectGraph(const ClusterState& state) { return Ask(state, "proxy", "graph"); }

std::string RenderStatus(const json& report) {
  std::string text =
      absl::StrCat(report.at("running").get<bool>() ? "running at " : "ended; was at ", Text(report.at("address")),
                   "\nstate   ", Text(report.at("state")), "\nplugin  ", Text(report.at("plugin")), "\n\nprocesses\n");
  for (const json& p : report.at("processes")) {
    absl::StrAppendFormat(&text, "  %-18s pid %-8s %-24s %s\n", Text(p.at("name")), Text(p.at("pid")),
                          p.at("alive").get<bool>() ? "running" : (p.contains("ended") ? Text(p.at("ended")) : "ended"),
                          Text(p.at("log")));
  }
  for (const char* key : {"slices", "devices", "sessions", "parked"}) {
    if (report.contains(key)) absl::StrAppend(&text, "\n", key, "\n", Table(report[key], "  "));
  }
  for (const char* key : {"resource_manager_error", "proxy_error"}) {
    if (report.contains(key)) absl::StrAppend(&text, "\n", key, ": ", Text(report[key]), "\n");
  }
  return text;
}

std::string RenderDevices(const json& report) { return Table(report.at("devices"), ""); }

}  // namespace landbridge::cli
