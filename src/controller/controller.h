// The controller: owns the dataflow graph of all sessions, placement, dispatch, references and what a loss means.
// A pure state machine: the front door's calls and the workers' reports come in, ControllerSink says what to do.
// The doors (frontdoor/) are thin over this interface; the simulator runs this very class.
//
// Thread-safety: none; everything happens on the proxy's loop thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/ids.h"
#include "base/time.h"
#include "proto/landbridge/control.pb.h"
#include "sharding/reshard.h"
#include "sharding/sharding.h"

namespace landbridge {

// A worker's place, stable over its lives.
struct SlotId {
  SliceId slice;
  int index = 0;  // worker of the slice
  friend bool operator==(const SlotId&, const SlotId&) = default;
  friend auto operator<=>(const SlotId&, const SlotId&) = default;
  std::string ToString() const { return slice.ToString() + "/" + std::to_string(index); }
};

struct VirtualDevice {
  DeviceId id;
  SlotId slot;
  uint32_t local_ordinal = 0;  // in the worker
};

// A compiled program as the controller ships it (compiler/ makes it; the door wraps it without a copy). Shared by sessions.
struct ProgramImage {
  std::shared_ptr<const std::string> envelope;  // sealed bytes
  std::string sha256;                           // of the envelope
  ExecutableInfo info;
};

enum class CopySemantics { kAlwaysCopy, kReuse, kDonate };

struct ArraySpec {
  DType dtype = DType::kInvalid;
  Dims dims;                                 // global
  std::shared_ptr<const Sharding> sharding;  // devices in order, memory kind, partitioning
};

// Bytes of the client for some shards of one array.
struct HostShard {
  std::vector<uint32_t> shards;  // positions in the device list; each gets the whole image
  uint64_t key = 0;              // proxy-wide id of the host buffer, never re-used
  int64_t image_bytes = 0;
  std::vector<int64_t> byte_strides;         // empty: dense row-major
  std::shared_ptr<const std::string> bytes;  // when already here and small
};

// What a session wants of the scheduler.
struct SessionHints {
  double weight = 1;     // of its device time, where shares are proportional
  int32_t priority = 0;  // of launches whose programs have none
};

struct ExecuteArgs {
  ExecutableId executable;
  std::vector<ArrayId> args;
  std::vector<int> non_donatable;
  std::vector<DeviceId> devices;  // portable execution: one device; else empty
  int32_t launch_id = 0;
  std::string call_site;
  std::optional<int32_t> priority = std::nullopt;  // instead of the session's
  PipelinePhase phase = PHASE_NONE;
  bool end_is_awaited = false;  // somebody waits for it to end: WhenDone is told without delay
};

struct ExecuteResult {
  Ticket ticket;
  std::vector<ArrayId> outputs;
};

// Where the bytes of a finished read are.
struct ReadResult {
  std::string data;     // small ones
  bool remote = false;  // else pull (space, id) from the worker
  Incarnation worker;
  uint64_t space = 0;
  uint64_t id = 0;
  int64_t bytes = 0;
};

// Records what to do. Never calls back into the controller.
class ControllerSink {
 public:
  virtual ~ControllerSink() = default;
  // In order per worker; the shell batches one frame per wake-up.
  virtual void SendToWorker(Incarnation worker, WorkerOp op) = 0;
  // Answers to WhenReady/WhenDone. Each request is answered exactly once (or dropped with its session).
  virtual void Resolve(RequestId request, const absl::Status& status) = 0;
  virtual void ResolveRead(RequestId request, absl::StatusOr<ReadResult> result) = 0;
  virtual void ResolveExplain(RequestId request, std::string json) = 0;
  // The bytes under `key` are to be served to these workers by the data plane under (space, key). None in the place of
  // one: it will be named by another call. No worker at all: one of those will never be.
  virtual void ServeHostBuffer(uint64_t key, std::vector<Incarnation> workers) = 0;
  // Small bytes that were not here yet: call OnHostBytes when they are.
  virtual void WantHostBytes(uint64_t key) = 0;
  // Nobody needs them (any more): drop what is here, drain what still comes. Comes exactly once for each key handed
  // to MakeFromHost, also when that fails or the bytes came along.
  virtual void DropHostBuffer(uint64_t key) = 0;
  // The envelope is to be served to the worker under (space, executable).
  virtual void ServeExecutable(Incarnation worker, ExecutableId executable,
                               std::shared_ptr<const std::string> envelope) = 0;
  virtual void StopServingExecutable(Incarnation worker, ExecutableId executable) = 0;
  // Too much of the session is parked (true), or little again (false).
  virtual void PauseSession(SessionId session, bool paused) = 0;
};

class Controller {
 public:
  struct Options {
    uint64_t space = 0;  // of our data-plane keys: the proxy's life
    size_t launches_per_worker_max = 4096;
    Scheduling scheduling = {};  // what workers order launches by
    // Nodes and transfers go out only when all that they need has been reported as made: a round trip for every edge of
    // the graph. For comparison with the normal, parallel dispatch.
    bool sequential_dispatch = false;
  };
  Controller(Options options, ControllerSink* sink);
  ~Controller();
  Controller(const Controller&) = delete;
  Controller& operator=(const Controller&) = delete;

  // --- Cluster. Devices are declared once, before the first session; workers come and go.
  void DeclareDevices(std::vector<VirtualDevice> devices);
  void OnWorkerUp(SlotId slot, Incarnation worker, std::string data_address, std::string name, TimeNs now);
  // `why` is DATA_LOSS and names slice, worker, incarnation and reason. Exactly the shards there are lost; requests
  // that wait for them are answered; workers that have exchanged bytes with it are told (PeerLost).
  void OnWorkerLost(Incarnation worker, const absl::Status& why, TimeNs now);
  void OnReport(Incarnation worker, const WorkerReport& report, TimeNs now);

  // --- Sessions own arrays, executables and requests.
  void OpenSession(SessionId session, SessionHints hints = {});
  void CloseSession(SessionId session, const absl::Status& why);  // frees everything of it

  // --- Arrays. Each call returns one new reference per result at once; failures that are known at once are
  // statuses (the door registers them under the client's handles), later ones poison the arrays.
  absl::StatusOr<ArrayId> MakeFromHost(SessionId session, ArraySpec spec, std::vector<HostShard> shards,
                                       uint64_t user_context, TimeNs now);
  absl::StatusOr<ArrayId> MakeError(SessionId session, ArraySpec spec, const absl::Status& error);
  absl::StatusOr<ArrayId> Assemble(SessionId session, ArraySpec spec, absl::Span<const ArrayId> singles,
                                   CopySemantics semantics);
  absl::StatusOr<std::vector<ArrayId>> Disassemble(SessionId session, ArrayId array, CopySemantics semantics);
  absl::StatusOr<ArrayId> FullyReplicatedShard(SessionId session, ArrayId array, CopySemantics semantics);
  // Same shards on other devices and/or another memory kind; nullopt keeps.
  absl::StatusOr<std::vector<ArrayId>> Copy(SessionId session, absl::Span<const ArrayId> arrays,
                                            const std::vector<DeviceId>* devices, const MemoryKind* memory,
                                            CopySemantics semantics, uint64_t user_context, TimeNs now);
  struct RemapStep {
    int in_array = 0, out_array = 0;
    std::vector<std::pair<uint32_t, uint32_t>> shards;  // (from, to)
  };
  absl::StatusOr<std::vector<ArrayId>> Remap(SessionId session, absl::Span<const ArrayId> arrays,
                                             std::vector<ArraySpec> outputs, absl::Span<const RemapStep> steps,
                                             CopySemantics semantics);
  // Any sharding to any sharding on any devices of the session; bytes move from worker to worker.
  absl::StatusOr<std::vector<ArrayId>> Reshard(SessionId session, absl::Span<const ArrayId> arrays,
                                               std::vector<ArraySpec> outputs, CopySemantics semantics,
                                               uint64_t user_context, TimeNs now);
  void Release(SessionId session, ArrayId array);         // one reference less (DestructArray)
  absl::Status Delete(SessionId session, ArrayId array);  // the user's delete(): memory goes now, for all aliases
  // What JAX says of its own arrays: whether it was deleted or donated, or the buffer of its first shard was, through another
  // array that holds it. (One that has lost another shard so cannot be used either, and the use says it.)
  absl::StatusOr<bool> IsDeleted(SessionId session, ArrayId array) const;
  const ArraySpec* Spec(SessionId session, ArrayId array) const;  // null: unknown

  // --- Programs.
  // Whether a program on these devices spans workers; then it has to be compiled for that (ExecutableInfo.split).
  // INVALID_ARGUMENT for devices that there are not.
  absl::StatusOr<bool> SpansWorkers(absl::Span<const DeviceId> devices) const;
  absl::StatusOr<ExecutableId> AddExecutable(SessionId session, std::shared_ptr<const ProgramImage> program,
                                             std::vector<DeviceId> devices);
  void ReleaseExecutable(SessionId session, ExecutableId executable);
  absl::StatusOr<ExecuteResult> Execute(SessionId session, const ExecuteArgs& args, uint64_t user_context, TimeNs now);

  // --- Waiting. Answered through the sink; an already known answer too.
  void WhenReady(SessionId session, RequestId request, absl::Span<const ArrayId> arrays);
  void WhenDone(SessionId session, RequestId request, Ticket launch);
  // First shard of a single-device or fully replicated array. `image_bytes` as the client announced.
  void ReadArray(SessionId session, RequestId request, ArrayId array, std::vector<int64_t> byte_strides,
                 int64_t image_bytes);
  void ReleaseRead(RequestId request);
  // The figures of a device's memory, as they are when everything sent before is done or under way there: ResolveRead with
  // data = a serialized DeviceUse. At once an error while its worker is not up.
  void AskMemory(SessionId session, RequestId request, DeviceId device);
  void OnHostBytes(uint64_t key, absl::StatusOr<std::string> bytes);

  // The controller's and all workers' view of what waits for what, as JSON: ResolveExplain.
  // `graph`: instead, what the dataflow graph is made of (cli/dataflow_graph.h).
  void Explain(RequestId request, TimeNs now, bool graph = false);
  // Answers with what is there: the workers that have said nothing yet are listed with null.
  void EndExplain(RequestId request);

  // Call it now and then: deletes that were collected go out at the latest then.
  void OnTime(TimeNs now);

  // --- Looking inside.
  std::string StatusJson(TimeNs now) const;  // sessions, arrays, parked launches and what they wait for
  struct Counts {
    size_t sessions = 0, arrays = 0, buffers = 0, executables = 0, requests = 0, launches_unfinished = 0,
           ops_parked = 0, transfers = 0, host_buffers = 0;
  };
  Counts counts() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace landbridge
