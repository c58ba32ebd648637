// The data plane's transport over streams: messages on one, bulk on another, chunks of peers on this host read
// straight from their memory.
//
//   source                                             receiver
//     kMessage (small data inside) ---------------------->
//     kOffer {cookie, address} -------------------------->   held until the receiver's window has room
//                                                            direct: reads the source's memory, then
//     <-------------------------------------- kFetched
//                                                            else:
//     <---------------------------------------- kFetch
//     bulk stream {cookie, size} bytes ------------------>   received straight into the destination
//
// Every byte that lands is put there by a call of this thread, so nothing lands once Close has returned; what the
// source sends is copied by the kernel or read while its streams are open, so its memory is free once Close has.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "dataplane/socket_host.h"
#include "dataplane/transport.h"

namespace landbridge::dataplane {

// Thread-safety: see Transport; the progress thread is the host's.
class SocketTransport final : public Transport {
 public:
  SocketTransport(std::shared_ptr<SocketHost> host, PeerId self, const Token& token)
      : host_(std::move(host)), self_(self), token_(token) {}
  ~SocketTransport() override { Stop(); }

  std::string address() const override { return host_->address(); }
  absl::Status CheckAddress(absl::string_view address) const override;
  absl::Status Start(TransportEvents* events) override;
  void Stop() override;
  void Wake() override { host_->Wake(); }
  absl::Status Connect(PeerId peer, const std::string& address) override;
  void Close(PeerId peer) override;
  void Send(PeerId peer, const Message& message, std::string text) override;
  bool SendNow(PeerId peer, const Message& message, absl::Span<const std::byte> payload) override;
  void SendData(SendChunk send) override;
  void Receive(const StartReceive& receive) override;
  void Reject(OfferId offer) override;
  void Abandon(PeerId peer, ReceiveId receive) override;

  // --- From the host.
  const Token& token() const { return token_; }
  bool HasPending() { return events_->HasPending() || has_kicked_.load(); }
  TimeNs NextDeadline() { return events_->NextDeadline(); }
  bool Turn();  // true: did something, ask again
  Verdict OnHello(Stream& stream, const Hello& hello, pid_t pid);
  void OnUp(Stream& stream);
  void OnReadable(Stream& stream);
  void OnWritable(Stream& stream);
  void OnStreamEnd(Stream& stream, const absl::Status& why);

 private:
  struct OutFrame {
    std::string bytes;
    size_t sent = 0;
    ServeId serve;  // valid: its end is reported
    uint64_t data_bytes = 0;

    uint64_t memory() const { return sizeof(OutFrame) + bytes.capacity(); }
  };
  // What leaves over a link's messages stream. Other threads send, too, when nothing waits here; what waits is the
  // host's thread's to flush: it was queued there, waits for room in the socket, or its sender has kicked.
  struct Outbox {
    absl::Mutex mutex;
    int fd ABSL_GUARDED_BY(mutex) = -1;  // -1: not up, or not any more
    std::deque<OutFrame> frames ABSL_GUARDED_BY(mutex);
    uint64_t frames_bytes ABSL_GUARDED_BY(mutex) = 0;  // that `frames` take
  };
  struct Landing {  // asked for over the bulk stream
    ReceiveId receive;
    std::byte* dst = nullptr;  // null: abandoned
    uint64_t size = 0;
  };
  struct Link {
    PeerId peer;
    uint64_t number = 0;     // of our streams, in hellos
    uint64_t in_number = 0;  // of theirs
    bool broken = false;
    bool near = false;  // on this host
    pid_t pid = 0;      // whose memory we may read; 0: we may not
    HostAddress address;
    StreamId out_messages, out_bulk, in_messages, in_bulk;
    const std::shared_ptr<Outbox> outbox = std::make_shared<Outbox>();
    bool dirty = false;            // in dirty_
    std::deque<uint64_t> fetched;  // cookies to be sent over the bulk stream
    uint64_t sending = 0;          // the one that is under way; 0: none
    uint64_t sent = 0;             // of {head, bytes}
    absl::flat_hash_set<uint64_t> sends;
    absl::flat_hash_map<uint64_t, Landing> landing;
    std::array<std::byte, kBulkHeadBytes> head;  // of the chunk that comes in
    size_t head_bytes = 0;
    uint64_t landed = 0;
  };
  struct OutSend {
    PeerId peer;
    ServeId serve;
    Chunk chunk;
    bool asked = false;
  };
  struct Offer {
    PeerId peer;
    uint64_t link = 0;  // that it came over
    uint64_t cookie = 0;
    uint64_t address = 0;
  };
  struct DirectRead {
    PeerId peer;
    uint64_t cookie = 0;
    ReceiveId receive;
    std::byte* dst = nullptr;
    uint64_t size = 0;
    uint64_t address = 0;
    uint64_t done = 0;
  };
  struct Broken {
    PeerId peer;
    uint64_t number = 0;
    absl::Status why;
  };

  Link* Find(PeerId peer);
  Link& FindOrMake(PeerId peer);
  void Break(Link& link, const absl::Status& why);
  bool HandleBroken();
  void BreakNow(PeerId peer, const absl::Status& why);
  void DialBulk(Link& link);
  Hello MakeHello(const Link& link, StreamKind kind) const;

  void Queue(Link& link, OutFrame frame);
  void Queue(Link& link, std::string bytes);
  void MarkDirty(Link& link);
  void Open(Link& link, int fd);  // the messages stream is up
  void Shut(Link& link);          // before its stream is closed
  void Kick(PeerId peer);         // any thread
  bool FlushDirty();
  bool Flush(Link& link);  // true: ended a send
  // What the socket takes. Sends of which all is written go to `ended`.
  static absl::Status Write(Outbox& outbox, int fd, std::vector<OutFrame>& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(outbox.mutex);
  void EndSend(uint64_t cookie, const absl::Status& status);
  void WriteBulk(Link& link, Stream& stream);

  void ReadFrames(Stream& stream);
  bool HandleFrame(Link& link, const Frame& frame);
  void ReadBulk(Stream& stream);
  bool ReadBulkOnce(Link& link, Stream& stream, uint64_t* budget);  // false: enough for now
  bool ReadDirect();                                                // a slice of a chunk
  void FinishDirect(const DirectRead& read, const absl::Status& status);
  void AskForBulk(Link& link, const DirectRead& read);

  const std::shared_ptr<SocketHost> host_;
  const PeerId self_;
  const Token token_;
  TransportEvents* events_ = nullptr;
  bool started_ = false;

  // The host's thread.
  absl::flat_hash_map<PeerId, std::unique_ptr<Link>> links_;
  absl::flat_hash_map<uint64_t, OutSend> sends_;  // by cookie; never re-used
  absl::flat_hash_map<OfferId, Offer> offers_;
  std::deque<DirectRead> small_reads_, bulk_reads_;
  std::vector<Broken> broken_;
  std::vector<PeerId> dirty_;
  absl::Mutex outboxes_mutex_;
  absl::flat_hash_map<PeerId, std::shared_ptr<Outbox>> outboxes_ ABSL_GUARDED_BY(outboxes_mutex_);  // those that are up
  std::vector<PeerId> kicked_ ABSL_GUARDED_BY(outboxes_mutex_);
  std::atomic<bool> has_kicked_{false};

  // The host's thread.
  uint64_t next_cookie_ = 1;
  uint64_t next_offer_ = 1;
};

}  // namespace landbridge::dataplane
