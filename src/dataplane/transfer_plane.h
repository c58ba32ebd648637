// The thin shell around the state machines: commands in, actions out, over any transport.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "dataplane/data_plane.h"
#include "dataplane/pull_core.h"
#include "dataplane/push_core.h"
#include "dataplane/serve_core.h"
#include "dataplane/transport.h"

namespace landbridge::dataplane {

// Thread-safety: the DataPlane part from any thread; the TransportEvents part on the progress thread, which
// alone owns the cores.
class TransferPlane final : public DataPlane, private TransportEvents {
 public:
  // Starts the transport.
  static absl::StatusOr<std::unique_ptr<DataPlane>> Make(DataPlaneOptions options,
                                                         std::unique_ptr<Transport> transport);
  ~TransferPlane() override;

  PeerId self() const override { return options_.self; }
  std::string address() const override { return transport_->address(); }
  absl::Status AddPeer(PeerId peer, absl::string_view address) override;
  void ClosePeer(PeerId peer, absl::Status why) override;
  void Publish(Key key, std::shared_ptr<Source> source, PublishOptions options) override;
  void Unpublish(Key key, absl::Status why, std::function<void()> quiescent) override;
  void CloseSpace(uint64_t space, absl::Status why, std::function<void()> quiescent) override;
  PullId Pull(PeerId peer, Key key, uint64_t offset, void* dst, uint64_t size,
              std::function<void(absl::Status)> done) override;
  void Cancel(PullId pull, absl::Status why) override;
  void Listen(uint64_t space, std::vector<PeerId> peers, PushListener listener) override;
  void Unlisten(uint64_t space) override;
  bool Push(PeerId peer, Key key, Chunk value, std::function<void()> gone) override;
  DataPlaneStats Stats() const override;
  void Shutdown() override;

 private:
  using Command = std::function<void()>;

  // Commands from other threads. Outlives the plane: a source may answer after Shutdown, into nothing.
  struct Mailbox {
    absl::Mutex mutex;
    std::vector<Command> commands ABSL_GUARDED_BY(mutex);
    Transport* transport ABSL_GUARDED_BY(mutex) = nullptr;  // null: closed
    std::atomic<bool> pending = false;
    // False when closed.
    bool Post(Command command);
  };
  struct Counters {
    std::atomic<uint64_t> sent{0};
    std::atomic<uint64_t> received{0};
  };
  struct Peer {  // progress thread
    std::string address;
    bool connected = false;
    std::shared_ptr<Counters> counters;
  };
  // A pull whose connection broke.
  struct Limbo {
    TimeNs until = 0;
    PeerId peer;
    std::function<void(absl::Status)> done;
    absl::Status status;
  };
  struct PeerRecord {  // any thread
    bool closed = false;
    absl::Status why;  // closed
    std::shared_ptr<Counters> counters;
  };

  TransferPlane(DataPlaneOptions options, std::unique_ptr<Transport> transport);

  void OnMessage(const Message& message, absl::Span<const std::byte> payload) override;
  bool OnOffer(const Message& message, uint64_t length, OfferId offer) override;
  void OnLanded(ReceiveId receive, PeerId peer, uint64_t bytes, const absl::Status& status) override;
  void OnSent(ServeId serve, PeerId peer, uint64_t bytes, const absl::Status& status) override;
  void OnBroken(PeerId peer, const absl::Status& status) override;
  void OnMalformed() override { Count(dropped_); }
  bool Admits(PeerId peer) override;
  bool RunPending() override;
  bool HasPending() override;
  TimeNs NextDeadline() override { return limbo_.empty() ? 0 : limbo_.front().until; }

  enum class Verdict { kAccept, kHold, kDrop };
  Verdict Judge(const Message& message) const;
  void HandleRequest(const Message& message);
  void HandleHeld(const Message& message);
  bool Connected(PeerId peer);  // connects if needed
  void PeerDown(PeerId peer, const absl::Status& why);
  void RefuseListen(PeerId peer);
  void GiveUp(PeerId peer, const absl::Status& why);
  void Finish(PeerId peer, std::function<void(absl::Status)> done, const absl::Status& status);
  bool EndLimbo();
  bool DrainActions();
  void Execute(SendMessage action);
  void Execute(SendChunk action);
  void Execute(const StartReceive& action);
  void Execute(const RejectOffer& action);
  void Execute(const AbandonReceive& action);
  void Execute(StartRead action);
  void Execute(FinishPull action);
  void Execute(RunQuiescent action);
  void Execute(const TellListener& action);
  // Any thread: at once what can be sent at once, the rest on the progress thread.
  void ExecuteSoon(Actions actions);
  // Progress thread.
  void TellPushes(absl::FunctionRef<void(PushCore&)> event);
  void OnPush(const Message& message, absl::Span<const std::byte> payload);
  void HandleListen(const Message& message);
  void CountSent(PeerId peer, uint64_t bytes);  // any thread
  void FinishShutdownIfDrained();
  void PublishGauges();
  static void Count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
    counter.fetch_add(by, std::memory_order_relaxed);
  }

  const DataPlaneOptions options_;
  std::unique_ptr<Transport> transport_;
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::atomic<uint64_t> next_pull_{1};

  // Progress thread.
  PullCore pulls_;
  ServeCore serves_;
  Actions push_actions_;
  absl::flat_hash_map<PeerId, Peer> peers_;
  absl::flat_hash_map<PeerId, std::deque<Message>> held_;  // requests of peers that nobody introduced yet
  size_t held_count_ = 0;
  std::deque<Limbo> limbo_;  // all wait equally long
  bool shutting_down_ = false;
  bool shutdown_finished_ = false;

  mutable absl::Mutex pushes_mutex_;
  PushCore pushes_ ABSL_GUARDED_BY(pushes_mutex_);

  mutable absl::Mutex peers_mutex_;
  absl::flat_hash_map<PeerId, PeerRecord> records_ ABSL_GUARDED_BY(peers_mutex_);
  std::deque<PeerId> closed_order_ ABSL_GUARDED_BY(peers_mutex_);
  size_t open_peers_ ABSL_GUARDED_BY(peers_mutex_) = 0;

  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
  absl::Notification drained_;

  std::atomic<uint64_t> bytes_sent_{0}, bytes_received_{0}, dropped_{0};
  std::atomic<uint64_t> gauge_pulls_{0}, gauge_quarantined_{0}, gauge_waiting_{0}, gauge_sends_{0}, gauge_keys_{0};
};

}  // namespace landbridge::dataplane
