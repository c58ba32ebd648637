// What a compiler process compiles for: devices of a client, as many as the plugin makes or the machine has, or a topology
// that needs no device.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/options.h"
#include "pjrt/client.h"
#include "pjrt/plugin.h"
#include "pjrt/topology.h"

namespace landbridge {

// Flags of landbridge-proxy, for plugins other than the CPU's.
struct CompileTarget {
  pjrt::AttributeMap plugin_options;
  std::string topology;  // a name that the plugin knows ("v6e:4x4")
  std::string target;    // CUDA: a GpuTargetConfigProto as text
  bool without_devices() const { return !topology.empty() || !target.empty(); }
};

// Thread-safety: none.
class CompileDevices {
 public:
  CompileDevices(std::shared_ptr<pjrt::Plugin> plugin, CompileTarget target);
  ~CompileDevices();

  // Something to compile for, or why there is none: no device here, and no topology was named.
  absl::Status Start();

  // Serialize gives what DeserializeAndLoad takes on the workers' devices. `over_processes`: the plugin's clients on several
  // processes will run it together. UNIMPLEMENTED if the devices here are too few and cannot be made up.
  absl::StatusOr<std::unique_ptr<pjrt::Executable>> Compile(absl::string_view program, absl::string_view format,
                                                            const xla::CompileOptionsProto& options, int devices,
                                                            bool over_processes);

  // With that many devices. UNIMPLEMENTED where there are none in this process.
  absl::StatusOr<pjrt::Client*> ClientOf(int devices);
  const pjrt::Traits& traits() const { return plugin_->traits(); }

 private:
  absl::Status EnsureClient(int devices, bool over_processes);
  absl::Status EnsureTopology(int devices, bool over_processes);

  const std::shared_ptr<pjrt::Plugin> plugin_;
  const CompileTarget target_;
  std::unique_ptr<pjrt::Client> client_;
  int client_nodes_ = 0;
  std::unique_ptr<pjrt::Topology> topology_;
  std::string topology_text_;
};

}  // namespace landbridge
