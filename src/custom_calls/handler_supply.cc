#include "custom_calls/handler_supply.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "custom_calls/embedded_python.h"
#include "custom_calls/jaxlib_targets.h"
#include "pjrt/ffi_handler.h"
#include "pjrt/plugin.h"

namespace landbridge {
namespace {

// Its operand is there to be used, and that is all.
pjrt::XLA_FFI_Error* DceSink(pjrt::XLA_FFI_CallFrame* frame) {
  pjrt::FfiCall::AnswerMetadata(frame);
  return nullptr;
}

}  // namespace

HandlerSupply::HandlerSupply(pjrt::Client* client, HandlerSupplyOptions options)
    : client_(client), options_(std::move(options)) {}

absl::StatusOr<std::unique_ptr<HandlerSupply>> HandlerSupply::Create(pjrt::Client* client,
                                                                     HandlerSupplyOptions options) {
  std::unique_ptr<HandlerSupply> supply(new HandlerSupply(client, std::move(options)));
  LB_ASSIGN_OR_RETURN(supply->libraries_, OpenFfiLibraries(supply->options_.libraries));
  for (const FfiLibrary& library : supply->libraries_) {
    for (const auto& [target, symbol] : library.spec().targets) {
      LB_RETURN_IF_ERROR(AddContext(supply->Register(target, library.FindHandler(target)), library.spec().path));
    }
  }
  return supply;
}

HandlerSupply::Source HandlerSupply::SourceOf(absl::string_view target, void** handler) const {
  for (const FfiLibrary& library : libraries_) {
    if ((*handler = library.FindHandler(target)) != nullptr) return Source::kLibrary;
  }
  if (!client_->plugin().traits().host_handlers) return Source::kNone;
  if (target == kDceSinkTarget) {
    *handler = reinterpret_cast<void*>(&DceSink);
    return Source::kOurs;
  }
  return IsJaxlibTarget(target) ? Source::kJaxlib : Source::kNone;
}

bool HandlerSupply::Has(absl::string_view target) const {
  absl::MutexLock lock(&mutex_);
  return registered_.contains(target);
}

bool HandlerSupply::Ready(const std::vector<std::string>& targets) const {
  for (const std::string& target : targets) {
    void* handler = nullptr;
    if (!Has(target) && SourceOf(target, &handler) != Source::kNone) return false;
  }
  return true;
}

absl::Status HandlerSupply::Supply(const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    if (Has(target)) continue;
    absl::Status status = SupplyOne(target);
    if (!status.ok()) {
      return absl::UnimplementedError(absl::StrCat("the program calls the custom-call target '",
                                                   FilterForeignText(target), "', and ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status HandlerSupply::SupplyOne(const std::string& target) {
  void* handler = nullptr;
  switch (SourceOf(target, &handler)) {
    case Source::kNone: return absl::OkStatus();
    case Source::kLibrary:
    case Source::kOurs: break;
    case Source::kJaxlib: {
      LB_ASSIGN_OR_RETURN(handler, FindJaxlibHandler(target, {options_.python, client_->plugin().path()}));
      break;
    }
  }
  return Register(target, handler);
}

absl::Status HandlerSupply::Register(const std::string& target, void* handler) {
  LB_RETURN_IF_ERROR(client_->plugin().RegisterFfiHandler(target, handler));
  LB_RETURN_IF_ERROR(client_->CheckCustomCall(target));
  absl::MutexLock lock(&mutex_);
  registered_.insert(target);
  return absl::OkStatus();
}

}  // namespace landbridge
