// A client of the controller interface: a thread that calls, and a ControllerHost on a loop thread of its own. What a door
// for clients would be, less its wire: calls return at once, results are named by handles that the client chooses, and
// serve as arguments before they exist.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "controller/controller.h"
#include "env/loop.h"
#include "nlohmann/json.hpp"
#include "proxy/controller_host.h"

namespace landbridge {

// A program on one or more gangs of devices: a call of it is one launch on each. All have the same parameters and outputs.
struct GangProgram {
  std::vector<ExecutableId> executables;  // by gang
  int outputs = 1;
};

// Thread-safety: one client thread; what is marked [loop] runs on the loop.
class ControlClient : private ControllerDoor {
 public:
  using Handle = uint64_t;
  static constexpr size_t kArgsMax = 4;
  static constexpr int64_t kLaunchesAheadMax = 4096;  // of calls that the loop has not taken yet; then calls wait
  static constexpr int64_t kLaunchesPerTurn = 256;    // then what they made is sent

  struct Options {
    ControllerHostOptions host;
    DurationNs spin = 0;  // of the loop: see Loop::SetSpin
    DurationNs patience = 60 * kSecond;
  };
  // Returns when every worker is up. FAILED_PRECONDITION, with what is waited for, when that takes too long.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Connect(Options options);
  ~ControlClient() override;

  // --- At rest: these wait for the loop.
  const Fleet& fleet() const { return fleet_; }
  int workers() const { return fleet_.slice_count * fleet_.workers_per_slice; }
  std::vector<DeviceId> DevicesOf(int worker) const;
  absl::StatusOr<bool> SpansWorkers(const std::vector<DeviceId>& devices);
  absl::StatusOr<GangProgram> AddProgram(const std::shared_ptr<const ProgramImage>& image,
                                         const std::vector<std::vector<DeviceId>>& gangs);
  // One f32 array of `dims` with this value everywhere, replicated over each gang.
  absl::StatusOr<Handle> Put(const std::vector<std::vector<DeviceId>>& gangs, const Dims& dims, float value);
  // The value of a gang's array.
  absl::StatusOr<std::vector<float>> Read(Handle handle, size_t gang);
  nlohmann::json Status();

  // --- Calls: at once. Outputs get consecutive handles; the first is returned.
  Handle Call(const GangProgram& program, absl::Span<const Handle> args);
  // program(program(... program(arg))), `count` times, as one call; what lies between is released.
  Handle CallChain(const GangProgram& program, Handle arg, int count);
  void Release(Handle handle);
  // Until the array is there; its error, or that of an earlier call that was refused.
  absl::Status Wait(Handle handle);
  // Call and wait in one: the worker is asked to tell the launch's end at once.
  absl::Status CallAndWait(const GangProgram& program, absl::Span<const Handle> args, Handle* result);
  // Until the loop has taken all calls, and what they made is on its way.
  void Settle();
  // The same as CallAndWait from the loop itself, `count` times one after the other, without waking a client's thread; nanoseconds of each.
  absl::StatusOr<std::vector<int64_t>> CallAndWaitOnLoop(const GangProgram& program, Handle* array, int count);

 private:
  using Arrays = absl::InlinedVector<ArrayId, 4>;  // by gang
  enum class Kind : uint8_t { kCall, kChain, kRelease, kWait, kCallAndWait };
  struct Command {
    Kind kind = Kind::kCall;
    uint8_t args = 0;
    int32_t count = 1;
    const GangProgram* program = nullptr;
    Handle result = 0;
    std::array<Handle, kArgsMax> arg = {};
  };
  struct Looping {
    const GangProgram* program;
    Handle* array;
    int left;
    TimeNs since;
    std::vector<int64_t> samples;
  };

  ControlClient() = default;

  // ControllerDoor. [loop]
  void OnDevices(const Fleet& fleet, const std::vector<VirtualDevice>& devices) override;
  void OnWorkerLost(Incarnation, const absl::Status& why) override { Fail(why); }
  void OnHostCall(Incarnation, HostCall) override {}
  void OnHostCallTaken(Incarnation, uint64_t) override {}
  void OnResolve(RequestId request, const absl::Status& status) override;
  void OnResolveRead(RequestId request, absl::StatusOr<ReadResult> result) override;
  void ServeHostBuffer(uint64_t, std::vector<Incarnation>) override {}  // all that is put travels with its message
  void WantHostBytes(uint64_t) override {}
  void DropHostBuffer(uint64_t) override {}
  void PauseSession(SessionId, bool paused) override;

  // With names for its results.
  Command CallCommand(Kind kind, const GangProgram& program, absl::Span<const Handle> args);
  void Push(const Command& command) ABSL_LOCKS_EXCLUDED(mutex_);
  // Runs `task` on the loop and waits for its end.
  void OnLoop(absl::AnyInvocable<void()> task);
  absl::Status PushAndWait(const Command& command) ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return launches_ahead_ < kLaunchesAheadMax; }

  void Drain();                          // [loop]
  void Run(const Command& command);      // [loop]
  void Execute(const Command& command);  // [loop]
  const Arrays* Find(Handle handle);     // [loop]
  void ReleaseArrays(Handle handle);     // [loop]
  void NextOnLoop();                     // [loop]
  void Fail(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  Options options_;
  Loop loop_;
  std::unique_ptr<ControllerHost> host_;
  std::thread thread_;
  Fleet fleet_;
  Handle next_handle_ = 1;

  // On the loop only.
  absl::flat_hash_map<Handle, Arrays> arrays_;
  std::vector<Command> running_;
  size_t run_ = 0;     // of them
  int wait_left_ = 0;  // answers until the client's wait is over
  ExecuteArgs args_;
  bool paused_ = false;
  bool suspended_ = false;  // Drain waits for the end of the pause
  uint64_t next_request_ = 1;
  uint64_t next_upload_ = 1;
  absl::flat_hash_map<RequestId, absl::AnyInvocable<void(absl::StatusOr<ReadResult>)>> reads_;
  std::unique_ptr<Looping> looping_;

  absl::Mutex mutex_;
  std::vector<Command> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t launches_ahead_ ABSL_GUARDED_BY(mutex_) = 0;  // of queue_; a call of another kind counts as one
  bool drain_posted_ ABSL_GUARDED_BY(mutex_) = false;
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // first
};

}  // namespace landbridge
