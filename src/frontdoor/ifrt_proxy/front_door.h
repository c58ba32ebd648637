// The front door for stock jaxlib clients: the IFRT proxy protocol over gRPC, thin over Controller.
//
// Threads: one lane (call.h) or a few decode all that clients send and move the bytes of host buffers. Everything else
// happens on the loop thread of the proxy, which owns the controller and writes the answers.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/time.h"
#include "compiler/compile_service.h"
#include "controller/controller.h"
#include "dataplane/data_plane.h"
#include "frontdoor/ifrt_proxy/device_catalog.h"

namespace landbridge {

struct IfrtFrontDoorOptions {
  uint64_t space = 0;            // the controller's space of data-plane keys
  std::string shared_directory;  // for uploads by file (ifrt-proxy.md 4.4); empty: refused
  std::string log_place;         // of this process (LogPlace()): errors name it; empty: they do not
  // Of one message of a client. A larger one ends its session, so it is the most that a client can send; what exceeds
  // limits::kClientMessageBytesMax is refused by name.
  int message_bytes_max = std::numeric_limits<int>::max();
  size_t store_pool_bytes = limits::kStorePoolBytesDefault;  // chunks of uploads that nobody asks for yet
  // Monotonic clock, from any thread.
  std::function<TimeNs()> now;
  // [loop] Runs the closure on the loop later. Then answers that no client waits for are collected for
  // limits::kLazyDelay; null: each leaves at once.
  std::function<void(DurationNs, std::function<void()>)> run_after;
  // [loop] What a client's function gave, for the worker whose program called it; null: clients serve no calls.
  std::function<void(Incarnation, HostCallReply)> reply_host_call;
};

// Thread-safety: the constructor, Start, Stop and the destructor from one owner thread that is not the loop (Start
// and Stop may also be called on it when the loop does not run). Methods marked [loop] on the loop thread only;
// they may be called from inside a call of the door to the controller (they only record then).
class IfrtFrontDoor {
 public:
  // Runs the closure later on the loop thread, in order, from any thread. Closures posted after the loop has ended
  // may be dropped.
  using Post = std::function<void(absl::AnyInvocable<void()>)>;

  // All pointers outlive the door. `compiler` may be null: programs are refused then.
  IfrtFrontDoor(IfrtFrontDoorOptions options, Controller* controller, Post post, CompileService* compiler,
                dataplane::DataPlane* data_plane);
  ~IfrtFrontDoor();
  IfrtFrontDoor(const IfrtFrontDoor&) = delete;
  IfrtFrontDoor& operator=(const IfrtFrontDoor&) = delete;

  // Listens on "host:port" (port 0: any free one) and returns the port. GetVersion answers from now on; Init waits
  // for SetDevices. FAILED_PRECONDITION when the port is taken.
  absl::StatusOr<int> Start(const std::string& listen_address);
  // Ends all sessions and the server; joins every thread of the door. The loop must still run (it is needed to
  // close the sessions) or must have ended.
  void Stop();

  // [loop] Lets clients in. Call once; DeclareDevices of the controller comes first.
  void SetDevices(DeviceCatalog catalog);
  // [loop] While there are no devices: clients that have waited for them for limits::kInitPatience hear `why`. Call it
  // now and then.
  void ExpireInits(const absl::Status& why);

  // --- What the controller's sink says about the door's requests and buffers. [loop]
  void OnResolve(RequestId request, const absl::Status& status);
  void OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result);
  void ServeHostBuffer(uint64_t key, std::vector<Incarnation> workers);
  void WantHostBytes(uint64_t key);
  void DropHostBuffer(uint64_t key);
  void PauseSession(SessionId session, bool paused);
  // [loop] A worker is gone: uploads that it was pulling no longer wait for it, reads from it end with `why`.
  void OnWorkerLost(Incarnation worker, const absl::Status& why);

  // [loop] Programs that call functions of their client, and what workers say of it.
  void OnHostCall(Incarnation worker, HostCall call);
  void OnHostCallTaken(Incarnation worker, uint64_t call);

  // [loop] Works off what the methods above recorded. Called by the door itself through `post` when something is
  // there; a loop that calls it at the end of each turn saves that hop.
  void Drain();

  // Request ids of the door have this bit; the proxy's own (explain) must not. (Bits 60 and up belong to DataKeyId.)
  static constexpr uint64_t kRequestIdBit = uint64_t{1} << 59;
  static bool IsDoorRequest(RequestId request) { return (request.value() & kRequestIdBit) != 0; }

  // [loop] Sessions, their objects, pending requests, host buffers.
  std::string StatusJson() const;
  // From any thread.
  size_t session_count() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace landbridge
