// Small values that are sent before anybody asks: who listens for which space, and what waits until they do.
//
//   receiver                                   source
//     Listen(space) ---- kListen ---------->     from now on what is pushed under the space goes out at once;
//          <------------ kPush {key, bytes}      what was pushed before goes out now
//     Unlisten(space) -- kUnlisten -------->     only to those who sent nothing: the others forget by themselves
//          <------------ kRefuse {space, why}    the source closed the space
//
// So nothing arrives for a space that nobody here has opened, or not any more.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "dataplane/actions.h"
#include "dataplane/push_limits.h"

namespace landbridge::dataplane {

// Thread-safety: none; a pure state machine. Events in, actions out (TakeActions), no clock.
class PushCore {
 public:
  explicit PushCore(PeerId self) : self_(self) {}

  // --- Commands.
  // Once per space.
  void Listen(uint64_t space, absl::Span<const PeerId> peers, PushListener listener);
  // No value is told of any more. What waits for peers still goes to them; when nothing does, the space is forgotten.
  void Unlisten(uint64_t space);
  // True: `message` is filled in, to be sent with the value inside. False: `gone` will run by an action.
  bool Push(PeerId peer, const Key& key, const Chunk& value, std::function<void()> gone, Message* message);
  // Unlisten; and what waits is dropped, and who listens for it, now or later, hears why.
  void CloseSpace(uint64_t space, const absl::Status& why);

  // --- From peers.
  // `admitted`: OK, or what the peer is refused with.
  void OnListen(PeerId peer, const Message& message, const absl::Status& admitted);
  void OnUnlisten(PeerId peer, const Message& message);
  // Whom to tell; null: drop it.
  std::shared_ptr<const PushListener> OnPush(PeerId peer, const Message& message, uint64_t length);
  // A refusal of no pull.
  void OnRefuse(PeerId peer, const Message& message, const absl::Status& why);
  void OnPeerDown(PeerId peer, const absl::Status& why);

  Actions TakeActions() { return std::exchange(actions_, {}); }
  bool HasActions() const { return !actions_.empty(); }

  uint64_t spaces() const { return listening_.size(); }  // that we listen for
  uint64_t waiting() const { return waiting_; }          // values
  uint64_t outlets() const { return outlets_; }          // that peers listen for, or have values waiting

 private:
  struct Heard {
    bool any = false;  // it has sent a value
  };
  struct Listening {
    std::shared_ptr<const PushListener> listener;
    absl::flat_hash_map<PeerId, Heard> peers;
  };
  struct Waiting {
    Key key;
    Chunk value;
    std::function<void()> gone;
  };
  struct Outlet {
    bool listens = false;
    bool over = false;   // it will not listen: values for it are dropped
    bool ended = false;  // Unlisten has come: forgotten when nothing waits
    std::deque<Waiting> waiting;
  };
  using Outlets = absl::flat_hash_map<PeerId, Outlet>;

  Message MakeMessage(MessageType type, PeerId peer, const Key& key) const;
  Outlet& Make(uint64_t space, PeerId peer);
  void Drop(Outlet& outlet);
  void Forget(uint64_t space, PeerId peer);
  void Refuse(PeerId peer, uint64_t space, const absl::Status& why);

  const PeerId self_;
  absl::flat_hash_map<uint64_t, Listening> listening_;
  absl::flat_hash_map<uint64_t, Outlets> sending_;
  absl::flat_hash_map<PeerId, absl::flat_hash_set<uint64_t>> spaces_of_peer_;  // of sending_
  absl::flat_hash_map<uint64_t, absl::Status> closed_;
  std::deque<uint64_t> closed_order_;
  uint64_t waiting_ = 0;
  uint64_t outlets_ = 0;
  Actions actions_;
};

}  // namespace landbridge::dataplane
