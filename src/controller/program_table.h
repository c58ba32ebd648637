// Compiled programs of the sessions, where they are loaded, and what their outputs look like.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "controller/cluster_table.h"
#include "controller/controller.h"
#include "controller/dispatcher.h"

namespace landbridge::ctl {

// A program on given devices.
struct Placement {
  std::vector<DeviceId> devices;
  struct Part {
    int slot = 0;
    std::vector<uint32_t> shards;    // logical devices that are there, ascending
    std::vector<uint32_t> ordinals;  // of those, in the worker
  };
  std::vector<Part> parts;  // one, unless it spans workers; in order of their first logical device
  bool spans() const { return parts.size() > 1; }
  std::vector<std::shared_ptr<const ArraySpec>> outputs;
  // The specs of the arguments that passed the checks last time, so that a steady loop checks nothing.
  std::vector<std::shared_ptr<const ArraySpec>> checked;
};

// Shared by all sessions that have the same compiled program on the same devices.
struct Program {
  struct Load {
    Life* life = nullptr;
    bool done = false;
    bool serving = false;
    absl::Status error;
  };
  ExecutableId id;  // what workers call it
  std::shared_ptr<const ProgramImage> compiled;
  Placement home;
  std::vector<std::pair<DeviceId, std::unique_ptr<Placement>>> elsewhere;  // of portable programs
  absl::InlinedVector<Load, 1> loads;
  std::vector<bool> donated;  // by parameter
  bool donates = false;
  size_t users = 0;
};

struct Executable {
  SessionId session;
  Program* program = nullptr;
};

class ProgramTable {
 public:
  ProgramTable(ClusterTable* cluster, ControllerSink* sink, Dispatcher* dispatcher)
      : cluster_(cluster), sink_(sink), dispatcher_(dispatcher) {}

  // Loads it if the worker is up.
  absl::StatusOr<ExecutableId> Add(SessionId session, std::shared_ptr<const ProgramImage> compiled,
                                   std::vector<DeviceId> devices);
  Executable* Find(SessionId session, ExecutableId id);
  void Release(SessionId session, ExecutableId id);
  void DropSession(SessionId session);
  void LoseLife(Life* life);

  // For portable programs, one device other than the one it was added with.
  absl::StatusOr<Placement*> PlaceOn(Program* program, absl::Span<const DeviceId> devices);
  // Why it cannot be launched there, if that is known; else a load is on its way or done.
  absl::Status EnsureLoaded(Program* program, Life* life, SessionId session);
  void BeforeLoadSent(Life* life, ExecutableId program);
  // False: no such load.
  bool OnLoadDone(Life* life, ExecutableId program, const absl::Status& status);

  size_t size() const { return executables_.size(); }
  size_t of(SessionId session) const;
  // As the client calls it; empty if unknown.
  std::string NameOf(ExecutableId program) const;

 private:
  absl::StatusOr<Placement> MakePlacement(const ProgramImage& compiled, std::vector<DeviceId> devices) const;
  void Unload(Program* program);
  Program* FindProgram(ExecutableId id);

  ClusterTable* const cluster_;
  ControllerSink* const sink_;
  Dispatcher* const dispatcher_;
  uint64_t next_ = 1;
  absl::flat_hash_map<ExecutableId, Executable> executables_;
  absl::flat_hash_map<ExecutableId, std::unique_ptr<Program>> programs_;
  absl::flat_hash_map<std::pair<const ProgramImage*, std::vector<DeviceId>>, Program*> shared_;
};

// The argument fits the parameter. Executables accept anything of the right size, so this is where it is checked.
absl::Status CheckArgument(const ExecutableInfo& info, const Placement& placement, int parameter,
                           const ArraySpec& spec);

}  // namespace landbridge::ctl
