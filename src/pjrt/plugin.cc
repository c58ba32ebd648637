#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/status.h"
#include "pjrt/abi_call.h"
#include "pjrt/attributes.h"
#include "pjrt/client.h"
#include "pjrt/ffi_handler.h"
#include "pjrt/key_value_callbacks.h"

namespace landbridge::pjrt {
namespace {

struct LoadedPlugins {
  absl::Mutex mutex;
  std::map<std::string, std::shared_ptr<Plugin>> by_path ABSL_GUARDED_BY(mutex);
};

// Never destroyed: plugin threads outlive main().
LoadedPlugins& Loaded() {
  static LoadedPlugins* loaded = new LoadedPlugins;
  return *loaded;
}

std::string RealPath(const std::string& path) {
  char resolved[PATH_MAX];
  return ::realpath(path.c_str(), resolved) == nullptr ? path : std::string(resolved);
}

bool IsFile(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

constexpr char kHowToGetOne[] =
    "install one (pip install lammps-jax-pjrt-cpu) or name it with --pjrt_plugin or LANDBRIDGE_PJRT_PLUGIN";

}  // namespace

absl::StatusOr<std::shared_ptr<Plugin>> Plugin::Load(const std::string& given_path) {
  std::string path = RealPath(given_path);
  if (!IsFile(path)) {
    return absl::FailedPreconditionError(
        absl::StrCat("there is no PJRT plugin at ", given_path, ": no such file; ", kHowToGetOne));
  }
  LoadedPlugins& loaded = Loaded();
  absl::MutexLock lock(&loaded.mutex);
  if (auto it = loaded.by_path.find(path); it != loaded.by_path.end()) return it->second;

  LB_ASSIGN_OR_RETURN(std::string sha256, Sha256FileHex(path));
  void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return absl::FailedPreconditionError(
        absl::StrCat(path, " cannot be loaded as a PJRT plugin: ", reason == nullptr ? "unknown reason" : reason));
  }
  auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(::dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " is a shared library but not a PJRT plugin: it has no function GetPjrtApi; ", kHowToGetOne));
  }
  const PJRT_Api* api = get_api();
  constexpr size_t kVersionEnd = offsetof(PJRT_Api, pjrt_api_version) + sizeof(PJRT_Api_Version);
  if (api == nullptr || api->struct_size < kVersionEnd) {
    return absl::FailedPreconditionError(absl::StrCat(path, " returned no usable PJRT function table"));
  }
  if (api->pjrt_api_version.major_version != kApiMajor || api->pjrt_api_version.minor_version < kApiMinorMin) {
    return absl::FailedPreconditionError(
        absl::StrCat("the PJRT plugin ", path, " has C API version ", api->pjrt_api_version.major_version, ".",
                     api->pjrt_api_version.minor_version, ", but Landbridge needs ", kApiMajor, ".", kApiMinorMin,
                     " or newer (", kApiMajor, ".x); install a plugin built with jaxlib 0.9 or newer"));
  }

  std::shared_ptr<Plugin> plugin(new Plugin);
  plugin->path_ = path;
  plugin->sha256_ = std::move(sha256);
  plugin->api_ = api;
  for (const PJRT_Extension_Base* e = api->extension_start; e != nullptr; e = e->next) {
    plugin->extension_types_.push_back(static_cast<int>(e->type));
  }
  Args<PJRT_Plugin_Initialize_Args> initialize;
  if (absl::Status status = LB_PJRT_CALL(plugin.get(), PJRT_Plugin_Initialize, initialize); !status.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the PJRT plugin ", path, " failed to initialize: ", FilterForeignText(status.message())));
  }
  Args<PJRT_Plugin_Attributes_Args> attributes;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin.get(), PJRT_Plugin_Attributes, attributes));
  plugin->attributes_ = ReadAttributes(attributes->attributes, attributes->num_attributes);
  plugin->traits_ = ProbeTraits(*plugin);
  loaded.by_path[path] = plugin;
  return plugin;
}

const PJRT_Extension_Base* Plugin::FindExtension(PJRT_Extension_Type type) const {
  for (const PJRT_Extension_Base* e = api_->extension_start; e != nullptr; e = e->next) {
    if (e->type == type) return e;
  }
  return nullptr;
}

absl::Status Plugin::TakeError(PJRT_Error* error) const {
  if (error == nullptr) return absl::OkStatus();
  Args<PJRT_Error_Message_Args> message;
  message->error = error;
  api_->PJRT_Error_Message(message.get());
  Args<PJRT_Error_GetCode_Args> code;
  code->error = error;
  PJRT_Error* nested = api_->PJRT_Error_GetCode(code.get());
  absl::StatusCode status_code = absl::StatusCode::kInternal;
  if (nested == nullptr && code->code != PJRT_Error_Code_OK) status_code = static_cast<absl::StatusCode>(code->code);
  absl::Status status(status_code, absl::string_view(message->message, message->message_size));
  for (PJRT_Error* e : {error, nested}) {
    if (e == nullptr) continue;
    Args<PJRT_Error_Destroy_Args> destroy;
    destroy->error = e;
    api_->PJRT_Error_Destroy(destroy.get());
  }
  return status;
}

Plugin::ClientOptions Plugin::CpuOptions(int device_count) {
  ClientOptions options;
  options.options["cpu_device_count"] = int64_t{device_count};
  return options;
}

absl::Status Plugin::RegisterFfiHandler(absl::string_view target, void* handler) {
  auto* extension = reinterpret_cast<const PJRT_FFI_Extension*>(FindExtension(PJRT_Extension_Type_FFI));
  if (extension == nullptr || extension->base.struct_size < sizeof(PJRT_FFI_Extension) ||
      extension->register_handler == nullptr) {
    return absl::UnimplementedError(absl::StrCat("the PJRT plugin ", path_, " takes no custom-call handlers (no FFI)"));
  }
  // The plugin would drop a version mismatch silently, so ask the handler itself.
  LB_RETURN_IF_ERROR(AddContext(CheckFfiVersion(reinterpret_cast<XLA_FFI_Handler>(handler)).status(),
                                absl::StrCat("custom-call target ", target)));
  Args<PJRT_FFI_Register_Handler_Args> args;
  args->target_name = target.data();
  args->target_name_size = target.size();
  args->handler = handler;
  args->platform_name = traits_.ffi_platform.data();
  args->platform_name_size = traits_.ffi_platform.size();
  return TakeError(extension->register_handler(args.get()));
}

absl::StatusOr<std::unique_ptr<Client>> Plugin::CreateClient(const ClientOptions& options, KeyValueStore* store) {
  std::unique_ptr<Client> client(new Client);
  client->plugin_ = shared_from_this();
  NamedValues values(options.options);
  Args<PJRT_Client_Create_Args> args;
  args->create_options = values.data();
  args->num_options = values.size();
  if (store != nullptr) SetKeyValueCallbacks(store, args.get());
  LB_RETURN_IF_ERROR(AddContext(LB_PJRT_CALL(this, PJRT_Client_Create, args),
                                absl::StrCat("the PJRT plugin ", path_, " made no client")));
  client->client_ = args->client;
  LB_RETURN_IF_ERROR(client->Init());
  return client;
}

absl::StatusOr<std::string> DefaultCpuPluginPath(absl::Span<const std::string> site_packages) {
  if (const char* named = std::getenv("LANDBRIDGE_PJRT_PLUGIN"); named != nullptr && *named != '\0') {
    if (IsFile(named)) return std::string(named);
    return absl::FailedPreconditionError(
        absl::StrCat("LANDBRIDGE_PJRT_PLUGIN names ", named, ", but there is no such file"));
  }
  std::vector<std::string> tried;
  for (const char* file : {"lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so", "fastatomstruct_xla_cpu/libpjrt_cpu.so"}) {
    for (const std::string& folder : site_packages) {
      std::string path = absl::StrCat(folder, "/", file);
      if (IsFile(path)) return path;
      tried.push_back(std::move(path));
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("no CPU PJRT plugin found; ", kHowToGetOne,
                   tried.empty() ? "" : absl::StrCat("; looked at ", absl::StrJoin(tried, ", "))));
}

void PreparePluginEnvironment(int device_count) {
  ::setenv("PJRT_NPROC", absl::StrCat(2 * device_count + 4).c_str(), /*overwrite=*/0);
  const char* current = std::getenv("XLA_FLAGS");
  std::string flags = current == nullptr ? "" : current;
  for (const auto& [name, value] : std::initializer_list<std::pair<absl::string_view, absl::string_view>>{
           {"--xla_cpu_collective_call_warn_stuck_timeout_seconds", "120"},
           {"--xla_cpu_collective_call_terminate_timeout_seconds", "3600"}}) {
    if (flags.find(std::string(name)) != std::string::npos) continue;
    absl::StrAppend(&flags, flags.empty() ? "" : " ", name, "=", value);
  }
  ::setenv("XLA_FLAGS", flags.c_str(), /*overwrite=*/1);
}

}  // namespace landbridge::pjrt
