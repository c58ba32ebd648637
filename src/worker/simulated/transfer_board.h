// Boxes of buffers that simulated workers of one process offer each other: a data plane without sockets and without
// time. A box that has no bytes (a size only) travels as such.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/ids.h"

namespace landbridge {

// Dense bytes of a buffer or packed ones of a box; null: there is only a size.
using SimulatedBytes = std::shared_ptr<const std::string>;

// Answers come through `post`, never from inside a call.
//
// Thread-safety: one thread.
class TransferBoard {
 public:
  using Done = std::function<void(absl::StatusOr<SimulatedBytes>)>;

  explicit TransferBoard(std::function<void(std::function<void()>)> post) : post_(std::move(post)) {}

  void Publish(Incarnation source, TransferId transfer, Incarnation allowed_peer, SimulatedBytes packed);
  // The bytes are not offered (any more): pulls that wait, or come later, end with `why` (not OK).
  void Withdraw(Incarnation source, TransferId transfer, const absl::Status& why);
  // Waits while the source has not published it. `done` is called once.
  void Pull(Incarnation source, TransferId transfer, Incarnation peer, Done done);
  // What of `peer` still waits for this source's transfer ends with `why`.
  void Cancel(Incarnation source, TransferId transfer, Incarnation peer, const absl::Status& why);
  // Everything that `peer` waits for from `source` ends with `why`.
  void CancelAll(Incarnation source, Incarnation peer, const absl::Status& why);
  // A life has ended: its boxes go, and so does what it waits for (unanswered). Who waits for it goes on waiting until
  // the controller says that it is lost.
  void End(Incarnation life);

  size_t boxes() const { return boxes_.size(); }
  size_t waiting() const { return waiting_.size(); }

 private:
  using Id = std::pair<Incarnation, TransferId>;
  struct Box {
    Incarnation allowed_peer;
    SimulatedBytes packed;
  };
  struct Waiter {
    Incarnation peer;
    Done done;
  };
  void Answer(Done done, absl::StatusOr<SimulatedBytes> answer);
  void EndWaiters(const Id& id, Incarnation peer, const absl::Status& why);  // invalid peer: all

  const std::function<void(std::function<void()>)> post_;
  absl::flat_hash_map<Id, Box> boxes_;
  absl::flat_hash_map<Id, std::vector<Waiter>> waiting_;
  absl::flat_hash_map<Id, absl::Status> ended_;  // the last limits::kSimulatedEndedTransfersMax
  std::deque<Id> ended_order_;
};

}  // namespace landbridge
