// The controller's part of the live dataflow graph: operations that were not sent yet, and where devices are.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "controller/controller_impl.h"
#include "nlohmann/json.hpp"

namespace landbridge {
namespace {

using nlohmann::json;

std::vector<std::string> ArraysOf(const ReshardSource& source) {
  std::vector<std::string> arrays;
  if (source.shards_size() == 0) arrays.push_back(ArrayId(source.array()).ToString());
  for (const BufferRefProto& shard : source.shards()) {
    const std::string array = ArrayId(shard.array()).ToString();
    if (arrays.empty() || arrays.back() != array) arrays.push_back(array);
  }
  return arrays;
}

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
  json entry = {{"ticket", Ticket(launch.ticket()).ToString()},
                {"session", SessionId(launch.session()).ToString()},
                {"state", "parked"},
                {"devices", launch.devices()},
                {"inputs", std::move(inputs)},
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
        } else if (entry.op.has_reshard_send()) {
          const ReshardSend& send = entry.op.reshard_send();
          for (const std::string& array : send.has_source()
                                              ? ArraysOf(send.source())
                                              : std::vector<std::string>{ArrayId(send.target()).ToString()}) {
            publishes.push_back({{"transfer", TransferId(send.transfer()).ToString()}, {"array", array}});
          }
        } else if (entry.op.has_reshard_receive()) {
          const ReshardReceive& receive = entry.op.reshard_receive();
          json transfers = json::array();
          for (const ReshardEdgeProto& edge : receive.edges()) {
            transfers.push_back(TransferId(edge.transfer()).ToString());
          }
          makes.push_back({{"ticket", Ticket(receive.ticket()).ToString()},
                           {"array", ArrayId(receive.target()).ToString()},
                           {"sources", receive.has_source() ? ArraysOf(receive.source()) : std::vector<std::string>()},
                           {"transfers", std::move(transfers)}});
        }
      }
    }
    waiting[slot.id.ToString()] = {
        {"launches", std::move(launches)}, {"makes", std::move(makes)}, {"publishes", std::move(publishes)}};
    devices[slot.id.ToString()] = json::array();
  }
  for (int32_t id = 0; cluster_.Known(DeviceId(id)); ++id) {
    const ctl::ClusterTable::Device& device = cluster_.At(DeviceId(id));
    devices[cluster_.slots()[static_cast<size_t>(device.slot)].id.ToString()].push_back(
        {{"id", id}, {"local", device.ordinal}});
  }
  return json{{"devices", std::move(devices)}, {"waiting", std::move(waiting)}}.dump(-1, ' ', false,
                                                                                     json::error_handler_t::replace);
}

}  // namespace landbridge
