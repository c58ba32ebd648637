// The live dataflow graph of a cluster, from the proxy's answer to "graph": nodes are launches
// that have not ended, edges the tensors between them, also those that move between workers on the way.
//
// Thread-safety: plain values and functions.
#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace landbridge::cli {

// {"nodes": [{id, name, session, state, slice, worker, devices, call_site}], "edges": [{from, to, array, tensor, bytes,
// local}], "left_out": launches beyond the limit}. `devices` as JAX numbers them; an edge is local when no byte leaves
// the worker. Never fails: what is missing or malformed in `explain` is left out.
nlohmann::json BuildDataflowGraph(const nlohmann::json& explain);

// For Graphviz: one cluster per slice, local edges dashed.
std::string DataflowGraphToDot(const nlohmann::json& graph);
// For people.
std::string DataflowGraphToText(const nlohmann::json& graph);

}  // namespace landbridge::cli
