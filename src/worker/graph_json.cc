// The worker's part of the live dataflow graph: launches that have not ended, which arrays they wait for, and what moves
// arrays between workers. Arrays that are there have no edge: who made them has ended.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/limits.h"
#include "nlohmann/json.hpp"
#include "worker/core_context.h"
#include "worker/launch_queue.h"
#include "worker/transfers.h"

namespace landbridge {
namespace {

using nlohmann::json;

std::string GraphTensor(const TensorInfo& tensor) {
  return absl::StrCat(DTypeName(static_cast<DType>(tensor.dtype())), "[", absl::StrJoin(tensor.global_dims(), ","),
                      "]");
}

}  // namespace

json LaunchQueue::GraphOf(const Node& node) const {
  // A place in the log behind others is no running yet.
  const bool first = std::all_of(node.devices.begin(), node.devices.end(), [&](uint32_t device) {
    return !in_order_[device].empty() && in_order_[device].front() == node.self;
  });
  const char* state = node.stage == Stage::kWaiting     ? "waiting"
                      : node.stage == Stage::kCandidate ? "runnable"
                      : node.stage == Stage::kDone      ? "done"
                      : first                           ? "running"
                                                        : "waiting";
  json entry = {{"ticket", node.ticket.ToString()},
                {"session", node.session.ToString()},
                {"state", state},
                {"devices", std::vector<uint32_t>(node.devices.begin(), node.devices.end())}};
  if (!node.op->call_site().empty()) entry["call_site"] = node.op->call_site();
  auto found = programs_.find(ExecutableId(node.op->executable()));
  const ExecutableInfo* info = found == programs_.end() ? nullptr : &found->second->info;
  if (info != nullptr) entry["name"] = info->name();

  json inputs = json::array();
  const size_t devices = node.devices.size();
  ArrayId last;
  size_t parameter = 0, next = 0;  // input of the next parameter
  for (size_t i = 0; i < node.inputs.size() && inputs.size() < limits::kGraphEdgesPerNodeMax; ++i) {
    const Buffer& buffer = *node.inputs[i];
    if (i == next) {
      parameter += i == 0 ? 0 : 1;
      next += InputsOf(buffer, node.op->devices_size());
    }
    if (buffer.state == BufferState::kResident || buffer.ref.array == last) continue;
    last = buffer.ref.array;
    json input = {{"array", last.ToString()}, {"bytes", buffer.bytes * static_cast<int64_t>(devices)}};
    if (info != nullptr && parameter < static_cast<size_t>(info->parameters_size())) {
      input["tensor"] = GraphTensor(info->parameters(static_cast<int>(parameter)));
    }
    inputs.push_back(std::move(input));
  }
  entry["inputs"] = std::move(inputs);
  json outputs = json::array();
  for (uint64_t output : node.op->outputs()) outputs.push_back(ArrayId(output).ToString());
  entry["outputs"] = std::move(outputs);
  return entry;
}

void LaunchQueue::Graph(json* out) const {
  json launches = json::array();
  launches_.ForEach([&](SlabHandle, const Node& node) {
    if (launches.size() < limits::kGraphNodesPerWorkerMax) launches.push_back(GraphOf(node));
  });
  (*out)["launches_left_out"] = launches_.size() - launches.size();
  (*out)["launches"] = std::move(launches);
}

void Transfers::Graph(json* out) const {
  json makes = json::array();
  parts_.ForEach([&](SlabHandle, const MakePart& part) {
    if (makes.size() >= limits::kGraphNodesPerWorkerMax) return;
    json sources = json::array(), transfers = json::array();
    for (const Piece& piece : part.spec().pieces()) {
      if (sources.size() + transfers.size() >= limits::kGraphEdgesPerNodeMax) break;
      if (piece.has_remote()) {
        transfers.push_back(TransferId(piece.remote().transfer()).ToString());
      } else {
        sources.push_back(ArrayId(piece.local().array()).ToString());
      }
    }
    makes.push_back({{"ticket", part.ticket.ToString()},
                     {"array", part.target->ref.array.ToString()},
                     {"sources", std::move(sources)},
                     {"transfers", std::move(transfers)}});
  });
  (*out)["makes"] = std::move(makes);
  json publishes = json::array();
  publishes_.ForEach([&](SlabHandle, const PublishNode& node) {
    if (publishes.size() >= limits::kGraphNodesPerWorkerMax) return;
    publishes.push_back({{"transfer", node.transfer.ToString()}, {"array", ArrayId(node.op.ref().array()).ToString()}});
  });
  (*out)["publishes"] = std::move(publishes);
}

}  // namespace landbridge
