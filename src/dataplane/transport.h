// What moves the data plane's messages and chunks: UCX, or memcpy inside one process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
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
  // The connection broke by itself. The transport keeps it open for rejects until Close.
  virtual void OnBroken(PeerId peer, const absl::Status& status) = 0;
  virtual void OnMalformed() = 0;
  // Runs what other threads asked for and what the events above led to. To be called after events and wake-ups.
  // True: did something.
  virtual bool RunPending() = 0;
  // Any thread: is there something for RunPending?
  virtual bool HasPending() = 0;
};

// Thread-safety: Wake from any thread; address, Start and Stop by the owner; the rest on the progress thread,
// from within TransportEvents::RunPending, and events may come back from inside.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string address() const = 0;
  virtual absl::Status Start(TransportEvents* events) = 0;
  // Closes what is open, ends the progress thread. Blocks. Events are not called afterwards.
  virtual void Stop() = 0;
  virtual void Wake() = 0;

  virtual absl::Status Connect(PeerId peer, const std::string& address) = 0;
  // Force-closes: sends and receives with the peer end by OnSent and OnLanded, now or soon, and after OnLanded
  // no byte lands. Fine when not connected.
  virtual void Close(PeerId peer) = 0;
  virtual void Send(PeerId peer, const Message& message, std::string text) = 0;
  virtual void SendData(SendChunk send) = 0;
  virtual void Receive(const StartReceive& receive) = 0;
  virtual void Reject(OfferId offer) = 0;
};

}  // namespace landbridge::dataplane
