// The controller's part of the live dataflow graph: operations that were not sent yet, and where devices are.
#include <string>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "controller/controller_impl.h"
#include "nlohmann/json.hpp"

namespace landbridge {
namespace {

using nlohmann::json;

json GraphOfLaunch(const Launch& launch) {
  json inputs = json::array(), outputs = json::array();
  auto add = [&](uint64_t array) {
    if (inputs.size() < limits::kGraphEdgesPerNodeMax) inputs.push_back({{"array", ArrayId(array).ToString()}});
  };
  for (const LaunchArg& arg : launch.args()) {
    if (arg.shards_size() == 0) add(arg.array());
    for (const BufferRefProto& shard : arg.shards()) add(shard.array());
  }
  for (uint64_t output : launch.outputs()) outputs.push_back(ArrayId(output).ToString());
  json entry = {{"ticket", Ticket(launch.ticket()).ToString()}, {"session", SessionId(launch.session()).ToString()},
                {"state", "parked"}, {"devices", launch.devices()}, {"inputs", std::move(inputs)},
                {"outputs", std::move(outputs)}};
  if (!launch.call_site().empty()) entry["call_site"] = launch.call_site();
  return entry;
}

}  // namespace

std::string Controller::Impl::GraphJson() const {
  json devices = json::object(), waiting = json::object();
  for (size_t i = 0; i < cluster_.slots().size(); ++i) {
    const ctl::ClusterTable::Slot& slot = cluster_.slots()[i];
    json launches = json::array(), makes = json::array(), publishes = json::array();
    for (const auto* queue : {&slot.life->parked, &slot.life->blocked}) {
      for (const ctl::ParkedOp& entry : *queue) {
        if (launches.size() + makes.size() + publishes.size() >= limits::kGraphNodesPerWorkerMax) break;
        if (entry.op.has_launch()) {
          json launch = GraphOfLaunch(entry.op.launch());
          launch["name"] = programs_.NameOf(ExecutableId(entry.op.launch().executable()));
          launches.push_back(std::move(launch));
        } else if (entry.op.has_publish()) {
          publishes.push_back({{"transfer", TransferId(entry.op.publish().transfer()).ToString()},
                               {"array", ArrayId(entry.op.publish().ref().array()).ToString()}});
        } else if (entry.op.has_make()) {
          for (const MakeBuffer& buffer : entry.op.make().buffers()) {
            json sources = json::array(), transfers = json::array();
            for (const Piece& piece : buffer.pieces()) {
              if (piece.has_remote()) {
                transfers.push_back(TransferId(piece.remote().transfer()).ToString());
              } else {
                sources.push_back(ArrayId(piece.local().array()).ToString());
              }
            }
            makes.push_back({{"ticket", Ticket(entry.op.make().ticket()).ToString()},
                             {"array", ArrayId(buffer.target().ref().array()).ToString()},
                             {"sources", std::move(sources)}, {"transfers", std::move(transfers)}});
          }
        }
      }
    }
    waiting[slot.id.ToString()] = {{"launches", std::move(launches)}, {"makes", std::move(makes)},
                                   {"publishes", std::move(publishes)}};
    devices[slot.id.ToString()] = json::array();
  }
  for (int32_t id = 0; cluster_.Known(DeviceId(id)); ++id) {
    const ctl::ClusterTable::Device& device = cluster_.At(DeviceId(id));
    devices[cluster_.slots()[static_cast<size_t>(device.slot)].id.ToString()].push_back(
        {{"id", id}, {"local", device.ordinal}});
  }
  return json{{"devices", std::move(devices)}, {"waiting", std::move(waiting)}}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

}  // namespace landbridge
