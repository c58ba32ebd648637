#include "pjrt/traits.h"

#include "pjrt/abi_call.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {
namespace {

// The C ABI tells a platform's name by its clients alone, and a client takes the devices. What a plugin offers tells as much.
std::string PlatformOf(const Plugin& plugin) {
  if (plugin.attributes().count("cuda_version") > 0) return "cuda";
  if (plugin.attributes().count("rocm_version") > 0) return "rocm";
  if (plugin.HasExtension(PJRT_Extension_Type_TpuTopology) || plugin.HasExtension(PJRT_Extension_Type_TpuExecutable)) {
    return "tpu";
  }
  return plugin.HasExtension(PJRT_Extension_Type_Gpu_Custom_Call) ? "cuda" : "cpu";
}

}  // namespace

Traits ProbeTraits(const Plugin& plugin) {
  Traits traits;
  traits.platform = PlatformOf(plugin);
  const bool cpu = traits.platform == "cpu";
  const bool tpu = traits.platform == "tpu";
  traits.host_memory = cpu;
  traits.runs_in_caller = cpu;
  traits.makes_devices = cpu;
  traits.host_handlers = cpu;
  traits.joins_processes = !cpu && !tpu;
  traits.joins_by_environment = tpu;
  traits.ffi_platform = cpu ? "Host" : traits.platform == "rocm" ? "ROCM" : tpu ? "TPU" : "CUDA";
  // The CPU plugin has the functions, and no compiler behind them.
  traits.describes_topologies = !cpu && HasFunction(plugin.api(), &PJRT_Api::PJRT_TopologyDescription_Create) &&
                                HasFunction(plugin.api(), &PJRT_Api::PJRT_Compile);
  traits.has_memory_stats = !cpu && HasFunction(plugin.api(), &PJRT_Api::PJRT_Device_MemoryStats);
  return traits;
}

}  // namespace landbridge::pjrt
