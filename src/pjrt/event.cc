#include "pjrt/event.h"

#include <memory>
#include <utility>

#include "pjrt/abi_call.h"
#include "pjrt/plugin.h"

namespace landbridge::pjrt {
namespace {

struct Pending {
  const Plugin* plugin;
  absl::AnyInvocable<void(absl::Status)> callback;
};

void Fire(PJRT_Error* error, void* user_arg) {
  std::unique_ptr<Pending> pending(static_cast<Pending*>(user_arg));
  pending->callback(pending->plugin->TakeError(error));
}

}  // namespace

Event::Event(Event&& other) noexcept : plugin_(other.plugin_), event_(std::exchange(other.event_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(plugin_, other.plugin_);
  std::swap(event_, other.event_);
  return *this;
}

Event::~Event() {
  if (event_ == nullptr) return;
  Args<PJRT_Event_Destroy_Args> args;
  args->event = event_;
  LB_PJRT_CALL(plugin_, PJRT_Event_Destroy, args).IgnoreError();
}

bool Event::IsReady() const {
  if (event_ == nullptr) return true;
  Args<PJRT_Event_IsReady_Args> args;
  args->event = event_;
  return LB_PJRT_CALL(plugin_, PJRT_Event_IsReady, args).ok() && args->is_ready;
}

absl::Status Event::Await() const {
  if (event_ == nullptr) return absl::OkStatus();
  Args<PJRT_Event_Await_Args> args;
  args->event = event_;
  return LB_PJRT_CALL(plugin_, PJRT_Event_Await, args);
}

void Event::OnReady(absl::AnyInvocable<void(absl::Status)> callback) const {
  if (event_ == nullptr) {
    callback(absl::OkStatus());
    return;
  }
  auto pending = std::make_unique<Pending>(Pending{plugin_, std::move(callback)});
  Args<PJRT_Event_OnReady_Args> args;
  args->event = event_;
  args->callback = &Fire;
  args->user_arg = pending.get();
  absl::Status status = LB_PJRT_CALL(plugin_, PJRT_Event_OnReady, args);
  if (status.ok()) {
    (void)pending.release();  // Fire owns it, and may have run already
  } else {
    pending->callback(status);
  }
}

}  // namespace landbridge::pjrt
