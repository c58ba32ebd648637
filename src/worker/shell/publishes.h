// Boxes of buffers offered to other workers.
#pragma once

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// A box that is one run of the buffer's memory is offered where it lies; any other one is packed piece by piece while
// it is pulled.
//
// Thread-safety: the loop's thread only.
class Publishes {
 public:
  explicit Publishes(ShellContext* context) : context_(context) {}

  void Start(const Publish& publish);
  void Fail(TransferId transfer, const absl::Status& why);
  // Answers the core's OnPublishQuiet.
  void Stop(TransferId transfer, const absl::Status& why);
  void StopAll(const absl::Status& why);  // the grant has ended
  size_t open() const { return open_.size(); }

 private:
  struct Open {
    Publish publish;
    bool published = false;
    bool stopped = false;    // while the image was still being made
    absl::Status why;
  };
  absl::Status TryStart(const std::shared_ptr<Open>& open);
  void Offer(const std::shared_ptr<Open>& open, const HostImage& image);
  void Unpublish(TransferId transfer, const absl::Status& why);

  ShellContext* const context_;
  absl::flat_hash_map<TransferId, std::shared_ptr<Open>> open_;
};

}  // namespace landbridge
