// What moves the data plane's messages and chunks: sockets, or memcpy inside one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/time.h"
#include "dataplane/actions.h"

namespace landbridge::dataplane {

// Implemented by TransferPlane. Called by the transport on its progress thread only.
class TransportEvents {
 public:
  virtual ~TransportEvents() = default;
  // A message with its payload inside; the payload is valid during the call.
  virtual void OnMessage(const Message& message, absl::Span<const std::byte> payload) = 0;
  // A chunk that stays with the peer until Receive or Reject. False: not wanted, the transport rejects it itself.
  virtual bool OnOffer(const Message& message, uint64_t length, OfferId offer) = 0;
  virtual void OnLanded(ReceiveId receive, PeerId peer, uint64_t bytes, const absl::Status& status) = 0;
  virtual void OnSent(ServeId serve, PeerId peer, uint64_t bytes, const absl::Status& status) = 0;
  // The connection broke by itself, or the peer closed it. What was under way ends when Close is called, by the shell or
  // else by the transport afterwards. Also for a peer that only we never connected to.
  virtual void OnBroken(PeerId peer, const absl::Status& status) = 0;
  virtual void OnMalformed() = 0;
  // False: the peer was given up, its connections are refused.
  virtual bool Admits(PeerId peer) = 0;
  // Runs what other threads asked for and what the events above led to. To be called after events and wake-ups.
  // True: did something.
  virtual bool RunPending() = 0;
  // Any thread: is there something for RunPending?
  virtual bool HasPending() = 0;
  // When RunPending should run next though nothing happens; 0: no need.
  virtual TimeNs NextDeadline() = 0;
};

// Thread-safety: Wake and SendNow from any thread; address, Start and Stop by the owner; the rest on the progress thread,
// from within TransportEvents::RunPending, and events may come back from inside.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string address() const = 0;
  // INVALID_ARGUMENT: not an address of this transport's kind. Any thread.
  virtual absl::Status CheckAddress(absl::string_view address) const = 0;
  virtual absl::Status Start(TransportEvents* events) = 0;
  // Closes what is open, ends the progress thread. Blocks. Events are not called afterwards.
  virtual void Stop() = 0;
  virtual void Wake() = 0;

  virtual absl::Status Connect(PeerId peer, const std::string& address) = 0;
  // Force-closes: sends and receives with the peer end by OnSent and OnLanded, now or soon, and after OnLanded
  // no byte lands; the peer's end breaks. Fine when not connected.
  virtual void Close(PeerId peer) = 0;
  virtual void Send(PeerId peer, const Message& message, std::string text) = 0;
  // Any thread: the same, from the caller's own. False: not connected, or not able to; nothing was sent.
  virtual bool SendNow(PeerId peer, const Message& message, absl::Span<const std::byte> payload) = 0;
  virtual void SendData(SendChunk send) = 0;
  virtual void Receive(const StartReceive& receive) = 0;
  virtual void Reject(OfferId offer) = 0;
  // The receive is not wanted any more: ends soon by OnLanded, with whatever status, even when the peer is stuck.
  virtual void Abandon(PeerId peer, ReceiveId receive) = 0;
};

}  // namespace landbridge::dataplane
