// Calling through the PJRT function table. For this room only.
#pragma once

#include <cstddef>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "pjrt/c_api.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {

// Arguments for one call: zeroed, and announced 128 bytes longer than we know them, all zero. A plugin refuses
// callers whose size is below its own, so this keeps newer plugins, whose structs have grown, working.
template <typename T>
struct Args {
  static constexpr size_t kGuardBytes = 128;
  T fields{};
  char guard[kGuardBytes] = {};
  Args() { fields.struct_size = sizeof(T) + kGuardBytes; }
  T* operator->() { return &fields; }
  T* get() { return &fields; }
};

// True if the plugin's table reaches as far as `slot` and the function is there.
template <typename F>
bool HasFunction(const PJRT_Api* api, F PJRT_Api::*slot) {
  auto* field = reinterpret_cast<const char*>(&(api->*slot));
  size_t end = static_cast<size_t>(field - reinterpret_cast<const char*>(api)) + sizeof(F);
  return end <= api->struct_size && api->*slot != nullptr;
}

// Calls `slot`; UNIMPLEMENTED where this plugin lacks it.
template <typename T>
absl::Status Call(const Plugin* plugin, PJRT_Error* (*PJRT_Api::*slot)(T*), Args<T>& args, const char* name) {
  const PJRT_Api* api = plugin->api();
  if (!HasFunction(api, slot)) {
    return absl::UnimplementedError(absl::StrCat("the PJRT plugin ", plugin->path(), " has no ", name));
  }
  PJRT_Error* error = (api->*slot)(args.get());
  if (error == nullptr) return absl::OkStatus();
  return plugin->TakeError(error);
}
#define LB_PJRT_CALL(PLUGIN, FUNCTION, ARGS) \
  ::landbridge::pjrt::Call((PLUGIN), &::landbridge::pjrt::PJRT_Api::FUNCTION, (ARGS), #FUNCTION)

inline absl::StatusOr<PJRT_DeviceDescription*> DescriptionOf(const Plugin* plugin, PJRT_Device* device) {
  Args<PJRT_Device_GetDescription_Args> args;
  args->device = device;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_Device_GetDescription, args));
  return args->device_description;
}

inline absl::StatusOr<int> IdOf(const Plugin* plugin, PJRT_DeviceDescription* description) {
  Args<PJRT_DeviceDescription_Id_Args> args;
  args->device_description = description;
  LB_RETURN_IF_ERROR(LB_PJRT_CALL(plugin, PJRT_DeviceDescription_Id, args));
  return args->id;
}

}  // namespace landbridge::pjrt
