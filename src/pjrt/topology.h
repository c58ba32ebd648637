// Devices that a plugin compiles for without having them.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "pjrt/executable.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {

// Thread-safety: all members from any thread.
class Topology {
 public:
  // `name` and `options` are the plugin's own: of CUDA, options "topology" ("PxHxD") and "target_config" (a GpuTargetConfigProto
  // as text); of TPU, a name such as "v6e:2x4". UNIMPLEMENTED where the plugin describes none (Traits).
  static absl::StatusOr<std::unique_ptr<Topology>> Create(std::shared_ptr<Plugin> plugin, absl::string_view name,
                                                          const AttributeMap& options);
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  absl::StatusOr<int> DeviceCount() const;
  // As Client::Compile, for these devices; load what Serialize gives where they are.
  absl::StatusOr<std::unique_ptr<Executable>> Compile(absl::string_view program, absl::string_view format,
                                                      absl::string_view compile_options) const;

 private:
  Topology(std::shared_ptr<Plugin> plugin, PJRT_TopologyDescription* topology)
      : plugin_(std::move(plugin)), topology_(topology) {}
  const std::shared_ptr<Plugin> plugin_;
  PJRT_TopologyDescription* const topology_;
};

}  // namespace landbridge::pjrt
