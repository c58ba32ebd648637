// Virtual compute: device work that is a timer, so that overlap, bubbles and scale can be measured honestly on few
// cores. From JAX:
//   jax.ffi.ffi_call("landbridge_virtual_compute", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, duration_us=np.int64(500))
// N operands, N results of the same shapes; the results are copies of the operands, there after the duration.
//
// One timer thread per process; the rest of a program goes on in a small pool that grows only while continuations
// are busy (one may wait for a peer's collective, which may need another).
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace landbridge::pjrt {

class Client;
class Plugin;

inline constexpr char kVirtualComputeTarget[] = "landbridge_virtual_compute";
inline constexpr int64_t kVirtualComputeMicrosecondsMax = int64_t{3600} * 1'000'000;

// Registers the handler. Before any program that uses it is compiled or loaded. Again: no effect.
absl::Status RegisterVirtualCompute(Plugin& plugin);
// The same, and proves by a compile on `client` that the plugin took it.
absl::Status RegisterAndCheckVirtualCompute(Client& client);

// Calls of this process that wait for their time; for metrics and tests.
int64_t VirtualComputePending();

}  // namespace landbridge::pjrt
