// What waits for what in a cluster: the proxy's answer to "explain" as a graph, and as text for people.
//
// Thread-safety: plain values and functions.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace landbridge::cli {

// A launch, copy, upload, send or read that has not ended.
struct WaitNode {
  struct Reason {
    std::string text;        // "input a3.0 on device 1"
    std::vector<size_t> on;  // nodes of the graph that must end (or go on) first
  };
  std::string where;    // place of its worker: "slice0/0"
  std::string kind;     // "launch", "copy", ...
  std::string ticket;   // "t9"; empty: has none
  std::string session;  // "s1"; empty: not known
  std::string name;     // of the program
  std::string ref;      // buffer that it makes, sends or reads
  std::string state;    // "parked" (not sent yet), "waiting", "runnable", "receiving", "running", "sent"
  std::string call_site;
  std::string devices;  // "0,1,2,3"
  int64_t age_ms = -1;  // -1: not known
  std::vector<Reason> reasons;

  // Takes no device's time yet.
  bool waits() const { return state != "running" && state != "sent"; }
};

class WaitGraph {
 public:
  // Never fails: what is missing or malformed in `explain` is left out.
  explicit WaitGraph(const nlohmann::json& explain);

  const std::vector<WaitNode>& nodes() const { return nodes_; }

  // One row for each node that waits: {where, what, ticket, session, state, age_ms, waits_for}. `waits_for` follows the
  // first reason down to its root: "input a8.0 <- t8 copy <- t5 launch jit_f on slice1/0, running for 812 ms".
  nlohmann::json Rows() const;

  // The trees below the nodes that wait, as text. `filter`: "" (all), a session ("s1") or a ticket ("t9" or "9"; then
  // also one that runs). Empty: nothing of that kind is there.
  std::string Why(const std::string& filter) const;

 private:
  void AddController(const nlohmann::json& controller);
  void AddWorker(const std::string& where, const nlohmann::json& worker);
  void AddSilentWorker(const std::string& where, const nlohmann::json& slot);
  void Add(const std::string& where, const std::string& kind, std::string state, const nlohmann::json& item);
  void Link();
  WaitNode::Reason Explain(size_t node, const nlohmann::json& reason) const;
  std::vector<size_t> MakersOf(const std::string& where, const std::string& ticket, const std::string& ref) const;
  std::string Title(size_t node) const;
  std::string Chain(size_t node) const;
  void Tree(size_t node, size_t depth, std::set<size_t>* shown, std::string* text) const;

  std::vector<WaitNode> nodes_;
  std::vector<nlohmann::json> raw_reasons_;                                       // of each node
  std::map<std::pair<std::string, std::string>, std::vector<size_t>> by_ticket_;  // (where, ticket)
  std::map<std::pair<std::string, std::string>, size_t> by_transfer_;             // (where of the source, transfer)
  std::map<std::string, std::string> place_of_;                                   // incarnation -> where
  std::map<std::string, std::string> slice_waits_for_;                            // "slice0" -> why it is not placed
};

}  // namespace landbridge::cli
