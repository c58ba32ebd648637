#include "pjrt/executable.h"

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "pjrt/abi_call.h"
#include "pjrt/attributes.h"
#include "pjrt/types.h"

namespace landbridge::pjrt {
namespace {

template <typename T>
Args<T> On(PJRT_Executable* executable) {
  Args<T> args;
  args->executable = executable;
  return args;
}

// Lists of texts with their sizes; a null entry becomes an empty text.
std::vector<std::string> Texts(const char* const* texts, const size_t* sizes, size_t count) {
  std::vector<std::string> result;
  result.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    result.push_back(texts[i] == nullptr ? std::string() : std::string(texts[i], sizes[i]));
  }
  return result;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executable>> Executable::Own(const Plugin* plugin, PJRT_Executable* executable) {
  std::unique_ptr<Executable> owned(new Executable(plugin));
  LB_RETURN_IF_ERROR(owned->Adopt(executable));
  return owned;
}

Executable::~Executable() {
  if (executable_ == nullptr) return;
  auto args = On<PJRT_Executable_Destroy_Args>(executable_);
  LB_PJRT_CALL(plugin_, PJRT_Executable_Destroy, args).IgnoreError();
}

absl::Status Executable::Adopt(PJRT_Executable* executable) {
  executable_ = executable;
  auto outputs = On<PJRT_Executable_NumOutputs_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_NumOutputs, outputs));
  num_outputs_ = outputs->num_outputs;
  return absl::OkStatus();
}

LoadedExecutable::~LoadedExecutable() {
  Args<PJRT_LoadedExecutable_Destroy_Args> args;
  args->executable = loaded_;
  LB_PJRT_CALL(plugin_, PJRT_LoadedExecutable_Destroy, args).IgnoreError();
}

absl::Status LoadedExecutable::Init() {
  Args<PJRT_LoadedExecutable_GetExecutable_Args> get;
  get->loaded_executable = loaded_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_LoadedExecutable_GetExecutable, get));
  LB_RETURN_IF_ERROR(Adopt(get->executable));
  Args<PJRT_LoadedExecutable_AddressableDevices_Args> devices;
  devices->executable = loaded_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_LoadedExecutable_AddressableDevices, devices));
  for (size_t i = 0; i < devices->num_addressable_devices; ++i) {
    LB_ASSIGN_OR_RETURN(PJRT_DeviceDescription * description, DescriptionOf(plugin_, devices->addressable_devices[i]));
    LB_ASSIGN_OR_RETURN(const int id, IdOf(plugin_, description));
    device_ids_.push_back(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DeviceResult>> LoadedExecutable::ExecuteAll(
    absl::Span<const absl::Span<Buffer* const>> arguments, const ExecuteOptions& options) {
  if (options.launch_id == 0) return absl::InternalError("a launch needs an id other than 0");
  const size_t devices = arguments.size();
  if (devices == 0 || devices != device_ids_.size()) {
    return absl::InternalError(
        absl::StrCat("a launch on ", device_ids_.size(), " devices got arguments for ", devices));
  }
  const size_t count = arguments[0].size();
  absl::InlinedVector<PJRT_Buffer*, 64> flat;
  flat.reserve(devices * count);
  for (absl::Span<Buffer* const> list : arguments) {
    if (list.size() != count) return absl::InternalError("devices of one launch got different numbers of arguments");
    for (Buffer* buffer : list) flat.push_back(buffer->get());
  }
  absl::InlinedVector<PJRT_Buffer* const*, 8> argument_lists;
  absl::InlinedVector<PJRT_Buffer*, 64> outputs(devices * num_outputs(), nullptr);
  absl::InlinedVector<PJRT_Buffer**, 8> output_lists;
  absl::InlinedVector<PJRT_Event*, 8> events(devices, nullptr);
  for (size_t d = 0; d < devices; ++d) {
    argument_lists.push_back(flat.data() + d * count);
    output_lists.push_back(outputs.data() + d * num_outputs());
  }
  Args<PJRT_ExecuteOptions> execute_options;
  execute_options->launch_id = options.launch_id;
  execute_options->non_donatable_input_indices = options.non_donatable_inputs.data();
  execute_options->num_non_donatable_input_indices = options.non_donatable_inputs.size();
  Args<PJRT_LoadedExecutable_Execute_Args> args;
  args->executable = loaded_;
  args->options = execute_options.get();
  args->argument_lists = argument_lists.data();
  args->num_devices = devices;
  args->num_args = count;
  args->output_lists = output_lists.data();
  args->device_complete_events = events.data();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_LoadedExecutable_Execute, args));
  std::vector<DeviceResult> results(devices);
  for (size_t d = 0; d < devices; ++d) {
    results[d].outputs.reserve(num_outputs());
    for (size_t i = 0; i < num_outputs(); ++i) results[d].outputs.emplace_back(plugin_, outputs[d * num_outputs() + i]);
    results[d].done = Event(plugin_, events[d]);
  }
  return results;
}

absl::StatusOr<DeviceResult> LoadedExecutable::ExecuteOnDevice(PJRT_Device* device, absl::Span<Buffer* const> arguments,
                                                               const ExecuteOptions& options) {
  if (options.launch_id == 0) return absl::InternalError("a launch needs an id other than 0");
  absl::InlinedVector<PJRT_Buffer*, 32> flat;
  flat.reserve(arguments.size());
  for (Buffer* buffer : arguments) flat.push_back(buffer->get());
  absl::InlinedVector<PJRT_Buffer*, 32> outputs(num_outputs(), nullptr);
  PJRT_Buffer* const* argument_list = flat.data();
  PJRT_Buffer** output_list = outputs.data();
  PJRT_Event* event = nullptr;
  Args<PJRT_ExecuteOptions> execute_options;
  execute_options->launch_id = options.launch_id;
  execute_options->non_donatable_input_indices = options.non_donatable_inputs.data();
  execute_options->num_non_donatable_input_indices = options.non_donatable_inputs.size();
  Args<PJRT_LoadedExecutable_Execute_Args> args;
  args->executable = loaded_;
  args->options = execute_options.get();
  args->argument_lists = &argument_list;
  args->num_devices = 1;
  args->num_args = arguments.size();
  args->output_lists = &output_list;
  args->device_complete_events = &event;
  args->execute_device = device;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_LoadedExecutable_Execute, args));
  DeviceResult result;
  result.outputs.reserve(num_outputs());
  for (PJRT_Buffer* output : outputs) result.outputs.emplace_back(plugin_, output);
  result.done = Event(plugin_, event);
  return result;
}

absl::StatusOr<std::string> Executable::Name() {
  auto args = On<PJRT_Executable_Name_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_Name, args));
  return std::string(args->executable_name, args->executable_name_size);
}

absl::StatusOr<std::string> Executable::Serialize() {
  auto args = On<PJRT_Executable_Serialize_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_Serialize, args));
  std::string bytes(args->serialized_bytes, args->serialized_bytes_size);
  if (args->serialized_executable_deleter != nullptr) args->serialized_executable_deleter(args->serialized_executable);
  return bytes;
}

absl::StatusOr<std::string> Executable::OptimizedProgram() {
  Args<PJRT_Program> program;
  auto args = On<PJRT_Executable_OptimizedProgram_Args>(executable_);
  args->program = program.get();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_OptimizedProgram, args));
  std::string code(program->code_size, '\0');  // the first call gives the size, the second the bytes
  program->code = code.data();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_OptimizedProgram, args));
  return code;
}

absl::StatusOr<std::string> Executable::CompileOptions() {
  auto args = On<PJRT_Executable_GetCompileOptions_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_GetCompileOptions, args));
  std::string bytes(args->serialized_bytes, args->serialized_bytes_size);
  if (args->serialized_compile_options_deleter != nullptr) {
    args->serialized_compile_options_deleter(args->serialized_compile_options);
  }
  return bytes;
}

absl::StatusOr<std::string> Executable::Fingerprint() {
  auto args = On<PJRT_Executable_Fingerprint_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_Fingerprint, args));
  return std::string(args->executable_fingerprint, args->executable_fingerprint_size);
}

absl::StatusOr<int64_t> Executable::CodeBytes() {
  auto args = On<PJRT_Executable_SizeOfGeneratedCodeInBytes_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_SizeOfGeneratedCodeInBytes, args));
  return args->size_in_bytes;
}

absl::StatusOr<MemoryStats> Executable::GetMemoryStats() {
  auto args = On<PJRT_Executable_GetCompiledMemoryStats_Args>(executable_);
  // An older plugin leaves the youngest fields as they are.
  args->peak_memory_in_bytes = args->total_size_in_bytes = args->total_allocation_bytes = -1;
  args->indefinite_allocations = args->peak_unpadded_heap_bytes = -1;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_GetCompiledMemoryStats, args));
  MemoryStats stats;
  stats.generated_code = args->generated_code_size_in_bytes;
  stats.argument = args->argument_size_in_bytes;
  stats.output = args->output_size_in_bytes;
  stats.alias = args->alias_size_in_bytes;
  stats.temp = args->temp_size_in_bytes;
  stats.host_generated_code = args->host_generated_code_size_in_bytes;
  stats.host_argument = args->host_argument_size_in_bytes;
  stats.host_output = args->host_output_size_in_bytes;
  stats.host_alias = args->host_alias_size_in_bytes;
  stats.host_temp = args->host_temp_size_in_bytes;
  stats.peak = args->peak_memory_in_bytes;
  stats.total = args->total_size_in_bytes;
  stats.total_allocation = args->total_allocation_bytes;
  stats.indefinite = args->indefinite_allocations;
  stats.peak_unpadded_heap = args->peak_unpadded_heap_bytes;
  return stats;
}

absl::StatusOr<std::map<std::string, double>> Executable::CostAnalysis() {
  auto args = On<PJRT_Executable_GetCostAnalysis_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_GetCostAnalysis, args));
  std::map<std::string, double> properties;
  for (const auto& [name, value] : ReadAttributes(args->properties, args->num_properties)) {
    if (auto* number = std::get_if<float>(&value)) properties[name] = static_cast<double>(*number);
    if (auto* integer = std::get_if<int64_t>(&value)) properties[name] = static_cast<double>(*integer);
  }
  return properties;
}

absl::StatusOr<int64_t> Executable::NumReplicas() {
  auto args = On<PJRT_Executable_NumReplicas_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_NumReplicas, args));
  return static_cast<int64_t>(args->num_replicas);
}

absl::StatusOr<int64_t> Executable::NumPartitions() {
  auto args = On<PJRT_Executable_NumPartitions_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_NumPartitions, args));
  return static_cast<int64_t>(args->num_partitions);
}

absl::StatusOr<std::vector<DType>> Executable::OutputTypes() {
  auto args = On<PJRT_Executable_OutputElementTypes_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_OutputElementTypes, args));
  std::vector<DType> types;
  for (size_t i = 0; i < args->num_output_types; ++i) {
    LB_ASSIGN_OR_RETURN(DType type, FromPjrtType(args->output_types[i]));
    types.push_back(type);
  }
  return types;
}

absl::StatusOr<std::vector<std::vector<int64_t>>> Executable::OutputDims() {
  auto args = On<PJRT_Executable_OutputDimensions_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_OutputDimensions, args));
  std::vector<std::vector<int64_t>> all;
  const int64_t* next = args->dims;
  for (size_t i = 0; i < args->num_outputs; ++i) {
    all.emplace_back(next, next + args->dim_sizes[i]);
    next += args->dim_sizes[i];
  }
  return all;
}

absl::StatusOr<std::vector<std::string>> Executable::OutputMemoryKinds() {
  auto args = On<PJRT_Executable_OutputMemoryKinds_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_OutputMemoryKinds, args));
  return Texts(args->memory_kinds, args->memory_kind_sizes, args->num_outputs);
}

absl::StatusOr<std::vector<std::string>> Executable::ParameterMemoryKinds() {
  auto args = On<PJRT_Executable_ParameterMemoryKinds_Args>(executable_);
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_, PJRT_Executable_ParameterMemoryKinds, args));
  return Texts(args->memory_kinds, args->memory_kind_sizes, args->num_parameters);
}

namespace {

const PJRT_Shardings_Extension* Shardings(const Plugin* plugin) {
  auto* extension =
      reinterpret_cast<const PJRT_Shardings_Extension*>(plugin->FindExtension(PJRT_Extension_Type_Shardings));
  return extension != nullptr && extension->base.struct_size >= sizeof(PJRT_Shardings_Extension) ? extension : nullptr;
}

absl::Status NoExtension(const Plugin* plugin, absl::string_view name) {
  return absl::UnimplementedError(absl::StrCat("the PJRT plugin ", plugin->path(), " lacks the extension ", name));
}

absl::StatusOr<std::vector<std::string>> TakeLayouts(const Plugin* plugin, const PJRT_Layouts_Extension* extension,
                                                     PJRT_Layouts_MemoryLayout** layouts, size_t count) {
  std::vector<std::string> texts;
  absl::Status failed;
  for (size_t i = 0; i < count; ++i) {
    Args<PJRT_Layouts_MemoryLayout_Serialize_Args> serialize;
    serialize->layout = layouts[i];
    absl::Status status = plugin->TakeError(extension->PJRT_Layouts_MemoryLayout_Serialize(serialize.get()));
    if (status.ok()) {
      texts.emplace_back(serialize->serialized_bytes, serialize->serialized_bytes_size);
      if (serialize->serialized_layout_deleter != nullptr) {
        serialize->serialized_layout_deleter(serialize->serialized_layout);
      }
    } else {
      failed = status;
    }
    // The layout objects belong to the executable.
  }
  if (!failed.ok()) return failed;
  return texts;
}

}  // namespace

absl::StatusOr<std::optional<std::vector<std::string>>> Executable::ParameterShardings() {
  const PJRT_Shardings_Extension* extension = Shardings(plugin_);
  if (extension == nullptr) return NoExtension(plugin_, "Shardings");
  auto args = On<PJRT_Shardings_PJRT_Executable_ParameterShardings_Args>(executable_);
  LB_RETURN_IF_ERROR(plugin_->TakeError(extension->PJRT_Shardings_PJRT_Executable_ParameterShardings(args.get())));
  if (args->shardings == nullptr) return std::optional<std::vector<std::string>>();
  return std::optional(Texts(args->shardings, args->sharding_sizes, args->num_parameters));
}

absl::StatusOr<std::optional<std::vector<std::string>>> Executable::OutputShardings() {
  const PJRT_Shardings_Extension* extension = Shardings(plugin_);
  if (extension == nullptr) return NoExtension(plugin_, "Shardings");
  auto args = On<PJRT_Shardings_PJRT_Executable_OutputShardings_Args>(executable_);
  LB_RETURN_IF_ERROR(plugin_->TakeError(extension->PJRT_Shardings_PJRT_Executable_OutputShardings(args.get())));
  if (args->shardings == nullptr) return std::optional<std::vector<std::string>>();
  return std::optional(Texts(args->shardings, args->sharding_sizes, args->num_outputs));
}

absl::StatusOr<std::vector<std::string>> Executable::ParameterLayouts() {
  auto* extension =
      reinterpret_cast<const PJRT_Layouts_Extension*>(plugin_->FindExtension(PJRT_Extension_Type_Layouts));
  if (extension == nullptr || extension->base.struct_size < sizeof(PJRT_Layouts_Extension)) {
    return NoExtension(plugin_, "Layouts");
  }
  auto args = On<PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args>(executable_);
  LB_RETURN_IF_ERROR(plugin_->TakeError(extension->PJRT_Layouts_PJRT_Executable_GetParameterLayouts(args.get())));
  return TakeLayouts(plugin_, extension, args->layouts, args->num_parameters);
}

absl::StatusOr<std::vector<std::string>> Executable::OutputLayouts() {
  auto* extension =
      reinterpret_cast<const PJRT_Layouts_Extension*>(plugin_->FindExtension(PJRT_Extension_Type_Layouts));
  if (extension == nullptr || extension->base.struct_size <
                                  offsetof(PJRT_Layouts_Extension, PJRT_Layouts_PJRT_Executable_GetParameterLayouts)) {
    return NoExtension(plugin_, "Layouts");
  }
  auto args = On<PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args>(executable_);
  LB_RETURN_IF_ERROR(plugin_->TakeError(extension->PJRT_Layouts_PJRT_Executable_GetOutputLayouts(args.get())));
  return TakeLayouts(plugin_, extension, args->layouts, args->num_outputs);
}

}  // namespace landbridge::pjrt
