// Loading a PJRT plugin and talking to it. RAII over the C ABI of c_api.h.
//
// Lifetimes: a plugin is never unloaded. Destroy buffers, events and executables before their client; objects
// keep raw pointers into it. Errors of the plugin come back with the plugin's own code and text (unfiltered;
// FromPluginError in base/status.h makes them fit for users).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "pjrt/c_api.h"
#include "pjrt/traits.h"

namespace landbridge::pjrt {

class Client;
class KeyValueStore;

using Attribute = std::variant<std::string, int64_t, std::vector<int64_t>, float, bool>;
using AttributeMap = std::map<std::string, Attribute>;

// The oldest plugin that we drive (features arrive with minor versions; error buffers are the youngest needed).
constexpr int kApiMajor = 0;
constexpr int kApiMinorMin = 91;

// Thread-safety: immutable after Load, except RegisterFfiHandler, which may be called from any thread.
class Plugin : public std::enable_shared_from_this<Plugin> {
 public:
  // Loads `path` once per process (again: the same object). Errors name the path and say what to do:
  // FAILED_PRECONDITION for a missing file, a file that is no plugin, and an ABI that is too old or of another
  // major version. Environment that the plugin reads (PreparePluginEnvironment) must be set before.
  static absl::StatusOr<std::shared_ptr<Plugin>> Load(const std::string& path);

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const std::string& path() const { return path_; }
  const std::string& sha256() const { return sha256_; }  // of the file, lower-case hexadecimal
  int api_major() const { return api_->pjrt_api_version.major_version; }
  int api_minor() const { return api_->pjrt_api_version.minor_version; }
  const AttributeMap& attributes() const { return attributes_; }
  const std::vector<int>& extension_types() const { return extension_types_; }  // in the plugin's order
  bool HasExtension(PJRT_Extension_Type type) const { return FindExtension(type) != nullptr; }
  const Traits& traits() const { return traits_; }

  struct ClientOptions {
    AttributeMap options;  // passed through by name, e.g. {"cpu_device_count", int64_t{4}}
  };
  static ClientOptions CpuOptions(int device_count);
  // `store`: for clients of several processes that become one (client_options.h: GroupPlace); it must outlive the client. Then
  // this waits for the others, for minutes.
  absl::StatusOr<std::unique_ptr<Client>> CreateClient(const ClientOptions& options, KeyValueStore* store = nullptr);

  // Registers an execute-stage handler (an XLA_FFI_Handler of ffi_api.h) for its platform under `target`, before programs that
  // use it are compiled or loaded. The plugin hides refusals: Client::CheckCustomCall proves that it took. The same
  // pointer again is fine.
  absl::Status RegisterFfiHandler(absl::string_view target, void* handler);

  // For the wrappers in this room.
  const PJRT_Api* api() const { return api_; }
  const PJRT_Extension_Base* FindExtension(PJRT_Extension_Type type) const;
  // Destroys `error`; OK for null.
  absl::Status TakeError(PJRT_Error* error) const;

 private:
  Plugin() = default;
  std::string path_;
  std::string sha256_;
  const PJRT_Api* api_ = nullptr;
  AttributeMap attributes_;
  std::vector<int> extension_types_;
  Traits traits_;
};

// The CPU plugin to use: $LANDBRIDGE_PJRT_PLUGIN if set, else lammps_jax_pjrt_cpu's or, failing that,
// fastatomstruct_xla_cpu's library below one of `site_packages` (folders that hold Python packages).
// FAILED_PRECONDITION with all places looked at if there is none.
absl::StatusOr<std::string> DefaultCpuPluginPath(absl::Span<const std::string> site_packages = {});

// Sets what a CPU plugin reads from the environment, where it is not set yet: PJRT_NPROC (threads: a waiting
// program holds one, so 2 * devices + 4), and in XLA_FLAGS longer limits for stuck collectives (XLA aborts the
// process at them). Call before Plugin::Load and before other threads exist.
void PreparePluginEnvironment(int device_count);

}  // namespace landbridge::pjrt
