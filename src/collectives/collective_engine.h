// The collectives of programs that several workers run together, over the data plane.
//
// Every worker of a launch opens the same CollectiveLaunch. Each device's program then calls its collectives; when all
// of a worker's members of a group have arrived, the worker publishes what they bring and pulls what it lacks from the
// others, whichever comes first. Arrival order does not matter: every exchange is named by (launch, collective, how
// often, rank), and a pull waits at its source. Nothing here blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "collectives/collective_program.h"
#include "dataplane/data_plane.h"

namespace landbridge {

// Up to so many bytes (all operands) a reduction is one exchange, with copies; above it is a reduction of parts and
// an exchange of the reduced parts, in place.
inline constexpr int64_t kCollectiveEagerBytesMax = 32 << 10;
// A reduction's parts arrive in pieces of so many bytes from each peer, so many pieces at a time.
inline constexpr int64_t kCollectivePieceBytes = 1 << 20;
inline constexpr int kCollectivePiecesInFlight = 4;

// One device's call of one collective.
struct CollectiveCall {
  int32_t device = 0;  // logical
  int32_t op = 0;      // index into CollectiveProgram::steps()
  // Dense, in the device's memory, there until `done`. Sizes are the program's: the caller has checked.
  std::vector<const std::byte*> operands;
  std::vector<std::byte*> results;
  // Called once, on the engine's executor, or inside Call when nothing is left to wait for. Results are written in full before an OK; after an error
  // nothing reads or writes the memory any more either.
  absl::AnyInvocable<void(const absl::Status&)> done;
};

struct CollectiveLaunch {
  std::shared_ptr<const CollectiveProgram> program;
  // The launch's name on the data plane: the same on all its workers, and never used for anything else.
  uint64_t space = 0;
  std::vector<Incarnation> worker_of_device;  // peers of the data plane, by logical device
  std::vector<uint32_t> slice_of_device;      // where that worker is: any numbers. Empty: all in one slice
};

// One launch's part on this worker. Thread-safety: all members from any thread.
class CollectiveRun {
 public:
  virtual ~CollectiveRun() = default;
  // Each device calls a collective as often as the program does, in the program's order.
  virtual void Call(CollectiveCall call) = 0;
  // Ends every call under way, and every later one, with `why`; the other workers' calls that wait for ours too. To be
  // called when a local device's program fails, a worker of the launch is lost, or the launch is given up.
  virtual void Abort(const absl::Status& why) = 0;
  // The programs of the local devices have ended: no call comes any more. What was asked of peers for a next time is taken back.
  virtual void Close() = 0;
  // OK while it runs. For messages.
  virtual absl::Status status() const = 0;
  // Calls that are not done, and bytes that peers have yet to take. 0: nothing is left to do.
  virtual int64_t pending() const = 0;
};

struct CollectiveEngineOptions {
  dataplane::DataPlane* plane = nullptr;  // outlives the runs
  // Runs tasks on a few threads, never inside the call. Reductions and the rest of programs run there.
  std::function<void(absl::AnyInvocable<void()>)> executor;
  // A connection broke. Who died, and what to call it, is the control plane's to know: what waited stays so until Abort, which
  // must come. Empty: the launch is aborted with this very status. May be called several times, from the data plane's thread.
  std::function<void(const absl::Status&)> on_broken;
};

// INVALID_ARGUMENT if the launch has other devices than its program.
absl::StatusOr<std::shared_ptr<CollectiveRun>> StartCollectives(const CollectiveEngineOptions& options,
                                                                CollectiveLaunch launch);

}  // namespace landbridge
