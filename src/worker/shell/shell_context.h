// What the parts of a worker's shell share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "base/data_keys.h"
#include "base/ids.h"
#include "base/time.h"
#include "custom_calls/handler_supply.h"
#include "dataplane/data_plane.h"
#include "env/loop.h"
#include "proto/landbridge/control.pb.h"
#include "worker/shell/buffer_io.h"
#include "worker/shell/device_store.h"
#include "worker/shell/dispatcher.h"
#include "worker/shell/image_budget.h"
#include "worker/shell/inbox.h"
#include "worker/shell/task_pool.h"
#include "worker/worker_core.h"

namespace landbridge {

// Of one grant. Tasks on other threads hold it, so that they may end after the grant has.
//
// Thread-safety: Post and Events from any thread; everything else on the loop's thread. `io`, `data_plane`, `pool`,
// `slow` and `handlers` are themselves usable from any thread and outlive the context.
struct ShellContext : public std::enable_shared_from_this<ShellContext> {
  Loop* loop = nullptr;
  BufferIo* io = nullptr;
  dataplane::DataPlane* data_plane = nullptr;
  TaskPool* pool = nullptr;
  TaskPool* slow = nullptr;           // one thread, for what may take a second: custom-call handlers
  HandlerSupply* handlers = nullptr;  // of custom calls
  Dispatcher* dispatcher = nullptr;
  ImageBudget* images = nullptr;  // for host images of uploads
  ImageBudget* staged = nullptr;  // for chunks of pieces that are put together from strips
  ImageBudget* sent = nullptr;  // for whole images of device memory that the host cannot read, of which a part is sent
  ImageBudget* received = nullptr;   // for whole images that such memory is filled from
  ImageBudget* snapshots = nullptr;  // for copies of what is being sent while a donor waits
  std::shared_ptr<Inbox> inbox;
  DeviceStore store;
  WorkerCore* core = nullptr;                            // set once, before anything happens
  uint64_t space = 0;                                    // of this grant's data-plane keys, its own and the proxy's
  dataplane::PeerId proxy;                               // its data plane
  std::function<void(const std::string&)> must_restart;  // only a new life of this process helps
  bool closed = false;                                   // the grant's objects are gone: late events are dropped
  int64_t open = 0;  // asynchronous pieces that still point into the shell; see Begin

  TimeNs Now() const { return loop->Now(); }

  // Runs `event` on the loop, later; never from inside (the core is not called back from its own sink).
  template <typename Event>
  void Post(Event event) {
    inbox->Push(Guarded(std::move(event)));
  }
  // The same for ends of launches: in order, but late while nobody waits for one.
  template <typename Event>
  void PostLate(Event event) {
    inbox->PushLate(Guarded(std::move(event)));
  }

  // For pieces of work that end with an event: the grant's shell is not destroyed while any is open.
  void Begin() { ++open; }
  template <typename Event>
  void PostEnd(Event event) {
    Post([this, event = std::move(event)]() mutable {
      --open;
      event();
    });
  }

  template <typename Event>
  auto Guarded(Event event) {
    return [self = shared_from_this(), event = std::move(event)]() mutable {
      if (!self->closed) event();
    };
  }

  dataplane::Key KeyOf(DataKeyKind kind, uint64_t id) const { return {space, DataKeyId(kind, id)}; }
  // A peer's address comes the first time only.
  absl::Status MeetPeer(dataplane::PeerId peer, absl::string_view address) {
    return address.empty() ? absl::OkStatus() : data_plane->AddPeer(peer, address);
  }
};

inline absl::Status StatusOf(const StatusProto& proto) {
  return absl::Status(static_cast<absl::StatusCode>(proto.code()), proto.message());
}
inline BufferRef RefOf(const BufferRefProto& proto) { return BufferRef{ArrayId(proto.array()), proto.shard()}; }

}  // namespace landbridge
