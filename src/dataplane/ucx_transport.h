// The data plane's transport over UCX active messages: one worker, one progress thread, an endpoint per peer.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "dataplane/transport.h"
#include "dataplane/ucx_data_plane.h"
#include "ucp/api/ucp.h"

namespace landbridge::dataplane {

// Thread-safety: see Transport. UCX itself is called by the progress thread only, but for ucp_worker_signal.
class UcxTransport final : public Transport {
 public:
  static absl::StatusOr<std::unique_ptr<Transport>> Make(const UcxOptions& options);
  ~UcxTransport() override;

  std::string address() const override { return address_; }
  absl::Status Start(TransportEvents* events) override;
  void Stop() override;
  void Wake() override;
  absl::Status Connect(PeerId peer, const std::string& address) override;
  void Close(PeerId peer) override;
  void Send(PeerId peer, const Message& message, std::string text) override;
  void SendData(SendChunk send) override;
  void Receive(const StartReceive& receive) override;
  void Reject(OfferId offer) override;

 private:
  struct Connection {
    UcxTransport* transport = nullptr;
    PeerId peer;
    ucp_ep_h endpoint = nullptr;
    bool broken = false;
    uint64_t sends = 0;  // that UCX has not ended
  };
  // Alive until UCX reports the end of the operation: header, payload and ids.
  struct SendRecord {
    UcxTransport* transport = nullptr;
    PeerId peer;
    MessageHeader header;
    std::string text;
    Chunk chunk;
    ServeId serve;  // not valid: a message that nobody waits for, or its end was reported already
    std::shared_ptr<Connection> connection;
  };
  struct ReceiveRecord {
    UcxTransport* transport = nullptr;
    PeerId peer;
    ReceiveId receive;
    uint64_t size = 0;
  };
  struct Broken {
    PeerId peer;
    Connection* connection;  // compared only
    ucs_status_t status;
  };

  UcxTransport() = default;
  void Loop();
  bool Progress();  // one round: true if something happened
  void ForceClose(std::shared_ptr<Connection> connection);
  void Park(std::shared_ptr<Connection> connection);
  int PollTimeout(bool armed) const;  // milliseconds
  void HandleBroken();
  void Post(SendRecord* record, const void* data, size_t size, uint32_t flags);
  void SendEnded(SendRecord* record, ucs_status_t status);
  void ReceiveEnded(ReceiveRecord* record, ucs_status_t status);

  static ucs_status_t OnActiveMessage(void* self, const void* header, size_t header_length, void* data,
                                      size_t length, const ucp_am_recv_param_t* param);
  static void OnSendCompleted(void* request, ucs_status_t status, void* record);
  static void OnReceiveCompleted(void* request, ucs_status_t status, size_t length, void* record);
  static void OnCloseCompleted(void* request, ucs_status_t status, void* connection);
  static void OnEndpointError(void* connection, ucp_ep_h endpoint, ucs_status_t status);

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::string address_;
  DurationNs spin_ = 0;
  TransportEvents* events_ = nullptr;
  std::thread thread_;
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  bool stopped_ = false;
  bool leak_ = false;

  // Progress thread.
  absl::flat_hash_map<PeerId, std::shared_ptr<Connection>> connections_;
  absl::flat_hash_map<Connection*, std::shared_ptr<Connection>> closing_;
  // Closed for everybody else, but UCX is in the middle of sending over TCP: see Close.
  absl::flat_hash_map<Connection*, std::shared_ptr<Connection>> parked_;
  absl::flat_hash_set<SendRecord*> sends_;
  std::vector<Connection*> idle_parked_;
  absl::flat_hash_map<OfferId, void*> offers_;
  std::vector<Broken> broken_;
  uint64_t next_offer_ = 1;
  uint64_t operations_ = 0;  // sends and receives that UCX has not ended
};

}  // namespace landbridge::dataplane
