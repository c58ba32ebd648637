// Pulls that outlast a broken connection.
#pragma once

#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/ids.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// UNAVAILABLE from the data plane means that a connection broke while the peer may live: such a pull is tried again
// until limits::kPullRetryTime has passed; then it ends with ABORTED. (A peer that is really lost is closed by the
// controller's word, which ends its pulls with that status.)
//
// Thread-safety: the loop's thread only.
class Puller {
 public:
  using Handle = uint64_t;  // 0: none

  explicit Puller(ShellContext* context) : context_(context) {}

  // `done` runs once, on the loop, later; then no byte lands in dst any more. `keep` holds dst.
  Handle Pull(dataplane::PeerId peer, dataplane::Key key, uint64_t offset, void* dst, uint64_t size,
              std::shared_ptr<const void> keep, std::function<void(absl::Status)> done);
  // `done` still runs.
  void Cancel(Handle handle, const absl::Status& why);
  void CancelAll(const absl::Status& why);
  size_t open() const { return open_.size(); }

 private:
  struct Open {
    dataplane::PeerId peer;
    dataplane::Key key;
    uint64_t offset;
    void* dst;
    uint64_t size;
    std::shared_ptr<const void> keep;
    std::function<void(absl::Status)> done;
    dataplane::PullId pull;
    TimeNs give_up = 0;
    Loop::TimerId retry = 0;
    absl::Status cancelled;
  };
  void Start(Handle handle, Open& open);
  void OnDone(Handle handle, const absl::Status& status);
  void Finish(Handle handle, const absl::Status& status);

  ShellContext* const context_;
  absl::flat_hash_map<Handle, std::unique_ptr<Open>> open_;
  Handle last_ = 0;
};

}  // namespace landbridge
