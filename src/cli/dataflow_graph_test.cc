#include "cli/dataflow_graph.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// A on slice 0, B beside it (a local edge), C on slice 1, which needs both, and D, which was not sent yet.
json ThreeBlocks() {
  return json::parse(R"({
    "controller": {
      "devices": {"slice0/0": [{"id": 0, "local": 0}, {"id": 1, "local": 1}], "slice1/0": [{"id": 2, "local": 0}]},
      "waiting": {"slice1/0": {"launches": [{"ticket": "t30", "session": "s1", "name": "jit_d", "state": "parked",
          "devices": [0], "inputs": [{"array": "a8"}], "outputs": ["a9"]}], "makes": [], "publishes": []}}},
    "workers": {
      "slice0/0": {
        "launches": [
          {"ticket": "t12", "session": "s1", "name": "jit_b", "state": "waiting", "devices": [1],
           "inputs": [{"array": "a4", "bytes": 32, "tensor": "f32[8]"}], "outputs": ["a5"]},
          {"ticket": "t9", "session": "s1", "name": "jit_a", "state": "running", "devices": [0, 1], "inputs": [],
           "outputs": ["a3"]}],
        "makes": [{"ticket": "t11", "array": "a4", "sources": ["a3"], "transfers": []}],
        "publishes": [{"transfer": "tr1", "array": "a3"}, {"transfer": "tr2", "array": "a5"}]},
      "slice1/0": {
        "launches": [{"ticket": "t20", "session": "s1", "name": "jit_\"c", "state": "waiting", "devices": [0],
          "inputs": [{"array": "a6", "bytes": 64, "tensor": "f32[16]"}, {"array": "a7", "bytes": 4}], "outputs": ["a8"]}],
        "makes": [{"ticket": "t15", "array": "a6", "sources": [], "transfers": ["tr1"]},
                  {"ticket": "t16", "array": "a7", "sources": [], "transfers": ["tr2", "tr99"]}],
        "publishes": [], "launches_left_out": 3}}})");
}

TEST(DataflowGraph, LaunchesAreNodesAndTensorsAreEdges) {
  const json graph = BuildDataflowGraph(ThreeBlocks());
  std::vector<std::string> ids;
  for (const json& node : graph["nodes"]) ids.push_back(node["id"]);
  EXPECT_EQ(ids, (std::vector<std::string>{"t9", "t12", "t20", "t30"}));
  EXPECT_EQ(graph["nodes"][0], json::parse(R"({"id": "t9", "name": "jit_a", "session": "s1", "state": "running",
                                               "slice": "slice0", "worker": "slice0/0", "devices": [0, 1]})"));
  EXPECT_EQ(graph["nodes"][3]["devices"], json::parse("[2]"));
  EXPECT_EQ(graph["edges"], json::parse(R"([
    {"from": "t9", "to": "t12", "array": "a4", "tensor": "f32[8]", "bytes": 32, "local": true},
    {"from": "t9", "to": "t20", "array": "a6", "tensor": "f32[16]", "bytes": 64, "local": false},
    {"from": "t12", "to": "t20", "array": "a7", "bytes": 4, "local": false},
    {"from": "t20", "to": "t30", "array": "a8", "local": true}])"));
  EXPECT_EQ(graph["left_out"], 3);
}

TEST(DataflowGraph, LocalEdgesAreDashedAndNamesAreQuoted) {
  const std::string dot = DataflowGraphToDot(BuildDataflowGraph(ThreeBlocks()));
  EXPECT_THAT(dot, HasSubstr("\"t9\" -> \"t12\" [label=\"f32[8]\", style=dashed];"));
  EXPECT_THAT(dot, HasSubstr("\"t9\" -> \"t20\" [label=\"f32[16]\"];"));
  EXPECT_THAT(dot, HasSubstr("label=\"jit_\\\"c\\nt20 waiting\\ndevices 2\""));
  EXPECT_THAT(dot, HasSubstr("subgraph \"cluster_slice1\""));
}

TEST(DataflowGraph, AsText) {
  const std::string text = DataflowGraphToText(BuildDataflowGraph(ThreeBlocks()));
  EXPECT_THAT(text, HasSubstr("t12  jit_b  waiting  on slice0/0 devices 1\n    <- t9  f32[8]\n"));
  EXPECT_THAT(text, HasSubstr("    <- t9  f32[16]  (moves)\n    <- t12  a7  (moves)\n"));
  EXPECT_THAT(text, HasSubstr("and 3 launches more"));
  EXPECT_EQ(DataflowGraphToText(BuildDataflowGraph(json::object())), "no launch is unfinished\n");
}

// Copies of copies, also in a circle (which cannot be, but must not hang).
TEST(DataflowGraph, FollowsCopiesToTheirEnd) {
  json explain = ThreeBlocks();
  json& makes = explain["workers"]["slice0/0"]["makes"];
  makes = json::parse(R"([{"array": "a4", "sources": ["a40"]}, {"array": "a40", "sources": ["a3", "a4"]}])");
  const json graph = BuildDataflowGraph(explain);
  EXPECT_EQ(graph["edges"][0]["from"], "t9");
  EXPECT_EQ(graph["edges"][0]["local"], true);
}

TEST(DataflowGraph, NonsenseIsLeftOut) {
  for (const char* text : {"null", "[]", "{\"workers\": 3}", "{\"workers\": {\"slice0/0\": [1]}}",
                           "{\"workers\": {\"slice0/0\": {\"launches\": [1, {\"ticket\": 7}], \"makes\": {}}}}"}) {
    EXPECT_TRUE(BuildDataflowGraph(json::parse(text))["nodes"].empty()) << text;
  }
}

}  // namespace
}  // namespace landbridge::cli
