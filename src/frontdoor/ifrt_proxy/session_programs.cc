// Requests about programs: compile, describe, run.
#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/sha256.h"
#include "base/status.h"
#include "frontdoor/ifrt_proxy/session_core.h"
#include "frontdoor/ifrt_proxy/wire.h"
#include "proto/xla/compile_options.pb.h"

namespace landbridge {

namespace proxy = xla::ifrt::proxy;

namespace {

// Programs over several workers run by our own collectives on CPUs, and elsewhere by those that the plugin has between the
// workers of one slice, which made its client together.
absl::Status CheckSpan(const DeviceCatalog& catalog, const std::vector<DeviceId>& devices) {
  if (catalog.platform_name == "cpu") return absl::OkStatus();
  absl::flat_hash_set<int> slices;
  for (const CatalogDevice& device : catalog.devices) {
    if (std::find(devices.begin(), devices.end(), device.id) != devices.end()) slices.insert(device.slice_index);
  }
  if (slices.size() <= 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("A program over devices of several slices cannot run on platform ",
                                               catalog.platform_name,
                                               " yet: use a mesh for each slice, and jax.device_put between them"));
}

// The devices of a program in logical order: for each replica, each partition.
absl::StatusOr<std::vector<DeviceId>> ProgramDevices(const xla::CompileOptionsProto& options,
                                                     const DeviceCatalog& catalog) {
  const auto& build = options.executable_build_options();
  const int64_t replicas = std::max<int64_t>(build.num_replicas(), 1);
  const int64_t partitions = std::max<int64_t>(build.num_partitions(), 1);
  if (replicas > limits::kDevicesMax || partitions > limits::kDevicesMax ||
      replicas * partitions > limits::kDevicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("A program of ", replicas, " replicas and ", partitions, " partitions"));
  }
  std::vector<DeviceId> devices;
  if (build.has_device_assignment() && build.device_assignment().computation_devices_size() > 0) {
    const auto& assignment = build.device_assignment();
    if (assignment.computation_devices_size() != partitions) {
      return absl::InvalidArgumentError(absl::StrCat("A device assignment for ", assignment.computation_devices_size(),
                                                     " partitions in a program of ", partitions));
    }
    for (const auto& partition : assignment.computation_devices()) {
      if (partition.replica_device_ids_size() != replicas) {
        return absl::InvalidArgumentError(absl::StrCat("A device assignment for ", partition.replica_device_ids_size(),
                                                       " replicas in a program of ", replicas));
      }
    }
    for (int r = 0; r < replicas; ++r) {
      for (int p = 0; p < partitions; ++p) {
        const int64_t id = assignment.computation_devices(p).replica_device_ids(r);
        if (id < 0 || id > INT32_MAX) return absl::InvalidArgumentError(absl::StrCat("No such device: ", id));
        devices.push_back(DeviceId(static_cast<int32_t>(id)));
      }
    }
  } else if (replicas * partitions == 1 && !options.compile_portable_executable() && build.device_ordinal() > 0 &&
             build.device_ordinal() <= INT32_MAX) {
    devices.push_back(DeviceId(static_cast<int32_t>(build.device_ordinal())));
  } else {
    if (static_cast<size_t>(replicas * partitions) > catalog.devices.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("A program for ", replicas * partitions, " devices; there are ", catalog.devices.size()));
    }
    for (int64_t i = 0; i < replicas * partitions; ++i) {
      devices.push_back(catalog.devices[static_cast<size_t>(i)].id);
    }
  }
  absl::flat_hash_set<DeviceId> distinct(devices.begin(), devices.end());
  if (distinct.size() != devices.size()) {
    return absl::InvalidArgumentError("A device assignment names a device twice");
  }
  return devices;
}

// 0..n-1: programs are compiled apart from where they run.
void NormaliseAssignment(xla::CompileOptionsProto* options, int64_t replicas, int64_t partitions) {
  auto* build = options->mutable_executable_build_options();
  build->set_device_ordinal(-1);
  auto* assignment = build->mutable_device_assignment();
  assignment->Clear();
  assignment->set_replica_count(static_cast<int32_t>(replicas));
  assignment->set_computation_count(static_cast<int32_t>(partitions));
  for (int64_t p = 0; p < partitions; ++p) {
    auto* partition = assignment->add_computation_devices();
    for (int64_t r = 0; r < replicas; ++r) partition->add_replica_device_ids(r * partitions + p);
  }
}

// Equal for equal code on the same devices.
std::string Fingerprint(const ProgramImage& image, const std::vector<DeviceId>& devices) {
  std::string what = image.sha256;
  for (DeviceId device : devices) absl::StrAppend(&what, ",", device.value());
  return Sha256Raw(what);
}

absl::Span<const int64_t> DimsOf(const google::protobuf::RepeatedField<int64_t>& dims) {
  return {dims.data(), static_cast<size_t>(dims.size())};
}

// As the client keeps it for ever: global shape and sharding of one output.
proxy::LoadedExecutableExecuteResponse::Output DescribeOutput(const TensorInfo& info,
                                                              const std::vector<DeviceId>& devices) {
  proxy::LoadedExecutableExecuteResponse::Output output;
  output.mutable_dtype()->set_kind(info.dtype());
  wire::SetDims(DimsOf(info.global_dims()), output.mutable_shape());
  auto* serialized = output.mutable_sharding()->mutable_serialized_sharding();
  const std::string memory = info.memory_kind().empty() ? "device" : info.memory_kind();
  if (info.has_sharding() || devices.size() == 1) {
    xla::ifrt::HloShardingProto message;
    for (DeviceId device : devices) message.mutable_devices()->add_device_ids(device.value());
    *message.mutable_xla_op_sharding() = info.sharding();  // absent: REPLICATED
    message.set_memory_kind(memory);
    serialized->set_type_name("xla::ifrt::HloSharding");
    serialized->set_data(message.SerializeAsString());
    return output;
  }
  // Nobody partitioned the program: every device has an output of its own, not a copy of one.
  xla::ifrt::ConcreteEvenShardingProto message;
  for (DeviceId device : devices) message.mutable_devices()->add_device_ids(device.value());
  wire::SetDims(DimsOf(info.global_dims()), message.mutable_shape());
  wire::SetDims(DimsOf(info.device_dims()), message.mutable_shard_shape());
  message.set_memory_kind(memory);
  serialized->set_type_name("xla::ifrt::ConcreteEvenSharding");
  serialized->set_data(message.SerializeAsString());
  return output;
}

}  // namespace

absl::StatusOr<std::shared_ptr<SessionCore::Executable>> SessionCore::FindExecutable(Handle handle) const {
  auto it = executables_.find(handle);
  if (it == executables_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("Unknown loaded executable handle: ", handle));
  }
  return it->second;
}

// ---------------------------------------------------------------- compile

namespace {

// Its bytes stay where they are: with large constants they are many, and this thread serves everybody.
std::string TakeProgram(proxy::CompileRequest& request) {
  return std::move(*request.mutable_program()->mutable_data());
}

}  // namespace

void SessionCore::Compile(Op op, Request& request) {
  auto& compile = *request.mutable_compile_request();
  const std::string& type = compile.program().type_name();
  absl::Status status;
  if (compile.host_callbacks_size() > 0) {
    status = absl::UnimplementedError(
        "Host callbacks by send and receive are not supported; install the landbridge package, or use platform cpu");
  } else if (catalog_ == nullptr) {
    status = absl::FailedPreconditionError("Compile before Init");
  } else if (type == "xla::ifrt::XlaProgram") {
    status = CompileXla(op, compile);
  } else if (type == "xla::ifrt::PluginProgram") {
    status = CompilePlugin(op, compile);
  } else if (type == "xla::ifrt::CustomCallProgram") {
    // JAX looks for this text and then runs the function in the client.
    status = absl::UnimplementedError(
        "PjRtCompiler requires an HloProgram: this cluster runs no Python, so functions of colocated Python run in the "
        "client");
  } else {
    status = absl::UnimplementedError(absl::StrCat("Programs of type '", type.substr(0, 100), "' are not supported"));
  }
  if (!status.ok()) Fail(op, status);
}

absl::Status SessionCore::CompileXla(const Op& op, proxy::CompileRequest& request) {
  if (request.compile_options().type_name() != "xla::ifrt::XlaCompileOptions") {
    return absl::InvalidArgumentError(absl::StrCat("An XLA program with compile options of type '",
                                                   request.compile_options().type_name().substr(0, 100), "'"));
  }
  xla::ifrt::XlaCompileOptionsProto wrapped;
  if (!wrapped.ParseFromString(request.compile_options().data())) {
    return absl::InvalidArgumentError("Cannot decode the compile options");
  }
  return CompileModule(op, absl::Cord(TakeProgram(request)), *wrapped.mutable_compile_options());
}

absl::Status SessionCore::CompileModule(const Op& op, absl::Cord program, xla::CompileOptionsProto& options) {
  PendingCompile pending;
  LB_ASSIGN_OR_RETURN(pending.hints, TakeProgramHints(&options));
  LB_ASSIGN_OR_RETURN(pending.devices, ProgramDevices(options, *catalog_));
  LB_ASSIGN_OR_RETURN(const bool split, controller_->SpansWorkers(pending.devices));
  if (split) LB_RETURN_IF_ERROR(CheckSpan(*catalog_, pending.devices));
  NormaliseAssignment(&options, std::max<int64_t>(options.executable_build_options().num_replicas(), 1),
                      std::max<int64_t>(options.executable_build_options().num_partitions(), 1));
  pending.op = op;
  const uint64_t token = next_compile_++;
  compiles_.emplace(token, std::move(pending));
  host_->Compile(token, std::move(program), options.SerializeAsString(), split);
  return absl::OkStatus();
}

void SessionCore::OnCompiled(uint64_t token, absl::StatusOr<Compiled> result) {
  auto it = compiles_.find(token);
  if (it == compiles_.end()) return;
  PendingCompile pending = std::move(it->second);
  compiles_.erase(it);
  if (!result.ok()) return Fail(pending.op, result.status());
  if (pending.returned) {
    if (absl::Status placed = PlaceReturned(*result, &pending); !placed.ok()) return Fail(pending.op, placed);
  }
  auto executable = std::make_shared<Executable>();
  executable->image = std::move(result->image);
  executable->devices = std::move(pending.devices);
  executable->hints = pending.hints;
  executable->name = executable->image->info.name();
  absl::StatusOr<ExecutableId> id =
      controller_->AddExecutable(options_.session, executable->image, executable->devices);
  if (!id.ok()) return Fail(pending.op, id.status());
  executable->id = *id;
  // Clients know by it what they can keep.
  if (!executable->image->info.calls_host()) {
    executable->fingerprint = Fingerprint(*executable->image, executable->devices);
  }
  for (const TensorInfo& output : executable->image->info.outputs()) {
    executable->outputs.push_back(DescribeOutput(output, executable->devices));
  }
  executable->outputs_known = true;
  AnswerCompile(pending.op, std::move(executable));
}

absl::Status SessionCore::CompilePlugin(const Op& op, proxy::CompileRequest& request) {
  LB_ASSIGN_OR_RETURN(PluginProgram program, ParsePluginProgram(TakeProgram(request)));
  auto executable = std::make_shared<Executable>();
  if (auto* question = std::get_if<Question>(&program)) {
    auto* memory = std::get_if<MemoryQuestion>(question);
    executable->devices = {memory != nullptr ? memory->device : catalog_->devices.at(0).id};
    executable->name = "question";
    Ask(op, *question, std::move(executable));
    return absl::OkStatus();
  }
  if (auto* returned = std::get_if<ReturnedExecutable>(&program)) return LoadReturned(op, std::move(*returned));
  if (auto* newer = std::get_if<NewerProgram>(&program)) {
    xla::CompileOptionsProto options;
    if (!options.ParseFromString(newer->options))
      return absl::InvalidArgumentError("Cannot decode the compile options");
    return CompileModule(op, std::move(newer->bytes), options);
  }
  if (auto* question = std::get_if<ShardingsQuestion>(&program)) {
    xla::CompileOptionsProto options;
    if (!options.ParseFromString(question->program.options))
      return absl::InvalidArgumentError("Cannot decode the compile options");
    executable->devices = {catalog_->devices.at(0).id};
    executable->name = "question";
    const uint64_t token = next_compile_++;
    questions_.emplace(token, PendingQuestion{op, std::move(executable)});
    host_->AskShardings(token, std::move(question->program.bytes), std::move(question->program.options));
    return absl::OkStatus();
  }
  if (auto* witness = std::get_if<WitnessProgram>(&program)) {
    const auto count = static_cast<size_t>(witness->devices);
    if (count > catalog_->devices.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("A witness of ", count, " devices; there are ", catalog_->devices.size()));
    }
    for (size_t i = 0; i < count; ++i) executable->devices.push_back(catalog_->devices[i].id);
    executable->is_witness = true;
    executable->name = "witness";
    AnswerCompile(op, std::move(executable));
    return absl::OkStatus();
  }
  executable->reshard = std::make_unique<ReshardProgram>(std::move(std::get<ReshardProgram>(program)));
  // The client compares the number of devices with the shards of each argument.
  executable->devices = executable->reshard->in[0]->devices();
  executable->name = "reshard";
  AnswerCompile(op, std::move(executable));
  return absl::OkStatus();
}

absl::Status SessionCore::LoadReturned(const Op& op, ReturnedExecutable returned) {
  PendingCompile pending;
  pending.op = op;
  pending.returned = true;
  pending.devices_known = returned.options.has_value();
  if (pending.devices_known) {
    xla::CompileOptionsProto options;
    if (!options.ParseFromString(*returned.options)) {
      return absl::InvalidArgumentError("Cannot decode the compile options of a serialized program");
    }
    LB_ASSIGN_OR_RETURN(pending.hints, TakeProgramHints(&options));
    LB_ASSIGN_OR_RETURN(pending.devices, ProgramDevices(options, *catalog_));
  } else {
    pending.devices = std::move(returned.devices);
  }
  const uint64_t token = next_compile_++;
  compiles_.emplace(token, std::move(pending));
  host_->OpenProgram(token, std::move(returned.bytes));
  return absl::OkStatus();
}

// Where a program that the client has given back is loaded: as its compile options say, else where it was when it was sealed,
// unless the client offers exactly as many other devices.
absl::Status SessionCore::PlaceReturned(const Compiled& compiled, PendingCompile* pending) const {
  const auto count = static_cast<size_t>(compiled.image->info.num_devices());
  if (!pending->devices_known) {
    const absl::flat_hash_set<DeviceId> offered(pending->devices.begin(), pending->devices.end());
    if (offered.size() != pending->devices.size()) {
      return absl::InvalidArgumentError("The devices for a serialized program name one twice");
    }
    const bool fits = std::all_of(compiled.devices.begin(), compiled.devices.end(),
                                  [&](DeviceId device) { return offered.contains(device); });
    if (fits || pending->devices.size() != count) pending->devices = compiled.devices;
  }
  if (pending->devices.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("A serialized program for ", count, " devices cannot be loaded on ", pending->devices.size()));
  }
  LB_ASSIGN_OR_RETURN(const bool split, controller_->SpansWorkers(pending->devices));
  if (split != compiled.image->info.split()) {
    return absl::InvalidArgumentError(
        split ? "This serialized program was compiled for devices of one worker, and cannot be loaded on several"
              : "This serialized program was compiled for devices of several workers, and cannot be loaded on one");
  }
  return absl::OkStatus();
}

void SessionCore::AnswerCompile(const Op& op, std::shared_ptr<Executable> executable) {
  auto response = NewResponse(op);
  auto* compile = response->mutable_compile_response();
  const Handle handle = NewHandle();
  compile->set_loaded_executable_handle(handle);
  compile->set_name(executable->name);
  compile->set_num_devices(static_cast<int32_t>(executable->devices.size()));
  for (DeviceId device : executable->devices) {
    compile->add_addressable_device_ids(device.value());
    if (options_.protocol_version >= 16) compile->add_device_ids(device.value());
  }
  if (!executable->fingerprint.empty()) compile->set_fingerprint_value(executable->fingerprint);
  Future ready;
  ready.done = true;
  compile->set_ready_future_handle(AddFuture(0, std::move(ready)));
  executables_.emplace(handle, std::move(executable));
  Succeed(op, std::move(response));
}

// ---------------------------------------------------------------- describe

void SessionCore::Metadata(Op op, const Request& request) {
  absl::StatusOr<std::shared_ptr<Executable>> found =
      FindExecutable(request.loaded_executable_metadata_request().loaded_executable_handle());
  if (!found.ok()) return Fail(op, found.status());
  auto response = NewResponse(op);
  auto* metadata = response->mutable_loaded_executable_metadata_response();
  if ((*found)->answer.has_value() || (*found)->is_witness) {
    const tensorflow::StatusProto none =
        wire::ToProto(absl::UnimplementedError("A question or a witness gives no arrays"));
    *metadata->mutable_parameter_layouts_error() = none;
    *metadata->mutable_output_layouts_error() = none;
    metadata->mutable_output_memory_kinds()->add_memory_kind_lists();
    if ((*found)->is_witness) {
      *metadata->mutable_donated_input_indices_error() = none;  // what makes the client ask
    } else {
      metadata->mutable_donated_input_indices();
    }
    *metadata->mutable_compiled_memory_stats_error() = none;
    return Succeed(op, std::move(response));
  }
  if ((*found)->reshard != nullptr) {
    const ReshardProgram& program = *(*found)->reshard;
    auto* kinds = metadata->mutable_output_memory_kinds()->add_memory_kind_lists();
    for (size_t i = 0; i < program.in.size(); ++i) {
      absl::StatusOr<xla::OpSharding> in = program.in[i]->ToOpSharding();
      absl::StatusOr<xla::OpSharding> out = program.out[i]->ToOpSharding();
      if (in.ok()) *metadata->mutable_parameter_shardings()->add_shardings() = *std::move(in);
      if (out.ok()) *metadata->mutable_output_shardings()->add_shardings() = *std::move(out);
      kinds->add_memory_kinds(std::string(MemoryKindName(program.out[i]->memory())));
    }
    const tensorflow::StatusProto none =
        wire::ToProto(absl::UnimplementedError("A reshard program has no layouts of its own"));
    *metadata->mutable_parameter_layouts_error() = none;
    *metadata->mutable_output_layouts_error() = none;
    auto* donated = metadata->mutable_donated_input_indices();
    for (size_t i = 0; program.donate && i < program.in.size(); ++i) {
      donated->add_donated_input_indices(static_cast<uint32_t>(i));
    }
    *metadata->mutable_compiled_memory_stats_error() = none;
    return Succeed(op, std::move(response));
  }

  const ExecutableInfo& info = (*found)->image->info;
  const bool partitioned = info.num_devices() > 1;
  auto describe = [&](const google::protobuf::RepeatedPtrField<TensorInfo>& tensors, auto* shardings, auto* layouts) {
    bool all_layouts = true;
    for (const TensorInfo& tensor : tensors) {
      *shardings->add_shardings() = tensor.sharding();  // absent: REPLICATED
      all_layouts = all_layouts && (tensor.has_layout() || tensor.device_dims_size() == 0);
      *layouts->add_layouts() = tensor.layout();
    }
    return all_layouts;
  };
  proxy::LoadedExecutableMetadataResponse::ShardingList parameter_shardings, output_shardings;
  const tensorflow::StatusProto no_layouts = wire::ToProto(absl::UnimplementedError("The plugin tells no layouts"));
  if (!describe(info.parameters(), &parameter_shardings, metadata->mutable_parameter_layouts_list())) {
    *metadata->mutable_parameter_layouts_error() = no_layouts;
  }
  if (!describe(info.outputs(), &output_shardings, metadata->mutable_output_layouts_list())) {
    *metadata->mutable_output_layouts_error() = no_layouts;
  }
  // A program that runs on several devices without partitioning has no shardings to tell.
  const bool known = !partitioned || std::all_of(info.outputs().begin(), info.outputs().end(),
                                                 [](const TensorInfo& tensor) { return tensor.has_sharding(); });
  if (known) {
    *metadata->mutable_parameter_shardings() = std::move(parameter_shardings);
    *metadata->mutable_output_shardings() = std::move(output_shardings);
  }
  auto* kinds = metadata->mutable_output_memory_kinds()->add_memory_kind_lists();
  for (const TensorInfo& output : info.outputs()) {
    kinds->add_memory_kinds(output.memory_kind().empty() ? "device" : output.memory_kind());
  }
  auto* donated = metadata->mutable_donated_input_indices();
  for (int32_t index : info.donated_parameters()) donated->add_donated_input_indices(static_cast<uint32_t>(index));
  if (info.has_memory_stats()) {
    *metadata->mutable_compiled_memory_stats() = info.memory_stats();
    metadata->mutable_compiled_memory_stats()->clear_serialized_buffer_assignment();
  } else {
    *metadata->mutable_compiled_memory_stats_error() =
        wire::ToProto(absl::UnimplementedError("The plugin tells no memory figures"));
  }
  metadata->set_size_of_generated_code_in_bytes(info.code_bytes());
  Succeed(op, std::move(response));
}

void SessionCore::CostAnalysis(Op op, const Request& request) {
  absl::StatusOr<std::shared_ptr<Executable>> found =
      FindExecutable(request.loaded_executable_cost_analysis_request().loaded_executable_handle());
  auto response = NewResponse(op);  // never a failed one: the client would abort
  auto* cost = response->mutable_loaded_executable_cost_analysis_response();
  absl::Status status = found.status();
  if (found.ok() && (*found)->image == nullptr) status = absl::UnimplementedError("This program costs no flops");
  if (status.ok()) {
    const auto& analysis = (*found)->image->info.cost();
    status = wire::FromProto(analysis.status());
    if (status.ok() && analysis.properties().empty()) {
      status = absl::UnimplementedError("The plugin has no cost analysis");
    }
    if (status.ok()) {
      auto* attributes = cost->mutable_attributes();
      attributes->set_version_number(0);
      for (const auto& [name, value] : analysis.properties()) {
        wire::SetAttribute(attributes, name, static_cast<float>(value));
      }
    }
  }
  if (!status.ok()) *cost->mutable_status() = wire::ToProto(status);
  Succeed(op, std::move(response));
}

void SessionCore::DestructExecutable(Op op, const Request& request) {
  const Handle handle = request.loaded_executable_destruct_request().loaded_executable_handle();
  absl::StatusOr<std::shared_ptr<Executable>> found = FindExecutable(handle);
  if (!found.ok()) return Fail(op, found.status());
  if ((*found)->id.valid()) controller_->ReleaseExecutable(options_.session, (*found)->id);
  executables_.erase(handle);
  auto response = NewResponse(op);
  response->mutable_loaded_executable_destruct_response();
  Succeed(op, std::move(response));
}

void SessionCore::GetDefaultDeviceAssignment(Op op, const Request& request) {
  const auto& get = request.get_default_device_assignment_request();
  const uint64_t replicas = get.num_replicas(), partitions = get.num_partitions();
  const size_t devices = catalog_ == nullptr ? 0 : catalog_->devices.size();
  if (replicas == 0 || partitions == 0 || replicas > devices || partitions > devices ||
      replicas * partitions > devices) {
    return Fail(
        op, absl::InvalidArgumentError(absl::StrCat("A device assignment for ", replicas, " replicas and ", partitions,
                                                    " partitions; there are ", devices, " devices")));
  }
  auto response = NewResponse(op);
  auto* assignment = response->mutable_get_default_device_assignment_response()->mutable_device_assignment();
  assignment->set_replica_count(static_cast<int32_t>(replicas));
  assignment->set_computation_count(static_cast<int32_t>(partitions));
  for (uint64_t p = 0; p < partitions; ++p) {
    auto* partition = assignment->add_computation_devices();
    for (uint64_t r = 0; r < replicas; ++r) {
      partition->add_replica_device_ids(catalog_->devices[static_cast<size_t>(r * partitions + p)].id.value());
    }
  }
  Succeed(op, std::move(response));
}

// ---------------------------------------------------------------- run

void SessionCore::Execute(Op op, const Request& request, TimeNs now) {
  const auto& execute = request.loaded_executable_execute_request();
  const auto& handles = execute.result_array_handle();
  const bool wants_status = execute.execute_options().fill_status();
  Handle status_handle = execute.result_status_handle();

  // Failures that no executable can own: the client's handles carry them.
  auto refuse = [&](const absl::Status& status) {
    Poison(handles, status, op);
    if (wants_status && status_handle != 0 && status_handle < kServerHandles && !futures_.contains(status_handle)) {
      Future future;
      future.done = true;
      future.status = status;
      AddFuture(status_handle, std::move(future));
    }
    Fail(op, status);
  };
  absl::StatusOr<std::shared_ptr<Executable>> found = FindExecutable(execute.loaded_executable_handle());
  if (!found.ok()) return refuse(found.status());
  Executable& executable = **found;
  if (executable.answer.has_value()) {
    return refuse(absl::InvalidArgumentError("A question is not executed: its answer is its text"));
  }
  const size_t output_count =
      executable.reshard != nullptr ? executable.reshard->out.size() : executable.outputs.size();
  if (!wants_status && status_handle != 0) {
    return refuse(absl::InvalidArgumentError("A status handle for an execution that wants no status"));
  }
  if (status_handle >= kServerHandles) return refuse(NotTheClients(status_handle));
  if (status_handle != 0 && futures_.contains(status_handle)) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("Future handle ", status_handle, " exists already")));
  }
  const bool first = handles.empty();  // the client does not know the outputs yet
  if (!first && static_cast<size_t>(handles.size()) != output_count) {
    return refuse(absl::InvalidArgumentError(absl::StrCat("The execution names ", handles.size(), " results, but ",
                                                          executable.name, " has ", output_count)));
  }

  std::vector<proxy::LoadedExecutableExecuteResponse::Output> described;  // of a reshard program
  Ticket ticket;
  auto entries = [&]() -> Entries<ArrayEntry> {
    if (executable.is_witness) return std::vector<ArrayEntry>();
    LB_ASSIGN_OR_RETURN(std::vector<ArrayId> args, DeviceArrays(execute.args_handles()));
    if (executable.reshard != nullptr) {
      const ReshardProgram& program = *executable.reshard;
      if (args.size() != program.in.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("The reshard program moves ", program.in.size(), " arrays and got ", args.size()));
      }
      std::vector<ArraySpec> outputs;
      for (size_t i = 0; i < args.size(); ++i) {
        const ArraySpec* spec = controller_->Spec(options_.session, args[i]);
        if (spec == nullptr) return absl::InvalidArgumentError("An array to reshard is gone");
        ArraySpec output = *spec;
        output.sharding = program.out[i];
        LB_RETURN_IF_ERROR(output.sharding->Validate(output.dims));
        if (first) {
          auto& out = described.emplace_back();
          wire::SetDType(output.dtype, out.mutable_dtype());
          wire::SetDims(output.dims, out.mutable_shape());
          wire::SetSharding(*output.sharding, out.mutable_sharding());
        }
        outputs.push_back(std::move(output));
      }
      LB_ASSIGN_OR_RETURN(
          std::vector<ArrayId> made,
          controller_->Reshard(options_.session, args, std::move(outputs),
                               program.donate ? CopySemantics::kDonate : CopySemantics::kAlwaysCopy, op.context, now));
      return ToEntries(made, op.hold);
    }
    if (args.size() != static_cast<size_t>(executable.image->info.parameters_size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          executable.name, " takes ", executable.image->info.parameters_size(), " arguments and got ", args.size()));
    }
    ExecuteArgs launch;
    launch.executable = executable.id;
    launch.args = std::move(args);
    const auto& keep = execute.execute_options().non_donatable_input_indices();
    launch.non_donatable.assign(keep.begin(), keep.end());
    for (int32_t id : execute.device_ids()) launch.devices.push_back(DeviceId(id));
    launch.launch_id = execute.execute_options().launch_id();
    launch.end_is_awaited = wants_status;
    launch.priority = executable.hints.priority;
    launch.phase = executable.hints.phase;
    const auto& custom = execute.execute_options().custom_options().attributes();
    auto location = custom.find("call_location");
    if (location != custom.end()) launch.call_site = location->second.string_value();
    LB_ASSIGN_OR_RETURN(ExecuteResult result, controller_->Execute(options_.session, launch, op.context, now));
    ticket = result.ticket;
    if (ticket.valid() && (op.hold != nullptr || wants_status)) AddLaunch(ticket, op.hold);
    if (ticket.valid() && executable.image->info.calls_host()) AddHostCallingLaunch(ticket);
    return ToEntries(result.outputs, nullptr);
  }();

  auto response = NewResponse(op);
  auto* answer = response->mutable_loaded_executable_execute_response();
  absl::Status status = entries.status();
  std::vector<ArrayId> watch;  // of a reshard program: its status is that of the results
  if (status.ok()) {
    for (const ArrayEntry& entry : *entries) watch.push_back(entry.id);
    Entries<Handle> registered = Register(*std::move(entries), handles);
    status = registered.status();
    for (size_t i = 0; first && status.ok() && i < registered->size(); ++i) {
      auto* output = answer->add_outputs();
      *output = executable.reshard != nullptr ? described[i] : executable.outputs[i];
      output->set_array_handle((*registered)[i]);
    }
  }
  if (!status.ok()) {
    if (!first || executable.reshard != nullptr) return refuse(status);
    // The error belongs to the arrays: failing the request would make this executable fail for ever in the client.
    const absl::Status error = WithUserContext(status, op.context);
    contexts_.Cite(error);
    for (size_t i = 0; i < output_count; ++i) {
      const Handle handle = NewHandle();
      arrays_[handle].error = error;
      auto* output = answer->add_outputs();
      *output = executable.outputs[i];
      output->set_array_handle(handle);
    }
    if (output_count == 0 && !wants_status) return Fail(op, status);  // nothing else could carry it
  }
  if (wants_status) {
    Future future;
    if (!status.ok()) {
      future.done = true;
      future.status = WithUserContext(status, op.context);
    }
    const bool pending = status.ok();
    status_handle = AddFuture(status_handle, std::move(future));
    answer->set_status_handle(status_handle);
    if (pending) {
      const RequestId id =
          Wait([this, status_handle](const absl::Status& done) { ResolveFuture(status_handle, done); });
      if (ticket.valid()) {
        controller_->WhenDone(options_.session, id, ticket);
      } else {
        controller_->WhenReady(options_.session, id, watch);
      }
    }
  }
  Succeed(op, std::move(response));
}

void SessionCore::FetchExecuteResult(Op op, const Request& request) {
  const Handle handle = request.loaded_executable_fetch_execute_result_request().result_status_handle();
  auto it = futures_.find(handle);
  if (it == futures_.end() || it->second.waiter) {
    return Fail(op, absl::InvalidArgumentError(absl::StrCat("Unknown execution status handle: ", handle)));
  }
  auto answer = [this, op = std::move(op)](const absl::Status& status) {
    if (!status.ok()) return Fail(op, status);
    auto response = NewResponse(op);
    response->mutable_loaded_executable_fetch_execute_result_response();
    Succeed(op, std::move(response));
  };
  if (it->second.done) {
    const absl::Status status = it->second.status;
    futures_.erase(it);
    return answer(status);
  }
  it->second.waiter = std::move(answer);
}

}  // namespace landbridge
