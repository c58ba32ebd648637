#include "cli/dataflow_graph.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace landbridge::cli {
namespace {

using nlohmann::json;

const json& Field(const json& object, absl::string_view key) {
  static const json kNone;
  if (!object.is_object()) return kNone;
  auto it = object.find(std::string(key));
  return it == object.end() ? kNone : *it;
}

std::string FieldText(const json& object, absl::string_view key) {
  const json& value = Field(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}

// Who makes an array, and from what.
class ArrayMakers {
 public:
  void AddLaunch(const std::string& array, const std::string& launch) { launch_of_[array] = launch; }
  void AddMake(const json& make) {
    Made& made = made_[FieldText(make, "array")];
    for (const json& source : Field(make, "sources")) {
      if (source.is_string()) made.arrays.insert(source.get<std::string>());
    }
    for (const json& transfer : Field(make, "transfers")) {
      if (transfer.is_string()) made.transfers.insert(transfer.get<std::string>());
    }
  }
  void AddPublish(const json& publish) { published_[FieldText(publish, "transfer")] = FieldText(publish, "array"); }

  struct Origin {
    std::string launch;
    bool local = true;
    friend auto operator<=>(const Origin&, const Origin&) = default;
  };
  // The launches that an array comes from, through whatever copies.
  std::set<Origin> OriginsOf(const std::string& array) const {
    std::set<Origin> origins;
    std::set<std::pair<std::string, bool>> seen;
    Follow(array, true, &seen, &origins);
    return origins;
  }

 private:
  struct Made {
    std::set<std::string> arrays, transfers;
  };
  void Follow(const std::string& array, bool local, std::set<std::pair<std::string, bool>>* seen,
              std::set<Origin>* origins) const {
    if (!seen->insert({array, local}).second) return;
    if (auto launch = launch_of_.find(array); launch != launch_of_.end()) origins->insert({launch->second, local});
    auto made = made_.find(array);
    if (made == made_.end()) return;
    for (const std::string& source : made->second.arrays) Follow(source, local, seen, origins);
    for (const std::string& transfer : made->second.transfers) {
      auto source = published_.find(transfer);
      if (source != published_.end()) Follow(source->second, false, seen, origins);
    }
  }

  std::map<std::string, std::string> launch_of_, published_;
  std::map<std::string, Made> made_;
};

json GraphNode(const json& launch, const std::string& worker, const json& devices) {
  json ids = json::array();
  for (const json& local : Field(launch, "devices")) {
    for (const json& device : devices) {
      if (Field(device, "local") == local) ids.push_back(Field(device, "id"));
    }
  }
  json node = {{"id", FieldText(launch, "ticket")},
               {"name", FieldText(launch, "name")},
               {"session", FieldText(launch, "session")},
               {"state", FieldText(launch, "state")},
               {"slice", worker.substr(0, worker.find('/'))},
               {"worker", worker},
               {"devices", std::move(ids)}};
  if (const std::string site = FieldText(launch, "call_site"); !site.empty()) node["call_site"] = site;
  return node;
}

uint64_t TicketNumber(const std::string& id) { return id.size() < 2 ? 0 : std::strtoull(id.c_str() + 1, nullptr, 10); }

std::string DotQuoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}}), "\"");
}

std::string GraphDevices(const json& node) {
  std::vector<std::string> ids;
  for (const json& id : Field(node, "devices")) ids.push_back(id.dump());
  return ids.size() <= 8 ? absl::StrJoin(ids, ",") : absl::StrCat(ids.front(), "..", ids.back(), " (", ids.size(), ")");
}

std::string EdgeText(const json& edge) {
  const std::string tensor = FieldText(edge, "tensor");
  return tensor.empty() ? FieldText(edge, "array") : tensor;
}

}  // namespace

json BuildDataflowGraph(const json& explain) {
  const json& controller = Field(explain, "controller");
  const json& devices = Field(controller, "devices");
  ArrayMakers makers;
  std::vector<std::pair<json, std::string>> launches;  // with their workers
  int64_t left_out = 0;
  auto add = [&](const std::string& worker, const json& part) {
    for (const json& launch : Field(part, "launches")) {
      if (FieldText(launch, "ticket").empty()) continue;
      launches.emplace_back(launch, worker);
      for (const json& output : Field(launch, "outputs")) {
        if (output.is_string()) makers.AddLaunch(output.get<std::string>(), FieldText(launch, "ticket"));
      }
    }
    for (const json& make : Field(part, "makes")) makers.AddMake(make);
    for (const json& publish : Field(part, "publishes")) makers.AddPublish(publish);
    const json& more = Field(part, "launches_left_out");
    if (more.is_number_integer()) left_out += more.get<int64_t>();
  };
  for (const json* parts : {&Field(controller, "waiting"), &Field(explain, "workers")}) {
    if (!parts->is_object()) continue;
    for (const auto& [worker, part] : parts->items()) add(worker, part);
  }
  std::sort(launches.begin(), launches.end(), [](const auto& a, const auto& b) {
    return TicketNumber(FieldText(a.first, "ticket")) < TicketNumber(FieldText(b.first, "ticket"));
  });

  json nodes = json::array(), edges = json::array();
  for (const auto& [launch, worker] : launches) {
    nodes.push_back(GraphNode(launch, worker, Field(devices, worker)));
    for (const json& input : Field(launch, "inputs")) {
      for (const ArrayMakers::Origin& origin : makers.OriginsOf(FieldText(input, "array"))) {
        json edge = {{"from", origin.launch},
                     {"to", FieldText(launch, "ticket")},
                     {"array", FieldText(input, "array")},
                     {"local", origin.local}};
        if (const std::string tensor = FieldText(input, "tensor"); !tensor.empty()) edge["tensor"] = tensor;
        if (Field(input, "bytes").is_number()) edge["bytes"] = Field(input, "bytes");
        edges.push_back(std::move(edge));
      }
    }
  }
  return {{"nodes", std::move(nodes)}, {"edges", std::move(edges)}, {"left_out", left_out}};
}

std::string DataflowGraphToDot(const json& graph) {
  std::string out =
      "digraph landbridge {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n"
      "  edge [fontname=\"sans-serif\", fontsize=10];\n";
  std::map<std::string, std::vector<const json*>> slices;
  for (const json& node : Field(graph, "nodes")) slices[FieldText(node, "slice")].push_back(&node);
  for (const auto& [slice, nodes] : slices) {
    absl::StrAppend(&out, "  subgraph ", DotQuoted("cluster_" + slice), " {\n    label=", DotQuoted(slice), ";\n");
    for (const json* node : nodes) {
      absl::StrAppend(&out, "    ", DotQuoted(FieldText(*node, "id")), " [label=",
                      DotQuoted(absl::StrCat(FieldText(*node, "name"), "\n", FieldText(*node, "id"), " ",
                                             FieldText(*node, "state"), "\ndevices ", GraphDevices(*node))),
                      FieldText(*node, "state") == "running" ? ", style=filled, fillcolor=lightgrey" : "", "];\n");
    }
    out += "  }\n";
  }
  for (const json& edge : Field(graph, "edges")) {
    absl::StrAppend(&out, "  ", DotQuoted(FieldText(edge, "from")), " -> ", DotQuoted(FieldText(edge, "to")),
                    " [label=", DotQuoted(EdgeText(edge)), Field(edge, "local") == true ? ", style=dashed" : "",
                    "];\n");
  }
  return out + "}\n";
}

std::string DataflowGraphToText(const json& graph) {
  if (Field(graph, "nodes").empty()) return "no launch is unfinished\n";
  std::map<std::string, std::vector<const json*>> inputs;
  for (const json& edge : Field(graph, "edges")) inputs[FieldText(edge, "to")].push_back(&edge);
  std::string out;
  for (const json& node : Field(graph, "nodes")) {
    absl::StrAppend(&out, FieldText(node, "id"), "  ", FieldText(node, "name"), "  ", FieldText(node, "state"), "  on ",
                    FieldText(node, "worker"), " devices ", GraphDevices(node), "\n");
    for (const json* edge : inputs[FieldText(node, "id")]) {
      absl::StrAppend(&out, "    <- ", FieldText(*edge, "from"), "  ", EdgeText(*edge),
                      Field(*edge, "local") == true ? "" : "  (moves)", "\n");
    }
  }
  const json& left_out = Field(graph, "left_out");
  if (left_out.is_number_integer() && left_out.get<int64_t>() > 0) {
    absl::StrAppend(&out, "... and ", left_out.get<int64_t>(), " launches more\n");
  }
  return out;
}

}  // namespace landbridge::cli
