// A client of a plugin: its devices, memories, buffers and compiled programs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "pjrt/buffer.h"
#include "pjrt/c_api.h"
#include "pjrt/event.h"
#include "pjrt/executable.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {

// Plain data, taken once at client creation; pointers live as long as the client.
struct Memory {
  PJRT_Memory* handle = nullptr;
  int id = 0;
  std::string kind;  // "device", "pinned_host", "unpinned_host"
  std::string debug_string;
};

struct Device {
  PJRT_Device* handle = nullptr;
  int id = 0;  // the plugin's global id; what device assignments name
  int local_hardware_id = 0;
  std::string kind;  // e.g. "cpu"
  std::string debug_string;
  AttributeMap attributes;
  std::vector<const Memory*> memories;
  const Memory* default_memory = nullptr;

  const Memory* FindMemory(absl::string_view memory_kind) const;  // null if there is none
};

// When the plugin may read the host memory given to BufferFromHost.
enum class HostSemantics {
  kOnlyDuringCall,          // copied before the call returns
  kUntilTransferCompletes,  // keep it until `done_with_host` fires
  kImmutableZeroCopy,       // may be used in place until the buffer dies; never change it
  kMutableZeroCopy,         // the same, and may be donated
};

// Thread-safety: all members from any thread. Destroy on a thread that is not the plugin's.
class Client {
 public:
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  Plugin& plugin() const { return *plugin_; }
  PJRT_Client* handle() const { return client_; }
  const std::string& platform_name() const { return platform_name_; }
  const std::string& platform_version() const { return platform_version_; }
  // Addressable devices, by index; local ordinal i is devices()[i].
  const std::vector<Device>& devices() const { return devices_; }
  const Device* FindDevice(int id) const;  // by plugin id; null if there is none
  // Plugin ids of the devices of all processes whose clients are one: process by process, in the order of each one's devices().
  const std::vector<int>& global_device_ids() const { return global_device_ids_; }
  int global_device_count() const { return static_cast<int>(global_device_ids_.size()); }
  int process_index() const { return process_index_; }
  // The memory that programs can use of a device, as the plugin knows it. UNIMPLEMENTED if it does not.
  absl::StatusOr<int64_t> MemoryLimitBytes(const Device& device) const;
  const Memory* FindMemory(const PJRT_Memory* handle) const;

  struct HostBufferResult {
    Buffer buffer;
    Event done_with_host;
  };
  // `byte_strides`: empty for dense row-major, else one per dimension, zero and negative ones included. Input
  // that is not row-major, or of a sub-byte type, is transposed in this thread.
  absl::StatusOr<HostBufferResult> BufferFromHost(const void* data, DType dtype, absl::Span<const int64_t> dims,
                                                  absl::Span<const int64_t> byte_strides, const Memory& memory,
                                                  HostSemantics semantics);

  // Row-major, ready at once, content undefined. On CPU: take an external reference and write into it.
  absl::StatusOr<Buffer> CreateUninitialized(DType dtype, absl::Span<const int64_t> dims, const Memory& memory);
  // A buffer that carries `status`, which must not be OK.
  absl::StatusOr<Buffer> CreateError(const absl::Status& status, DType dtype, absl::Span<const int64_t> dims,
                                     const Memory& memory);
  struct Alias {
    Buffer buffer;  // may be passed to Execute at once
    Promise promise;
  };
  absl::StatusOr<Alias> CreateAlias(DType dtype, absl::Span<const int64_t> dims, const Memory& memory);

  // `format`: "mlir" or "hlo". `compile_options`: serialized xla.CompileOptionsProto. Slow; any thread.
  absl::StatusOr<std::unique_ptr<LoadedExecutable>> Compile(absl::string_view program, absl::string_view format,
                                                            absl::string_view compile_options);
  // `serialized` must be bytes that this build of the plugin made, unchanged: the plugin checks nothing. Load
  // through compiler/load.h, which does. `overridden_options` may be empty.
  absl::StatusOr<std::unique_ptr<LoadedExecutable>> DeserializeAndLoad(absl::string_view serialized,
                                                                       absl::string_view overridden_options);

  // Proves that a handler is registered under `target`, by compiling a program of one custom call to it (the
  // plugin looks the name up then; the handler is not run). FAILED_PRECONDITION naming target and plugin if not.
  absl::Status CheckCustomCall(absl::string_view target);

 private:
  friend class Plugin;
  Client() = default;
  absl::Status Init();
  absl::Status InitGlobalDevices();
  std::shared_ptr<Plugin> plugin_;
  PJRT_Client* client_ = nullptr;
  std::string platform_name_;
  std::string platform_version_;
  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<Device> devices_;
  std::vector<int> global_device_ids_;
  int process_index_ = 0;
};

}  // namespace landbridge::pjrt
