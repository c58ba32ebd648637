// Something that the plugin will finish.
#pragma once

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "pjrt/c_api.h"

namespace landbridge::pjrt {

class Plugin;

// Thread-safety: const members from any thread; destruction and moves as usual. Destroying an event before it
// fires is fine: callbacks still run.
class Event {
 public:
  Event() = default;  // holds nothing: ready at once, OK
  Event(const Plugin* plugin, PJRT_Event* event) : plugin_(plugin), event_(event) {}
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event();

  bool valid() const { return event_ != nullptr; }
  bool IsReady() const;
  // Blocks. Never on a thread of the plugin or of a loop.
  absl::Status Await() const;
  // `callback` runs exactly once: in this call if the event is ready, else on a thread of the plugin. There it
  // must only post to a queue: no Execute, no waiting, no destruction of the client. The status has the
  // plugin's code and text.
  void OnReady(absl::AnyInvocable<void(absl::Status)> callback) const;

 private:
  const Plugin* plugin_ = nullptr;
  PJRT_Event* event_ = nullptr;
};

}  // namespace landbridge::pjrt
