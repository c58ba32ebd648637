#include "compiler/compile_devices.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "pjrt/client_options.h"

namespace landbridge {
namespace {

constexpr int kFirstDeviceCount = 8;

}  // namespace

CompileDevices::CompileDevices(std::shared_ptr<pjrt::Plugin> plugin, CompileTarget target)
    : plugin_(std::move(plugin)), target_(std::move(target)) {}

CompileDevices::~CompileDevices() = default;

absl::Status CompileDevices::Start() {
  if (target_.without_devices()) {
    if (!traits().describes_topologies) {
      return absl::FailedPreconditionError(
          absl::StrCat("--compile_topology and --compile_target need a plugin that compiles without devices; ",
                       plugin_->path(), " does not"));
    }
    return EnsureTopology(1, /*over_processes=*/false);
  }
  return EnsureClient(traits().makes_devices ? kFirstDeviceCount : 1, /*over_processes=*/false);
}

absl::StatusOr<std::unique_ptr<pjrt::Executable>> CompileDevices::Compile(absl::string_view program,
                                                                          absl::string_view format,
                                                                          const xla::CompileOptionsProto& options,
                                                                          int devices, bool over_processes) {
  if (target_.without_devices()) {
    LB_RETURN_IF_ERROR(EnsureTopology(devices, over_processes));
    return topology_->Compile(program, format, options.SerializeAsString());
  }
  LB_RETURN_IF_ERROR(EnsureClient(devices, over_processes));
  return client_->Compile(program, format, options.SerializeAsString());
}

absl::StatusOr<pjrt::Client*> CompileDevices::ClientOf(int devices) {
  if (target_.without_devices()) {
    return absl::UnimplementedError(
        "the proxy compiles without devices (--compile_topology, --compile_target), so it can load no program");
  }
  LB_RETURN_IF_ERROR(EnsureClient(devices, /*over_processes=*/false));
  return client_.get();
}

// A client of the CPU plugin has as many devices as it was made with; they cost threads, so grow on demand. One of another
// plugin has what the machine has, times the processes that it stands in for.
absl::Status CompileDevices::EnsureClient(int devices, bool over_processes) {
  auto enough = [&] { return client_ != nullptr && client_->global_device_count() >= devices; };
  if (enough()) return absl::OkStatus();
  int count = kFirstDeviceCount;
  while (count < devices) count *= 2;
  int nodes = 1;
  if (client_ != nullptr && !traits().makes_devices && over_processes) {
    const int here = static_cast<int>(client_->devices().size());
    nodes = (devices + here - 1) / here;
  }
  if (client_ == nullptr || traits().makes_devices || nodes > client_nodes_) {
    client_.reset();
    pjrt::Plugin::ClientOptions options;
    options.options = pjrt::MakeCompileClientOptions(traits(), count, nodes, target_.plugin_options);
    auto client = plugin_->CreateClient(options);
    if (!client.ok()) {
      const std::string help = traits().makes_devices
                                   ? ""
                                   : " (on a machine without devices, name what to compile for: --compile_topology or "
                                     "--compile_target of landbridge-proxy)";
      return FromPluginError(client.status(), absl::StrCat("a compile client of ", devices, " devices", help));
    }
    client_ = *std::move(client);
    client_nodes_ = nodes;
  }
  if (enough()) return absl::OkStatus();
  if (over_processes && nodes == 1)
    return EnsureClient(devices, over_processes);  // the first client tells how many are here
  return absl::UnimplementedError(absl::StrCat(
      "a program for ", devices, " devices cannot be compiled on the proxy's machine, which has ",
      client_->devices().size(), ": name what to compile for with --compile_topology or --compile_target"));
}

absl::Status CompileDevices::EnsureTopology(int devices, bool over_processes) {
  pjrt::AttributeMap options;
  std::string shape;
  if (!target_.target.empty()) {
    // Slices x processes x devices of each. How far apart the devices are only tells the plugin what to expect of links.
    shape = over_processes ? absl::StrCat("1x", devices, "x1") : absl::StrCat("1x1x", devices);
    options["topology"] = shape;
    options["target_config"] = target_.target;
  }
  if (topology_ != nullptr && shape == topology_text_) return absl::OkStatus();
  auto made = pjrt::Topology::Create(plugin_, target_.topology, options);
  if (!made.ok()) {
    return FromPluginError(made.status(), absl::StrCat("the PJRT plugin describes no topology ", target_.topology,
                                                       shape.empty() ? "" : absl::StrCat(" of shape ", shape)));
  }
  topology_ = *std::move(made);
  topology_text_ = shape;
  return absl::OkStatus();
}

}  // namespace landbridge
