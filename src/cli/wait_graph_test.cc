#include "cli/wait_graph.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace landbridge::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// t5 runs on slice 1; t8 copies its result to slice 0, where t9 waits for it and t10 for t9. t11 lacks memory behind
// t9, t12 credit; t20 is parked, since slice 2 has no worker.
json Explained() {
  return json::parse(R"({
    "slices": [{"index": 0}, {"index": 1}, {"index": 2, "waits_for": "a worker of type cpu:2"}],
    "controller": {"slots": [
      {"slice": 0, "worker": 0, "incarnation": "i100", "name": "w0", "waiting": [],
       "sent": [{"ticket": "t8", "session": "s1", "age_ms": 900}]},
      {"slice": 1, "worker": 0, "incarnation": "i200", "name": "w1", "waiting": [], "sent": []},
      {"slice": 2, "worker": 0, "incarnation": "i0", "name": "", "waiting": [
        {"what": "launch", "ticket": "t20", "session": "s2", "name": "jit_late", "age_ms": 40,
         "waits_for": "a worker at slice2/0"}], "sent": []}]},
    "workers": {
      "slice0/0": {"worker": "i100", "launches": [
        {"ticket": "t9", "session": "s1", "state": "waiting", "name": "jit_g", "age_ms": 800.5, "devices": [0, 1],
         "waits_for": [{"what": "input", "ref": "a8.0", "state": "pending", "made_by": "t8", "on": "device 0"}]},
        {"ticket": "t10", "session": "s1", "state": "waiting", "name": "jit_h", "age_ms": 700, "devices": [0],
         "waits_for": [{"what": "input", "ref": "a9.0", "made_by": "t9", "on": "device 0"},
                       {"what": "readers", "ref": "a2.0", "launches": 2, "transfers": 1}]},
        {"ticket": "t11", "session": "s2", "state": "waiting", "name": "jit_m", "age_ms": 600, "devices": [1],
         "waits_for": [{"what": "memory", "on": "device 1", "bytes": 104857600, "bytes_in_use": 209715200,
                        "bytes_limit": 268435456, "behind": "t9"}]},
        {"ticket": "t12", "session": "s2", "state": "runnable", "name": "jit_r", "age_ms": 500, "devices": [1],
         "waits_for": [{"what": "room", "device": 1, "placed": 16}]}],
       "makes": [{"ticket": "t8", "ref": "a8.0", "started": true, "age_ms": 900, "waits_for": [
         {"what": "bytes of a peer", "peer": "i200", "transfer": "tr3"}]}],
       "uploads": [], "publishes": [], "reads": []},
      "slice1/0": {"worker": "i200", "launches": [
        {"ticket": "t5", "session": "s1", "state": "handed over", "name": "jit_f", "age_ms": 12000, "devices": [0],
         "waits_for": [{"what": "completion"}]}],
       "makes": [], "uploads": [], "reads": [],
       "publishes": [{"transfer": "tr3", "ref": "a5.0", "state": "waiting", "age_ms": 850,
                      "waits_for": [{"what": "input", "ref": "a5.0", "made_by": "t5", "on": "device 0"}]}]}}})");
}

json RowOf(const json& rows, const std::string& ticket) {
  for (const json& row : rows) {
    if (row.value("ticket", "") == ticket) return row;
  }
  return json();
}

TEST(WaitGraph, RowsFollowTheFirstReasonToItsRoot) {
  const json rows = WaitGraph(Explained()).Rows();
  EXPECT_EQ(rows.size(), 6u);  // not the send, which is the copy's other half, and not what runs
  EXPECT_EQ(RowOf(rows, "t9"),
            json::parse(R"({"where": "slice0/0", "what": "launch jit_g", "ticket": "t9", "session": "s1",
    "state": "waiting", "age_ms": 800, "waits_for": "input a8.0 on slice0/0 device 0 <- t8 copy to a8.0 of s1 on slice0/0, receiving for 900 ms <- bytes of slice1/0 <- send of a5.0 on slice1/0, waiting for 850 ms <- input a5.0 on slice1/0 device 0 <- t5 launch jit_f of s1 on slice1/0 devices 0, running for 12 s"})"));
  EXPECT_EQ(RowOf(rows, "t8")["session"], "s1");  // the worker does not say whose it is
  EXPECT_EQ(RowOf(rows, "t11")["waits_for"].get<std::string>().substr(0, 86),
            "memory on slice0/0 device 1: 100 MiB wanted, 200 MiB of 256 MiB in use, behind t9 <- t");
  EXPECT_EQ(RowOf(rows, "t12")["waits_for"], "credit of device 1 of slice0/0: 16 launches are placed there");
  EXPECT_EQ(RowOf(rows, "t20")["waits_for"],
            "a worker at slice2/0; slice2 is not placed: it waits for a worker of type cpu:2");
  EXPECT_EQ(RowOf(rows, "t20")["state"], "parked");
}

TEST(WaitGraph, WhyIsATree) {
  const WaitGraph graph(Explained());
  EXPECT_EQ(graph.Why("t10"),
            "t10 launch jit_h of s1 on slice0/0 devices 0, waiting for 700 ms\n"
            "  waits for input a9.0 on slice0/0 device 0\n"
            "    t9 launch jit_g of s1 on slice0/0 devices 0,1, waiting for 800 ms\n"
            "      waits for input a8.0 on slice0/0 device 0\n"
            "        t8 copy to a8.0 of s1 on slice0/0, receiving for 900 ms\n"
            "          waits for bytes of slice1/0\n"
            "            send of a5.0 on slice1/0, waiting for 850 ms\n"
            "              waits for input a5.0 on slice1/0 device 0\n"
            "                t5 launch jit_f of s1 on slice1/0 devices 0, running for 12 s\n"
            "  waits for earlier readers of a2.0, which it takes over: 2 launches, 1 transfers\n");
  EXPECT_EQ(graph.Why("10"), graph.Why("t10"));
  EXPECT_THAT(graph.Why("s2"), HasSubstr("t20 launch jit_late of s2 on slice2/0, parked for 40 ms"));
  EXPECT_THAT(graph.Why("s2"), Not(HasSubstr("jit_h")));
  EXPECT_THAT(graph.Why("t5"), HasSubstr("t5 launch jit_f of s1 on slice1/0 devices 0, running"));  // also what runs
  EXPECT_EQ(graph.Why("s77"), "");
  EXPECT_THAT(graph.Why(""), HasSubstr("t9 (see above)"));
}

TEST(WaitGraph, OfASilentWorkerOnlyWhatItWasSentIsKnown) {
  json explained = Explained();
  explained["workers"]["slice0/0"] = nullptr;
  EXPECT_EQ(RowOf(WaitGraph(explained).Rows(), "t8"), json());  // it was sent a moment ago
  explained["controller"]["slots"][0]["sent"][0]["age_ms"] = 1500;
  const json rows = WaitGraph(explained).Rows();
  EXPECT_EQ(RowOf(rows, "t8")["waits_for"], "an answer of worker w0, which is silent");
  EXPECT_EQ(RowOf(rows, "t9"), json());
}

TEST(WaitGraph, TakesAnything) {
  for (const char* text : {"null", "7", "[]", "{}", R"({"workers": 3, "controller": [1]})",
                           R"({"workers": {"slice0/0": {"launches": [3, {"waits_for": 4}, {"waits_for": [5]}]}}})",
                           R"({"controller": {"slots": [{"waiting": {"a": 1}, "sent": 3}]}})"}) {
    const WaitGraph graph(json::parse(text));
    graph.Rows();
    graph.Why("");
  }
}

TEST(WaitGraph, ACircleEnds) {
  const WaitGraph graph(json::parse(R"({"controller": {}, "workers": {"slice0/0": {"launches": [
    {"ticket": "t1", "state": "waiting", "waits_for": [{"what": "input", "ref": "a2.0", "made_by": "t2"}]},
    {"ticket": "t2", "state": "waiting", "waits_for": [{"what": "input", "ref": "a1.0", "made_by": "t1"}]}]}}})"));
  EXPECT_EQ(graph.Rows().size(), 2u);
  EXPECT_THAT(graph.Why("t1"), HasSubstr("t1 (see above)"));
}

}  // namespace
}  // namespace landbridge::cli
