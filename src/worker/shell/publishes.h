// Boxes of buffers offered to other workers.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "worker/shell/byte_source.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// A box is offered from the buffer's own memory (BoxSource). When a donor waits for that memory, and the peer has not
// taken everything within limits::kSendSnapshotDelay, the rest is sent from a copy: a peer that is slow, or not ready to
// receive yet, does not hold up the donor. Such copies are bounded together (ShellContext::snapshots); above that bound
// donors wait. Chunks on their way keep the buffer until the peer has them.
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
  // A donor waits for the buffer. OnPublishQuiet follows when the publication needs it no more.
  void Snapshot(TransferId transfer);
  size_t open() const { return open_.size(); }

 private:
  struct Open {
    Publish publish;
    std::shared_ptr<SendSource> source;  // published, and not stopped
    bool published = false;
    bool holds_buffer = false;  // the source reads the buffer itself, not a copy that the plugin made
    bool snapshot_due = false;  // a donor waits
    std::shared_ptr<std::atomic<bool>> report_release = std::make_shared<std::atomic<bool>>(false);
    bool stopped = false;  // while the image was still being made
    absl::Status why;
  };
  absl::Status TryStart(const std::shared_ptr<Open>& open);
  void Offer(const std::shared_ptr<Open>& open, HostImage image, bool holds_buffer);
  // `image.owner` keeps what the source reads; `make` gets it so that its end is noticed.
  void OfferSource(const std::shared_ptr<Open>& open, HostImage image, bool holds_buffer,
                   const std::function<std::shared_ptr<SendSource>(HostImage)>& make);
  void SnapshotWhenLate(const std::shared_ptr<Open>& open);
  void MakeSnapshot(const std::shared_ptr<Open>& open, ImageBudget::Grant grant);
  void PostQuiet(TransferId transfer);
  void Unpublish(TransferId transfer, const absl::Status& why);

  ShellContext* const context_;
  absl::flat_hash_map<TransferId, std::shared_ptr<Open>> open_;
};

}  // namespace landbridge
