#include "pjrt/client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "pjrt/abi_call.h"
#include "pjrt/attributes.h"
#include "pjrt/types.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge::pjrt {
namespace {

// An explicit row-major layout; needed wherever the plugin compares layouts (null is not row-major to it).
class RowMajorLayout {
 public:
  explicit RowMajorLayout(size_t rank) : order_(rank) {
    for (size_t i = 0; i < rank; ++i) order_[i] = static_cast<int64_t>(rank - 1 - i);
    layout_.struct_size = sizeof(layout_);
    layout_.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
    layout_.tiled.struct_size = sizeof(layout_.tiled);
    layout_.tiled.minor_to_major = order_.data();
    layout_.tiled.minor_to_major_size = rank;
  }
  RowMajorLayout(const RowMajorLayout&) = delete;
  PJRT_Buffer_MemoryLayout* get() { return &layout_; }

 private:
  std::vector<int64_t> order_;
  PJRT_Buffer_MemoryLayout layout_{};
};

absl::Status CheckDims(absl::Span<const int64_t> dims) {
  for (int64_t dim : dims) {
    if (dim < 0) return absl::InvalidArgumentError(absl::StrCat("an array dimension is negative: ", dim));
  }
  return absl::OkStatus();
}

}  // namespace

const Memory* Device::FindMemory(absl::string_view memory_kind) const {
  for (const Memory* memory : memories) {
    if (memory->kind == memory_kind) return memory;
  }
  return nullptr;
}

Client::~Client() {
  if (client_ == nullptr) return;
  Args<PJRT_Client_Destroy_Args> args;
  args->client = client_;
  LB_PJRT_CALL(plugin_.get(), PJRT_Client_Destroy, args).IgnoreError();
}

absl::Status Client::Init() {
  const Plugin* plugin = plugin_.get();
  Args<PJRT_Client_PlatformName_Args> name;
  name->client = client_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Client_PlatformName, name));
  platform_name_.assign(name->platform_name, name->platform_name_size);
  Args<PJRT_Client_PlatformVersion_Args> version;
  version->client = client_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Client_PlatformVersion, version));
  platform_version_.assign(version->platform_version, version->platform_version_size);

  Args<PJRT_Client_AddressableMemories_Args> memories;
  memories->client = client_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Client_AddressableMemories, memories));
  for (size_t i = 0; i < memories->num_addressable_memories; ++i) {
    auto memory = std::make_unique<Memory>();
    memory->handle = memories->addressable_memories[i];
    Args<PJRT_Memory_Id_Args> id;
    id->memory = memory->handle;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Memory_Id, id));
    memory->id = id->id;
    Args<PJRT_Memory_Kind_Args> kind;
    kind->memory = memory->handle;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Memory_Kind, kind));
    memory->kind.assign(kind->kind, kind->kind_size);
    Args<PJRT_Memory_DebugString_Args> text;
    text->memory = memory->handle;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Memory_DebugString, text));
    memory->debug_string.assign(text->debug_string, text->debug_string_size);
    memories_.push_back(std::move(memory));
  }

  Args<PJRT_Client_AddressableDevices_Args> devices;
  devices->client = client_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Client_AddressableDevices, devices));
  for (size_t i = 0; i < devices->num_addressable_devices; ++i) {
    Device device;
    device.handle = devices->addressable_devices[i];
    LB_ASSIGN_OR_RETURN(PJRT_DeviceDescription * description, DescriptionOf(plugin, device.handle));
    LB_ASSIGN_OR_RETURN(device.id, IdOf(plugin, description));
    Args<PJRT_DeviceDescription_Kind_Args> kind;
    kind->device_description = description;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_DeviceDescription_Kind, kind));
    device.kind.assign(kind->device_kind, kind->device_kind_size);
    Args<PJRT_DeviceDescription_DebugString_Args> text;
    text->device_description = description;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_DeviceDescription_DebugString, text));
    device.debug_string.assign(text->debug_string, text->debug_string_size);
    Args<PJRT_DeviceDescription_Attributes_Args> attributes;
    attributes->device_description = description;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_DeviceDescription_Attributes, attributes));
    device.attributes = ReadAttributes(attributes->attributes, attributes->num_attributes);
    Args<PJRT_Device_LocalHardwareId_Args> hardware;
    hardware->device = device.handle;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Device_LocalHardwareId, hardware));
    device.local_hardware_id = hardware->local_hardware_id;
    Args<PJRT_Device_AddressableMemories_Args> of_device;
    of_device->device = device.handle;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Device_AddressableMemories, of_device));
    for (size_t m = 0; m < of_device->num_memories; ++m) {
      if (const Memory* memory = FindMemory(of_device->memories[m])) device.memories.push_back(memory);
    }
    Args<PJRT_Device_DefaultMemory_Args> default_memory;
    default_memory->device = device.handle;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Device_DefaultMemory, default_memory));
    device.default_memory = FindMemory(default_memory->memory);
    if (device.default_memory == nullptr) {
      return absl::InternalError(absl::StrCat("device ", device.id, " of ", plugin->path(), " has no default memory"));
    }
    devices_.push_back(std::move(device));
  }
  return InitGlobalDevices();
}

absl::Status Client::InitGlobalDevices() {
  const Plugin* plugin = plugin_.get();
  Args<PJRT_Client_ProcessIndex_Args> own;
  own->client = client_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Client_ProcessIndex, own));
  process_index_ = own->process_index;
  Args<PJRT_Client_Devices_Args> all;
  all->client = client_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Client_Devices, all));
  std::vector<std::pair<int, int>> found;  // process, id
  for (size_t i = 0; i < all->num_devices; ++i) {
    LB_ASSIGN_OR_RETURN(PJRT_DeviceDescription * description, DescriptionOf(plugin, all->devices[i]));
    LB_ASSIGN_OR_RETURN(const int id, IdOf(plugin, description));
    Args<PJRT_DeviceDescription_ProcessIndex_Args> process;
    process->device_description = description;
    LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_DeviceDescription_ProcessIndex, process));
    found.emplace_back(process->process_index, id);
  }
  std::sort(found.begin(), found.end());
  for (const auto& [process, id] : found) global_device_ids_.push_back(id);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Client::MemoryLimitBytes(const Device& device) const {
  Args<PJRT_Device_MemoryStats_Args> stats;
  stats->device = device.handle;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Device_MemoryStats, stats));
  if (!stats->bytes_limit_is_set || stats->bytes_limit <= 0) {
    return absl::UnimplementedError(absl::StrCat("the PJRT plugin ", plugin_->path(), " tells no limit of its memory"));
  }
  return stats->bytes_limit;
}

const Device* Client::FindDevice(int id) const {
  auto it = std::find_if(devices_.begin(), devices_.end(), [id](const Device& d) { return d.id == id; });
  return it == devices_.end() ? nullptr : &*it;
}

const Memory* Client::FindMemory(const PJRT_Memory* handle) const {
  for (const auto& memory : memories_) {
    if (memory->handle == handle) return memory.get();
  }
  return nullptr;
}

absl::StatusOr<Client::HostBufferResult> Client::BufferFromHost(const void* data, DType dtype,
                                                                absl::Span<const int64_t> dims,
                                                                absl::Span<const int64_t> byte_strides,
                                                                const Memory& memory, HostSemantics semantics) {
  LB_RETURN_IF_ERROR(CheckDims(dims));
  if (!byte_strides.empty() && byte_strides.size() != dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an array of rank ", dims.size(), " came with ", byte_strides.size(), " strides"));
  }
  LB_ASSIGN_OR_RETURN(PJRT_Buffer_Type type, ToPjrtType(dtype));
  Args<PJRT_Client_BufferFromHostBuffer_Args> args;
  args->client = client_;
  args->data = data;
  args->type = type;
  args->dims = dims.data();
  args->num_dims = dims.size();
  args->byte_strides = byte_strides.empty() ? nullptr : byte_strides.data();
  args->num_byte_strides = byte_strides.size();
  args->host_buffer_semantics = static_cast<PJRT_HostBufferSemantics>(semantics);
  args->memory = memory.handle;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Client_BufferFromHostBuffer, args));
  return HostBufferResult{Buffer(plugin_.get(), args->buffer), Event(plugin_.get(), args->done_with_host_buffer)};
}

absl::StatusOr<Buffer> Client::CreateUninitialized(DType dtype, absl::Span<const int64_t> dims, const Memory& memory) {
  LB_RETURN_IF_ERROR(CheckDims(dims));
  LB_ASSIGN_OR_RETURN(PJRT_Buffer_Type type, ToPjrtType(dtype));
  RowMajorLayout layout(dims.size());
  Args<PJRT_Client_CreateUninitializedBuffer_Args> args;
  args->client = client_;
  args->shape_dims = dims.data();
  args->shape_num_dims = dims.size();
  args->shape_element_type = type;
  args->shape_layout = layout.get();
  args->memory = memory.handle;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Client_CreateUninitializedBuffer, args));
  return Buffer(plugin_.get(), args->buffer);
}

absl::StatusOr<Buffer> Client::CreateError(const absl::Status& status, DType dtype, absl::Span<const int64_t> dims,
                                           const Memory& memory) {
  if (status.ok()) return absl::InternalError("an error buffer needs an error");
  LB_RETURN_IF_ERROR(CheckDims(dims));
  LB_ASSIGN_OR_RETURN(PJRT_Buffer_Type type, ToPjrtType(dtype));
  RowMajorLayout layout(dims.size());
  Args<PJRT_Client_CreateErrorBuffer_Args> args;
  args->client = client_;
  args->error_code = static_cast<PJRT_Error_Code>(status.code());
  args->error_message = status.message().data();
  args->error_message_size = status.message().size();
  args->shape_dims = dims.data();
  args->shape_num_dims = dims.size();
  args->shape_element_type = type;
  args->shape_layout = layout.get();
  args->memory = memory.handle;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Client_CreateErrorBuffer, args));
  return Buffer(plugin_.get(), args->buffer);
}

absl::StatusOr<Client::Alias> Client::CreateAlias(DType dtype, absl::Span<const int64_t> dims, const Memory& memory) {
  LB_RETURN_IF_ERROR(CheckDims(dims));
  LB_ASSIGN_OR_RETURN(PJRT_Buffer_Type type, ToPjrtType(dtype));
  RowMajorLayout layout(dims.size());
  Args<PJRT_Client_CreateAliasBuffer_Args> args;
  args->client = client_;
  args->memory = memory.handle;
  args->shape_dims = dims.data();
  args->shape_num_dims = dims.size();
  args->shape_element_type = type;
  args->shape_layout = layout.get();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Client_CreateAliasBuffer, args));
  Alias alias;
  alias.buffer = Buffer(plugin_.get(), args->alias_buffer);
  alias.promise.plugin_ = plugin_.get();
  alias.promise.client_ = client_;
  alias.promise.callback_ = args->fulfill_alias_buffer_cb;
  return alias;
}

absl::StatusOr<std::unique_ptr<LoadedExecutable>> Client::Compile(absl::string_view program, absl::string_view format,
                                                                  absl::string_view compile_options) {
  Args<PJRT_Program> code;
  code->code = const_cast<char*>(program.data());  // the ABI lacks a const here; the plugin only reads
  code->code_size = program.size();
  code->format = format.data();
  code->format_size = format.size();
  Args<PJRT_Client_Compile_Args> args;
  args->client = client_;
  args->program = code.get();
  args->compile_options = compile_options.data();
  args->compile_options_size = compile_options.size();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Client_Compile, args));
  std::unique_ptr<LoadedExecutable> executable(new LoadedExecutable(plugin_.get(), args->executable));
  LB_RETURN_IF_ERROR(executable->Init());
  return executable;
}

absl::StatusOr<std::unique_ptr<LoadedExecutable>> Client::DeserializeAndLoad(absl::string_view serialized,
                                                                             absl::string_view overridden_options) {
  Args<PJRT_Executable_DeserializeAndLoad_Args> args;
  args->client = client_;
  args->serialized_executable = serialized.data();
  args->serialized_executable_size = serialized.size();
  args->overridden_serialized_compile_options = overridden_options.empty() ? nullptr : overridden_options.data();
  args->overridden_serialized_compile_options_size = overridden_options.size();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Executable_DeserializeAndLoad, args));
  std::unique_ptr<LoadedExecutable> executable(new LoadedExecutable(plugin_.get(), args->loaded_executable));
  LB_RETURN_IF_ERROR(executable->Init());
  return executable;
}

absl::Status Client::CheckCustomCall(absl::string_view target) {
  for (char c : target) {
    if (c == '"' || c == '\\' || c < ' ')
      return absl::InvalidArgumentError("a custom-call name has a control character");
  }
  std::string program = absl::StrCat(
      "module @probe { func.func public @main(%x: tensor<f32>) -> tensor<f32> { %y = stablehlo.custom_call @\"", target,
      "\"(%x) {api_version = 4 : i32, backend_config = {}} : (tensor<f32>) -> tensor<f32> return %y : tensor<f32> } }");
  xla::CompileOptionsProto options;
  options.set_compile_portable_executable(true);
  auto* build = options.mutable_executable_build_options();
  build->set_device_ordinal(-1);
  build->set_num_replicas(1);
  build->set_num_partitions(1);
  absl::Status status = Compile(program, "mlir", options.SerializeAsString()).status();
  if (status.ok()) return status;
  return absl::FailedPreconditionError(absl::StrCat("the PJRT plugin ", plugin_->path(),
                                                    " did not take the custom-call handler ", target, ": ",
                                                    FilterForeignText(status.message())));
}

}  // namespace landbridge::pjrt
