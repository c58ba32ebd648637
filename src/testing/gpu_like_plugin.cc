// A PJRT plugin for tests: the CPU plugin ($LANDBRIDGE_TEST_CPU_PLUGIN names its file) behind the face of a GPU plugin, so that
// everything that is not true of CPU devices can be tried on a machine without others.
//
// - Its platform is "cuda"; it has $LANDBRIDGE_TEST_GPUS devices (default 1; 0: none, an error like CUDA's), and knows no
//   cpu_device_count. Options are checked by name and type.
// - Memory cannot be reached by the host: no pointers, kinds device and pinned_host only.
// - With num_nodes > 1 a client is made together with those of other processes, through the key-value callbacks: each
//   puts its topology, the first gathers them and puts the whole, all list the others' devices as not addressable. Programs
//   for devices of several processes load on those that are here and run without collectives (the CPU plugin has none to
//   offer over processes): each process computes its own part.
// - With enable_mock_nccl the devices of all processes are stood in for: such a client compiles.
//
// Needs no more than the C ABI. Thread-safe as the plugin behind it.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "pjrt/c_api.h"

namespace landbridge::pjrt {
namespace {

constexpr int kForeignDevice = 2048;  // ids from here on are another process's to the CPU plugin
constexpr int64_t kMemoryBytes = int64_t{1} << 30;
constexpr int kGatherTimeoutMs = 120'000, kGlobalTimeoutMs = 300'000;

const PJRT_Api* real = nullptr;
PJRT_Api* ours = nullptr;

// ---------------------------------------------------------------- errors

struct OurError {
  PJRT_Error_Code code;
  std::string text;
};
std::mutex mutex;
std::set<const void*> our_errors;

PJRT_Error* MakeError(PJRT_Error_Code code, const std::string& text) {
  auto* error = new OurError{code, text};
  std::lock_guard<std::mutex> lock(mutex);
  our_errors.insert(error);
  return reinterpret_cast<PJRT_Error*>(error);
}

const OurError* Ours(const PJRT_Error* error) {
  std::lock_guard<std::mutex> lock(mutex);
  return our_errors.count(error) == 0 ? nullptr : reinterpret_cast<const OurError*>(error);
}

void ErrorDestroy(PJRT_Error_Destroy_Args* args) {
  const OurError* error = Ours(args->error);
  if (error == nullptr) return real->PJRT_Error_Destroy(args);
  {
    std::lock_guard<std::mutex> lock(mutex);
    our_errors.erase(error);
  }
  delete error;
}

void ErrorMessage(PJRT_Error_Message_Args* args) {
  const OurError* error = Ours(args->error);
  if (error == nullptr) return real->PJRT_Error_Message(args);
  args->message = error->text.data();
  args->message_size = error->text.size();
}

PJRT_Error* ErrorGetCode(PJRT_Error_GetCode_Args* args) {
  const OurError* error = Ours(args->error);
  if (error == nullptr) return real->PJRT_Error_GetCode(args);
  args->code = error->code;
  return nullptr;
}

PJRT_Error* CallbackError(PJRT_Error_Code code, const char* message, size_t size) {
  return MakeError(code, std::string(message, size));
}

// ---------------------------------------------------------------- clients and devices

struct RemoteDevice {  // stands for a PJRT_Device and its PJRT_DeviceDescription
  int id = 0, process = 0;
  std::string text;
};

struct ClientState {
  int node = 0, base = 0;
  std::vector<PJRT_Device*> devices;  // all, by id
  std::vector<std::unique_ptr<RemoteDevice>> remote;
  std::vector<PJRT_Memory*> memories;
};

// Never forgotten: few are made, and handles of one that is gone may come again for another.
std::map<PJRT_Client*, std::shared_ptr<ClientState>> clients;
std::map<const void*, int> base_of_description;
std::map<const void*, const RemoteDevice*> remote_devices;
std::map<const void*, std::vector<PJRT_Memory*>> memories_of_device;

std::shared_ptr<ClientState> StateOf(PJRT_Client* client) {
  std::lock_guard<std::mutex> lock(mutex);
  return clients.at(client);
}

const RemoteDevice* Remote(const void* device) {
  std::lock_guard<std::mutex> lock(mutex);
  auto it = remote_devices.find(device);
  return it == remote_devices.end() ? nullptr : it->second;
}

template <typename T>
T Sized() {
  T args{};
  args.struct_size = sizeof(T) + 0;
  return args;
}

// The CPU plugin refuses sizes below its own.
template <typename T>
struct Guarded {
  T args{};
  char more[128] = {};
  Guarded() { args.struct_size = sizeof(T) + sizeof(more); }
};

std::string KindOf(PJRT_Memory* memory) {
  Guarded<PJRT_Memory_Kind_Args> kind;
  kind.args.memory = memory;
  if (real->PJRT_Memory_Kind(&kind.args) != nullptr) return "";
  return std::string(kind.args.kind, kind.args.kind_size);
}

std::vector<PJRT_Memory*> WithoutUnpinned(PJRT_Memory* const* memories, size_t count) {
  std::vector<PJRT_Memory*> kept;
  for (size_t i = 0; i < count; ++i) {
    if (KindOf(memories[i]) != "unpinned_host") kept.push_back(memories[i]);
  }
  return kept;
}

struct Options {
  int64_t node_id = 0, num_nodes = 1;
  bool mock = false;
  int64_t devices = 1;
};

PJRT_Error* ReadOptions(const PJRT_Client_Create_Args* args, Options* options) {
  const char* gpus = std::getenv("LANDBRIDGE_TEST_GPUS");
  options->devices = gpus == nullptr ? 1 : std::atoi(gpus);
  static const std::map<std::string, PJRT_NamedValue_Type> known = {
      {"platform_name", PJRT_NamedValue_kString},      {"allocator", PJRT_NamedValue_kString},
      {"memory_fraction", PJRT_NamedValue_kFloat},     {"preallocate", PJRT_NamedValue_kBool},
      {"visible_devices", PJRT_NamedValue_kInt64List}, {"node_id", PJRT_NamedValue_kInt64},
      {"num_nodes", PJRT_NamedValue_kInt64},           {"enable_mock_nccl", PJRT_NamedValue_kBool}};
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue& value = args->create_options[i];
    const std::string name(value.name, value.name_size);
    auto it = known.find(name);
    if (it == known.end()) {
      return MakeError(PJRT_Error_Code_INVALID_ARGUMENT,
                       "Unexpected option name passed to PJRT_Client_Create: " + name);
    }
    if (it->second != value.type) {
      return MakeError(PJRT_Error_Code_INVALID_ARGUMENT,
                       "Option passed to PJRT_Client_Create with name " + name + " has type index " +
                           std::to_string(value.type) + " but expected type index is " + std::to_string(it->second));
    }
    if (name == "node_id") options->node_id = value.int64_value;
    if (name == "num_nodes") options->num_nodes = value.int64_value;
    if (name == "enable_mock_nccl") options->mock = value.bool_value;
    if (name == "visible_devices") options->devices = std::min<int64_t>(options->devices, value.value_size);
  }
  if (options->devices <= 0) {
    return MakeError(PJRT_Error_Code_INTERNAL, "no supported devices found for platform CUDA");
  }
  return nullptr;
}

// The key-value store of a create call.
class Store {
 public:
  explicit Store(const PJRT_Client_Create_Args* args) : args_(*args) {}

  PJRT_Error* Put(const std::string& key, const std::string& value) {
    auto put = Sized<PJRT_KeyValuePutCallback_Args>();
    put.key = key.data();
    put.key_size = key.size();
    put.value = value.data();
    put.value_size = value.size();
    put.callback_error = &make_error_;
    put.user_arg = args_.kv_put_user_arg;
    return args_.kv_put_callback(&put);
  }

  PJRT_Error* Get(const std::string& key, int timeout_ms, std::string* value) {
    auto get = Sized<PJRT_KeyValueGetCallback_Args>();
    get.key = key.data();
    get.key_size = key.size();
    get.timeout_in_ms = timeout_ms;
    get.callback_error = &make_error_;
    get.user_arg = args_.kv_get_user_arg;
    if (PJRT_Error* error = args_.kv_get_callback(&get)) return error;
    value->assign(get.value, get.value_size);
    get.value_deleter_callback(get.value);
    return nullptr;
  }

  // Something that nobody has put: CUDA's client asks like this, too.
  PJRT_Error* CheckAbsent(const std::string& key) {
    auto get = Sized<PJRT_KeyValueTryGetCallback_Args>();
    get.key = key.data();
    get.key_size = key.size();
    get.callback_error = &make_error_;
    get.user_arg = args_.kv_try_get_user_arg;
    PJRT_Error* error = args_.kv_try_get_callback(&get);
    if (error == nullptr) return MakeError(PJRT_Error_Code_INTERNAL, "a key that nobody has put was found: " + key);
    const OurError* found = Ours(error);
    if (found == nullptr || found->code != PJRT_Error_Code_NOT_FOUND) return error;
    auto destroy = Sized<PJRT_Error_Destroy_Args>();
    destroy.error = error;
    ErrorDestroy(&destroy);
    return nullptr;
  }

 private:
  PJRT_Client_Create_Args args_;
  PJRT_CallbackError make_error_ = &CallbackError;
};

// How many devices each process has.
PJRT_Error* ExchangeTopologies(const PJRT_Client_Create_Args* args, const Options& options, std::vector<int>* counts) {
  if (args->kv_get_callback == nullptr || args->kv_put_callback == nullptr || args->kv_try_get_callback == nullptr) {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "num_nodes > 1 needs a key-value store");
  }
  Store store(args);
  if (PJRT_Error* error = store.CheckAbsent("cuda:never_put")) return error;
  const std::string mine = std::to_string(options.devices);
  if (PJRT_Error* error = store.Put("cuda:local_topology/" + std::to_string(options.node_id), mine)) return error;
  std::string global;
  if (options.node_id == 0) {
    for (int64_t n = 0; n < options.num_nodes; ++n) {
      std::string count;
      if (PJRT_Error* error = store.Get("cuda:local_topology/" + std::to_string(n), kGatherTimeoutMs, &count)) {
        return error;
      }
      global += count + ",";
    }
    if (PJRT_Error* error = store.Put("cuda:global_topology", global)) return error;
  } else if (PJRT_Error* error = store.Get("cuda:global_topology", kGlobalTimeoutMs, &global)) {
    return error;
  }
  for (size_t at = 0; at < global.size(); at = global.find(',', at) + 1) {
    counts->push_back(std::atoi(global.c_str() + at));
  }
  return nullptr;
}

PJRT_Error* ClientCreate(PJRT_Client_Create_Args* args) {
  Options options;
  if (PJRT_Error* error = ReadOptions(args, &options)) return error;
  std::vector<int> counts = {static_cast<int>(options.devices)};
  auto state = std::make_shared<ClientState>();
  int64_t here = options.devices;
  if (options.num_nodes > 1 && options.mock) {
    here *= options.num_nodes;
    counts = {static_cast<int>(here)};
  } else if (options.num_nodes > 1) {
    counts.clear();
    if (PJRT_Error* error = ExchangeTopologies(args, options, &counts)) return error;
    state->node = static_cast<int>(options.node_id);
  }

  PJRT_NamedValue count{};
  count.struct_size = sizeof(count);
  count.name = "cpu_device_count";
  count.name_size = std::strlen(count.name);
  count.type = PJRT_NamedValue_kInt64;
  count.int64_value = here;
  count.value_size = 1;
  Guarded<PJRT_Client_Create_Args> create;
  create.args.create_options = &count;
  create.args.num_options = 1;
  if (PJRT_Error* error = real->PJRT_Client_Create(&create.args)) return error;
  args->client = create.args.client;

  Guarded<PJRT_Client_AddressableDevices_Args> devices;
  devices.args.client = args->client;
  if (PJRT_Error* error = real->PJRT_Client_AddressableDevices(&devices.args)) return error;
  Guarded<PJRT_Client_AddressableMemories_Args> memories;
  memories.args.client = args->client;
  if (PJRT_Error* error = real->PJRT_Client_AddressableMemories(&memories.args)) return error;
  state->memories = WithoutUnpinned(memories.args.addressable_memories, memories.args.num_addressable_memories);
  int id = 0;
  for (size_t process = 0; process < counts.size(); ++process) {
    for (int d = 0; d < counts[process]; ++d, ++id) {
      if (static_cast<int>(process) == state->node) {
        if (d == 0) state->base = id;
        state->devices.push_back(devices.args.addressable_devices[d]);
        continue;
      }
      state->remote.push_back(std::make_unique<RemoteDevice>());
      *state->remote.back() = {id, static_cast<int>(process), "remote test GPU " + std::to_string(id)};
      state->devices.push_back(reinterpret_cast<PJRT_Device*>(state->remote.back().get()));
    }
  }
  std::lock_guard<std::mutex> lock(mutex);
  clients[args->client] = state;
  for (const auto& remote : state->remote) remote_devices[remote.get()] = remote.get();
  for (size_t d = 0; d < devices.args.num_addressable_devices; ++d) {
    PJRT_Device* device = devices.args.addressable_devices[d];
    Guarded<PJRT_Device_GetDescription_Args> description;
    description.args.device = device;
    if (PJRT_Error* error = real->PJRT_Device_GetDescription(&description.args)) return error;
    base_of_description[description.args.device_description] = state->base;
    Guarded<PJRT_Device_AddressableMemories_Args> of_device;
    of_device.args.device = device;
    if (PJRT_Error* error = real->PJRT_Device_AddressableMemories(&of_device.args)) return error;
    memories_of_device[device] = WithoutUnpinned(of_device.args.memories, of_device.args.num_memories);
  }
  return nullptr;
}

PJRT_Error* ClientDevices(PJRT_Client_Devices_Args* args) {
  const auto state = StateOf(args->client);
  args->devices = state->devices.data();
  args->num_devices = state->devices.size();
  return nullptr;
}

PJRT_Error* ClientProcessIndex(PJRT_Client_ProcessIndex_Args* args) {
  args->process_index = StateOf(args->client)->node;
  return nullptr;
}

PJRT_Error* ClientPlatformName(PJRT_Client_PlatformName_Args* args) {
  args->platform_name = "cuda";
  args->platform_name_size = 4;
  return nullptr;
}

PJRT_Error* ClientAddressableMemories(PJRT_Client_AddressableMemories_Args* args) {
  const auto state = StateOf(args->client);
  args->addressable_memories = state->memories.data();
  args->num_addressable_memories = state->memories.size();
  return nullptr;
}

PJRT_Error* DeviceAddressableMemories(PJRT_Device_AddressableMemories_Args* args) {
  std::lock_guard<std::mutex> lock(mutex);
  const std::vector<PJRT_Memory*>& kept = memories_of_device.at(args->device);
  args->memories = kept.data();
  args->num_memories = kept.size();
  return nullptr;
}

PJRT_Error* DeviceGetDescription(PJRT_Device_GetDescription_Args* args) {
  if (Remote(args->device) == nullptr) return real->PJRT_Device_GetDescription(args);
  args->device_description = reinterpret_cast<PJRT_DeviceDescription*>(args->device);
  return nullptr;
}

PJRT_Error* DescriptionId(PJRT_DeviceDescription_Id_Args* args) {
  if (const RemoteDevice* remote = Remote(args->device_description)) {
    args->id = remote->id;
    return nullptr;
  }
  if (PJRT_Error* error = real->PJRT_DeviceDescription_Id(args)) return error;
  std::lock_guard<std::mutex> lock(mutex);
  auto it = base_of_description.find(args->device_description);
  if (it != base_of_description.end()) args->id += it->second;
  return nullptr;
}

PJRT_Error* DescriptionProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args* args) {
  const RemoteDevice* remote = Remote(args->device_description);
  if (remote == nullptr) return real->PJRT_DeviceDescription_ProcessIndex(args);
  args->process_index = remote->process;
  return nullptr;
}

PJRT_Error* DescriptionKind(PJRT_DeviceDescription_Kind_Args* args) {
  args->device_kind = "Landbridge test GPU";
  args->device_kind_size = std::strlen(args->device_kind);
  return nullptr;
}

PJRT_Error* DeviceMemoryStats(PJRT_Device_MemoryStats_Args* args) {
  args->bytes_in_use = 0;
  args->bytes_limit = kMemoryBytes;
  args->bytes_limit_is_set = true;
  return nullptr;
}

// ---------------------------------------------------------------- memory and programs

template <typename T>
PJRT_Error* NoPointers(T*) {
  return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "the host cannot reach this device's memory");
}

// --- Options (xla.CompileOptionsProto) by their wire form: a library of messages in this file would meet that of the process.

size_t ReadVarint(const std::string& bytes, size_t at, uint64_t* value) {
  *value = 0;
  for (int shift = 0; at < bytes.size() && shift < 64; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[at++]);
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return at;
}

std::string Varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>((value & 0x7f) | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

// The message with `change` applied to the (packed) numbers at the end of `path`, field numbers from outside to inside.
template <typename Change>
std::string ChangeNumbers(const std::string& bytes, const std::vector<uint64_t>& path, size_t depth,
                          const Change& change) {
  if (depth == path.size()) {
    std::string changed;
    uint64_t number = 0;
    for (size_t at = 0; at < bytes.size();) {
      at = ReadVarint(bytes, at, &number);
      changed += Varint(change(number));
    }
    return changed;
  }
  std::string changed;
  for (size_t at = 0; at < bytes.size();) {
    uint64_t tag = 0, value = 0;
    const size_t begin = at;
    at = ReadVarint(bytes, at, &tag);
    size_t end = at;
    switch (tag & 7) {
      case 0: end = ReadVarint(bytes, at, &value); break;
      case 1: end = at + 8; break;
      case 5: end = at + 4; break;
      default: at = ReadVarint(bytes, at, &value); end = at + value;
    }
    if (end > bytes.size()) return bytes;
    if ((tag & 7) == 2 && tag >> 3 == path[depth]) {
      const std::string inner = ChangeNumbers(bytes.substr(at, end - at), path, depth + 1, change);
      changed += Varint(tag) + Varint(inner.size()) + inner;
    } else {
      changed += bytes.substr(begin, end - begin);
    }
    at = end;
  }
  return changed;
}

// executable_build_options . device_assignment . computation_devices . replica_device_ids
const std::vector<uint64_t> kAssignedDevices = {3, 9, 3, 1};

// Device ids in the options are those of all processes; the CPU plugin knows its own from 0 on.
PJRT_Error* DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args* args) {
  const auto state = StateOf(args->client);
  if (state->remote.empty() || args->overridden_serialized_compile_options_size == 0) {
    return real->PJRT_Executable_DeserializeAndLoad(args);
  }
  const std::string given(args->overridden_serialized_compile_options,
                          args->overridden_serialized_compile_options_size);
  const size_t here = state->devices.size() - state->remote.size();
  const std::string bytes = ChangeNumbers(given, kAssignedDevices, 0, [&](uint64_t id) -> uint64_t {
    const uint64_t local = id - static_cast<uint64_t>(state->base);
    return local < here ? local : kForeignDevice + id;
  });
  Guarded<PJRT_Executable_DeserializeAndLoad_Args> call;
  const size_t size = call.args.struct_size;
  call.args = *args;
  call.args.struct_size = size;
  call.args.overridden_serialized_compile_options = bytes.data();
  call.args.overridden_serialized_compile_options_size = bytes.size();
  PJRT_Error* error = real->PJRT_Executable_DeserializeAndLoad(&call.args);
  args->loaded_executable = call.args.loaded_executable;
  return error;
}

PJRT_Error* TopologyCreate(PJRT_TopologyDescription_Create_Args*) {
  return MakeError(PJRT_Error_Code_UNIMPLEMENTED, "this plugin describes no topologies");
}

PJRT_Error* PluginAttributes(PJRT_Plugin_Attributes_Args* args) {
  static std::vector<PJRT_NamedValue>* all = nullptr;
  if (all == nullptr) {
    if (PJRT_Error* error = real->PJRT_Plugin_Attributes(args)) return error;
    all = new std::vector<PJRT_NamedValue>(args->attributes, args->attributes + args->num_attributes);
    PJRT_NamedValue version{};
    version.struct_size = sizeof(version);
    version.name = "cuda_version";
    version.name_size = std::strlen(version.name);
    version.type = PJRT_NamedValue_kInt64;
    version.int64_value = 12090;
    version.value_size = 1;
    all->push_back(version);
  }
  args->attributes = all->data();
  args->num_attributes = all->size();
  return nullptr;
}

const PJRT_FFI_Extension* real_ffi = nullptr;

PJRT_Error* RegisterHandler(PJRT_FFI_Register_Handler_Args* args) {
  if (std::string(args->platform_name, args->platform_name_size) != "CUDA") {
    return MakeError(PJRT_Error_Code_INVALID_ARGUMENT, "this plugin takes handlers of platform CUDA");
  }
  PJRT_FFI_Register_Handler_Args changed = *args;
  changed.platform_name = "Host";
  changed.platform_name_size = 4;
  Guarded<PJRT_FFI_Register_Handler_Args> call;
  const size_t size = call.args.struct_size;
  call.args = changed;
  call.args.struct_size = size;
  return real_ffi->register_handler(&call.args);
}

// What GPU plugins have of what the CPU plugin has.
PJRT_Extension_Base* MakeExtensions() {
  PJRT_Extension_Base* first = nullptr;
  for (const PJRT_Extension_Base* e = real->extension_start; e != nullptr; e = e->next) {
    if (e->type != PJRT_Extension_Type_Layouts && e->type != PJRT_Extension_Type_FFI &&
        e->type != PJRT_Extension_Type_Shardings) {
      continue;
    }
    auto* copy = static_cast<PJRT_Extension_Base*>(std::calloc(1, e->struct_size));
    std::memcpy(copy, e, e->struct_size);
    if (e->type == PJRT_Extension_Type_FFI) {
      real_ffi = reinterpret_cast<const PJRT_FFI_Extension*>(e);
      reinterpret_cast<PJRT_FFI_Extension*>(copy)->register_handler = &RegisterHandler;
    }
    copy->next = first;
    first = copy;
  }
  return first;
}

const PJRT_Api* Load() {
  const char* path = std::getenv("LANDBRIDGE_TEST_CPU_PLUGIN");
  void* library = path == nullptr ? nullptr : dlopen(path, RTLD_LAZY | RTLD_LOCAL);
  auto get = library == nullptr ? nullptr : reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
  if (get == nullptr || (real = get()) == nullptr || real->struct_size < sizeof(PJRT_Api)) return nullptr;
  ours = static_cast<PJRT_Api*>(std::calloc(1, real->struct_size));
  std::memcpy(static_cast<void*>(ours), real, real->struct_size);
  ours->extension_start = MakeExtensions();
  ours->PJRT_Error_Destroy = &ErrorDestroy;
  ours->PJRT_Error_Message = &ErrorMessage;
  ours->PJRT_Error_GetCode = &ErrorGetCode;
  ours->PJRT_Plugin_Attributes = &PluginAttributes;
  ours->PJRT_Client_Create = &ClientCreate;
  ours->PJRT_Client_Devices = &ClientDevices;
  ours->PJRT_Client_ProcessIndex = &ClientProcessIndex;
  ours->PJRT_Client_PlatformName = &ClientPlatformName;
  ours->PJRT_Client_AddressableMemories = &ClientAddressableMemories;
  ours->PJRT_Device_AddressableMemories = &DeviceAddressableMemories;
  ours->PJRT_Device_GetDescription = &DeviceGetDescription;
  ours->PJRT_DeviceDescription_Id = &DescriptionId;
  ours->PJRT_DeviceDescription_ProcessIndex = &DescriptionProcessIndex;
  ours->PJRT_DeviceDescription_Kind = &DescriptionKind;
  ours->PJRT_Device_MemoryStats = &DeviceMemoryStats;
  ours->PJRT_Buffer_UnsafePointer = nullptr;
  ours->PJRT_Buffer_OpaqueDeviceMemoryDataPointer = &NoPointers<PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args>;
  ours->PJRT_Buffer_IncreaseExternalReferenceCount = &NoPointers<PJRT_Buffer_IncreaseExternalReferenceCount_Args>;
  ours->PJRT_Executable_DeserializeAndLoad = &DeserializeAndLoad;
  ours->PJRT_TopologyDescription_Create = &TopologyCreate;
  return ours;
}

}  // namespace
}  // namespace landbridge::pjrt

extern "C" __attribute__((visibility("default"))) const landbridge::pjrt::PJRT_Api* GetPjrtApi() {
  static const landbridge::pjrt::PJRT_Api* api = landbridge::pjrt::Load();
  return api;
}
