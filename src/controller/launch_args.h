// Launch messages of long argument lists as differences from the executable's previous launch in the same stream, so
// that a training step of 1,000 arguments is a few bytes: what a launch takes is mostly what the one before it took, or
// made (then all ids have grown by the same number). worker/launch_args.h is the other end.
//
// Thread-safety: none; part of the controller's state machine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/ids.h"
#include "proto/landbridge/control.pb.h"

namespace landbridge::ctl {

// What one stream carried last, for each executable with a long argument list.
class LaunchDifferences {
 public:
  // The launch goes out now: makes it small. Calls come in the order of the stream.
  void Encode(Launch* launch);
  void Forget(ExecutableId executable) { last_.erase(executable); }
  size_t size() const { return last_.size(); }

 private:
  struct Last {
    std::vector<LaunchArg> args;
    std::vector<uint32_t> donated;
  };
  static void EncodeArgs(std::vector<LaunchArg>* last, Launch* launch);
  absl::flat_hash_map<ExecutableId, Last> last_;
};

}  // namespace landbridge::ctl
