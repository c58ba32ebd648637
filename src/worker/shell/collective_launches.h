// Launches that span workers, as far as their collectives go: from the plugin's call to the data plane.
#pragma once

#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"
#include "collectives/collective_handler.h"
#include "worker/shell/launcher.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// Of one grant. A launch's run is kept until it is over here and peers have taken what they still want of it.
//
// Thread-safety: the loop's thread only. Collectives themselves run on a pool of their own: what they go on with may
// take as long as the program.
class CollectiveLaunches {
 public:
  explicit CollectiveLaunches(ShellContext* context) : context_(context) {}
  ~CollectiveLaunches();

  // `work` is resolved, of a split program. Makes its run known to the handler.
  absl::Status Open(const Launch& launch, LaunchWork* work);
  // All local devices are done.
  void Close(Ticket ticket);

  void Abort(Ticket ticket, const absl::Status& why);
  void PeerLost(Incarnation peer, const absl::Status& why);
  void AbortAll(const absl::Status& why);
  size_t size() const { return runs_.size(); }

 private:
  struct Run {
    std::shared_ptr<CollectiveRun> run;
    std::vector<Incarnation> peers;
    bool closed = false;
  };
  void Forget();  // those that are over for everybody

  ShellContext* const context_;
  std::shared_ptr<TaskPool> pool_;
  absl::flat_hash_map<Ticket, Run> runs_;
};

}  // namespace landbridge
