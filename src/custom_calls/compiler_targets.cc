#include "custom_calls/compiler_targets.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "custom_calls/handler_supply.h"
#include "custom_calls/jaxlib_targets.h"
#include "pjrt/ffi_handler.h"
#include "pjrt/plugin.h"

namespace landbridge {
namespace {

pjrt::XLA_FFI_Error* OnlyCompiles(pjrt::XLA_FFI_CallFrame* frame) {
  if (pjrt::FfiCall::AnswerMetadata(frame)) return nullptr;
  return pjrt::FfiCall(frame).Fail(absl::FailedPreconditionError("this process only compiles: it runs no custom call"));
}

absl::Status RegisterName(pjrt::Plugin& plugin, absl::string_view target) {
  return plugin.RegisterFfiHandler(target, reinterpret_cast<void*>(&OnlyCompiles));
}

}  // namespace

absl::StatusOr<CompilerTargets> CompilerTargets::Register(pjrt::Plugin& plugin,
                                                          const std::vector<FfiLibrarySpec>& libraries) {
  CompilerTargets targets;
  LB_ASSIGN_OR_RETURN(targets.libraries_, OpenFfiLibraries(libraries));
  if (plugin.traits().host_handlers) {
    for (const std::string& target : JaxlibTargets()) LB_RETURN_IF_ERROR(RegisterName(plugin, target));
    LB_RETURN_IF_ERROR(RegisterName(plugin, kDceSinkTarget));
  }
  for (const FfiLibrarySpec& library : libraries) {
    for (const auto& [target, symbol] : library.targets) LB_RETURN_IF_ERROR(RegisterName(plugin, target));
  }
  return targets;
}

absl::StatusOr<bool> CompilerTargets::Offer(pjrt::Plugin& plugin, absl::string_view target) {
  for (const FfiLibrary& library : libraries_) {
    void* handler = library.FindHandler(target);
    if (handler == nullptr) continue;
    auto unusable = [&](absl::string_view why) {
      return absl::UnimplementedError(absl::StrCat("the program calls the custom-call target '",
                                                   FilterForeignText(target), "'; ", library.spec().path,
                                                   " exports it, but ", why));
    };
    const auto version = pjrt::CheckFfiVersion(reinterpret_cast<pjrt::XLA_FFI_Handler>(handler));
    if (!version.ok()) return unusable(version.status().message());
    if (!offered_.insert(std::string(target)).second) {
      return unusable(absl::StrCat("the PJRT plugin did not take it: it was built for FFI version ", version->major,
                                   ".", version->minor, ", or the plugin has that name itself"));
    }
    if (absl::Status status = RegisterName(plugin, target); !status.ok()) return unusable(status.message());
    return true;
  }
  return false;
}

}  // namespace landbridge
