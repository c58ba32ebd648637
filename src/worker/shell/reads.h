// Bytes for the client.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "worker/shell/byte_source.h"
#include "worker/shell/shell_context.h"

namespace landbridge {

// Small images ride on the control stream. Larger ones are published to the proxy, straight from device memory where
// that holds the wanted image, else from a copy. A snapshot exchanges device memory for a copy under a pull's feet.
//
// Thread-safety: the loop's thread only.
class Reads {
 public:
  explicit Reads(ShellContext* context) : context_(context) {}

  // Answers the core's OnReadDone, and OnReadQuiet once: after a snapshot is taken, or after Stop. Reads whose bytes
  // ride along need no Stop.
  void Start(const Read& read, bool snapshot);
  void Snapshot(uint64_t read);
  void Stop(uint64_t read);
  void StopAll();  // the grant has ended
  size_t open() const { return open_.size(); }

 private:
  struct Open {
    Read read;
    std::shared_ptr<SendSource> source;
    bool quiet = false;  // the core has been told
    bool stopped = false;
    bool published = false;
    bool snapshot_due = false;  // asked for while the image was being made
  };

  void MakeImage(const std::shared_ptr<Open>& open, std::shared_ptr<BufferSlot> slot, DType dtype, bool snapshot);
  void Offer(const std::shared_ptr<Open>& open, HostImage image);
  // `image.owner` keeps what the source reads; `make` gets it so that its end is noticed.
  void OfferLarge(const std::shared_ptr<Open>& open, HostImage image,
                  const std::function<std::shared_ptr<SendSource>(HostImage)>& make);
  void Fail(const std::shared_ptr<Open>& open, const absl::Status& status);
  void Quiet(const std::shared_ptr<Open>& open);

  ShellContext* const context_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Open>> open_;
};

}  // namespace landbridge
