// What a plugin can do, as far as it matters to us. Asked of the plugin where the C ABI has a question for it, else told by
// what it offers; nothing else in the project looks at a platform's name to decide how to drive a plugin.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace landbridge::pjrt {

class Plugin;

struct Traits {
  // As clients of the plugin name it: "cpu", "cuda", "rocm", "tpu".
  std::string platform;

  // Device memory is ordinary memory, which this process may read and write through an external reference as soon as a
  // buffer is ready. Elsewhere memory that a buffer has just got may still be in use by work that is ahead of it in a
  // stream, so bytes go by the plugin's own copies (also where the host could reach them). It is proved by trying
  // (worker/shell/buffer_io.h).
  bool host_memory = false;
  // Small programs run inside Execute, on the calling thread; larger ones on threads of the plugin, which a launch reaches in
  // microseconds.
  bool runs_in_caller = false;
  // A client has as many devices as one asks for (cpu_device_count). Elsewhere those of the machine.
  bool makes_devices = false;
  // Clients of several processes become one: node_id, num_nodes and a key-value store. Programs over them run with the
  // plugin's own collectives.
  bool joins_processes = false;
  // The same, but who belongs to it is told by the environment (TPU_PROCESS_ADDRESSES and others), not by options.
  bool joins_by_environment = false;
  // Custom-call handlers that are functions of this process are called with memory that it can read: ours (collectives,
  // callbacks, virtual compute) and jaxlib's can be registered.
  bool host_handlers = false;
  // Name of the handlers' platform in the plugin's registry.
  std::string ffi_platform;

  // Compiles without devices, for a topology that is described to it.
  bool describes_topologies = false;
  bool has_memory_stats = false;
};

// Of a plugin whose function table is there. Needs no client, so no device.
Traits ProbeTraits(const Plugin& plugin);

}  // namespace landbridge::pjrt
