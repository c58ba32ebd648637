// Calls from running programs of functions that live in the client's process (Python callbacks): the custom-call handler,
// and the launches that it serves. The bytes of such a call travel by whatever the owner of the launch does with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "pjrt/ffi_handler.h"

namespace landbridge::pjrt {

class Client;
class Plugin;

// XLA's own names, which the plugin leaves free: under another one than the first, its partitioner would run such a call on
// every device. The second is of jax.experimental.buffer_callback. Of the third, every device calls with the parts that it has:
// which shapes they have is not known where the function lives, so their dimensions, 8 bytes each, are its first operand.
inline constexpr char kHostCallTarget[] = "xla_ffi_python_cpu_callback";
inline constexpr char kBufferHostCallTarget[] = "xla_buffer_python_cpu_callback";
inline constexpr char kPartitionedHostCallTarget[] = "xla_ffi_partitioned_python_cpu_callback";
inline constexpr const char* kHostCallTargets[] = {kHostCallTarget, kBufferHostCallTarget, kPartitionedHostCallTarget};
bool IsHostCall(absl::string_view target);
inline constexpr char kHostCallFunctionAttribute[] = "index";

struct HostCall {
  uint64_t function = 0;  // the client's number of it
  int32_t device = 0;     // the plugin's id
  // Valid until completion. Tokens have no bytes.
  std::vector<absl::Span<const std::byte>> operands;
  std::vector<absl::Span<std::byte>> results;
  std::vector<int64_t> dims;  // of a call by parts: what its first operand consists of
  FfiCompletion completion;

  int64_t operand_bytes() const;
  int64_t result_bytes() const;
};

// Registers the handler. Before any program that has such calls is compiled or loaded. Again: no effect.
absl::Status RegisterHostCalls(Plugin& plugin);
// The same, and proves by a compile on `client` that the plugin took it.
absl::Status RegisterAndCheckHostCalls(Client& client);

// Makes a launch known to the handler while it lives: its calls go to `sink`, on the plugin's threads, which must not block.
// `run_id` is the launch id given to the plugin: this process's, and of one launch at a time. Calls of launches that are not
// known fail FAILED_PRECONDITION.
//
// Thread-safety: none.
class HostCallRegistration {
 public:
  using Sink = std::function<void(HostCall)>;

  HostCallRegistration() = default;
  HostCallRegistration(int64_t run_id, Sink sink);
  HostCallRegistration(HostCallRegistration&& other) noexcept;
  HostCallRegistration& operator=(HostCallRegistration&& other) noexcept;
  ~HostCallRegistration();

 private:
  int64_t run_id_ = 0;  // 0: none
};

}  // namespace landbridge::pjrt
