#include "pjrt/topology.h"

#include <utility>

#include "base/status.h"
#include "pjrt/abi_call.h"
#include "pjrt/attributes.h"

namespace landbridge::pjrt {

absl::StatusOr<std::unique_ptr<Topology>> Topology::Create(std::shared_ptr<Plugin> plugin, absl::string_view name,
                                                           const AttributeMap& options) {
  NamedValues values(options);
  Args<PJRT_TopologyDescription_Create_Args> args;
  args->topology_name = name.data();
  args->topology_name_size = name.size();
  args->create_options = values.data();
  args->num_options = values.size();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin.get(), PJRT_TopologyDescription_Create, args));
  return std::unique_ptr<Topology>(new Topology(std::move(plugin), args->topology));
}

Topology::~Topology() {
  Args<PJRT_TopologyDescription_Destroy_Args> args;
  args->topology = topology_;
  LB_PJRT_CALL(plugin_.get(), PJRT_TopologyDescription_Destroy, args).IgnoreError();
}

absl::StatusOr<int> Topology::DeviceCount() const {
  Args<PJRT_TopologyDescription_GetDeviceDescriptions_Args> args;
  args->topology = topology_;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_TopologyDescription_GetDeviceDescriptions, args));
  return static_cast<int>(args->num_descriptions);
}

absl::StatusOr<std::unique_ptr<Executable>> Topology::Compile(absl::string_view program, absl::string_view format,
                                                              absl::string_view compile_options) const {
  Args<PJRT_Program> code;
  code->code = const_cast<char*>(program.data());  // the ABI lacks a const here; the plugin only reads
  code->code_size = program.size();
  code->format = format.data();
  code->format_size = format.size();
  Args<PJRT_Compile_Args> args;
  args->topology = topology_;
  args->program = code.get();
  args->compile_options = compile_options.data();
  args->compile_options_size = compile_options.size();
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin_.get(), PJRT_Compile, args));
  return Executable::Own(plugin_.get(), args->executable);
}

}  // namespace landbridge::pjrt
