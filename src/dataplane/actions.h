// What the data plane's state machines ask their shell to do. Values; executed in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "base/ids.h"
#include "dataplane/data_plane.h"
#include "dataplane/wire.h"

namespace landbridge::dataplane {

LANDBRIDGE_DEFINE_ID(OfferId, "offer", uint64_t);      // a chunk that a peer holds ready for us
LANDBRIDGE_DEFINE_ID(ReceiveId, "receive", uint64_t);  // a chunk that is landing
LANDBRIDGE_DEFINE_ID(ServeId, "serve", uint64_t);      // a request that we serve

struct SendMessage {
  PeerId peer;
  Message message;
  std::string text;
};
// Answered by ServeCore::OnSent(serve).
struct SendChunk {
  PeerId peer;
  Message message;
  Chunk chunk;
  ServeId serve;
  bool small = false;  // may travel inside the message; else the receiver fetches it
};
// Answered by PullCore::OnLanded(receive).
struct StartReceive {
  PeerId peer;
  OfferId offer;
  ReceiveId receive;
  void* dst = nullptr;
  uint64_t size = 0;
};
struct RejectOffer {
  OfferId offer;
};
// Still answered by OnLanded, soon.
struct AbandonReceive {
  PeerId peer;
  ReceiveId receive;
};
// Answered by ServeCore::OnReadDone(serve).
struct StartRead {
  std::shared_ptr<Source> source;
  uint64_t offset = 0;
  uint64_t size = 0;
  ServeId serve;
};
struct FinishPull {
  std::function<void(absl::Status)> done;
  absl::Status status;
};
struct RunQuiescent {
  std::function<void()> quiescent;
};

struct TellListener {
  std::shared_ptr<const PushListener> listener;
  PeerId peer;
  absl::Status why;
};

using Action = std::variant<SendMessage, SendChunk, StartReceive, RejectOffer, AbandonReceive, StartRead, FinishPull,
                            RunQuiescent, TellListener>;
using Actions = std::vector<Action>;

}  // namespace landbridge::dataplane
