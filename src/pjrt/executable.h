// A compiled program, and one that is loaded on devices of this process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "pjrt/buffer.h"
#include "pjrt/c_api.h"
#include "pjrt/event.h"

namespace landbridge::pjrt {

struct ExecuteOptions {
  // Unique per launch in this process and never 0 (the plugin's own numbering would mix in); the same for every
  // device of one launch. It is the RunId that custom-call handlers see.
  int32_t launch_id = 0;
  // Parameters that this launch must not consume although the program would.
  absl::Span<const int64_t> non_donatable_inputs = {};
};

struct DeviceResult {
  std::vector<Buffer> outputs;
  Event done;  // this device's run is over; its error is the run's error
};

// The plugin's memory figures; -1 for those it did not fill in.
struct MemoryStats {
  int64_t generated_code = -1, argument = -1, output = -1, alias = -1, temp = -1;
  int64_t host_generated_code = -1, host_argument = -1, host_output = -1, host_alias = -1, host_temp = -1;
  int64_t peak = -1, total = -1, total_allocation = -1, indefinite = -1, peak_unpadded_heap = -1;
};

// Thread-safety: getters one at a time (the plugin fills caches without a lock): take them once after compiling.
class Executable {
 public:
  // Takes over what a compile for a topology gave.
  static absl::StatusOr<std::unique_ptr<Executable>> Own(const Plugin* plugin, PJRT_Executable* executable);
  virtual ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  size_t num_outputs() const { return num_outputs_; }

  // --- Metadata. UNIMPLEMENTED where the plugin does not know.
  absl::StatusOr<std::string> Name();
  absl::StatusOr<std::string> Serialize();         // only right for an executable that was *compiled* here
  absl::StatusOr<std::string> OptimizedProgram();  // serialized xla.HloModuleProtoWithConfig (or HloModuleProto)
  absl::StatusOr<std::string> CompileOptions();    // serialized xla.CompileOptionsProto
  absl::StatusOr<std::string> Fingerprint();       // useless as a cache key
  absl::StatusOr<int64_t> CodeBytes();
  absl::StatusOr<MemoryStats> GetMemoryStats();
  absl::StatusOr<std::map<std::string, double>> CostAnalysis();
  absl::StatusOr<int64_t> NumReplicas();
  absl::StatusOr<int64_t> NumPartitions();
  absl::StatusOr<std::vector<DType>> OutputTypes();
  absl::StatusOr<std::vector<std::vector<int64_t>>> OutputDims();  // of one device
  absl::StatusOr<std::vector<std::string>> OutputMemoryKinds();
  absl::StatusOr<std::vector<std::string>> ParameterMemoryKinds();
  // Serialized xla.OpSharding per value; nothing when the plugin has none (programs of one device).
  absl::StatusOr<std::optional<std::vector<std::string>>> ParameterShardings();
  absl::StatusOr<std::optional<std::vector<std::string>>> OutputShardings();
  // Layout texts, "{1,0}".
  absl::StatusOr<std::vector<std::string>> ParameterLayouts();
  absl::StatusOr<std::vector<std::string>> OutputLayouts();

 protected:
  explicit Executable(const Plugin* plugin) : plugin_(plugin) {}
  absl::Status Adopt(PJRT_Executable* executable);
  const Plugin* const plugin_;

 private:
  PJRT_Executable* executable_ = nullptr;
  size_t num_outputs_ = 0;
};

// Thread-safety: Execute* from any thread.
class LoadedExecutable : public Executable {
 public:
  ~LoadedExecutable() override;  // fine while a launch runs

  // Plugin ids of the devices, in the order of argument lists. Empty for a portable program.
  const std::vector<int>& device_ids() const { return device_ids_; }

  // One launch on all devices: arguments[d][i]. Takes one thread of the plugin per device; blocks while 32
  // launches of a device are unfinished, so keep an own cap far below. Byte sizes are all that the plugin
  // checks of arguments. Donated buffers are dead afterwards and still have to be destroyed. An error means
  // that nothing was launched.
  absl::StatusOr<std::vector<DeviceResult>> ExecuteAll(absl::Span<const absl::Span<Buffer* const>> arguments,
                                                       const ExecuteOptions& options);
  // One device's part of a launch, for portable programs (`device` free) and for single devices of others
  // (then every other device needs its own call with the same launch id). A program of less than 1,000 flops
  // with ready inputs runs inside this call.
  absl::StatusOr<DeviceResult> ExecuteOnDevice(PJRT_Device* device, absl::Span<Buffer* const> arguments,
                                               const ExecuteOptions& options);

 private:
  friend class Client;
  LoadedExecutable(const Plugin* plugin, PJRT_LoadedExecutable* loaded) : Executable(plugin), loaded_(loaded) {}
  absl::Status Init();
  PJRT_LoadedExecutable* loaded_;
  std::vector<int> device_ids_;
};

}  // namespace landbridge::pjrt
